"""What one table of an actor still has to send, and when (DEFINITIONS 7: demand). No thread, no clock, no socket of its own."""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from memsvc_core import Memory
from memsvc_proto.wire import HEADER_BYTES
from numpy.typing import NDArray

MAX_DRAWS = 4096  # of one payload: bounds how long the memory's lock is held
REPORT_S = 1.0  # totals are reported at least so often while steps are added

# cpp/core/cache.h, CacheHead: table row_stride rows items draws gone total population min_weight scale applied inserted steps.
_HEAD = struct.Struct("<IIQQQQdQddQQQ")

Frame = NDArray[np.uint8]


class Outlet(ABC):
    """Base of the two kinds. Used by the pusher's thread alone."""

    def __init__(self, table: int, settings: Mapping[str, Any], memory: Memory, message_bytes: int) -> None:
        actor = settings.get("actor", {})
        self.table = table
        self.linger_s = float(actor.get("linger_ms", 20)) / 1e3
        self.mark = 0  # changes whenever a step was added or an episode ended; set by the owner
        self.flushing = False
        self.pushed = 0
        self._memory = memory
        self._message_bytes = message_bytes
        self._dry_at = -1  # the mark at which the memory had nothing more to say
        self._owed = False

    @abstractmethod
    def due(self, now: float, added: int) -> float:
        """Seconds until something should be sent; 0: now; infinite: not before something happens."""

    @abstractmethod
    def steps_left(self, added: int) -> int:
        """Steps to be added from now until `due` may become 0."""

    @abstractmethod
    def payload(self, now: float, added: int) -> Frame | None:
        """What is to be sent now, behind 64 free bytes; None: nothing."""

    @abstractmethod
    def acknowledged(self, seq: int, wanted: int, now: float) -> None:
        """The server has seen all pushes up to `seq` and then wanted so many draws."""

    def sent(self, seq: int, frame: Frame) -> int:
        """The payload went out as push `seq`. Returns steps added so far, as the payload says."""
        self.pushed += 1
        return int(_HEAD.unpack_from(frame.data, HEADER_BYTES)[12])

    def missing(self, keys: NDArray[np.uint64]) -> None:
        """The server asks for payload again."""
        self._memory.missing(self.table, keys)
        self._owed = True

    def restart(self) -> None:
        """A new server, which holds nothing."""
        self._dry_at, self._owed = -1, False


class CacheOutlet(Outlet):
    """Caches on demand, one at least every `every` steps, and the totals in between."""

    def __init__(self, table: int, settings: Mapping[str, Any], memory: Memory, message_bytes: int) -> None:
        super().__init__(table, settings, memory, message_bytes)
        actor = settings.get("actor", {})
        self.wanted = 0
        self._cache = int(actor.get("cache", 64))
        self._every = int(actor.get("every", 64))
        self._wanted_since = 0.0
        self._later: deque[tuple[int, int]] = deque()  # (seq, draws) of pushes not acknowledged
        self._cached_at = 0  # steps added at the last cache
        self._reported_mark = 0  # the mark at the last payload of any kind
        self._reported = -math.inf  # when that was
        self._population = 0

    def due(self, now: float, added: int) -> float:
        """See Outlet."""
        if self._owed or self.flushing or added - self._cached_at >= self._every:
            return 0.0
        wait = math.inf
        if self.wanted and self._dry_at != self.mark:
            wait = 0.0 if self.wanted >= self._cache else self._wanted_since + self.linger_s - now
        if self.mark != self._reported_mark:
            # The first items are worth a message at once: the server wants nothing of an actor whose weight it does not know.
            wait = min(wait, self._reported + (self.linger_s if self._population < self._cache else REPORT_S) - now)
        return max(0.0, wait)

    def steps_left(self, added: int) -> int:
        """See Outlet."""
        return max(1, self._every - (added - self._cached_at))

    def payload(self, now: float, added: int) -> Frame | None:
        """See Outlet."""
        cache = added - self._cached_at >= self._every
        draws = min(MAX_DRAWS, max(self.wanted, self._cache) if cache else self.wanted)
        frame = self._memory.draw(self.table, draws, self._message_bytes, HEADER_BYTES)
        self._owed = self.flushing = False
        self._reported_mark, self._reported = self.mark, now
        if cache:
            self._cached_at = added
        if frame is None:
            self._dry_at = self.mark
            return None
        head = _HEAD.unpack_from(frame.data, HEADER_BYTES)
        self._population = head[7]
        if head[4]:
            self._cached_at = added
        elif draws:
            self._dry_at = self.mark
        return frame

    def sent(self, seq: int, frame: Frame) -> int:
        """See Outlet."""
        draws = _HEAD.unpack_from(frame.data, HEADER_BYTES)[4]
        self._later.append((seq, draws))
        self.wanted = max(0, self.wanted - draws)
        return super().sent(seq, frame)

    def acknowledged(self, seq: int, wanted: int, now: float) -> None:
        """See Outlet. Demand is a level: the draws of later pushes are on their way already."""
        while self._later and self._later[0][0] <= seq:
            self._later.popleft()
        wanted = max(0, wanted - sum(draws for _, draws in self._later))
        if wanted and not self.wanted:
            self._wanted_since = now
        self.wanted = wanted

    def restart(self) -> None:
        """See Outlet."""
        super().restart()
        self.wanted = 0
        self._later.clear()
        self._reported_mark, self._reported, self._population = -1, -math.inf, 0


class AllOutlet(Outlet):
    """Every item once: when a message is full, or `linger_ms` after the first unsent one."""

    def __init__(self, table: int, settings: Mapping[str, Any], memory: Memory, message_bytes: int, step_bytes: int) -> None:
        super().__init__(table, settings, memory, message_bytes)
        self._step_bytes = step_bytes
        self._first: float | None = None
        self._unsent_bytes = 0

    def due(self, now: float, added: int) -> float:
        """See Outlet."""
        items, self._unsent_bytes = self._memory.unsent(self.table)
        if self._owed:
            return 0.0
        if not items or self._dry_at == self.mark:
            self._first = None
            self.flushing = False
            return math.inf
        if self._first is None:
            self._first = now
        if self.flushing or self._unsent_bytes >= self._message_bytes:
            return 0.0
        return max(0.0, self._first + self.linger_s - now)

    def steps_left(self, added: int) -> int:
        """See Outlet."""
        return max(1, (self._message_bytes - self._unsent_bytes) // self._step_bytes)

    def payload(self, now: float, added: int) -> Frame | None:
        """See Outlet."""
        self._owed = False
        self._first = None
        frame = self._memory.draw(self.table, 0, self._message_bytes, HEADER_BYTES)
        if frame is None:
            self._dry_at = self.mark
        return frame

    def acknowledged(self, seq: int, wanted: int, now: float) -> None:
        """See Outlet. Nothing is asked for: everything is sent."""


def make_outlet(table: int, settings: Mapping[str, Any], memory: Memory, message_bytes: int, row_stride: int, item_bytes: int) -> Outlet:
    """The outlet that a table's `actor.select` needs."""
    if settings.get("actor", {}).get("select", "prioritized") == "all":
        return AllOutlet(table, settings, memory, message_bytes, row_stride + item_bytes + 40)
    return CacheOutlet(table, settings, memory, message_bytes)
