"""Where callers of an actor wait: for acknowledgements, for room, for parameters. The thread behind it (pusher.py) changes what they wait for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from memsvc_proto.errors import Closed, MemsvcError, NotReady, Unreachable, WindowFull

from .gate import Gate
from .outbox import Outbox
from .pulse import Pulse
from .seam import Link
from .topics import Topics
from .waiting import Waiting


class Desk:
    """What callers and the thread share, guarded by `_changed`, which is notified whenever some of it changes. Public methods: any thread."""

    def __init__(self, link: Link, name: str, where: str, outbox: Outbox, topics: Topics, gates: Sequence[Gate]) -> None:
        self._link, self._name, self._where = link, name, where
        self._changed = threading.Condition()
        self._outbox = outbox
        self._topics = topics
        self._gates = gates
        self._pulse = Pulse(time.monotonic())
        self._waits = ""  # why the server acknowledges nothing now, as its last PONG told
        self._trouble = ""  # what the link's handshakes say, as the thread last saw it
        self._flush_asked = self._flush_started = self._flush_done = 0  # tickets
        self._adders = 0  # callers that wait for room
        self._failed: MemsvcError | None = None
        self._closing = self._stopping = False

    def flush(self, timeout: float) -> None:
        """Sends everything that is final and the current totals, and waits until all of it is acknowledged. Raises Unreachable, Closed; WindowFull
        where a full table has no room for it.
        """
        with self._changed:
            try:
                self._flush(timeout)
            except Unreachable as late:
                raise self._full("flush", late, blocked=True) or late from None

    def wait_room(self, timeout: float, attempt: Callable[[], None], error: WindowFull) -> None:
        """Calls `attempt` whenever something was sent, acknowledged or allowed, until it raises WindowFull no more; at the timeout raises WindowFull,
        which says what there was no room in.
        """
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
            self._adders += 1
            try:
                self._wait(tried, timeout, "add")
            except Unreachable as late:
                raise self._full("add", late) or WindowFull(f"{error.message}; {late.message}", **error.details) from None
            finally:
                self._adders -= 1

    def newest(self, timeout: float, topic: str | None) -> tuple[int, Any] | None:
        """The newest parameters' (version, blob) of `topic` (None: the actor's own) when newer than what was last returned, else None; waits for the
        very first only.

        Raises NotReady, Unreachable, Closed; ConfigError for what is no topic.
        """
        with self._changed:
            follower = self._topics.follow(self._topics.own.topic if topic is None else topic)
            if not follower.returned:
                self._link.wake()
                began = time.monotonic()
                try:
                    self._wait(lambda: follower.held > 0, timeout, "params")
                except Unreachable:
                    if follower.newest or self._pulse.heard < began:
                        raise
                    raise NotReady(
                        f"nothing has been published on topic {follower.topic!r} yet: params() waited {timeout:g} s for a learner's publish()",
                        reason="unpublished",
                        have=0,
                        need=1,
                    ) from None
            return follower.take()

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
            wait = waiting.slice(lambda: self._reason(what))
            if wait <= 0:
                raise Unreachable(f"{what}() waited {timeout:g} s: {self._silence()}", address=self._where, timeout=timeout)
            self._changed.wait(wait)

    def _full(self, what: str, late: Unreachable, blocked: bool = False) -> WindowFull | None:
        # What a gate has to say about a wait that is over; None: it was no gate.
        if self._pulse.lost:
            return None
        for gate in self._gates:
            why = gate.why() if gate.blocked or not blocked else None
            if why is not None:
                return WindowFull(f"{why[0]}; {what}() waited {late.timeout:g} s", **why[1], timeout=late.timeout)
        return None

    def _reason(self, what: str) -> str:
        why = [gate.why() for gate in self._gates] if what == "add" else []
        return next((one[0] for one in why if one is not None), self._silence())

    def _silence(self) -> str:
        silent = time.monotonic() - self._pulse.heard
        told = f"the server at {self._where} was last heard {silent:.1f} s ago, and {self._outbox.bytes} pushed bytes have no acknowledgement yet" + (
            f": {self._trouble or self._waits}" if self._trouble or self._waits else ""
        )
        spool = self._outbox.spool
        return told if spool is None or not self._outbox.held else f"{told}; {spool.why()}"
