"""One table as the engine serves it: batches drawn into pooled frames, requests that wait for stock, and the stock to keep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from memsvc_proto import wire
from memsvc_proto.errors import ConfigError, ProtocolError

from .demand import Demand
from .peer import Peer
from .pool import Pool

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
    deadline: float


class Table:
    """Thread-safe. Lock order: serving, then lock; the core's own locks come last. Peers are sent to under `serving`, which never blocks."""

    def __init__(self, index: int, settings: dict[str, Any], spec: Any, replay: Any, pool: Pool) -> None:
        self.index = index
        self.name: str = settings["name"]
        self.settings = settings
        self.spec = spec
        self._replay = replay
        self._pool = pool
        self._serving = threading.Lock()  # one thread at a time goes through the waiting requests
        self._lock = threading.Lock()
        self._waiting: list[Request] = []
        self._demand = Demand()
        self._expected = 0
        self._largest = 0
        self._sizes: dict[int, int] = {}
        self._next_hungry = 0.0

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return len(self._waiting)

    def size_of(self, batch: int) -> int:
        """Bytes of a frame with `batch` items, header included.

        ProtocolError for batches that no message can hold, ConfigError for those that no stock can fill.
        """
        size = self._sizes.get(batch)
        if size is not None:
            return size
        # The one-item layout bounds the whole from below, so a hostile batch size is refused before anything is computed with it.
        if not 0 < batch <= MAX_BATCH_BYTES // max(1, self.spec.layout(1)[0] // 64):
            raise ProtocolError(
                f"a batch has at least one item and at most {MAX_BATCH_BYTES >> 30} GiB; {batch} items of table {self.name!r} were asked"
            )
        most = self._replay.largest_batch(self.index)
        if batch > most:
            raise ConfigError(
                f"a batch of {batch:,} is more than the {most:,} draws that table {self.name!r} keeps in stock with this server.memory: "
                f"sample smaller batches, or give the server more memory",
                have=most,
                need=batch,
            )
        size = wire.HEADER_BYTES + int(self.spec.layout(batch)[0])
        if size > MAX_BATCH_BYTES:
            raise ProtocolError(
                f"a batch has at most {MAX_BATCH_BYTES >> 30} GiB; {batch} items of table {self.name!r} take {size} bytes: ask for fewer"
            )
        if len(self._sizes) < 256:
            self._sizes[batch] = size
        return size

    def sample(self, peer: Peer, message: wire.Message, now: float) -> bool:
        """Answers a SAMPLE with BATCH at once, or lets it wait. True when it was answered. ProtocolError: a wrong batch size, or too many waiting."""
        batch = message.a
        size = self.size_of(batch)
        if batch > self._largest:
            self._largest = batch
            with self._lock:
                self._demand.asked(batch)
            self.expect(now)
        if not self._waiting and peer.in_flight() < MAX_IN_FLIGHT and self._deliver(peer, message.seq, batch, size, now):
            return True
        timeout = message.meta.get("timeout", 1.0)
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 <= timeout <= MAX_TIMEOUT_S:
            raise ProtocolError(f"SAMPLE's timeout is a number of seconds from 0 to {MAX_TIMEOUT_S:g}, got {timeout!r}")
        with self._lock:
            if peer.asking >= CREDITS:
                raise ProtocolError(f"{peer.asking} requests of this client wait already, the most is {CREDITS}: read the answers first")
            peer.asking += 1
            self._waiting.append(Request(peer, message.seq, batch, now + timeout))
        # A push may have come between the draw that failed and the line above.
        return self.retry(now)

    def retry(self, now: float) -> bool:
        """Serves waiting requests in order of arrival; a batch that cannot be filled does not hold up smaller ones. True when any was served."""
        if not self._waiting:
            return False
        served = False
        with self._serving:
            too_large = 1 << 63
            for request in list(self._waiting):
                if request.batch >= too_large or request.peer.in_flight() >= MAX_IN_FLIGHT:
                    continue
                if request.peer.gone or self._deliver(request.peer, request.seq, request.batch, self.size_of(request.batch), now):
                    self._forget(request)
                    served = True
                else:
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
                reason, have, need = self._replay.why_not(self.index, request.batch)
                if flying >= MAX_IN_FLIGHT:
                    reason, have, need = "unread", flying, MAX_IN_FLIGHT
                meta = {"reason": reason, "have": int(have), "need": int(need)}
                request.peer.send(wire.Message(wire.Kind.WAIT, request.seq, self.index, meta=meta))

    def drop(self, peer: Peer) -> None:
        """Forgets the requests of a peer that has left."""
        with self._lock:
            self._waiting = [one for one in self._waiting if one.peer is not peer]
            peer.asking = 0

    def update(self, peer: Peer, message: wire.Message) -> None:
        """Applies an UPDATE and answers UPDATED."""
        body = memoryview(message.body).cast("B")
        if body.nbytes != 16 * message.b:
            raise ProtocolError(f"UPDATE announces {message.b} keys and priorities, {16 * message.b} bytes, and carries {body.nbytes}")
        keys = np.frombuffer(body[: 8 * message.b], np.uint64)
        priorities = np.frombuffer(body[8 * message.b :], np.float64)
        applied, stale, refused = self._replay.update(self.index, keys, priorities)
        refused_bytes = refused.tobytes() if len(refused) else b""
        peer.send(wire.Message(wire.Kind.UPDATED, message.seq, self.index, a=applied, b=stale, body=refused_bytes))

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

    def _deliver(self, peer: Peer, seq: int, batch: int, size: int, now: float) -> bool:
        frame = self._pool.take(size)
        drawn = self._replay.draw(self.index, batch, frame, wire.HEADER_BYTES)
        if drawn is None:
            return False
        population, total = drawn
        with self._lock:
            self._demand.took(batch, now)
        body = frame.data[wire.HEADER_BYTES :]
        peer.send(wire.Message(wire.Kind.BATCH, seq, self.index, batch, population, total, body=body), frame)
        return True
