"""Parameters on the wire: a dictionary of arrays as one safetensors blob, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import safetensors
from memsvc_proto.errors import ProtocolError, SchemaError
from numpy.typing import NDArray

# numpy has no name for these: such an array has one field of that name, so it can be told from plain integers (adapters/torch.py turns it into the
# real type).
BFLOAT16 = np.dtype([("bfloat16", "<u2")])
FLOAT8_E4M3 = np.dtype([("float8_e4m3fn", "u1")])
FLOAT8_E5M2 = np.dtype([("float8_e5m2", "u1")])

_NAMED = {"bfloat16": BFLOAT16, "float8_e4m3fn": FLOAT8_E4M3, "float8_e5m2": FLOAT8_E5M2}
_PLAIN = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "complex64")
_READ: dict[str, np.dtype[Any]] = {
    **{"BOOL": np.dtype(bool), "F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "C64": np.dtype("<c8")},
    **{f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}") for kind in "UI" for size in (1, 2, 4, 8)},
    **{"BF16": BFLOAT16, "F8_E4M3": FLOAT8_E4M3, "F8_E5M2": FLOAT8_E5M2},
}


class Params(NamedTuple):
    """Published parameters. `version` grows by publication and topic; `arrays` maps names to arrays that are the caller's own (writable)."""

    version: int
    arrays: dict[str, NDArray[Any]]


def encode(arrays: Mapping[str, Any]) -> bytes:
    """The safetensors blob of `arrays`: anything that numpy takes without a cast (`__array__`, dlpack, numbers); layout becomes C order, values and
    dtype stay.

    Raises SchemaError, naming the array, for objects, strings, big-endian, complex128 and whatever else the format cannot hold bit for bit.
    """
    if not isinstance(arrays, Mapping):
        raise SchemaError(f"parameters are a dictionary of names and arrays, as in {{'w': array}}, got {type(arrays).__name__}")
    held = {str(name): _array(str(name), value) for name, value in arrays.items()}
    return bytes(safetensors.serialize({name: _spec(dtype, array) for name, (dtype, array) in held.items()}, metadata=None))


def decode(blob: Any) -> dict[str, NDArray[Any]]:
    """The arrays of a blob, each with memory of its own. Raises ProtocolError for what is no safetensors blob."""
    try:
        parts: Any = safetensors.deserialize(bytes(blob))  # type: ignore[no-untyped-call,unused-ignore]
        return {name: _view(part) for name, part in parts}
    except (KeyError, ValueError, safetensors.SafetensorError) as error:
        raise ProtocolError(f"published parameters cannot be read: {error}") from error


def _array(name: str, value: Any) -> tuple[str, NDArray[Any]]:
    try:
        array = np.asarray(value)
    except Exception as error:
        try:
            array = np.from_dlpack(value)
        except Exception:
            raise SchemaError(f"parameter {name!r} ({type(value).__name__}) is no array for numpy: {error}", name=name) from error
    dtype = array.dtype
    kind = dtype.names[0] if dtype.names else dtype.name
    if kind not in _PLAIN and _NAMED.get(kind) is None:
        raise SchemaError(f"parameter {name!r} has dtype {dtype}: expected one of {', '.join((*_PLAIN, *_NAMED))}", name=name, dtype=str(dtype))
    if dtype.names and dtype != _NAMED[kind]:
        raise SchemaError(f"parameter {name!r} has dtype {dtype}: expected {_NAMED[kind]}", name=name, dtype=str(dtype))
    if dtype.byteorder == ">":
        raise SchemaError(
            f"parameter {name!r} is big-endian ({dtype.str}): pass array.astype({dtype.newbyteorder('<').str!r})", name=name, dtype=dtype.str
        )
    # numpy's ascontiguousarray would make a 0-d array 1-d.
    return kind, array if array.flags.c_contiguous else array.copy(order="C")


def _spec(dtype: str, array: NDArray[Any]) -> Any:
    shape = list(array.shape)
    if hasattr(safetensors, "TensorSpec"):
        return safetensors.TensorSpec(dtype=dtype, shape=shape, data_ptr=array.ctypes.data, data_len=array.nbytes)
    # safetensors before 0.8 takes the bytes themselves.
    return {"dtype": dtype, "shape": shape, "data": array.tobytes()}


def _view(part: Mapping[str, Any]) -> NDArray[Any]:
    dtype = _READ[part["dtype"]]
    data = part["data"]
    array: NDArray[Any] = np.frombuffer(data if isinstance(data, bytearray) else bytearray(data), dtype).reshape(part["shape"])
    return array
