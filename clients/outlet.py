"""What one table of an actor still has to send, and when: the base of the two kinds (caches.py, union.py). No thread, clock or socket of its own."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from memsvc_core import Memory
from memsvc_proto.wire import HEADER_BYTES
from numpy.typing import NDArray

from .gate import HAND_BACK_S, Gate

REPORT_S = 1.0  # totals are reported at least so often while steps are added

Frame = NDArray[np.uint8]


class Head(NamedTuple):
    """cpp/core/cache.h, CacheHead: what stands at the beginning of every payload."""

    table: int
    row_stride: int
    rows: int
    items: int
    draws: int
    gone: int
    total: float
    population: int
    min_weight: float
    scale: float
    applied: int
    inserted: int
    steps: int
    exponent: float
    newest: int
    stale: int
    episodes: int
    short_episodes: int
    unsent: int
    allowed: int


HEAD = struct.Struct("<IIQQQQdQddQQQdqQQQQQ")


def head_of(frame: Frame) -> Head:
    """The head of the payload behind a frame's 64 free bytes."""
    return Head._make(HEAD.unpack_from(frame.data, HEADER_BYTES))


class Outlet(ABC):
    """Used by the pusher's thread alone. `mark` changes whenever a step was added or an episode ended; its owner sets it."""

    def __init__(self, table: int, settings: Mapping[str, Any], memory: Memory, message_bytes: int) -> None:
        self.table = table
        self.linger_s = float(settings.get("actor", {}).get("linger_ms", 20)) / 1e3
        self.gate = Gate(table, settings, memory)
        self.mark = 0
        self.flushing = False
        self.flushes = False  # a caller waits until everything is there; set by the owner
        self.pushed = 0
        self._settings = settings
        self._memory = memory
        self._message_bytes = message_bytes
        self._owed = self.gate.limited  # something is to be said at once; at the start, that an allowance is needed
        self._dry_at = -1  # the mark at which the memory had nothing more to say
        self._said_at = 0  # the mark at the last payload, and
        self._said = float("-inf")  # when that was
        self._said_added = 0  # and how many steps there were
        self._later: deque[tuple[int, int]] = deque()  # (seq, draws or items) of pushes not acknowledged

    @abstractmethod
    def due(self, now: float, added: int) -> float:
        """Seconds until something should be sent; 0: now; infinite: not before something happens."""

    @abstractmethod
    def steps_left(self, added: int) -> int:
        """Steps to be added from now until `due` may become 0."""

    @abstractmethod
    def payload(self, now: float, added: int, place: Frame | None = None) -> Frame | None:
        """What is to be sent now, behind 64 free bytes, at `place` where it fits there; None: nothing."""

    @abstractmethod
    def acknowledged(self, seq: int, wanted: int, now: float) -> None:
        """The server has seen all pushes up to `seq`, and then wanted so many draws, or had room for so many items."""

    @property
    def blocked(self) -> bool:
        """True while final items wait for room in a full table."""
        return False

    @property
    def places(self) -> int | None:
        """Items, by the memory's own count, that may be made before they wait for room; None where the table does not block."""
        return None

    def sent(self, seq: int, frame: Frame, now: float) -> int:
        """The payload went out as push `seq`. Returns steps added so far, as the payload says."""
        self.pushed += 1
        head = head_of(frame)
        self.gate.sent(seq, head.inserted, head.allowed, now)
        return head.steps

    def missing(self, keys: NDArray[np.uint64]) -> None:
        """The server asks for payload again."""
        self._memory.missing(self.table, keys)
        self._owed = True

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Settings have changed while running: the server hears what comes of it at once."""
        self._settings = settings
        self.gate.configure(settings)
        self._dry_at, self._owed = -1, True

    def aged(self) -> None:
        """Newer parameters exist: what that makes too stale leaves the table at once."""
        self._owed = self._owed or self._settings.get("limits", {}).get("max_staleness", -1) >= 0

    def resumed(self, seq: int) -> None:
        """The server of before is there again, and has all pushes up to `seq`: it is asked and told anew what may be lost."""
        while self._later and self._later[0][0] <= seq:
            self._later.popleft()
        self.gate.resumed()
        self._dry_at, self._owed = -1, self._owed or self.gate.limited

    def restart(self) -> None:
        """A new server, which holds nothing."""
        self._later.clear()
        self.gate.restart()
        self._dry_at, self._owed = -1, self.gate.limited

    def _draw(self, draws: int, now: float, added: int, place: Frame | None) -> Frame | None:
        self.gate.hand_back(now)
        frame = self._memory.draw(self.table, draws, self._message_bytes, HEADER_BYTES, place)
        self._owed = False
        if frame is not None:
            self.gate.said(now)
            self._said_at, self._said, self._said_added = self.mark, now, added
        return frame

    def _limiter_due(self, now: float, added: int) -> float:
        # What is new reaches the limiter while half of the allowance is left, so that neither side waits for the other's news.
        if not self.gate.limited:
            return float("inf")
        wait = self.gate.due(now)
        if self.mark != self._said_at:
            soon = added - self._said_added > self.gate.left // 2
            wait = min(wait, 0.0 if soon else max(0.0, self._said + HAND_BACK_S - now))
        return wait

    def _limiter_steps(self, added: int) -> int:
        return max(1, self.gate.left // 2 + 1 - (added - self._said_added)) if self.gate.limited else 1 << 62

    def _level(self, seq: int, wanted: int) -> int:
        # What the server wants is a level: later pushes are on their way already.
        while self._later and self._later[0][0] <= seq:
            self._later.popleft()
        return max(0, wanted - sum(count for _, count in self._later))
