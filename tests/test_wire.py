"""The wire: golden frames, and a parser that answers anything but a frame with ProtocolError.

The golden files are made anew by `python tests/test_wire.py`, which is only right together with another wire.VERSION.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from memsvc_proto import wire
from memsvc_proto.errors import ConfigError, MemsvcError, NotReady, ProtocolError, ServerError, TimedOut, from_code
from memsvc_proto.wire import Kind, Message

GOLDEN = Path(__file__).parent / "golden"
KEYS = np.array([5 << 36, (5 << 36) + 7], "<u8").tobytes()
PRIORITIES = np.array([0.5, 2.0], "<f8").tobytes()
HELLO = {"role": "actor", "name": "actor-7", "pid": 42, "host": "h", "envs": 2, "versions": {"": 3}, "epoch": "", "topic": "default"}
HELLO |= {"session": "00000000deadbeef", "streams": [9, 10], "first": 17, "fed": 3}
WELCOME = {
    **{"wire": 4, "epoch": "00ff", "schema": [["obs", "<f4", [4]]], "tables": [{"name": "replay"}], "actor": 0, "streams": [9, 10]},
    **{"draw": "tcp://127.0.0.1:2", "params": "tcp://127.0.0.1:3", "beside": "memsvc-00ff", "versions": {}, "resumed": True, "stored": 16},
}
SETTINGS = {"name": "replay", "priority": {"source": "max", "exponent": 0.5}}
# A cache of one table that reports its totals alone: cpp/core/cache.h, CacheHead.
HEAD = (
    struct.pack("<IIQQQQ", 1, 24, 0, 0, 0, 0)  # table, row_stride, rows, items, draws, gone
    + struct.pack("<dQddQQQ", 12.5, 1000, 0.25, 1.0, 3, 1200, 640)  # total, population, min_weight, scale, applied, inserted, steps
    + struct.pack("<dqQQQQQ", 0.6, 4, 7, 12, 2, 0, (1 << 64) - 1)  # exponent, newest, stale, episodes, short_episodes, unsent, allowed
    + bytes(40)
)
FRAMES = {
    Kind.HELLO: Message(Kind.HELLO, 1, meta=HELLO),
    Kind.WELCOME: Message(Kind.WELCOME, 1, meta=WELCOME),
    Kind.PUSH: Message(Kind.PUSH, 2, 1, a=640, b=17, body=HEAD),
    Kind.ACK: Message(Kind.ACK, 2, 1, a=64, b=1, f=17.0, meta={"allowed": 1600, "ahead": 3.5}, body=KEYS),
    Kind.FEEDBACK: Message(Kind.FEEDBACK, 2, 1, a=3, b=2, body=KEYS + PRIORITIES),
    Kind.SHARED: Message(Kind.SHARED),
    Kind.PART: Message(Kind.PART, 5, a=64, b=80, body=b"piece of a frame"),
    Kind.SAMPLE: Message(Kind.SAMPLE, 3, a=256, b=2, f=0.5, meta={"min_version": 7}),
    Kind.BATCH: Message(Kind.BATCH, 3, a=2, b=1000, f=12.5, body=bytes(64) + KEYS),
    Kind.WAIT: Message(Kind.WAIT, 3, meta={"reason": "min_items", "have": 37, "need": 1000}),
    Kind.UPDATE: Message(Kind.UPDATE, 4, b=2, body=KEYS + PRIORITIES),
    Kind.UPDATED: Message(Kind.UPDATED, 4, a=1, b=0, body=KEYS[:8]),
    Kind.PUBLISH: Message(Kind.PUBLISH, 5, meta={"topic": "policy"}, body=b"blob"),
    Kind.PUBLISHED: Message(Kind.PUBLISHED, 5, a=4),
    Kind.FETCH: Message(Kind.FETCH, 6, meta={"topic": "policy"}),
    Kind.PARAMS: Message(Kind.PARAMS, 6, a=4, meta={"topic": "policy"}, body=b"blob"),
    Kind.NOTICE: Message(Kind.NOTICE, a=4, b=4, meta={"topic": "policy"}),
    Kind.STATS: Message(Kind.STATS, 7),
    Kind.ERROR: Message(Kind.ERROR, 2, meta={"code": "protocol", "message": "no", "details": {}}),
    Kind.PING: Message(Kind.PING, 8),
    Kind.PONG: Message(Kind.PONG, 8, meta={"member": True, "stored": 17}),
    Kind.BYE: Message(Kind.BYE, 9),
    Kind.SETTINGS: Message(Kind.SETTINGS, table=1, meta=SETTINGS),
    Kind.TAKEN: Message(Kind.TAKEN, 10, 1, a=3),
    Kind.GET: Message(Kind.GET, 11, 1, b=2, body=KEYS),
    Kind.ITEMS: Message(Kind.ITEMS, 11, 1, a=1, b=1000, f=12.5, body=bytes(64) + KEYS[:8]),
    Kind.DELETE: Message(Kind.DELETE, 12, 1, b=2, body=KEYS),
    Kind.CONFIGURE: Message(Kind.CONFIGURE, 13, 1, meta={"priority.exponent": 0.5}),
    Kind.CONFIGURED: Message(Kind.CONFIGURED, 13, 1, meta=SETTINGS),
}


def parts(message: Message) -> tuple[object, ...]:
    return (message.kind, message.seq, message.table, message.a, message.b, message.f, message.meta, bytes(message.body))


def naive_frame(message: Message) -> bytes:
    """The grammar, written again from the docstring of wire.py."""
    meta = json.dumps(message.meta, separators=(",", ":")).encode() if message.meta else b""
    payload = meta.ljust(-(-len(meta) // 64) * 64, b"\0") + bytes(message.body)
    head = b"MSV1" + struct.pack("<HHQQ", 4, message.kind, message.seq, len(payload))
    head += struct.pack("<QQdIII", message.a, message.b, message.f, message.table, len(meta), 0)
    return head + struct.pack("<I", zlib.crc32(head)) + payload


def test_every_kind_has_a_frame() -> None:
    assert set(FRAMES) == set(Kind)


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
def test_golden(kind: Kind) -> None:
    golden = (GOLDEN / f"{kind.name.lower()}.bin").read_bytes()
    message = FRAMES[kind]
    assert wire.pack(message) == golden == naive_frame(message)
    assert parts(wire.unpack(golden)) == parts(message)
    assert len(golden) % 64 == len(bytes(message.body)) % 64


def test_pack_into_gives_the_same_bytes_without_a_copy() -> None:
    message = FRAMES[Kind.PUSH]
    frame = np.zeros(64 + 192, np.uint8)
    frame[64:] = np.frombuffer(message.body, np.uint8)
    wire.pack_into(message, frame)
    assert frame.tobytes() == wire.pack(message)
    body = np.frombuffer(wire.unpack(frame).body, np.uint8)
    assert np.shares_memory(body, frame)


@pytest.mark.parametrize("kind", [Kind.WELCOME, Kind.PUSH, Kind.UPDATE, Kind.PING], ids=lambda kind: kind.name)
def test_every_truncation_is_refused(kind: Kind) -> None:
    frame = wire.pack(FRAMES[kind])
    for length in range(len(frame)):
        with pytest.raises(ProtocolError):
            wire.unpack(frame[:length])
    with pytest.raises(ProtocolError):
        wire.unpack(frame + b"\0")


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
def test_every_flipped_bit_is_refused_or_lies_in_the_payload(kind: Kind) -> None:
    frame = wire.pack(FRAMES[kind])
    original = wire.unpack(frame)
    for at in range(len(frame)):
        for bit in (1, 0x80):
            flipped = bytearray(frame)
            flipped[at] ^= bit
            try:
                message = wire.unpack(flipped)
            except ProtocolError:
                continue
            # The header is sealed by its checksum; what the payload says is the reader's to check.
            assert at >= wire.HEADER_BYTES
            assert parts(message)[:6] == parts(original)[:6]


def test_what_the_checksum_seals_is_still_checked() -> None:
    def sealed(**changes: int) -> bytes:
        values = {
            "magic": b"MSV1",
            "version": 4,
            "kind": 18,
            "seq": 1,
            "size": 0,
            "a": 0,
            "b": 0,
            "f": 0.0,
            "table": 0,
            "meta": 0,
            "zero": 0,
        } | changes
        head = struct.pack("<4sHHQQQQdIII", *values.values())
        return head + struct.pack("<I", zlib.crc32(head))

    assert wire.unpack(sealed()).kind is Kind.PING
    wrong = [{"version": 1}, {"kind": 0}, {"kind": 999}, {"size": 1}, {"size": (1 << 64) - 1}, {"meta": 1}, {"meta": (1 << 32) - 1}, {"zero": 1}]
    for change in wrong:
        with pytest.raises(ProtocolError):
            wire.unpack(sealed(**change))
    with pytest.raises(ProtocolError, match="wire version 1, this side 4"):
        wire.unpack(sealed(version=1))


@pytest.mark.parametrize("meta", [b"{", b"[1]", b'"x"', b"\xff\xfe", b"null", b"[" * 100_000])
def test_meta_is_a_json_object(meta: bytes) -> None:
    padded = meta.ljust(wire.align(len(meta)), b"\0")
    head = b"MSV1" + struct.pack("<HHQQQQdIII", 4, 1, 1, len(padded), 0, 0, 0.0, 0, len(meta), 0)
    with pytest.raises(ProtocolError):
        wire.unpack(head + struct.pack("<I", zlib.crc32(head)) + padded)


def test_random_bytes_are_refused(rng: np.random.Generator) -> None:
    for _ in range(20_000):
        raw = rng.bytes(int(rng.integers(0, 300)))
        with pytest.raises(ProtocolError):
            wire.unpack(raw)
        with pytest.raises(ProtocolError):
            wire.unpack(b"MSV1\x02\x00" + raw)


def test_random_headers_with_a_right_checksum_give_a_message_or_a_protocol_error(rng: np.random.Generator) -> None:
    understood = 0
    for _ in range(20_000):
        payload = rng.bytes(int(rng.integers(0, 200)))
        kind, meta = int(rng.integers(0, 32)), int(rng.choice([0, 0, 0, 5, 64, 1 << 20]))
        size = len(payload) if rng.random() < 0.9 else int(rng.integers(0, 1 << 62))
        head = b"MSV1" + struct.pack("<HHQQ", 4, kind, int(rng.integers(0, 1 << 62)), size) + rng.bytes(24) + struct.pack("<III", 0, meta, 0)
        try:
            message = wire.unpack(head + struct.pack("<I", zlib.crc32(head)) + payload)
        except ProtocolError:
            continue
        understood += 1
        assert bytes(message.body) == payload
    assert understood > 5_000


def test_errors_cross_the_wire_by_code() -> None:
    def tree(cls: type[MemsvcError]) -> list[type[MemsvcError]]:
        return [cls, *(found for child in cls.__subclasses__() for found in tree(child))]

    classes = tree(MemsvcError)
    assert len({cls.code for cls in classes}) == len(classes)
    for cls in classes:
        error = from_code(cls.code, "why", {"have": 3})
        assert type(error) is cls
        assert (str(error), error.have) == ("why", 3)
    assert type(from_code("of a newer version", "why")) is ServerError
    assert issubclass(NotReady, TimedOut)
    assert issubclass(NotReady, TimeoutError)
    assert issubclass(ConfigError, ValueError)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for one, content in FRAMES.items():
        (GOLDEN / f"{one.name.lower()}.bin").write_bytes(wire.pack(content))
