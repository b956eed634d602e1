"""What the server does with each message, without sockets: the one place where the wire's kinds get their meaning.

Carriers (router.py, local.py) give each message of a peer to `Engine.handle` and call `Engine.tick` every few milliseconds.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sized
from typing import Any

from memsvc_proto.errors import MemsvcError, ProtocolError, ServerError, UnknownTable, UsedAfterFork
from memsvc_proto.wire import Kind, Message

from . import access
from .arrivals import Arrivals
from .config import Config
from .configuring import Configuring
from .deliveries import Deliveries
from .keeping import Keeping, Off
from .members import Members, replaced
from .parameters import Parameters
from .peer import Membership, Peer
from .pool import Pool
from .publishing import Notice, Publishing
from .report import report
from .table import MAX_BATCH_BYTES, Table
from .tally import Tally
from .telling import Telling
from .underway import UnderWay

log = logging.getLogger("memsvc")

TICK_S = 0.02
"""How often carriers call `tick`: the longest that learners' priorities and demand wait for their way to an actor."""
PROBE_S = 1.0
"""An actor that has been silent for so long is sent an ACK this often, which finds out whether its connection still exists; others are probed after
this silence, and after twice as long each time, since nobody may be reading there."""
POOL_BYTES = 256 << 20
_STREAM_BITS = 28


class Engine:
    """Owns the replay memory, the peers, the parameters and the waiting requests. Thread-safe; handle() is called from many threads.

    No lock is held over a core call except a change of settings, a peer's `order`, a publication's, and a table's `serving`, and none is held that
    another peer's push or draw needs.
    """

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic, keeper: Keeping | None = None) -> None:
        """Takes and touches the memory, or what `keeper` has restored. Raises ConfigError where it cannot."""
        from memsvc_core import Replay

        self.config = config
        self.clock = clock
        self.keeper = keeper or Off()
        self.epoch = self.keeper.epoch or os.urandom(8).hex()
        self.addresses = {"draw": "", "params": "", "beside": ""}
        self.measures: list[Callable[[], dict[str, int]]] = []
        """Give bytes of queues that carriers have, by name."""
        self.about: dict[str, Any] = {}  # what the server adds to the statistics: its addresses
        self.guarded: Callable[[], dict[str, Any]] | None = None
        """What the statistics say of keys, where the server has some."""
        self.notices: list[Notice] = []
        self.parameters = Parameters()
        # Keys are never reused, over restarts either: streams are numbered from a random place (28 bits).
        self.first_stream = int.from_bytes(os.urandom(4), "little") % (1 << _STREAM_BITS)
        self.seed = self.keeper.seed or config.server.seed or int.from_bytes(os.urandom(8), "little")
        self.started = clock()
        self.counts = Tally(
            *("messages", "unreadable", "malformed", "refused", "failures", "lost", "unsent"),
            *("forbidden", "unknown_keys", "broken_handshakes"),
        )
        self.turned_away = Tally("greeting", "replaced", "table", "forbidden")
        """Pushes that the core never saw: before HELLO, after another client had taken the actor's name, for a table that is not there, by a key
        that may not push."""
        schema, specs = config.specs()
        self.replay = self.keeper.replay or Replay(schema, specs, config.server.memory, self.seed, self.first_stream)
        self.pool = Pool(POOL_BYTES)
        self.underway = UnderWay(self.pool, max(MAX_BATCH_BYTES, config.server.memory // 4))
        self.deliveries = Deliveries(self.replay)
        self.tables = [
            Table(i, settings, spec, self.replay, self.underway, self.deliveries, self.keeper.settles)
            for i, (settings, spec) in enumerate(zip(config.tables, specs, strict=True))
        ]
        self.members = Members(self.replay)
        self.telling = Telling(self.replay, self.members)
        self.publishing = Publishing(self.replay, self.parameters, self.notices, self.keeper.when_kept)
        self._configuring = Configuring(self.replay, schema, self.members, self.telling.settings)
        self._arrivals = Arrivals(self)
        self._pid = os.getpid()
        self._next_probe = 0.0
        self._handlers: dict[Kind, Callable[[Peer, Message, float], None]] = {
            Kind.HELLO: self._hello,
            Kind.PUSH: self._push,
            Kind.SAMPLE: self._sample,
            Kind.TAKEN: self._taken,
            Kind.UPDATE: self._update,
            Kind.GET: self._get,
            Kind.DELETE: self._delete,
            Kind.CONFIGURE: self._configure,
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
        peer.messages += 1
        self.counts.add("messages")
        try:
            handler = self._handlers.get(message.kind)
            if handler is None:
                raise ProtocolError(f"{message.kind.name} is not for servers")
            self.members.note(peer)
            handler(peer, message, now)
        except ProtocolError as error:
            if not error.details.get("hello"):  # nothing is wrong with an actor that has not noticed yet that this server was restarted
                self.malformed(peer, error)
            self.refuse(peer, message.seq, error)
        except MemsvcError as error:
            self.refuse(peer, message.seq, error)
        except Exception as error:  # serving goes on whatever one request has met
            self.counts.add("failures")
            log.exception("%s of %s failed", message.kind.name, _name(peer))
            self.refuse(peer, message.seq, ServerError(f"the server failed over {message.kind.name}: {type(error).__name__}: {error}"))

    def refuse(self, peer: Peer, seq: int, error: MemsvcError) -> None:
        """Sends `error` to the peer as the answer of `seq`."""
        self.counts.add("refused")
        details = {key: value for key, value in error.details.items() if isinstance(value, (bool, int, float, str, list, dict)) or value is None}
        peer.send(Message(Kind.ERROR, seq, meta={"code": error.code, "message": error.message, "details": details}))

    def malformed(self, peer: Peer, error: ProtocolError) -> None:
        """Counts a malformed message, and logs the first of each peer."""
        self.counts.add("malformed")
        if self.members.first_complaint(peer):
            log.warning("dropped a message of %s: %s (further ones of this client are counted only)", _name(peer), error)

    def unsent(self, peer: Peer, message: Message) -> None:
        """A carrier could not send this to a peer that does not read. A batch is put back where that matters."""
        self.counts.add("unsent")
        if message.kind is Kind.BATCH:
            self.deliveries.unsent(peer, message.table, message.seq)  # requests that can be served now are by the next tick

    def lost(self, peer: Peer) -> None:
        """The peer's connection is gone: requests are dropped, open batches put back; an actor's queue is used up, then its weight leaves."""
        if self._arrivals.remove(peer) and peer.member is not None:
            self.counts.add("lost")
            log.info("lost %s", _name(peer))

    def owes(self, peer: Peer) -> bool:
        """True while batches went to this peer that it has not confirmed: it is not forgotten for being silent."""
        return self.deliveries.holds(peer)

    def table(self, index: int) -> Table:
        """The table of this number. Raises UnknownTable, which lists those there are."""
        if index >= len(self.tables):
            names = [table.name for table in self.tables]
            raise UnknownTable(f"table {index} does not exist; there are {len(names)}: {', '.join(names)}", tables=names)
        return self.tables[index]

    # What time brings.

    def tick(self) -> None:
        """Expires waiting requests, sends what learners' priorities and draws have made due. Any thread; never raises."""
        now = self.clock()
        try:
            for table in self.tables:
                table.retry(now)
                table.expire(now)
                table.expect(now)
                self.telling.feed(table, now, at_once=True)
                for actor in self.replay.with_feedback(table.index):
                    self.telling.feedback(actor, table.index)
            for peer in self.members.peers():
                if peer.fetches:
                    self.publishing.answer(peer)
            if now >= self._next_probe:
                self._next_probe = now + PROBE_S
                self._probe(now)
        except Exception:  # the carrier's loop must go on
            self.counts.add("failures")
            log.exception("the server's tick failed")

    def stats(self) -> dict[str, Any]:
        """Everything that can be counted, as JSON (report.py). Raises UsedAfterFork."""
        self._check_process()
        return report(self, self.clock())

    def configure(self, table: Table, changes: dict[str, Any]) -> dict[str, Any]:
        """Changes settings of a table that serves (changes.py), tells everybody, returns the normalised ones. Raises ConfigError, UsedAfterFork."""
        self._check_process()
        settings = self._configuring.change(table, changes)
        self.keeper.configured(table.index, settings)
        self._served(table, self.clock())
        return settings

    def publish(self, topic: str, blob: Sized, once: str = "") -> int:
        """Keeps parameters that came in memory (lending.py) as the newest of `topic`, tells everybody, returns their version. ProtocolError: too many
        topics.
        """
        version = self.publishing.keep(topic, blob, once)
        self._aged(self.clock())
        return version

    def _probe(self, now: float) -> None:
        for peer in self.members.actors():
            if now - peer.heard >= PROBE_S:
                self.telling.acknowledge(peer, 0)
        for peer in self.members.peers():
            if not self.deliveries.holds(peer) and (peer.member is None or peer.member.role == "actor"):
                continue
            silent = now - peer.heard
            if silent < peer.probed:
                peer.probed = 0.0
            if silent >= max(PROBE_S, 2 * peer.probed):
                peer.probed = silent
                peer.probe()

    def _check_process(self) -> None:
        # The step store's pages are not the child's: touching them there would end it.
        if os.getpid() != self._pid:
            raise UsedAfterFork(f"this server lives in process {self._pid}, not in its child {os.getpid()}; connect to its address there")

    # Who comes and goes.

    def _hello(self, peer: Peer, message: Message, now: float) -> None:
        self._arrivals.hello(peer, message)

    def _bye(self, peer: Peer, message: Message, now: float) -> None:
        member = peer.member
        self._arrivals.remove(peer)

        def answer() -> None:  # behind the acknowledgements, which do not go to who has left
            meta = {"stored": member.stored} if member is not None and member.session else {}
            peer.send(Message(Kind.BYE, message.seq, meta=meta))

        self.keeper.when_safe(answer)
        for table in self.tables:  # what was put back may be what others wait for
            self._served(table, now)

    def _ping(self, peer: Peer, message: Message, now: float) -> None:
        peer.pong(message.seq, self.keeper.waits)

    def _stats(self, peer: Peer, message: Message, now: float) -> None:
        peer.send(Message(Kind.STATS, message.seq, meta=self.stats()))

    # Experience in.

    def _push(self, peer: Peer, message: Message, now: float) -> None:
        member = peer.member
        if member is None or member.role != "actor":
            self.turned_away.add("greeting")
            raise ProtocolError("PUSH comes before HELLO: say HELLO as an actor first", hello=True)
        if member.replaced:
            self.turned_away.add("replaced")
            raise replaced(member)
        if message.table >= len(self.tables):
            self.turned_away.add("table")
        table = self.table(message.table)
        try:
            self.replay.push(member.actor, message.body, message.b)
        except ProtocolError:  # its number is dealt with all the same
            member.taken = max(member.taken, message.b)
            raise
        seq, number = message.seq, message.b
        member.taken = max(member.taken, number)
        if table.retry(now):
            self.telling.feed(table, now, at_once=True)
        self.keeper.when_safe(lambda: self._stored(peer, member, seq, number, table))

    def _stored(self, peer: Peer, member: Membership, seq: int, number: int, table: Table) -> None:
        """A push is acknowledged: it is as safe as the settings want it."""
        peer.last_push = max(peer.last_push, seq)
        member.stored = max(member.stored, number)
        peer.told.clear()
        self.telling.acknowledge(peer, table.index)
        self.telling.feedback(member.actor, table.index)

    # Experience out.

    def _sample(self, peer: Peer, message: Message, now: float) -> None:
        table = self.table(message.table)
        served = table.sample(peer, message, now)
        self.telling.feed(table, now, at_once=table.gated or not served)

    def _taken(self, peer: Peer, message: Message, now: float) -> None:
        table = self.table(message.table)
        settled = self.deliveries.unsent if message.b else self.deliveries.taken
        if settled(peer, table.index, message.a):
            self._served(table, now)

    def _update(self, peer: Peer, message: Message, now: float) -> None:
        access.update(self.replay, self.table(message.table), peer, message, self.keeper.when_safe)

    def _get(self, peer: Peer, message: Message, now: float) -> None:
        access.get(self.replay, self.table(message.table), self.underway, peer, message)

    def _delete(self, peer: Peer, message: Message, now: float) -> None:
        table = self.table(message.table)
        access.delete(self.replay, table, peer, message, self.keeper.when_safe)
        self._served(table, now)

    def _configure(self, peer: Peer, message: Message, now: float) -> None:
        table = self.table(message.table)
        settings = self.configure(table, message.meta)
        self.keeper.when_safe(lambda: peer.send(Message(Kind.CONFIGURED, message.seq, table.index, meta=settings)))

    # Parameters.

    def _publish(self, peer: Peer, message: Message, now: float) -> None:
        if peer.member is None:
            raise ProtocolError("PUBLISH comes before HELLO: say HELLO first", hello=True)
        self.publishing.publish(peer, message)
        self._aged(now)

    def _fetch(self, peer: Peer, message: Message, now: float) -> None:
        self.publishing.fetch(peer, message)

    # Parts of the above.

    def _aged(self, now: float) -> None:
        for table in self.tables:  # what has grown too stale makes room
            self._served(table, now)

    def _served(self, table: Table, now: float) -> None:
        """Something has changed that may let waiting learners go on, or actors."""
        table.retry(now)
        self.telling.feed(table, now, at_once=table.gated)


def _name(peer: Peer) -> str:
    return f"{peer.member.role} {peer.member.name!r}" if peer.member else f"an unnamed client ({peer.link})"
