"""The data plane's grammar: one header, one contiguous payload, one frame.

    frame   := header payload
    header  := magic "MSV1"  version u16  kind u16  seq u64  size u64  a u64  b u64  f f64  table u32  meta u32  zero u32  crc u32
    payload := meta bytes of JSON, zero padded to a multiple of 64, then the body; `size` bytes in all
    crc     := crc32 of the header's first 60 bytes;  everything little endian;  the header is 64 bytes, so the body is aligned where the frame is

A seq is the sender's own, from 1; an answer repeats the seq of what it answers. What a, b, f, table, meta and body are, by kind:

    door, actor or learner -> server
      HELLO     meta {role "actor" | "learner" | "viewer", name, pid, host, envs, versions {topic: newest seen}, epoch of the last server or ""};
                an actor adds {topic}, whose newest version its items' staleness is judged by, and {session: 16 hex digits of this client object,
                streams: those it has, [] at first, first: number of its oldest push without an acknowledgement, fed: number of the newest
                FEEDBACK it has had}; a learner on the draw link adds {table, batch}: the number of its table and the size of its batches
      PUSH      table; body: a cache (cpp/core/cache.h); a = steps added so far; b = number of this push, from 1 in a session, over all tables.
                Sent again it has the same seq, number and body
      FETCH     meta {topic}; asks for the newest parameters
      BYE       the client leaves; the server answers BYE, to an actor with meta {stored} as PONG's, once what it has pushed is stored
      PING      the server answers PONG with the same seq and meta {member: whether it knows this client (else: say HELLO again), stored: of an
                actor: number of the newest push that it has taken, which is no acknowledgement: what was sent before the PING and is above was lost;
                waits: why nothing is acknowledged now, where that is so}
      STATS     asks for STATS
      CONFIGURE as at the draw link
    door, server -> client
      WELCOME   meta {wire, epoch, schema [[name, dtype, shape]], tables [settings], actor, streams [id], draw, params (addresses),
                beside (name of the socket for shared memory, "": none), versions {topic: newest}}, and token where the server has keys: what the
                requests at that socket have to tell; to an actor also {resumed: its session is known,
                so all that it was told holds, stored: number of the newest push of it that
                is stored for good, has: of the newest that this server has at all: what was acknowledged beyond that is gone}
      ACK       answers PUSH, or unasked with the seq of the last PUSH seen; f = number of the newest push that is stored for good, as are all before
                it; table; a = draws wanted beyond those queued at the server, or, where
                capacity.when_full is "block", items that may be sent beyond those of that PUSH; b = number of missing keys; body: u64[b] missing
                keys, then u64 evicted keys; with a rate limiter (DEFINITIONS 9) meta {allowed: items that this actor may have inserted in all,
                ahead: items by which all actors are ahead of the learners}
      FEEDBACK  table; a = number of this feedback; b = n; body: u64[n] keys, f64[n] raw priorities
      SETTINGS  table; meta: its normalised settings, which were changed while it runs
      PARAMS    meta {topic}; a = version (0: none yet); body: a safetensors blob
      STATS     meta: the statistics
      CONFIGURED as at the draw link
      SHARED    the last message by the socket while shared memory (memsvc/beside.py) stands, but for those that it announces: said by the client when
                it has handed the memory over, and then by the server; the same at the draw link
      PART      either way, at the draw link too: body: a piece of the frame of a larger message of that seq; a = where it begins in that frame, b =
                bytes of the frame (parts.py)
      ERROR     meta {code, message, details}; answers the message of that seq (0: none); details {hello: true}: say HELLO again. To a PUSH: code
                "gap", details {expected}: the number to go on from; "server": it may be sent again; any other: it is refused for good
    draw, learner -> server
      SAMPLE    table; a = batch size; f = seconds that the server may keep it waiting before it answers WAIT; b = 1 + the slot of shared memory in
                which the batch is wanted, 0: in the answer; meta {min_version} where only items of at least that version count
      TAKEN     table; a = seq of the SAMPLE whose batch the caller has now (b = 1: has let go, it is put back); no answer. Only for tables
                with limits.max_times_sampled or limits.samples_per_insert: what was not TAKEN when the learner leaves is put back
      UPDATE    table; b = n; body: u64[n] keys, f64[n] raw priorities
      GET       table; b = n, at most 65,536; body: u64[n] keys
      DELETE    table; b = n, at most 65,536; body: u64[n] keys
      CONFIGURE table; meta {path inside the table, as in "priority.exponent": value}
      PUBLISH   meta {topic, once: the sender's mark of this publication, the same if it is said again, or ""}; body: a safetensors blob
      HELLO, BYE, PING, STATS as at the door
    draw, server -> learner
      BATCH     table; a = batch size, b = N, f = W; body: the columns, each at a multiple of 64 (TableSpec.layout); no body: they are in the slot
      WAIT      meta {reason, have, need}: the SAMPLE of that seq was not served in its time, and is dropped. What is had and needed, by reason:
                "min_items", "stock", "empty", "few" items or draws; "unread" batches; "sending" bytes of all learners' batches on their way;
                "limiter" items inserted in all; "stale" the version of the youngest item; "version" the same, for min_version; "short" episodes
                that have ended, and steps that an item needs
      UPDATED   answers UPDATE: a = applied, b = stale; body: u64 refused keys. Answers DELETE: a = deleted, b = not there
      ITEMS     answers GET: a = items found, b = N, f = W; body: the columns (TableSpec.layout of a), in the order asked
      CONFIGURED answers CONFIGURE: table; meta: the table's normalised settings
      SETTINGS  as at the door
      PUBLISHED a = version
    params (XPUB) -> subscribers: two frames, topic and a NOTICE frame: meta {topic}; a = version, b = bytes of the blob
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from .errors import ProtocolError

VERSION = 4
ALIGN = 64
HEADER_BYTES = 64
MAX_MESSAGE_BYTES = 1 << 36  # no length beyond this is believed
MAX_META_BYTES = 1 << 24
MAX_KEYS = 1 << 16  # of one GET or DELETE

_MAGIC = b"MSV1"
_HEADER = struct.Struct("<4sHHQQQQdIIII")


class Kind(IntEnum):
    """What a message says; the module's docstring gives each one's parts."""

    HELLO = 1
    WELCOME = 2
    PUSH = 3
    ACK = 4
    FEEDBACK = 5
    SAMPLE = 6
    BATCH = 7
    WAIT = 8
    UPDATE = 9
    UPDATED = 10
    PUBLISH = 11
    PUBLISHED = 12
    FETCH = 13
    PARAMS = 14
    NOTICE = 15
    STATS = 16
    ERROR = 17
    PING = 18
    PONG = 19
    BYE = 20
    SETTINGS = 21
    TAKEN = 22
    GET = 23
    ITEMS = 24
    DELETE = 25
    CONFIGURE = 26
    CONFIGURED = 27
    SHARED = 28
    PART = 29


@dataclass(slots=True)
class Message:
    """One message, unpacked. `body` is a view into the received frame, or what is to be sent."""

    kind: Kind
    seq: int = 0
    table: int = 0
    a: int = 0
    b: int = 0
    f: float = 0.0
    meta: dict[str, Any] = field(default_factory=dict)
    body: Any = b""


def align(n: int) -> int:
    """The smallest multiple of 64 that is at least n."""
    return (n + ALIGN - 1) & ~(ALIGN - 1)


def _header(message: Message, size: int, meta: int) -> bytes:
    head = _HEADER.pack(_MAGIC, VERSION, message.kind, message.seq, size, message.a, message.b, message.f, message.table, meta, 0, 0)
    return head[:60] + struct.pack("<I", zlib.crc32(head[:60]))


def pack(message: Message) -> bytes:
    """The frame of `message`; its body is copied. For large bodies see `pack_into`."""
    body = message.body if isinstance(message.body, memoryview) and message.body.format == "B" and message.body.contiguous else bytes(message.body)
    return b"".join((pack_head(message, len(body)), body))


def pack_head(message: Message, body_bytes: int) -> bytes:
    """The beginning of its frame, before a body of so many bytes."""
    meta = json.dumps(message.meta, separators=(",", ":")).encode() if message.meta else b""
    return b"".join((_header(message, align(len(meta)) + body_bytes, len(meta)), meta, bytes(align(len(meta)) - len(meta))))


def pack_into(message: Message, frame: Any) -> None:
    """Writes the header of a message whose body already stands at frame[64:] (a writable buffer of bytes). No meta, no copy."""
    view = memoryview(frame)
    view[:HEADER_BYTES] = _header(message, view.nbytes - HEADER_BYTES, 0)


def unpack(frame: Any) -> Message:
    """Checks every length of a received frame (bytes, memoryview, zmq buffer) and returns the message; its body is a view, not a copy.

    Raises ProtocolError: too short, other magic or wire version, wrong crc, a length that the frame does not have, meta that is no JSON object.
    """
    view = memoryview(frame).cast("B")
    if view.nbytes < HEADER_BYTES:
        raise ProtocolError(f"a frame of {view.nbytes} bytes is shorter than the header's {HEADER_BYTES}")
    head = bytes(view[:HEADER_BYTES])  # once: in shared memory the sender could change it between two looks
    magic, version, kind, seq, size, a, b, f, table, meta_bytes, zero, crc = _HEADER.unpack(head)
    if magic != _MAGIC:
        raise ProtocolError(f"a frame begins with {magic!r}, not {_MAGIC!r}: the peer does not speak memsvc")
    if zlib.crc32(head[:60]) != crc or zero:
        raise ProtocolError("a frame's header fails its checksum")
    if version != VERSION:
        raise ProtocolError(f"the peer speaks wire version {version}, this side {VERSION}: install the same memsvc on both")
    if size != view.nbytes - HEADER_BYTES or size > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a header announces {size} bytes, {view.nbytes - HEADER_BYTES} follow")
    if meta_bytes > MAX_META_BYTES or align(meta_bytes) > size:
        raise ProtocolError(f"a header announces {meta_bytes} bytes of meta in a payload of {size}")
    try:
        known = Kind(kind)
    except ValueError:
        raise ProtocolError(f"message kind {kind} is unknown") from None
    return Message(known, seq, table, a, b, f, _meta(view[HEADER_BYTES : HEADER_BYTES + meta_bytes]), view[HEADER_BYTES + align(meta_bytes) :])


def _meta(raw: memoryview) -> dict[str, Any]:
    if not raw.nbytes:
        return {}
    try:
        meta = json.loads(bytes(raw))
    except (ValueError, RecursionError):
        raise ProtocolError("a message's meta is not JSON") from None
    if not isinstance(meta, dict):
        raise ProtocolError(f"a message's meta is a JSON {type(meta).__name__}, not an object")
    return meta
