"""CacheOutlet: caches of draws, as many as the server wants (DEFINITIONS 7: demand)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from memsvc_core import Memory

from .outlet import REPORT_S, Frame, Outlet, head_of

MAX_DRAWS = 4096  # of one payload: bounds how long the memory's lock is held


class CacheOutlet(Outlet):
    """Caches on demand, one at least every `every` steps, and the totals in between; on demand alone where a draw takes its item out
    (actor.select = "without_replacement").
    """

    def __init__(self, table: int, settings: Mapping[str, Any], memory: Memory, message_bytes: int) -> None:
        super().__init__(table, settings, memory, message_bytes)
        actor = settings.get("actor", {})
        self.wanted = 0
        self._cache = int(actor.get("cache", 64))
        self._every = math.inf if actor.get("select") == "without_replacement" else int(actor.get("every", 64))
        self._wanted_since = 0.0
        self._cached_at = 0  # steps added at the last cache
        self._population = 0

    def due(self, now: float, added: int) -> float:
        """See Outlet."""
        if self._owed or self.flushing or added - self._cached_at >= self._every:
            return 0.0
        wait = self._limiter_due(now, added)
        if self.wanted and self._dry_at != self.mark:
            wait = min(wait, 0.0 if self.wanted >= self._cache else self._wanted_since + self.linger_s - now)
        if self.mark != self._said_at:
            # The first items are worth a message at once: the server wants nothing of an actor whose weight it does not know.
            wait = min(wait, self._said + (self.linger_s if self._population < self._cache else REPORT_S) - now)
        return max(0.0, wait)

    def steps_left(self, added: int) -> int:
        """See Outlet."""
        return int(max(1, min(self._every - (added - self._cached_at), self._limiter_steps(added))))

    def payload(self, now: float, added: int, place: Frame | None = None) -> Frame | None:
        """See Outlet."""
        cache = added - self._cached_at >= self._every
        # What could not be drawn at this mark is not tried again before the next: the totals go alone.
        draws = 0 if self._dry_at == self.mark else min(MAX_DRAWS, max(self.wanted, self._cache) if cache else self.wanted)
        frame = self._draw(draws, now, added, place)
        if cache:
            self._cached_at = added
        if frame is None:
            self._dry_at = self.mark
            return None
        self.flushing = False
        head = head_of(frame)
        self._population = head.population
        if head.draws:
            self._cached_at = added
        elif draws:
            self._dry_at = self.mark
        return frame

    def sent(self, seq: int, frame: Frame, now: float) -> int:
        """See Outlet."""
        draws = head_of(frame).draws
        self._later.append((seq, draws))
        self.wanted = max(0, self.wanted - draws)
        return super().sent(seq, frame, now)

    def acknowledged(self, seq: int, wanted: int, now: float) -> None:
        """See Outlet."""
        wanted = self._level(seq, wanted)
        if wanted and not self.wanted:
            self._wanted_since = now
        self.wanted = wanted

    def restart(self) -> None:
        """See Outlet."""
        super().restart()
        self.wanted = 0
        self._said_at, self._said, self._population = -1, -math.inf, 0
