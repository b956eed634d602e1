"""One table as the engine serves it: batches drawn into pooled frames, requests that wait for stock, and the stock to keep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memsvc_proto import wire
from memsvc_proto.errors import ConfigError, ProtocolError

from .coherence import ORDERED
from .deliveries import Deliveries
from .demand import Demand
from .keeping import WhenSafe
from .limiter import refuse_batch
from .peer import Peer
from .underway import UnderWay

CREDITS = 8
"""SAMPLE requests that a peer may have waiting."""
MAX_IN_FLIGHT = 8
"""Batches on their way to one peer; further ones wait until it has read some, so a stuck learner costs no memory."""
MAX_BATCH_BYTES = 1 << 32
MAX_TIMEOUT_S = 60.0
HUNGRY_EVERY_S = 0.001


@dataclass(eq=False)
class Request:
    """A SAMPLE that waits."""

    peer: Peer
    seq: int
    batch: int
    min_version: int | None
    deadline: float
    slot: int = -1
    """Of the peer's, in which the batch is wanted; -1: in the message."""
    crowded: bool = False
    """It waits for others' batches to leave this process."""


class Table:
    """Thread-safe. Lock order: serving, then lock; the core's own locks come last. Peers are sent to under `serving`, which never blocks."""

    def __init__(
        self, index: int, settings: dict[str, Any], spec: Any, replay: Any, underway: UnderWay, deliveries: Deliveries, settles: WhenSafe | None
    ) -> None:
        self.index = index
        self.name: str = settings["name"]
        self.configure(settings, spec)
        self._replay = replay
        self._underway = underway
        self._deliveries = deliveries
        self._settles = settles
        self._serving = threading.Lock()  # one thread at a time goes through the waiting requests
        self._lock = threading.Lock()
        self._waiting: list[Request] = []
        self._demand = Demand()
        self._expected = 0
        self._largest = 0
        self._next_hungry = 0.0

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return len(self._waiting)

    @property
    def confirmed(self) -> bool:
        """True where learners say TAKEN for each batch, since what items may still give, or the limiter's counts, depend on it."""
        return self._confirmed

    @property
    def gated(self) -> bool:
        """True where actors may have to wait for learners."""
        return self._gated

    def configure(self, settings: dict[str, Any], spec: Any) -> None:
        """New settings (of equal columns), and the core's form of them."""
        limits = settings["limits"]
        self.settings = settings
        self.spec = spec
        self._sizes: dict[int, int] = {}  # of batches that these settings give
        once = settings["actor"]["select"] == "without_replacement"
        self._confirmed: bool = once or limits["samples_per_insert"] > 0 or limits["max_times_sampled"] > 0
        self._gated: bool = limits["samples_per_insert"] > 0 or settings["capacity"]["when_full"] == "block"

    def frame_bytes(self, items: int) -> int:
        """Bytes of a frame with so many items, header included. ProtocolError for what no message can hold."""
        # The one-item layout bounds the whole from below, so a hostile number is refused before anything is computed with it.
        if not 0 < items <= MAX_BATCH_BYTES // max(1, self.spec.layout(1)[0] // 64):
            raise ProtocolError(
                f"a batch has at least one item and at most {MAX_BATCH_BYTES >> 30} GiB; {items} items of table {self.name!r} were asked"
            )
        size = wire.HEADER_BYTES + int(self.spec.layout(items)[0])
        if size > MAX_BATCH_BYTES:
            raise ProtocolError(
                f"a batch has at most {MAX_BATCH_BYTES >> 30} GiB; {items} items of table {self.name!r} take {size} bytes: ask for fewer"
            )
        return size

    def check_batch(self, batch: int) -> None:
        """ConfigError for a batch that the settings never give: it could stop learners and actors alike (DEFINITIONS 9), or exceeds what is kept."""
        refuse_batch(self.settings, batch)
        items, sampler = self.settings["capacity"]["items"], self.settings["sampler"]
        if sampler in ORDERED and 0 < items < batch:
            raise ConfigError(
                f"a batch of {batch:,} is never there: table {self.name!r} holds {items:,} items (capacity.items), and sampler = {sampler!r} "
                f"gives each once a batch; sample smaller batches, or raise capacity.items",
                have=items,
                need=batch,
            )

    def size_of(self, batch: int) -> int:
        """frame_bytes of a batch; ConfigError as check_batch, and for one that no stock can fill."""
        sizes = self._sizes
        size = sizes.get(batch)
        if size is not None:
            return size
        self.check_batch(batch)
        size = self.frame_bytes(batch)
        most = self._replay.largest_batch(self.index)
        if batch > most:
            raise ConfigError(
                f"a batch of {batch:,} is more than the {most:,} draws that table {self.name!r} can ever have at once, as server.memory and its "
                f"capacity and limits bound them: sample smaller batches, or raise what bounds it",
                have=most,
                need=batch,
            )
        if len(sizes) < 256:
            sizes[batch] = size
        return size

    def sample(self, peer: Peer, message: wire.Message, now: float) -> bool:
        """Answers a SAMPLE with BATCH at once, or lets it wait. True when it was answered. ProtocolError: a wrong batch size, or too many waiting."""
        batch = message.a
        size = self.size_of(batch)
        min_version = self._min_version(message.meta.get("min_version"))
        if batch > self._largest:
            self._largest = batch
            with self._lock:
                self._demand.asked(batch)
            self.expect(now)
        request = Request(peer, message.seq, batch, min_version, now, message.b - 1)
        if not self._waiting and peer.in_flight() + peer.settling < MAX_IN_FLIGHT and self._deliver(request, size, now):
            return True
        timeout = message.f
        if not 0 <= timeout <= MAX_TIMEOUT_S:
            raise ProtocolError(f"SAMPLE's f, its timeout, is a number of seconds from 0 to {MAX_TIMEOUT_S:g}, got {timeout!r}")
        with self._lock:
            if peer.asking >= CREDITS:
                raise ProtocolError(f"{peer.asking} requests of this client wait already, the most is {CREDITS}: read the answers first")
            peer.asking += 1
            request.deadline = now + timeout
            self._waiting.append(request)
        # A push may have come between the draw that failed and the line above.
        return self.retry(now)

    def retry(self, now: float) -> bool:
        """Serves waiting requests in order of arrival; one that cannot be filled does not hold up smaller ones, and one with a
        min_version, or that waits for others to read, nobody.

        True when any was served.
        """
        if not self._waiting:
            return False
        served = False
        with self._serving:
            too_large = 1 << 63
            for request in list(self._waiting):
                if request.batch >= too_large or request.peer.in_flight() + request.peer.settling >= MAX_IN_FLIGHT:
                    continue
                if request.peer.gone or self._serve(request, now):
                    self._forget(request)
                    served = True
                elif request.min_version is None and not request.crowded:
                    too_large = request.batch
        return served

    def expire(self, now: float) -> None:
        """Answers WAIT, with the reason, to requests whose time is over."""
        if not self._waiting:
            return
        with self._serving:
            for request in [one for one in self._waiting if one.deadline <= now]:
                self._forget(request)
                flying = request.peer.in_flight()
                reason, have, need = self._replay.why_not(self.index, request.batch, request.min_version)
                if flying >= MAX_IN_FLIGHT:
                    reason, have, need = "unread", flying, MAX_IN_FLIGHT
                elif request.crowded:
                    reason, have, need = "sending", self._underway.bytes, self._underway.most
                meta = {"reason": reason, "have": int(have), "need": int(need)}
                request.peer.send(wire.Message(wire.Kind.WAIT, request.seq, self.index, meta=meta))

    def drop(self, peer: Peer) -> None:
        """Forgets the requests of a peer that has left."""
        with self._lock:
            self._waiting = [one for one in self._waiting if one.peer is not peer]
            peer.asking = 0

    def expect(self, now: float) -> None:
        """Tells the core how much stock learners need; called often, acts on changes of an eighth or more."""
        with self._lock:
            level = self._demand.level(now)
            if abs(level - self._expected) * 8 < self._expected:
                return
            self._expected = level
        self._replay.expect(self.index, level)

    def feed_hungry(self, now: float, tell: Callable[[int], None], at_once: bool) -> None:
        """Calls tell(actor) for actors whose queue runs low; looks at most once a millisecond unless `at_once`."""
        if now < self._next_hungry and not at_once:
            return
        self._next_hungry = now + HUNGRY_EVERY_S
        for actor in self._replay.hungry(self.index):
            tell(actor)

    def _forget(self, request: Request) -> None:
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
                request.peer.asking -= 1

    def _min_version(self, value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 62) < value < 1 << 62:
            raise ProtocolError(f"SAMPLE's min_version is an integer, got {value!r:.60}")
        if self.settings["actor"]["select"] != "all":
            raise ConfigError(
                f'min_version: table {self.name!r} has actor.select = {self.settings["actor"]["select"]!r}, and only with "all" the server holds the '
                f"items that it would choose among; limits.max_staleness keeps old items out of every table"
            )
        return value

    def _serve(self, request: Request, now: float) -> bool:
        try:
            size = self.size_of(request.batch)
        except ConfigError:  # the limits were changed meanwhile: it waits for its end, when why_not tells
            return False
        return self._deliver(request, size, now)

    def _deliver(self, request: Request, size: int, now: float) -> bool:
        peer, batch = request.peer, request.batch
        place = peer.slot(request.slot, size - wire.HEADER_BYTES) if request.slot >= 0 else None
        frame = self._underway.frame(peer, size) if place is None else None
        request.crowded = place is None and frame is None
        if request.crowded:
            return False
        ticket = self._deliveries.ticket() if self._confirmed else 0
        if frame is None:
            drawn = self._replay.draw(self.index, batch, place, 0, request.min_version, ticket)
        else:
            drawn = self._replay.draw(self.index, batch, frame, wire.HEADER_BYTES, request.min_version, ticket)
        if drawn is None:
            return False
        population, total = drawn
        with self._lock:
            self._demand.took(batch, now)
        if ticket:
            self._deliveries.sent(peer, self.index, request.seq, ticket)
        body = b"" if frame is None else frame.data[wire.HEADER_BYTES :]
        message = wire.Message(wire.Kind.BATCH, request.seq, self.index, batch, population, total, body=body)
        if ticket and self._settles is not None:
            self._send_settled(self._settles, peer, message, frame)
        else:
            peer.send(message, frame)
        return True

    def _send_settled(self, settles: WhenSafe, peer: Peer, message: wire.Message, frame: Any) -> None:
        # So a restarted server gives again at most what a learner has on its way at once, however slow the disk is.
        def send() -> None:
            with self._lock:
                peer.settling -= 1
            peer.send(message, frame)

        with self._lock:
            peer.settling += 1
        settles(send)
