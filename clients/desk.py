"""Where callers of an actor wait: for acknowledgements, for room, for parameters. The thread behind it (pusher.py) changes what they wait for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from memsvc_proto.errors import Closed, MemsvcError, NotReady, Unreachable, WindowFull

from .follower import Follower
from .link import Link
from .pulse import Pulse
from .waiting import Waiting
from .window import Window


class Desk:
    """What callers and the thread share, guarded by `_changed`, which is notified whenever some of it changes. Public methods: any thread."""

    def __init__(self, link: Link, name: str, where: str, window: Window, follower: Follower) -> None:
        self._link, self._name, self._where = link, name, where
        self._changed = threading.Condition()
        self._window = window
        self._follower = follower
        self._follows = False  # params() was called: parameters are fetched from then on
        self._pulse = Pulse(time.monotonic())
        self._flush_asked = self._flush_started = self._flush_done = 0  # tickets
        self._failed: MemsvcError | None = None
        self._closing = self._stopping = False

    def flush(self, timeout: float) -> None:
        """Sends everything that is final and the current totals, and waits until all of it is acknowledged. Raises Unreachable, Closed."""
        with self._changed:
            self._flush(timeout)

    def wait_room(self, timeout: float, attempt: Callable[[], None], error: WindowFull) -> None:
        """Calls `attempt` whenever something was sent or acknowledged, until it raises WindowFull no more; at the timeout raises WindowFull."""
        done = False

        def tried() -> bool:
            nonlocal done
            if not done:
                self._link.wake()
                with contextlib.suppress(WindowFull):
                    attempt()
                    done = True
            return done

        with self._changed:
            try:
                self._wait(tried, timeout, "add")
            except Unreachable as late:
                raise WindowFull(f"{error.message}; {late.message}", **error.details) from None

    def newest(self, timeout: float) -> tuple[int, Any] | None:
        """The newest parameters' (version, blob) when newer than what was last returned, else None; waits for the very first only.

        Raises NotReady, Unreachable, Closed.
        """
        with self._changed:
            if not self._follows:
                self._follows = True
                self._link.wake()
            if not self._follower.returned:
                began = time.monotonic()
                try:
                    self._wait(lambda: self._follower.held > 0, timeout, "params")
                except Unreachable:
                    if self._follower.newest or self._pulse.heard < began:
                        raise
                    raise NotReady(
                        f"nothing has been published on topic {self._follower.topic!r} yet: params() waited {timeout:g} s for a learner's publish()",
                        reason="unpublished",
                        have=0,
                        need=1,
                    ) from None
            return self._follower.take()

    def _flush(self, timeout: float, closing: bool = False) -> None:
        self._flush_asked += 1
        ticket = self._flush_asked
        self._link.wake()
        self._wait(lambda: self._flush_done >= ticket, timeout, "flush", closing)

    def _wait(self, done: Callable[[], bool], timeout: float, what: str, closing: bool = False) -> None:
        # The caller holds self._changed; of those that wait, only close() itself goes on once it has begun.
        waiting = Waiting(f"{what}() of actor {self._name!r}", timeout)
        while not done():
            if self._failed is not None:
                raise self._failed
            if self._stopping or (self._closing and not closing):
                raise Closed(f"actor {self._name!r} was closed while {what}() waited")
            wait = waiting.slice(self._reason)
            if wait <= 0:
                raise Unreachable(f"{what}() waited {timeout:g} s: {self._reason()}", address=self._where, timeout=timeout)
            self._changed.wait(wait)

    def _reason(self) -> str:
        silent = time.monotonic() - self._pulse.heard
        return f"the server at {self._where} was last heard {silent:.1f} s ago, and {self._window.bytes} pushed bytes have no acknowledgement yet"
