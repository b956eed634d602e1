"""Snapshots: everything but the rows, as safetensors files whose parts have checksums; written whole or not at all, and the last two kept."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import files
from .records import Damaged

FORMAT = 1
KEPT = 2
SUFFIX = ".safetensors"
_DTYPES = {"|u1": "U8", "<u2": "U16", "<u4": "U32", "<u8": "U64", "<i8": "I64", "<f8": "F64"}


@dataclass
class Snapshot:
    """`position`: number of the last record that it contains."""

    position: int
    about: dict[str, Any]
    """The configuration it was taken under, and what a reader wants to know."""
    state: bytes
    items: dict[str, dict[str, NDArray[Any]]]
    """Table's name -> Saved.items."""
    rows: NDArray[np.uint64]
    """Saved.row_keys."""


def write(folder: Path, snapshot: Snapshot) -> tuple[Path, int]:
    """Writes it, and returns its path and bytes once it is on disk under that name. OSError: nothing is there."""
    arrays: dict[str, NDArray[Any]] = {"state": np.frombuffer(snapshot.state, np.uint8), "rows": snapshot.rows}
    for name, columns in snapshot.items.items():
        arrays |= {f"items/{name}/{column}": np.ascontiguousarray(array) for column, array in columns.items()}
    crcs = {name: zlib.crc32(array.reshape(-1).view(np.uint8).data) for name, array in arrays.items()}
    about = {"format": FORMAT, "position": snapshot.position, **snapshot.about, "crc": crcs, "tables": list(snapshot.items)}
    header: dict[str, Any] = {}
    at = 0
    for name, array in arrays.items():
        header[name] = {"dtype": _DTYPES[array.dtype.str], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(about)
    header["__metadata__"] = {"memsvc": text, "crc": str(zlib.crc32(text.encode()))}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path = folder / f"{snapshot.position:016d}{SUFFIX}"
    files.write(path, struct.pack("<Q", len(head)) + head, *(array.reshape(-1).view(np.uint8).data for array in arrays.values()))
    return path, len(head) + 8 + at


def read(path: Path) -> Snapshot:
    """Raises Damaged where anything of it does not verify, OSError."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    data = path.read_bytes()
    try:
        arrays = load(data)
        length = struct.unpack_from("<Q", data)[0]
        told = json.loads(data[8 : 8 + length])["__metadata__"]
        if zlib.crc32(told["memsvc"].encode()) != int(told["crc"]):
            raise Damaged("its header fails its checksum")
        about = json.loads(told["memsvc"])
    except (SafetensorError, ValueError, KeyError, TypeError, struct.error, UnicodeDecodeError) as error:
        raise Damaged(f"is no snapshot: {error!s:.120}") from None
    _check(about, arrays)
    items: dict[str, dict[str, NDArray[Any]]] = {name: {} for name in about["tables"]}
    for name, array in arrays.items():
        if name.startswith("items/"):
            table, _, column = name[6:].rpartition("/")
            items[table][column] = array
    return Snapshot(about["position"], about, arrays["state"].tobytes(), items, arrays["rows"])


def _check(about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    if about["format"] != FORMAT:
        raise Damaged(f"is of format {about['format']}, not {FORMAT}")
    if set(arrays) != set(about["crc"]):
        raise Damaged("its parts are not those that it should have")
    for name, crc in about["crc"].items():
        if zlib.crc32(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data) != crc:
            raise Damaged(f"its part {name} fails its checksum")


def there(folder: Path) -> list[Path]:
    """Those in the folder, newest first."""
    return sorted(folder.glob(f"*{SUFFIX}"), reverse=True)
