"""What the server does with each message, without sockets: the one place where the wire's kinds get their meaning.

Carriers (router.py, local.py) give each message of a peer to `Engine.handle` and call `Engine.tick` every few milliseconds.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from memsvc_proto import wire
from memsvc_proto.errors import MemsvcError, ProtocolError, ServerError, UnknownTable, UsedAfterFork
from memsvc_proto.wire import Kind, Message

from .config import Config
from .hello import read_hello
from .members import Members, replaced
from .parameters import Parameters, checked_topic
from .peer import Membership, Peer
from .pool import Pool
from .table import MAX_IN_FLIGHT, Table

log = logging.getLogger("memsvc")

TICK_S = 0.02
"""How often carriers call `tick`: the longest that learners' priorities and demand wait for their way to an actor."""
PROBE_S = 1.0
"""A silent actor is sent an ACK this often, which finds out whether its connection still exists."""
RETELL_S = 0.1
"""A hungry actor that does not push is told again after this time."""
POOL_BYTES = 256 << 20
_STREAM_BITS = 28

Notice = Callable[[str, int, int], None]
"""(topic, version, bytes of the blob): called after each publication, from any thread; must not block."""


class Engine:
    """Owns the replay memory, the peers, the parameters and the waiting requests. Thread-safe; handle() is called from many threads.

    No lock is held over a core call except a table's `serving` and a peer's `order`, and none is held that another peer's push or draw needs.
    """

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes and touches the memory. Raises ConfigError where it cannot."""
        from memsvc_core import Replay

        self.config = config
        self.clock = clock
        self.epoch = os.urandom(8).hex()
        self.addresses = {"draw": "", "params": ""}
        self.about: dict[str, Any] = {}  # what the server adds to the statistics: its addresses
        self.notices: list[Notice] = []
        self.parameters = Parameters()
        # Keys are never reused, over restarts either: streams are numbered from a random place (28 bits).
        self.first_stream = int.from_bytes(os.urandom(4), "little") % (1 << _STREAM_BITS)
        self.seed = config.server.seed or int.from_bytes(os.urandom(8), "little")
        schema, specs = config.specs()
        self.replay = Replay(schema, specs, config.server.memory, self.seed, self.first_stream)
        self.pool = Pool(POOL_BYTES)
        self.tables = [Table(i, settings, spec, self.replay, self.pool) for i, (settings, spec) in enumerate(zip(config.tables, specs, strict=True))]
        self._members = Members(self.replay)
        self._counts = {"messages": 0, "malformed": 0, "refused": 0, "failures": 0, "lost": 0, "unsent": 0}
        self._started = clock()
        self._pid = os.getpid()
        self._next_probe = 0.0
        self._handlers: dict[Kind, Callable[[Peer, Message, float], None]] = {
            Kind.HELLO: self._hello,
            Kind.PUSH: self._push,
            Kind.SAMPLE: self._sample,
            Kind.UPDATE: self._update,
            Kind.PUBLISH: self._publish,
            Kind.FETCH: self._fetch,
            Kind.PING: self._ping,
            Kind.STATS: self._stats,
            Kind.BYE: self._bye,
        }

    # Messages.

    def handle(self, peer: Peer, message: Message) -> None:
        """Acts on one message and answers through peer.send. Whatever goes wrong becomes an ERROR to this peer alone; raises UsedAfterFork only."""
        self._check_process()
        now = peer.heard = self.clock()
        self._counts["messages"] += 1
        try:
            handler = self._handlers.get(message.kind)
            if handler is None:
                raise ProtocolError(f"{message.kind.name} is not for servers")
            self._members.note(peer)
            handler(peer, message, now)
        except ProtocolError as error:
            if not error.details.get("hello"):  # nothing is wrong with an actor that has not noticed yet that this server was restarted
                self.malformed(peer, error)
            self.refuse(peer, message.seq, error)
        except MemsvcError as error:
            self.refuse(peer, message.seq, error)
        except Exception as error:  # serving goes on whatever one request has met
            self._counts["failures"] += 1
            log.exception("%s of %s failed", message.kind.name, _name(peer))
            self.refuse(peer, message.seq, ServerError(f"the server failed over {message.kind.name}: {type(error).__name__}: {error}"))

    def refuse(self, peer: Peer, seq: int, error: MemsvcError) -> None:
        """Sends `error` to the peer as the answer of `seq`."""
        self._counts["refused"] += 1
        details = {key: value for key, value in error.details.items() if isinstance(value, (bool, int, float, str, list, dict)) or value is None}
        peer.send(Message(Kind.ERROR, seq, meta={"code": error.code, "message": error.message, "details": details}))

    def malformed(self, peer: Peer, error: ProtocolError) -> None:
        """Counts a malformed message, and logs the first of each peer."""
        self._counts["malformed"] += 1
        if self._members.first_complaint(peer):
            log.warning("dropped a message of %s: %s (further ones of this client are counted only)", _name(peer), error)

    def unsent(self, peer: Peer) -> None:
        """A carrier could not send a message to a peer that does not read."""
        self._counts["unsent"] += 1

    def lost(self, peer: Peer) -> None:
        """The peer's connection is gone. Its requests are dropped; an actor's queue is used up, then its weight leaves."""
        if self._remove(peer) and peer.member is not None:
            self._counts["lost"] += 1
            log.info("lost %s", _name(peer))

    # What time brings.

    def tick(self) -> None:
        """Expires waiting requests, sends what learners' priorities and draws have made due. Any thread; never raises."""
        now = self.clock()
        try:
            for table in self.tables:
                table.retry(now)
                table.expire(now)
                table.expect(now)
                self._feed(table, now, at_once=True)
                for actor in self.replay.with_feedback(table.index):
                    self._feedback(actor, table.index)
            for peer in [one for one in self._members.peers() if one.fetches]:
                for topic in list(peer.fetches):
                    self._answer_fetch(peer, topic)
            if now >= self._next_probe:
                self._next_probe = now + PROBE_S
                for peer in self._members.actors():
                    if now - peer.heard >= PROBE_S:
                        self._acknowledge(peer, 0)
        except Exception:  # the carrier's loop must go on
            self._counts["failures"] += 1
            log.exception("the server's tick failed")

    def stats(self) -> dict[str, Any]:
        """Everything that can be counted, as JSON: core, peers, parameters, queues. Raises UsedAfterFork."""
        self._check_process()
        core = self.replay.stats()
        for table, kept in zip(self.tables, core["tables"], strict=True):
            kept |= {"name": table.name, "waiting": table.waiting}
        members = [(peer.link, peer.member, peer.asking, peer.heard) for peer in self._members.peers()]
        now = self.clock()
        peers = [
            {
                "link": link,
                "role": member.role,
                "name": member.name,
                "host": member.host,
                "pid": member.pid,
                "waiting": asking,
                "silent_s": round(now - heard, 3),
            }
            for link, member, asking, heard in members
            if member is not None
        ]
        return {
            **self.about,
            **core,
            "epoch": self.epoch,
            "seed": self.seed,
            "first_stream": self.first_stream,
            "uptime_s": round(now - self._started, 3),
            "counts": dict(self._counts),
            "peers": peers,
            "connections": len(members),
            "parameters": self.parameters.stats(),
            "queues": {"batches_bytes": self.pool.bytes},
        }

    def _check_process(self) -> None:
        # The step store's pages are not the child's: touching them there would end it.
        if os.getpid() != self._pid:
            raise UsedAfterFork(f"this server lives in process {self._pid}, not in its child {os.getpid()}; connect to its address there")

    # One method a kind.

    def _hello(self, peer: Peer, message: Message, now: float) -> None:
        hello = read_hello(message.meta)
        self.parameters.reported(hello.versions)
        member = Membership(hello.role, hello.name, hello.host, hello.pid)
        streams: list[int] = []
        gone: list[Peer] = []
        with peer.order:
            if hello.role == "actor":
                streams, gone = self._members.join(peer, member, hello.envs)
                peer.last_push = 0
                peer.told.clear()
            else:
                self._members.enter(peer, member)
            meta = {
                "wire": wire.VERSION,
                "epoch": self.epoch,
                "schema": [[name, dtype, list(shape)] for name, dtype, shape in self.config.schema],
                "tables": self.config.tables,
                "actor": member.actor,
                "streams": streams,
                "versions": self.parameters.versions(),
                **self.addresses,
            }
            peer.send(Message(Kind.WELCOME, message.seq, meta=meta))
        for other in gone:
            log.warning("actor %r on %s replaces the one of that name", member.name, member.host)
            self.refuse(other, 0, replaced(member))

    def _push(self, peer: Peer, message: Message, now: float) -> None:
        member = peer.member
        if member is None or member.role != "actor":
            raise ProtocolError("PUSH comes before HELLO: say HELLO as an actor first", hello=True)
        if member.replaced:
            raise replaced(member)
        table = self._table(message.table)
        self.replay.push(member.actor, message.body)
        peer.last_push = message.seq
        peer.told.clear()
        if table.retry(now):
            self._feed(table, now, at_once=True)
        self._acknowledge(peer, table.index)
        self._feedback(member.actor, table.index)

    def _sample(self, peer: Peer, message: Message, now: float) -> None:
        table = self._table(message.table)
        served = table.sample(peer, message, now)
        self._feed(table, now, at_once=not served)

    def _update(self, peer: Peer, message: Message, now: float) -> None:
        self._table(message.table).update(peer, message)

    def _publish(self, peer: Peer, message: Message, now: float) -> None:
        topic = checked_topic(message.meta.get("topic", ""))
        blob = message.body if isinstance(message.body, bytes) else bytes(message.body)
        version = self.parameters.publish(topic, blob)
        peer.send(Message(Kind.PUBLISHED, message.seq, a=version))
        for notice in list(self.notices):
            notice(topic, version, len(blob))

    def _fetch(self, peer: Peer, message: Message, now: float) -> None:
        topic = checked_topic(message.meta.get("topic", ""))
        if topic not in peer.fetches and len(peer.fetches) >= MAX_IN_FLIGHT:
            raise ProtocolError(f"{len(peer.fetches)} FETCH requests of this client wait already: read the answers first")
        peer.fetches[topic] = message.seq
        self._answer_fetch(peer, topic)

    def _ping(self, peer: Peer, message: Message, now: float) -> None:
        peer.send(Message(Kind.PONG, message.seq, meta={"member": peer.member is not None}))

    def _stats(self, peer: Peer, message: Message, now: float) -> None:
        peer.send(Message(Kind.STATS, message.seq, meta=self.stats()))

    def _bye(self, peer: Peer, message: Message, now: float) -> None:
        self._remove(peer)
        peer.send(Message(Kind.BYE, message.seq))

    # Parts of the above.

    def _table(self, index: int) -> Table:
        if index >= len(self.tables):
            names = [table.name for table in self.tables]
            raise UnknownTable(f"table {index} does not exist; there are {len(names)}: {', '.join(names)}", tables=names)
        return self.tables[index]

    def _answer_fetch(self, peer: Peer, topic: str) -> None:
        # Parameters are large: while earlier ones have not left, the request waits, and is answered with what is newest then.
        if peer.in_flight() >= 2:
            return
        seq = peer.fetches.pop(topic, None)
        if seq is None:
            return
        version, blob = self.parameters.newest(topic)
        peer.send(Message(Kind.PARAMS, seq, a=version, meta={"topic": topic}, body=blob))

    def _acknowledge(self, peer: Peer, table: int) -> None:
        with peer.order:
            if peer.member is None or peer.member.role != "actor" or peer.member.replaced:
                return
            wanted, missing, evicted = self.replay.notices(peer.member.actor, table)
            body = missing.tobytes() + evicted.tobytes() if len(missing) or len(evicted) else b""
            peer.send(Message(Kind.ACK, peer.last_push, table, a=wanted, b=len(missing), body=body))

    def _feed(self, table: Table, now: float, at_once: bool) -> None:
        def tell(actor: int) -> None:
            peer = self._members.actor(actor)
            # Once between two pushes, unless it stays silent: its next push is answered with the newest demand anyway.
            if peer is not None and now - peer.told.get(table.index, -RETELL_S) >= RETELL_S:
                peer.told[table.index] = now
                self._acknowledge(peer, table.index)

        table.feed_hungry(now, tell, at_once)

    def _feedback(self, actor: int, table: int) -> None:
        peer = self._members.actor(actor)
        if peer is None:
            return
        with peer.order:
            if peer.member is None or peer.member.actor != actor:
                return
            taken = self.replay.take_feedback(actor, table)
            if taken is not None:
                number, keys, priorities = taken
                body = keys.tobytes() + priorities.tobytes()
                peer.send(Message(Kind.FEEDBACK, peer.last_push, table, a=number, b=len(keys), body=body))

    def _remove(self, peer: Peer) -> bool:
        if not self._members.remove(peer):
            return False
        peer.fetches.clear()
        for table in self.tables:
            table.drop(peer)
        return True


def _name(peer: Peer) -> str:
    return f"{peer.member.role} {peer.member.name!r}" if peer.member else f"an unnamed client ({peer.link})"
