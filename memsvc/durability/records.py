"""Records of the journal: one Arrow record batch each, of one row, in a stream that pyarrow and numpy alone can read (README.md has the columns)."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from memsvc_proto.wire import align
from numpy.typing import NDArray

FORMAT = 1
_HEAD = struct.Struct("<IIQQQQdQddQQQdqQQQQQQ32x")  # CacheHead of cpp/core/cache.h
_ROWS, _ITEMS, _DRAWS, _GONE, _FLOORS = 2, 3, 4, 5, 20  # places in it
_FIXED = struct.Struct("<QQQI")
ITEM = [["key", "<u8", 0], ["version", "<i8", 8], ["priority", "<f8", 16], ["span", "<u4", 24], ["head", "<u2", 28], ["episode", "<u2", 30]]
DRAW = [["key", "<u8", 0], ["weight", "<f8", 8]]
PARTS = ("head", "row_keys", "rows", "items", "made", "factors", "draws", "gone", "floors")
"""A push payload's parts (cpp/core/cache.h), in its order."""

Part = Any
"""Bytes of one column: anything that gives a contiguous buffer."""


class Damaged(Exception):
    """A record does not verify; the message says what is wrong."""


@dataclass
class Record:
    """One record. `kind`: "join", "leave", "push", "refused", "update", "feedback", "delete", "configure", "publish", "progress", "rows"."""

    kind: str
    actor: int = 0
    number: int = 0
    table: int = 0
    meta: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    """The meta as JSON, where that is at hand already."""
    keys: Part = b""
    priorities: Part = b""
    parts: Mapping[str, Part] = field(default_factory=dict)
    """Those of PARTS that are there."""
    at: int = 0
    """Its number in the journal: from 1, one after the other, over all segments."""

    @property
    def bytes(self) -> int:
        """Roughly what it holds in memory."""
        return 512 + sum(memoryview(part).nbytes for part in (self.keys, self.priorities, *self.parts.values()))

    def part(self, name: str, dtype: Any) -> NDArray[Any]:
        """A part as an array of `dtype`, flat; a view."""
        part = self.parts.get(name, b"")
        return np.frombuffer(part, dtype)


def columns(stride: int) -> list[tuple[str, Any]]:
    """(name, Arrow type) of a journal of rows of `stride` bytes."""
    u64, f64 = pa.list_(pa.uint64()), pa.list_(pa.float64())
    return [
        ("record", pa.uint64()),
        ("kind", pa.string()),
        ("crc", pa.uint32()),
        ("actor", pa.uint64()),
        ("number", pa.uint64()),
        ("table", pa.uint32()),
        ("meta", pa.string()),
        ("keys", u64),
        ("priorities", f64),
        ("head", pa.large_binary()),
        ("row_keys", u64),
        ("rows", pa.list_(pa.binary(stride))),
        ("items", pa.list_(pa.binary(32))),
        ("made", pa.large_binary()),
        ("factors", f64),
        ("draws", pa.list_(pa.binary(16))),
        ("gone", u64),
        ("floors", u64),
    ]


class Form:
    """How the records of one schema are written and read. `tables`: [(name, bytes of an item's computed columns)]. Without state, thread-safe."""

    def __init__(self, fields: Sequence[tuple[str, str, tuple[int, ...]]], stride: int, tables: Sequence[tuple[str, int]]) -> None:
        self.stride = stride
        self.made = [made for _, made in tables]
        about = {
            "format": FORMAT,
            "stride": stride,
            "step": _offsets(fields),
            "tables": [name for name, _ in tables],
            "item": ITEM,
            "draw": DRAW,
        }
        self._types = dict(columns(stride))
        self.schema = pa.schema([pa.field(*one) for one in columns(stride)], metadata={"memsvc": json.dumps(about)})
        self._empty = {name: pa.array([[] if pa.types.is_list(kind) else b""], kind) for name, kind in columns(stride)[7:]}

    def batch(self, record: Record) -> pa.RecordBatch:
        """The record as it is written; large parts are not copied."""
        meta = record.text or (json.dumps(record.meta, separators=(",", ":")) if record.meta else "")
        held = {"keys": record.keys, "priorities": record.priorities, **record.parts}
        arrays = [
            pa.array([record.at], pa.uint64()),
            pa.array([record.kind], pa.string()),
            pa.array([_crc(record, meta, held)], pa.uint32()),
            pa.array([record.actor], pa.uint64()),
            pa.array([record.number], pa.uint64()),
            pa.array([record.table], pa.uint32()),
            pa.array([meta], pa.string()),
        ]
        for name, empty in self._empty.items():
            part = held.get(name, b"")
            arrays.append(_array(self._types[name], part) if memoryview(part).nbytes else empty)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def read(self, batch: pa.RecordBatch) -> Record:
        """The record in a batch of this schema, verified: views. Raises Damaged."""
        try:
            batch.validate(full=True)
            fixed = {name: batch.column(name)[0].as_py() for name in ("record", "kind", "crc", "actor", "number", "table", "meta")}
            parts = {name: _bytes(batch.column(name)) for name in self._empty}
            text = fixed["meta"]
            record = Record(fixed["kind"], fixed["actor"], fixed["number"], fixed["table"], {}, text, at=fixed["record"])
            if _crc(record, text, parts) != fixed["crc"]:
                raise Damaged(f"record {record.at} fails its checksum")
            record.meta = json.loads(text) if text else {}
        except (pa.ArrowException, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise Damaged(f"a record cannot be read: {error!s:.120}") from None
        record.keys, record.priorities, record.parts = parts.pop("keys"), parts.pop("priorities"), parts
        return record

    def number(self, batch: pa.RecordBatch) -> int:
        """The record's number, unverified. Raises Damaged."""
        return int(_one(batch, "record"))

    def rows_of(self, batch: pa.RecordBatch) -> NDArray[np.uint64]:
        """Keys of the rows in a record, unverified, without a look at anything else of it. Raises Damaged."""
        return np.frombuffer(_bytes(_column(batch, "row_keys")), np.uint64)

    def cut(self, table: int, payload: NDArray[np.uint8]) -> dict[str, NDArray[np.uint8]]:
        """The parts of a payload that the core has taken: views of it."""
        return cut(payload, self.stride, self.made[table])


def cut(payload: NDArray[np.uint8], stride: int, made: int) -> dict[str, NDArray[np.uint8]]:
    """The parts of a well-formed payload: views of it. Where it is longer than its other parts, it has factors."""
    head = _HEAD.unpack_from(payload.data)
    rows, items, draws, gone, floors = (head[i] for i in (_ROWS, _ITEMS, _DRAWS, _GONE, _FLOORS))
    sizes = {"head": _HEAD.size, "row_keys": 8 * rows, "rows": stride * rows, "items": 32 * items, "made": made * items, "factors": 0}
    sizes |= {"draws": 16 * draws, "gone": 8 * gone, "floors": 8 * floors}
    if sum(map(align, sizes.values())) != payload.nbytes:
        sizes["factors"] = 8 * items
    found, at = {}, 0
    for name in PARTS:
        found[name] = payload[at : at + sizes[name]]
        at += align(sizes[name])
    return found


def payload_of(record: Record, table: int) -> NDArray[np.uint8]:
    """The payload that a "push" record was made from, for table number `table`; a copy, aligned to 64 bytes."""
    size = sum(align(memoryview(record.parts[name]).nbytes) for name in PARTS)
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    payload = raw[start : start + size]
    at = 0
    for name in PARTS:
        part = record.part(name, np.uint8)
        payload[at : at + part.nbytes] = part
        at += align(part.nbytes)
    payload[:4].view(np.uint32)[0] = table
    return payload


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    try:
        column = batch.column(name)
        column.validate(full=True)
        if len(column) != 1:
            raise Damaged(f"a batch has {len(column)} records, not one")
        return column
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise Damaged(f"a record cannot be read: {error!s:.120}") from None


def _one(batch: pa.RecordBatch, name: str) -> Any:
    value = _column(batch, name)[0].as_py()
    if value is None:
        raise Damaged(f"a record has no {name}")
    return value


def _crc(record: Record, meta: str, held: Mapping[str, Part]) -> int:
    crc = zlib.crc32(_FIXED.pack(record.at, record.actor, record.number, record.table))
    crc = zlib.crc32(meta.encode(), zlib.crc32(record.kind.encode(), crc))
    for name in ("keys", "priorities", *PARTS):
        if (part := held.get(name)) is not None:
            crc = zlib.crc32(part, crc)
    return crc


def _array(kind: Any, part: Part) -> pa.Array:
    size = memoryview(part).nbytes
    buffer = pa.py_buffer(part)
    if not pa.types.is_list(kind):
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(np.array([0, size], np.int64)), buffer])
    inner = kind.value_type
    n = size // (inner.bit_width // 8)
    values = pa.Array.from_buffers(inner, n, [None, buffer])
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(np.array([0, n], np.int32))], children=[values])


def _bytes(column: pa.Array) -> Part:
    # A view of the only row's bytes, wherever they begin in the column's buffers.
    width, base = 1, 0
    wide: Any = np.int64
    buffer = column.buffers()[2] if not pa.types.is_list(column.type) else None
    if buffer is None and pa.types.is_list(column.type):
        values = column.values
        width, wide, buffer = column.type.value_type.bit_width // 8, np.int32, values.buffers()[-1]
        base = values.offset
    first, last = (int(n) for n in np.frombuffer(column.buffers()[1], wide)[column.offset : column.offset + 2])
    if last <= first or buffer is None:
        return b""
    return memoryview(buffer)[(base + first) * width : (base + last) * width]


def _offsets(fields: Sequence[tuple[str, str, tuple[int, ...]]]) -> list[list[Any]]:
    placed, at = [], 0
    for name, dtype, shape in fields:
        placed.append([name, dtype, list(shape), at])
        at += np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
    return placed
