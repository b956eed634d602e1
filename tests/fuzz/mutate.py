"""Messages as clients send them, and what a fuzzer makes of them. Deterministic: the same random stream gives the same messages."""

from __future__ import annotations

import json
import pickle
import random
import struct
import zlib
from typing import Any

import numpy as np
from memsvc_core import Memory, Schema, TableSpec
from memsvc_proto import wire
from memsvc_proto.wire import Kind, Message

EDGES = (
    0,
    1,
    2,
    63,
    64,
    255,
    256,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 36,
    1 << 52,
    (1 << 62) + 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
REALS = (0.0, -0.0, -1.0, 1e-320, 1e300, float("inf"), float("-inf"), float("nan"))
HEAD = struct.Struct("<4sHHQQQQdIIII")
PUSH_HEAD_BYTES = 192

DEEP = b"[" * 5000 + b"]" * 5000
METAS = (
    DEEP,
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
    b"{}",
    b"[]",
    b"null",
    b"NaN",
    b'{"role":NaN}',
    b'{"role":"actor"}',
    b'{"role":"actor","name":"fuzz-x","envs":1e400}',
    b'{"role":"actor","name":"fuzz-x","envs":99999999999999999999}',
    b'{"role":"actor","name":"fuzz-x","envs":true}',
    b'{"role":"actor","name":"fuzz-x","envs":4,"streams":[1,2,3],"first":-1}',
    b'{"role":"actor","name":"fuzz-x","envs":1,"session":"%s"}' % (b"f" * 16),
    b'{"role":"learner","name":"fuzz-x","table":0,"batch":9223372036854775807}',
    b'{"role":"learner","name":"fuzz-x","versions":{"default":-5}}',
    b'{"role":"learner","name":"\\ud800","host":"\\u0000"}',
    b'{"topic":{}}',
    b'{"topic":"\\ud800"}',
    b'{"topic":"' + b"x" * 300 + b'"}',
    b'{"min_version":1e99}',
    b'{"min_version":[]}',
    b'{"importance.beta":"x"}',
    b'{"importance.beta":-1}',
    b'{"nothing.here":1}',
    b'{"limits":{"min_items":true}}',
    b"\xff\xfe\x00",
    b'{"' + b"k" * 70000 + b'":0}',
    b'{"x":' + b"9" * 5000 + b"}",
)

_HTTP = b"GET / HTTP/1.1\r\nHost: replay\r\nUser-Agent: curl/8\r\n\r\n"
_WEBSOCKET = (
    b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_TLS = (
    bytes.fromhex("16030100c4010000c00303")
    + bytes(range(32))
    + bytes.fromhex("20")
    + bytes(32)
    + bytes.fromhex("0026c02bc02fc02cc030cca9cca8c013c014")
    + bytes(120)
)
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
_READY = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
FOREIGN = (
    _HTTP,
    _WEBSOCKET,
    _TLS,
    pickle.dumps({"obs": np.zeros(9), "priority": 1.0}),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(40),
    b"*1\r\n$4\r\nPING\r\n",
    b"",
)


def sealed(frame: bytearray) -> bytes:
    """With the crc that its header should have: what is wrong with it gets past that."""
    if len(frame) >= wire.HEADER_BYTES:
        struct.pack_into("<I", frame, 60, zlib.crc32(frame[:60]))
    return bytes(frame)


def raw_bytes(rng: random.Random) -> bytes:
    """What a connection that speaks something else says; or zmq's own greeting, cut or broken anywhere, with or without frames behind it."""
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(FOREIGN)
    if kind == 3:
        return rng.randbytes(rng.randrange(1, 400))
    greeting = bytearray(_GREETING + _READY)
    if kind == 4:
        return bytes(greeting[: rng.randrange(len(greeting))])
    if kind == 5:
        # But for the length of its first command: a shorter one would leave what can be taken for messages.
        greeting[rng.choice([at for at in range(len(greeting)) if at != 65])] ^= 1 << rng.randrange(8)
        return bytes(greeting)
    # Frames that never end: a length of which only the beginning comes.
    length = rng.choice((1 << 63, (1 << 64) - 1, (1 << 36), 1 << 35, 1 << 31, 300))
    return bytes(greeting) + bytes([rng.choice((2, 3, 6, 0xFF))]) + struct.pack(">Q", length) + rng.randbytes(rng.randrange(64))


class Seeds:
    """Real messages of one actor and one learner, made with the client's own memory from what a WELCOME says."""

    def __init__(self, welcome: dict[str, Any], rng: random.Random) -> None:
        schema = Schema([(name, dtype, tuple(shape)) for name, dtype, shape in welcome["schema"]])
        specs = [TableSpec(schema, one) for one in welcome["tables"]]
        memory = Memory(schema, specs, welcome["streams"], rng.randrange(1 << 30))
        wide = welcome["schema"][-1][2][0]
        for i in range(48):
            memory.add(0, {"owner": 0, "id": i, "sum": 0, "wide": np.full(wide, i, np.uint8)}, None, -1)
            if i % 12 == 11:
                memory.end(0, True, None)
        keys = np.array([stream << 36 | i for stream in welcome["streams"] for i in range(24)], np.uint64)
        priorities = np.ones(len(keys))
        self.door: list[Message] = []
        for table in range(len(specs)):
            for _ in range(6):
                payload = memory.draw(table, 8, 1 << 12, 0)
                if payload is not None:
                    self.door.append(Message(Kind.PUSH, table=table, body=payload.tobytes()))
        self.door += [
            Message(Kind.FETCH, meta={"topic": "fuzz"}),
            Message(Kind.PING),
            Message(Kind.STATS),
            Message(Kind.BYE),
            Message(Kind.HELLO, meta={"role": "actor", "name": "fuzz-again", "envs": 1, "versions": {}, "epoch": ""}),
        ]
        self.draw = [
            *(Message(Kind.SAMPLE, table=table, a=4, f=0.01) for table in range(len(specs))),
            Message(Kind.SAMPLE, a=4, f=0.0, b=1, meta={"min_version": 3}),
            Message(Kind.TAKEN, a=1),
            Message(Kind.UPDATE, b=len(keys), body=keys.tobytes() + priorities.tobytes()),
            Message(Kind.UPDATE, table=1, b=len(keys), body=keys.tobytes() + priorities.tobytes()),
            Message(Kind.GET, b=len(keys), body=keys.tobytes()),
            Message(Kind.DELETE, b=4, body=keys[:4].tobytes()),
            Message(Kind.PUBLISH, meta={"topic": "fuzz"}, body=struct.pack("<Q", 2) + b"{}"),
            Message(Kind.CONFIGURE, meta={"importance.beta": 0.4}),
            Message(Kind.HELLO, meta={"role": "learner", "name": "fuzz-learner", "table": 0, "batch": 4, "pid": 1, "host": "h", "versions": {}}),
        ]


def mutated(message: Message, seq: int, rng: random.Random) -> list[bytes]:
    """The frames of one message made from a real one: as it is, or wrong in one of many ways."""
    message.seq = seq
    frame = bytearray(wire.pack(message))
    kind = rng.randrange(16)
    if kind == 0:
        return [bytes(frame)]
    if kind == 1:
        for _ in range(rng.randrange(1, 4)):
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        return [bytes(frame)]
    if kind <= 3 and len(frame) > wire.HEADER_BYTES:
        for _ in range(rng.randrange(1, 8)):
            frame[rng.randrange(wire.HEADER_BYTES, len(frame))] ^= 1 << rng.randrange(8)
        return [sealed(frame)]
    if kind <= 5:
        return [sealed(_other_field(frame, rng))]
    if kind <= 8 and message.kind is Kind.PUSH:
        at = wire.HEADER_BYTES + 8 * rng.randrange(PUSH_HEAD_BYTES // 8)
        wrong = struct.pack("<d", rng.choice(REALS)) if rng.random() < 0.4 else struct.pack("<Q", rng.choice(EDGES))
        frame[at : at + 8] = wrong
        return [sealed(frame)]
    if kind == 9:
        frame = frame[: rng.randrange(len(frame))]
        if len(frame) >= wire.HEADER_BYTES and rng.random() < 0.7:
            struct.pack_into("<Q", frame, 16, len(frame) - wire.HEADER_BYTES)
        return [sealed(frame) if rng.random() < 0.8 else bytes(frame)]
    if kind == 10:
        frame += rng.randbytes(rng.choice((1, 64, 700, 70_000 if rng.random() < 0.05 else 8)))
        if rng.random() < 0.7:
            struct.pack_into("<Q", frame, 16, len(frame) - wire.HEADER_BYTES)
        return [sealed(frame)]
    if kind == 11:  # a client of another version
        struct.pack_into("<H", frame, 4, rng.choice((0, 1, wire.VERSION - 1, wire.VERSION + 1, 0xFFFF)))
        return [sealed(frame)]
    if kind == 12:
        struct.pack_into("<H", frame, 6, rng.randrange(40))
        return [sealed(frame)]
    if kind <= 14:
        meta = (
            rng.choice(METAS)
            if kind == 13
            else json.dumps({**message.meta, rng.choice(("role", "name", "topic", "envs", "table", "x")): rng.choice(EDGES)}).encode()
        )
        body = bytes(wire.align(len(meta)) - len(meta)) + bytes(message.body)
        head = HEAD.pack(
            b"MSV1", wire.VERSION, message.kind, seq, len(meta) + len(body), message.a, message.b, message.f, message.table, len(meta), 0, 0
        )
        return [sealed(bytearray(head + meta + body))]
    return rng.choice(([rng.choice(FOREIGN)], [bytes(frame), b"more"], [b""], [rng.randbytes(rng.randrange(200))]))


def _other_field(frame: bytearray, rng: random.Random) -> bytearray:
    field = rng.randrange(6)
    if field == 4:
        struct.pack_into("<d", frame, 40, rng.choice(REALS))
    elif field == 5:
        struct.pack_into("<I", frame, rng.choice((48, 52, 56)), rng.choice(EDGES) & 0xFFFFFFFF)
    else:
        struct.pack_into("<Q", frame, (8, 16, 24, 32)[field], rng.choice(EDGES))
    return frame
