"""AllOutlet: every item once, for tables whose union the server holds (actor.select = "all")."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from memsvc_core import Memory
from numpy.typing import NDArray

from .outlet import REPORT_S, Frame, Outlet, head_of


class AllOutlet(Outlet):
    """Sends when a message is full, or `linger_ms` after the first unsent item. Where a full table blocks, it sends what there is room for, asks for
    room by the totals alone, and is `blocked` while final items are unsent and there is none.
    """

    def __init__(self, table: int, settings: Mapping[str, Any], memory: Memory, message_bytes: int, step_bytes: int) -> None:
        super().__init__(table, settings, memory, message_bytes)
        self._step_bytes = step_bytes
        self._blocks = settings.get("capacity", {}).get("when_full") == "block"
        self._room = 0  # items that may be sent; only where the table blocks
        self._passed = 0  # items, of those made, that were sent or dropped as stale
        self._asked = -math.inf  # when room was last asked for, since it was last given
        self._told = 0  # items that the server knows to be unsent
        self._made = False  # an item was ever made
        self._first: float | None = None
        self._unsent = self._unsent_bytes = 0

    @property
    def blocked(self) -> bool:
        """See Outlet."""
        return self._blocks and self._unsent > 0 and self._room == 0

    @property
    def places(self) -> int | None:
        """See Outlet. One item is made without room, which makes this outlet ask for some."""
        return self._passed + self._room + 1 if self._blocks else None

    def due(self, now: float, added: int) -> float:
        """See Outlet."""
        self._unsent, self._unsent_bytes = self._memory.unsent(self.table)
        if self._owed:
            return 0.0
        wait = self._limiter_due(now, added)
        if self._blocks and self.gate.awaited and not self._room:
            wait = min(wait, max(0.0, self._asked + REPORT_S - now))
        if self._dry_at == self.mark or not (self._unsent or (self.mark and not self._made)):
            self._first, self.flushing = None, False
            return wait
        if self.blocked:
            return 0.0 if self._unsent > self._told else min(wait, max(0.0, self._asked + REPORT_S - now))
        if self._first is None:
            self._first = now
        if self.flushing or self._unsent_bytes >= self._message_bytes or (self._blocks and self.gate.awaited):
            return 0.0
        return min(wait, max(0.0, self._first + self.linger_s - now))

    def steps_left(self, added: int) -> int:
        """See Outlet."""
        room = self._room - self._unsent if self._blocks else 1 << 62
        return max(1, min((self._message_bytes - self._unsent_bytes) // self._step_bytes, self._limiter_steps(added), room))

    def payload(self, now: float, added: int, place: Frame | None = None) -> Frame | None:
        """See Outlet."""
        if self._blocks and not self._room:
            self._asked = now
        self._first = None
        # Who waits without an item to send asks by the head alone; without blocking the number does not matter else.
        draws = 0 if self.gate.awaited and not self._unsent else self._room if self._blocks else 1
        frame = self._draw(draws, now, added, place)
        if frame is None:
            self.gate.said(now)
        head = None if frame is None else head_of(frame)
        self._made = self._made or (head is not None and head.inserted > 0)
        # Where nothing went although something might have, nothing will before the next step.
        if (head is None or not head.items) and not self.blocked:
            self._dry_at = self._said_at = self.mark
        return frame

    def sent(self, seq: int, frame: Frame, now: float) -> int:
        """See Outlet."""
        head = head_of(frame)
        if self._blocks:
            self._later.append((seq, head.items))
            self._room = max(0, self._room - head.items)
            self._passed, self._told = head.inserted - head.unsent, head.unsent
        return super().sent(seq, frame, now)

    def acknowledged(self, seq: int, wanted: int, now: float) -> None:
        """See Outlet. Without blocking nothing is asked for: everything is sent."""
        if self._blocks:
            before, self._room = self._room, self._level(seq, wanted)
            if self._room and not before:
                self._asked = -math.inf

    def missing(self, keys: NDArray[np.uint64]) -> None:
        """See Outlet. Who waits for everything to be there waits for these too."""
        super().missing(keys)
        self.flushing = self.flushing or self.flushes

    def resumed(self, seq: int) -> None:
        """See Outlet."""
        super().resumed(seq)
        self._asked = -math.inf

    def restart(self) -> None:
        """See Outlet."""
        super().restart()
        self._room = self._told = self._passed = 0
        self._asked = -math.inf
