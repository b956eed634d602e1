"""HELLO and BYE: who comes, who goes, and what is dropped or put back when somebody has left."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from memsvc_proto import wire
from memsvc_proto.wire import Kind, Message

from .hello import Hello, read_hello
from .members import replaced
from .peer import Membership, Peer

if TYPE_CHECKING:
    from .engine import Engine

log = logging.getLogger("memsvc")


class Arrivals:
    """Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def hello(self, peer: Peer, message: Message) -> None:
        """Answers HELLO with WELCOME. ProtocolError: a wrong part; ConfigError: a learner's batch that its table can never give."""
        hello = read_hello(message.meta)
        engine = self._engine
        if hello.table is not None:
            engine.table(hello.table).check_batch(hello.batch)
        engine.parameters.reported(hello.versions)
        member = Membership(hello.role, hello.name, hello.host, hello.pid, hello.topic, hello.table, hello.batch)
        if hello.role == "actor":
            self._actor(peer, member, hello, message.seq)
            return
        with peer.order:
            older = engine.members.enter(peer, member)
            self._welcome(peer, member, message.seq, [])
        for other in older:  # links of the same learner that broke: what it has not confirmed there is drawn again
            self.remove(other)

    def remove(self, peer: Peer) -> bool:
        """The peer is gone: its requests are dropped, its open batches put back; an actor's queue is used up. False when it was gone already."""
        if not self._engine.members.remove(peer):
            return False
        peer.fetches.clear()
        for table in self._engine.tables:
            table.drop(peer)
        self._engine.deliveries.drop(peer)
        return True

    def _actor(self, peer: Peer, member: Membership, hello: Hello, seq: int) -> None:
        engine = self._engine
        with peer.order:
            streams, resumed, namesakes = engine.members.join(peer, member, hello)
            engine.publishing.remind(hello.topic)
            peer.last_push = 0
            peer.told.clear()
            # What is not on disk yet is not told as stored: the actor sends it again, and it is known then.
            stored = engine.keeper.safe(member.stored, hello.first - 1)
            self._welcome(peer, member, seq, streams, {"resumed": resumed, "stored": stored, "has": member.stored})
            member.stored = max(stored, hello.first - 1)
        for table in engine.tables:
            if table.gated:  # an actor inserts nothing before it knows its first allowance
                engine.telling.acknowledge(peer, table.index)
        for other in namesakes:
            same = other.member is not None and other.member.session == member.session != 0
            if not same:
                log.warning("actor %r on %s replaces the one of that name", member.name, member.host)
            engine.refuse(other, 0, replaced(member))

    def _welcome(self, peer: Peer, member: Membership, seq: int, streams: list[int], also: Mapping[str, Any] = MappingProxyType({})) -> None:
        engine = self._engine
        meta = {
            "wire": wire.VERSION,
            "epoch": engine.epoch,
            "schema": [[name, dtype, list(shape)] for name, dtype, shape in engine.config.schema],
            "tables": [table.settings for table in engine.tables],
            "actor": member.actor,
            "streams": streams,
            "versions": engine.parameters.versions(),
            **engine.addresses,
            **also,
            **({"token": peer.token} if peer.token else {}),
        }
        peer.send(Message(Kind.WELCOME, seq, meta=meta))
