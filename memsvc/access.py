"""Items by key: UPDATE, GET and DELETE. Without state."""

from __future__ import annotations

from typing import Any

import numpy as np
from memsvc_proto import wire
from memsvc_proto.errors import NotReady, ProtocolError
from memsvc_proto.wire import Kind, Message
from numpy.typing import NDArray

from .keeping import WhenSafe
from .peer import Peer
from .table import MAX_IN_FLIGHT, Table
from .underway import UnderWay


def update(replay: Any, table: Table, peer: Peer, message: Message, when_safe: WhenSafe) -> None:
    """Applies an UPDATE and answers UPDATED, once that may be told. ProtocolError: the body is not what the header announces."""
    n = message.b
    body = _body(message, 16 * n, "keys and priorities")
    keys, priorities = np.frombuffer(body[: 8 * n], np.uint64), np.frombuffer(body[8 * n :], np.float64)
    applied, stale, refused = replay.update(table.index, keys, priorities)
    refused_bytes = refused.tobytes() if len(refused) else b""
    answer = Message(Kind.UPDATED, message.seq, table.index, a=applied, b=stale, body=refused_bytes)
    when_safe(lambda: peer.send(answer))


def get(replay: Any, table: Table, underway: UnderWay, peer: Peer, message: Message) -> None:
    """Answers a GET with ITEMS. ProtocolError: too many keys; NotReady: the peer has not read what was sent before, or others have not."""
    keys = _keys(message)
    flying = peer.in_flight()
    if flying >= MAX_IN_FLIGHT:
        raise NotReady(
            f"{flying} batches of this client are on their way, the most is {MAX_IN_FLIGHT}: read them, then get items by key",
            reason="unread",
            have=flying,
            need=MAX_IN_FLIGHT,
        )
    frame = underway.frame(peer, table.frame_bytes(len(keys)) if len(keys) else wire.HEADER_BYTES)
    if frame is None:
        held, most = underway.bytes, underway.most
        raise NotReady(
            f"{held:,} bytes of batches are on their way to clients that have not read them, {most:,} is the most: ask later, or for fewer",
            reason="sending",
            have=held,
            need=most,
        )
    found, population, total = replay.get(table.index, keys, frame, wire.HEADER_BYTES)
    # Columns stand as for a batch of those found, so what was kept free for the others is behind them.
    used = wire.HEADER_BYTES + (int(table.spec.layout(found)[0]) if found else 0)
    frame = frame[:used]
    body = frame.data[wire.HEADER_BYTES :]
    peer.send(Message(Kind.ITEMS, message.seq, table.index, found, population, total, body=body), frame)


def delete(replay: Any, table: Table, peer: Peer, message: Message, when_safe: WhenSafe) -> None:
    """Deletes items and answers UPDATED, once that may be told. ProtocolError: too many keys."""
    deleted, absent = replay.delete(table.index, _keys(message))
    answer = Message(Kind.UPDATED, message.seq, table.index, a=deleted, b=absent)
    when_safe(lambda: peer.send(answer))


def _keys(message: Message) -> NDArray[np.uint64]:
    if message.b > wire.MAX_KEYS:
        raise ProtocolError(f"{message.kind.name} takes at most {wire.MAX_KEYS:,} keys, got {message.b:,}: ask in parts")
    return np.frombuffer(_body(message, 8 * message.b, "keys"), np.uint64)


def _body(message: Message, size: int, what: str) -> memoryview:
    body = memoryview(message.body).cast("B")
    if body.nbytes != size:
        raise ProtocolError(f"{message.kind.name} announces {message.b} {what}, {size} bytes, and carries {body.nbytes}")
    return body
