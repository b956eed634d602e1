"""The thread behind an Actor: it owns the door link and carries pushes, acknowledgements, feedback and parameters."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from memsvc_core import Memory
from memsvc_proto.errors import Closed, MemsvcError, WindowFull
from memsvc_proto.wire import Kind, Message

from .desk import Desk
from .follower import Follower
from .link import Link
from .outlet import Outlet, make_outlet
from .pulse import PING_S
from .waiting import SLICE_S
from .welcome import Welcome, changed, hello_message, refusal
from .window import Window

_NEVER = 1 << 62
_BURST = 64  # messages handled before the next look at what is due

_log = logging.getLogger("memsvc_client")


class Unsent(NamedTuple):
    """What close() could not deliver: items of `select = "all"` tables never sent, and bytes of theirs and of pushes without an acknowledgement."""

    items: int
    bytes: int


class Pusher(Desk):
    """Runs from construction to `close`. Every public method may be called by any thread.

    `count` and `due` are plain numbers: adders raise the one and compare it with the other, so that the thread is woken only when there is work.
    `on_failure` is called, from the thread, when it ends because of an error (the server closed, replaced this actor, or changed its tables).
    """

    def __init__(
        self,
        link: Link,
        memory: Memory,
        welcome: Welcome,
        *,
        name: str,
        envs: int,
        where: str,
        topic: str,
        window_bytes: int,
        message_bytes: int,
        on_failure: Callable[[MemsvcError], None],
    ) -> None:
        follower = Follower(topic)
        follower.restarted(welcome.versions)
        super().__init__(link, name, where, Window(window_bytes), follower)
        self.count = 0
        self.due = 1
        self._memory, self._welcome, self._envs = memory, welcome, envs
        self._message_bytes = message_bytes
        self._on_failure = on_failure
        self._outlets: list[Outlet] = [
            make_outlet(i, settings, memory, message_bytes, welcome.schema.row_stride, spec.item_bytes)
            for i, (settings, spec) in enumerate(zip(welcome.tables, welcome.specs, strict=True))
        ]
        self._ends = itertools.count(1)
        self._end = 0
        self._pid = os.getpid()
        # The thread's own:
        self._seq = self._hello_seq = 1
        self._flush_seq = 0
        self._asked_first = 0.0
        self._last_count = -1
        self._complained: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=f"memsvc-pusher-{name}", daemon=True)
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
        """Bytes and counts of the window and of the parameters in hand."""
        with self._changed:
            return {
                "window": {"bytes": self._window.bytes, "limit_bytes": self._window.limit_bytes, "messages": len(self._window)},
                "acknowledged_bytes": self._window.acknowledged,
                "pushes": [outlet.pushed for outlet in self._outlets],
                "params": {"version": self._follower.returned, "newest": self._follower.newest, "held_bytes": self._follower.held_bytes},
                "silent_s": time.monotonic() - self._pulse.heard,
                "malformed": getattr(self._link, "malformed", 0),
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
            self._stopping = True
        self._link.wake()
        self._thread.join(max(0.0, deadline - time.monotonic()) + SLICE_S)
        waiting = [self._memory.unsent(outlet.table) for outlet in self._outlets]
        unsent = Unsent(sum(items for items, _ in waiting), sum(size for _, size in waiting) + self._window.bytes)
        if unsent != (0, 0):
            _log.warning("actor %s closed: %d items were not sent, %d bytes with those in flight are not acknowledged", self._name, *unsent)
        return unsent

    # The thread.

    def _run(self) -> None:
        try:
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
            if self._failed is not None and not self._stopping:
                self._on_failure(self._failed)
            with self._changed:
                self._stopping = True
                self._changed.notify_all()

    def _leave(self) -> None:
        with contextlib.suppress(WindowFull):
            self._link.send(Message(Kind.BYE, self._next()))
            deadline = time.monotonic() + SLICE_S
            while (left := deadline - time.monotonic()) > 0:
                message = self._link.receive(left)
                if message is not None and message.kind is Kind.BYE:
                    # Messages keep their order: the server has taken what was sent before.
                    self._window.settle(self._seq)
                    return

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
                self._flush_started, self._flush_seq = self._flush_asked, 0
                for outlet in self._outlets:
                    outlet.flushing = True
        wait, left = PING_S, _NEVER
        for outlet in self._outlets:
            outlet.mark = added + self._end
            wait = min(wait, self._drain(outlet, now, added), outlet.linger_s if active else PING_S)
            left = min(left, outlet.steps_left(added))
        self._finish_flush()
        with contextlib.suppress(WindowFull):
            self._fetch(now)
            self._listen(now)
        # The first step after a pause wakes the thread; then it looks by itself every linger_ms, and is woken when a cache or a message is full
        # before.
        self.due = count + (left if active else 1)
        return 0.0 if self.count >= self.due else wait

    def _drain(self, outlet: Outlet, now: float, added: int) -> float:
        while not self._pulse.lost and not self._pulse.greeting and self._window.has_room(self._message_bytes):
            wait = outlet.due(now, added)
            if wait > 0:
                return wait
            frame = outlet.payload(now, added)
            if frame is None:
                continue
            seq = self._next()
            message = Message(Kind.PUSH, seq, outlet.table, outlet.sent(seq, frame), body=frame[64:])
            try:
                self._link.send(message, frame)
            except WindowFull:
                self._complain("queue", "actor %s: pushes cannot be queued any more, and are dropped", self._name)
                return PING_S
            with self._changed:
                self._window.sent(seq, frame.nbytes)
                self._changed.notify_all()
        return PING_S

    def _finish_flush(self) -> None:
        with self._changed:
            if self._flush_done >= self._flush_started or any(outlet.flushing for outlet in self._outlets):
                return
            self._flush_seq = self._flush_seq or self._seq
            if self._window.settled(self._flush_seq):
                self._flush_done = self._flush_started
                self._changed.notify_all()

    def _fetch(self, now: float) -> None:
        with self._changed:
            if not self._follows or self._pulse.lost:
                return
            # The first notice may come before the subscription stands, so until something was fetched it is asked for; the answer "none" is tiny.
            first = not self._follower.returned and not self._follower.held
            fetch = self._follower.fetch(self._seq + 1, now, anyway=first and now - self._asked_first >= SLICE_S)
        if fetch is not None:
            self._asked_first = now
            self._next()
            self._link.send(fetch)

    def _listen(self, now: float) -> None:
        if self._pulse.just_lost(now):
            _log.warning("actor %s: the server at %s has been silent for %.0f s; it is asked again", self._name, self._where, now - self._pulse.heard)
        if self._pulse.late_greeting(now):
            self._hello(now)
        elif self._pulse.ping_due(now):
            self._link.send(Message(Kind.PING, self._next()))

    def _hello(self, now: float) -> None:
        self._pulse.greet(now)
        versions = {self._follower.topic: max(self._follower.returned, self._follower.held, self._follower.newest)}
        self._hello_seq = self._next()
        self._link.send(hello_message(self._hello_seq, "actor", self._name, self._envs, versions, self._welcome.epoch))

    # What arrives.

    def _handle(self, message: Message) -> None:
        now = time.monotonic()
        self._pulse.hear(now)
        if message.kind is Kind.ACK:
            self._acknowledge(message, now)
        elif message.kind is Kind.FEEDBACK:
            self._feed(message)
        elif message.kind in (Kind.NOTICE, Kind.PARAMS):
            with self._changed:
                self._follower.heard(message)
                self._changed.notify_all()
        elif message.kind is Kind.WELCOME and message.seq == self._hello_seq:  # of several HELLOs to a server that was away the last counts
            self._reopen(Welcome.read(message))
        elif message.kind is Kind.PONG:
            if message.meta.get("member") is False and not self._pulse.greeting:
                self._hello(now)
        elif message.kind is Kind.ERROR:
            self._refused(message, now)

    def _acknowledge(self, message: Message, now: float) -> None:
        body = memoryview(message.body)
        if message.table >= len(self._outlets) or body.nbytes % 8 or message.b * 8 > body.nbytes:
            self._complain("ack", "an acknowledgement of the server at %s is malformed and dropped", self._where)
            return
        with self._changed:
            self._window.settle(message.seq)
            self._changed.notify_all()
        outlet = self._outlets[message.table]
        outlet.acknowledged(message.seq, message.a, now)
        if body.nbytes:
            keys = np.frombuffer(body, np.uint64)
            if len(keys) > message.b:
                self._memory.evicted(message.table, keys[message.b :])
            if message.b:
                outlet.missing(keys[: message.b])

    def _feed(self, message: Message) -> None:
        body, n = memoryview(message.body), message.b
        if message.table >= len(self._outlets) or body.nbytes != 16 * n:
            self._complain("feedback", "priorities from the server at %s are malformed and dropped", self._where)
            return
        self._memory.feedback(message.table, message.a, np.frombuffer(body, np.uint64, n), np.frombuffer(body, np.float64, n, 8 * n))

    def _refused(self, message: Message, now: float) -> None:
        details = message.meta.get("details")
        if isinstance(details, dict) and details.get("hello"):
            if not self._pulse.greeting:
                self._hello(now)
            return
        if message.meta.get("code") == Closed.code or message.seq == self._hello_seq:
            raise refusal(message)
        self._complain(str(message.meta.get("code")), "the server refused a message of actor %s: %s", self._name, message.meta.get("message"))
        with self._changed:
            self._window.settle(message.seq)
            self._changed.notify_all()

    def _reopen(self, welcome: Welcome) -> None:
        if not self._welcome.same_tables(welcome):
            raise changed(self._where)
        self._pulse.greeted()
        _log.warning(
            "actor %s has joined the server at %s anew: %d bytes that had been acknowledged and %d in flight are gone with the old one",
            *(self._name, self._where, self._window.acknowledged, self._window.bytes),
        )
        self._memory.reopen(welcome.streams)
        for outlet in self._outlets:
            outlet.restart()
        with self._changed:
            self._welcome = welcome
            self._window.restart()
            self._flush_started = self._flush_done  # what was flushed to the old server is not at the new one
            self._follower.restarted(welcome.versions)
            self._changed.notify_all()

    def _complain(self, kind: str, text: str, *values: object) -> None:
        if kind not in self._complained:
            self._complained.add(kind)
            _log.warning(text, *values)
