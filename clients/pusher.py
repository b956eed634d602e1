"""The thread behind an Actor: it owns the door link, sends what is due, and listens (arrivals.py)."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from memsvc_core import Memory
from memsvc_proto.errors import Closed, MemsvcError, WindowFull
from memsvc_proto.wire import HEADER_BYTES, Kind, Message

from .caches import CacheOutlet
from .delivering import Delivering
from .handover import Handover
from .outbox import Outbox
from .outlet import Outlet, head_of
from .pulse import PING_S
from .seam import Link
from .spool import Spool
from .union import AllOutlet
from .waiting import SLICE_S
from .welcome import Welcome

_NEVER = 1 << 62
_BURST = 64  # messages handled before the next look at what is due
_SHARED_MESSAGES = 8  # that memory shared with a server of this host has room for, and bytes for what it says
_SHARED_DOWN_BYTES = 1 << 18
_PLACE = 1.5  # messages pass their size by an item; what is longer than so many sizes is copied

_log = logging.getLogger("memsvc_client")


class Unsent(NamedTuple):
    """What close() could not deliver: items of `select = "all"` tables never sent, and bytes of theirs and of pushes without an acknowledgement."""

    items: int
    bytes: int


class Pusher(Delivering):
    """Runs from construction to `close`. Every public method may be called by any thread.

    `count` and `due` are plain numbers: adders raise the one and compare it with the other, so that the thread is woken only when there is work.
    `on_failure` is called, from the thread, when it ends because of an error (the server closed, replaced this actor, or changed its tables).
    """

    def __init__(
        self,
        link: Link,
        memory: Memory,
        welcome: Welcome,
        handover: Handover,
        *,
        name: str,
        envs: int,
        where: str,
        topic: str,
        window_bytes: int,
        message_bytes: int,
        on_failure: Callable[[MemsvcError], None],
        session: str,
        spool: Spool | None = None,
    ) -> None:
        outlets = [
            make_outlet(i, settings, memory, message_bytes, welcome.schema.row_stride, spec.item_bytes)
            for i, (settings, spec) in enumerate(zip(welcome.tables, welcome.specs, strict=True))
        ]
        reel = None if spool is None else spool.begin(name, session, welcome.streams, topic, welcome.lasting())
        super().__init__(link, memory, welcome, outlets, Outbox(window_bytes, welcome.stored, reel), name, envs, where, topic, session)
        self._spool = spool
        self.count = 0
        self.due = 1
        self._message_bytes = message_bytes
        self._handover = handover
        self._on_failure = on_failure
        self._ends = itertools.count(1)
        self._end = 0
        self._leave_by = 0.0
        self._pid = os.getpid()
        # The thread's own:
        self._seq = 1
        self._flush_number = 0
        self._payloads = 0
        self._last_count = -1
        self._broken = (link.breaks, link.parted)  # how often the link's connection has broken, and whether its shared memory has ended
        # Draws are wanted now, and few; all items of a table would take whatever room there is.
        self._in_turn = sorted(outlets, key=lambda outlet: isinstance(outlet, AllOutlet))
        for outlet in outlets:
            outlet.gate.block(outlet.blocked, outlet.places)
        self._thread = threading.Thread(target=self._run, name=f"memsvc-pusher-{name}", daemon=True)
        link.share(_SHARED_MESSAGES * message_bytes, _SHARED_DOWN_BYTES, kept=spool is None)
        self._thread.start()

    # What callers use.

    def wake(self) -> None:
        """Makes the thread look for something to send, once."""
        self.due = _NEVER
        self._link.wake()

    def ended(self) -> None:
        """An episode ended: items may have become final."""
        self._end = next(self._ends)
        self.count += 1
        if self.count >= self.due:
            self.wake()

    def stats(self) -> dict[str, Any]:
        """Bytes and counts of the window and of the parameters in hand; `params` are the own topic's, `topics` the others'."""
        with self._changed:
            topics = self._topics.stats()
            return {
                "window": {"bytes": self._outbox.bytes, "limit_bytes": self._outbox.limit_bytes, "messages": len(self._outbox)},
                "acknowledged_bytes": self._outbox.joined.bytes,
                "pushes": [outlet.pushed for outlet in self._outlets],
                "outbox": {"session": self._session, **self._outbox.stats()},
                "params": topics.pop(self._topics.own.topic),
                "topics": topics,
                "silent_s": time.monotonic() - self._pulse.heard,
                "malformed": getattr(self._link, "malformed", 0),
                "transport": self._link.transport,
                **({} if self._spool is None else {"spool": self._spool.stats()}),
            }

    def close(self, timeout: float) -> Unsent:
        """Flushes within `timeout`, says BYE, ends the thread; returns and logs what was not sent. Does nothing in a forked child."""
        if os.getpid() != self._pid:
            return Unsent(0, 0)
        deadline = time.monotonic() + timeout
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            with contextlib.suppress(MemsvcError):
                self._flush(0.8 * timeout, closing=True)
            self._leave_by, self._stopping = deadline, True
        self._link.wake()
        self._thread.join(max(0.0, deadline - time.monotonic()) + SLICE_S)
        waiting = [self._memory.unsent(outlet.table) for outlet in self._outlets]
        unsent = Unsent(sum(items for items, _ in waiting), sum(size for _, size in waiting) + self._outbox.bytes)
        if unsent != (0, 0):
            text = "actor %s closed: %d items were not sent, %d bytes with those in flight are not acknowledged"
            kept = "" if self._spool is None else f"; {self._spool.stats()['records']} pushes stay in the spool at {self._spool.path}"
            _log.warning(text + kept, self._name, *unsent)
        return unsent

    # The thread.

    def _run(self) -> None:
        try:
            self._deliver(time.monotonic())
            while not self._stopping:
                message = self._link.receive(self._tick())
                handled = 0
                while message is not None:
                    self._handle(message)
                    handled += 1
                    message = self._link.receive(0) if handled < _BURST else None
            self._leave()
        except MemsvcError as error:
            self._failed = error
        except Exception as error:
            _log.exception("the thread of actor %s failed", self._name)
            self._failed = Closed(f"the thread of actor {self._name!r} failed: {error!r}")
        finally:
            self._link.close()
            self._handover.close()
            if self._spool is not None:
                self._spool.close()
            if self._failed is not None and not self._stopping:
                self._on_failure(self._failed)
            with self._changed:
                self._stopping = True
                self._changed.notify_all()

    def _leave(self) -> None:
        with contextlib.suppress(WindowFull):
            self._link.send(Message(Kind.BYE, self._next()))
            now = time.monotonic()
            deadline = now + SLICE_S if self._pulse.lost else max(now + SLICE_S, self._leave_by)
            while (left := deadline - time.monotonic()) > 0:
                message = self._link.receive(left)
                if message is not None and message.kind is Kind.BYE:
                    self._settle(int(message.meta.get("stored") or 0), time.monotonic())
                    return
                if message is not None and message.kind is Kind.ACK:
                    self._acknowledge(message, time.monotonic())

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _tick(self) -> float:
        """Sends what is due; returns seconds until the next look."""
        now = time.monotonic()
        count, added = self.count, self._memory.added
        active = count != self._last_count
        self._last_count = count
        with self._changed:
            if self._flush_started < self._flush_asked:
                self._flush_started, self._flush_number = self._flush_asked, 0
                for outlet in self._outlets:
                    outlet.flushing = outlet.flushes = True
        self._mend(now)
        if self._outbox.behind:
            self._transmit(now)
        self._transmit_earlier(now)
        wait, left = PING_S, _NEVER
        for outlet in self._in_turn:
            outlet.mark, outlet.gate.awaited = added + self._end, self._adders > 0
            later = self._drain(outlet, now, added)
            wait = min(wait, later or PING_S, outlet.linger_s if active else PING_S)
            # Where there is no room the next acknowledgement makes some, and further steps change nothing.
            left = min(left, outlet.steps_left(added) if later else _NEVER)
            if outlet.gate.block(outlet.blocked, outlet.places):
                with self._changed:
                    self._changed.notify_all()
        self._finish_flush()
        with contextlib.suppress(WindowFull):
            self._fetch(now)
            self._listen(now)
        # The first step after a pause wakes the thread; then it looks by itself every linger_ms, and is woken when a cache or a message is full
        # before.
        self.due = count + (left if active else 1)
        return 0.0 if self.count >= self.due else wait

    def _mend(self, now: float) -> None:
        """Joins anew over a connection that was cut: what was on its way, priorities from learners too, is lost."""
        before, self._broken = self._broken, (self._link.breaks, self._link.parted)
        if self._broken[0] != before[0] or self._broken[1] > before[1]:
            with self._changed:
                self._topics.broken()
            self._hello(now)

    def _drain(self, outlet: Outlet, now: float, added: int) -> float:
        """Sends what there is room for; returns seconds until something is due, 0 where that waits for room or for the server."""
        outbox, spooled = self._outbox, self._outbox.spool is not None
        most, shared = self._most(), self._link.transport == "shared"
        while (spooled or (self._talks() and not outbox.behind)) and outbox.has_room(self._message_bytes, most, spooled and self._away(now)):
            wait = outlet.due(now, added)
            if wait > 0:
                return wait
            place = self._link.reserve(int(_PLACE * self._message_bytes)) if self._talks() and not outbox.behind else None
            if place is None and shared and not spooled and len(outbox):
                return 0.0
            frame = outlet.payload(now, added, place)
            if frame is None:
                continue
            self._payloads += 1
            seq = self._next()
            items = head_of(frame).items
            with self._changed:
                outbox.add(seq, outlet.table, outlet.sent(seq, frame, now), items, frame, self._payloads)
            self._transmit(now)
            outbox.let_go()
        return 0.0

    def _talks(self) -> bool:
        return not self._pulse.lost and not self._pulse.greeting and self._delivery is None

    def _away(self, now: float) -> bool:
        return not self._talks() or self._recovery.stalled(now)

    def _most(self) -> int:
        # What shared memory has no room for would go by the socket, at three times the cost. Messages pass their size a little, and never wrap.
        return (_SHARED_MESSAGES - 2) * self._message_bytes if self._link.transport == "shared" else _NEVER

    def _transmit(self, now: float) -> None:
        """Sends pushes that wait to be sent, or sent again, in their order, as far as the server can be reached and there is room on the way."""
        outbox = self._outbox
        while self._talks() and now >= self._recovery.paused_until and (push := outbox.due(self._most())) is not None:
            frame = outbox.frame(push)
            if frame is None:  # damaged on the disk: the server must not wait for it, once it has those before
                if push.number == outbox.first:
                    self._give_up(push, now, True)
                return
            try:
                self._link.send(Message(Kind.PUSH, push.seq, push.table, push.steps, push.number, body=frame[HEADER_BYTES:]), frame)
            except WindowFull:
                self._complain("queue", "actor %s: pushes cannot be queued any more, and wait", self._name)
                return
            with self._changed:
                if push.number == outbox.first:
                    self._recovery.moved(now)
                outbox.went(push)
                self._changed.notify_all()

    def _finish_flush(self) -> None:
        with self._changed:
            if self._flush_done >= self._flush_started:
                return
            if self._delivery is not None or any(outlet.flushing for outlet in self._outlets):
                self._flush_number = 0  # perhaps again: the server has asked for something that it lacks
                return
            self._flush_number = self._flush_number or self._outbox.last
            if self._outbox.settled(self._flush_number):
                self._flush_done = self._flush_started
                for outlet in self._outlets:
                    outlet.flushes = False
                self._changed.notify_all()

    def _fetch(self, now: float) -> None:
        while not self._pulse.lost:
            with self._changed:
                fetch = self._topics.fetch(self._next, now)
            if fetch is None:
                return
            answer = self._handover.fetch(fetch, self._topics.of(fetch))
            if answer is not None:
                self._handle(answer)
                if answer.body:
                    continue
                return
            try:
                self._link.send(fetch)
            except WindowFull:
                with self._changed:
                    self._topics.unsent(fetch)
                return

    def _listen(self, now: float) -> None:
        self._trouble = self._link.trouble if now - self._pulse.heard > PING_S else ""
        if self._pulse.just_lost(now):
            _log.warning("actor %s: the server at %s has been silent for %.0f s; it is asked again", self._name, self._where, now - self._pulse.heard)
        if self._pulse.late_greeting(now):
            self._hello(now)
            return
        recovery = self._recovery if self._delivery is None else self._delivery.recovery
        if self._pulse.ping_due(now) or (not self._pulse.lost and not self._pulse.greeting and recovery.due(now)):
            self._link.send(Message(Kind.PING, self._next()))
            recovery.asked(self._seq, now)


def make_outlet(table: int, settings: Mapping[str, Any], memory: Memory, message_bytes: int, row_stride: int, item_bytes: int) -> Outlet:
    """The outlet that a table's `actor.select` needs."""
    if settings["actor"]["select"] == "all":
        return AllOutlet(table, settings, memory, message_bytes, row_stride + item_bytes + 40)
    return CacheOutlet(table, settings, memory, message_bytes)
