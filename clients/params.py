"""Parameters on their way: a dictionary of arrays as one safetensors blob, bit for bit.

blob   := size u64, header, data;  little endian;  size: of the header, which is JSON, here with blanks behind it up to a multiple of 64
header := {name: {"dtype", "shape", "data_offsets": [begin, end] in the data}}
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import safetensors
from memsvc_proto.errors import ProtocolError, SchemaError
from memsvc_proto.parts import WHOLE_BYTES
from memsvc_proto.wire import align
from numpy.typing import NDArray

# numpy has no name for these: such an array has one field of that name, so it can be told from plain integers (adapters/torch.py turns it into the
# real type).
BFLOAT16 = np.dtype([("bfloat16", "<u2")])
FLOAT8_E4M3 = np.dtype([("float8_e4m3fn", "u1")])
FLOAT8_E5M2 = np.dtype([("float8_e5m2", "u1")])

_READ: dict[str, np.dtype[Any]] = {
    **{"BOOL": np.dtype(bool), "F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "C64": np.dtype("<c8")},
    **{f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}") for kind in "UI" for size in (1, 2, 4, 8)},
    **{"BF16": BFLOAT16, "F8_E4M3": FLOAT8_E4M3, "F8_E5M2": FLOAT8_E5M2},
}
_CODES = {dtype: code for code, dtype in _READ.items()}
_LISTED = ", ".join(dtype.names[0] if dtype.names else dtype.name for dtype in _READ.values())
_NAMED = {dtype.names[0]: dtype for dtype in _CODES if dtype.names}
_NO_NAME = "__metadata__"  # safetensors keeps this one for itself


class Params(NamedTuple):
    """Published parameters. `version` grows by publication and topic; `arrays` maps names to arrays that are the caller's own: nobody changes
    them, and what is written to them nobody else sees.

    From a server of the same host large ones are views of memory that all readers share (a page that is written to becomes a copy), and keep it from
    being used again: whoever keeps versions for long copies them (`np.array`).
    """

    version: int
    arrays: dict[str, NDArray[Any]]


class Blob:
    """Parameters that are to be written somewhere, `size` bytes in all. Refers to the arrays: they must not change until then."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        """Takes anything that numpy takes without a cast (`__array__`, dlpack, numbers); layout becomes C order, values and dtype stay.

        Raises SchemaError, naming the array, for objects, strings, big-endian, complex128 and whatever else the format cannot hold bit for bit.
        """
        if not isinstance(arrays, Mapping):
            raise SchemaError(f"parameters are a dictionary of names and arrays, as in {{'w': array}}, got {type(arrays).__name__}")
        held = {str(name): _array(str(name), value) for name, value in arrays.items()}
        # Large elements first: each array then begins at a multiple of its element's size.
        order = sorted(held, key=lambda name: -held[name].dtype.itemsize)
        self._arrays = [held[name] for name in order]
        parts, at = {}, 0
        for name, array in zip(order, self._arrays, strict=True):
            parts[name] = {"dtype": _CODES[array.dtype], "shape": array.shape, "data_offsets": (at, at + array.nbytes)}
            at += array.nbytes
        text = json.dumps(parts, separators=(",", ":")).encode()
        text = text.ljust(align(8 + len(text)) - 8)
        self._head = len(text).to_bytes(8, "little") + text
        self.size = len(self._head) + at

    def write(self, memory: NDArray[np.uint8]) -> None:
        """Writes it at the beginning of `memory`, each array in one copy. Lets go of the GIL meanwhile."""
        at = len(self._head)
        memory[:at] = np.frombuffer(self._head, np.uint8)
        for array in self._arrays:
            memory[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
            at += array.nbytes

    def pieces(self) -> list[memoryview]:
        """Buffers that are it, one after the other: no copy, so the arrays must not change as long as these are used."""
        return [memoryview(self._head), *(memoryview(array.reshape(-1).view(np.uint8)) for array in self._arrays)]  # type: ignore[arg-type]

    def joined(self) -> bytes:
        """It as bytes of its own."""
        return b"".join((self._head, *(array.reshape(-1).view(np.uint8).data for array in self._arrays)))


def check_head(head: bytes, size: int) -> int:
    """Where the data begin in a blob of `size` bytes, by its first nine. Raises ProtocolError for what is no safetensors blob."""
    start = 8 + int.from_bytes(head[:8], "little")
    if len(head) < 9 or start > size or head[8:] != b"{":
        raise ProtocolError(f"{size:,} bytes that begin with {head!r} are no safetensors blob: publish() makes one")
    return start


def decode(blob: Any) -> dict[str, NDArray[Any]]:
    """The arrays of a blob, each with memory of its own; of one that is mapped (segments.py), or so large that it came in parts, views. Raises
    ProtocolError for what is no safetensors blob.
    """
    try:
        if isinstance(blob, mmap.mmap) or (isinstance(blob, memoryview) and blob.nbytes > WHOLE_BYTES and not blob.readonly):
            return _views(blob)
        parts: Any = safetensors.deserialize(bytes(blob))  # type: ignore[no-untyped-call,unused-ignore]
        return {name: _view(part) for name, part in parts}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, safetensors.SafetensorError) as error:
        raise ProtocolError(f"published parameters cannot be read: {error}") from error


def _array(name: str, value: Any) -> NDArray[Any]:
    if name == _NO_NAME:
        raise SchemaError(f"no parameter can be named {name!r}: the format keeps that name for itself", name=name)
    try:
        array = np.asarray(value)
    except Exception as error:
        try:
            array = np.from_dlpack(value)
        except Exception:
            raise SchemaError(f"parameter {name!r} ({type(value).__name__}) is no array for numpy: {error}", name=name) from error
    dtype = array.dtype
    if dtype.byteorder == ">":
        raise SchemaError(
            f"parameter {name!r} is big-endian ({dtype.str}): pass array.astype({dtype.newbyteorder('<').str!r})", name=name, dtype=dtype.str
        )
    if dtype.name in _NAMED:  # the type that TensorFlow and JAX have given numpy
        array = array.view(_NAMED[dtype.name])
    elif dtype not in _CODES:
        raise SchemaError(f"parameter {name!r} has dtype {dtype}: expected one of {_LISTED}", name=name, dtype=str(dtype))
    # numpy's ascontiguousarray would make a 0-d array 1-d.
    return array if array.flags.c_contiguous else array.copy(order="C")


def _view(part: Mapping[str, Any]) -> NDArray[Any]:
    dtype = _READ[part["dtype"]]
    data = part["data"]
    array: NDArray[Any] = np.frombuffer(data if isinstance(data, bytearray) else bytearray(data), dtype).reshape(part["shape"])
    return array


def _views(memory: mmap.mmap | memoryview) -> dict[str, NDArray[Any]]:
    start = check_head(bytes(memory[:9]), len(memory))
    data = np.frombuffer(memory, np.uint8)[start:]
    arrays = {}
    for name, part in json.loads(bytes(memory[8:start])).items():
        if name == _NO_NAME:
            continue
        dtype, shape, (begin, end) = _READ[part["dtype"]], part["shape"], part["data_offsets"]
        if min(begin, *shape, 0) < 0 or end > len(data) or end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"array {name!r:.60} is said to lie where it cannot: {part!r:.200}")
        arrays[name] = data[begin:end].view(dtype).reshape(shape)
    return arrays
