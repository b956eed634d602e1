"""Gate: whether `add` has to wait because of one table, and the words for it. No clock, no thread of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from memsvc_core import Memory

HAND_BACK_S = 0.1
"""Time without a new item after which unused allowance is given back, so that others may use it; and between two reports of what is new."""

ASK_AGAIN_S = 1.0
"""The server tells an actor that waits when it may go on; in case that is lost, the actor says again that it waits."""

KEPT_ALL = (1 << 64) - 1
"""CacheHead.allowed of a push that hands nothing back."""


class Gate:
    """Closed in the actor's core (Memory.gate) while the rate limiter allows no more items (DEFINITIONS 9), or while a full table that evicts
    nothing leaves final items unsent (capacity.when_full = "block"). Used by the pusher's thread; `why` by callers too.

    An allowance is a value of the actor's own count of inserted items. Before the server has spoken it is 0: such an actor waits for its first word.
    """

    def __init__(self, table: int, settings: Mapping[str, Any], memory: Memory) -> None:
        self.settings = settings
        self.allowed: int | None = None
        self.blocked = False
        self.places: int | None = None  # a table that blocks: its items may be as many, by the actor's own count
        self.awaited = False  # callers wait, at this gate or another; set by the owner
        self.ahead = 0.0  # items by which all actors are ahead of the learners, as the server last said
        self._table, self._memory = table, memory
        self._inserted = 0  # as the last payload said
        self._grown = 0.0  # when that grew, or the allowance
        self._returned = 0  # seq of the push that last handed allowance back
        self._asked = -math.inf  # when the server was last told that callers wait, since it last allowed more
        self.configure(settings)

    @property
    def limited(self) -> bool:
        """True where the table has a rate limiter."""
        return self.allowed is not None

    @property
    def left(self) -> int:
        """Items that may still be inserted, as of the last payload; only where `limited`."""
        return max(0, (self.allowed or 0) - self._inserted)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """The table's settings, at the start and when they have changed."""
        self.settings = settings
        limited = bool(settings.get("limits", {}).get("samples_per_insert", 0) > 0)
        if limited != self.limited:
            self._set(0 if limited else None, self.blocked)

    def restart(self) -> None:
        """A new server, which has allowed nothing yet."""
        self._returned, self._inserted, self._asked = 0, 0, -math.inf
        self._set(0 if self.limited else None, False)

    def resumed(self) -> None:
        """The server that is known has been joined again: what was said while it could not be heard may be lost."""
        self._returned, self._asked = 0, -math.inf

    def block(self, blocked: bool, places: int | None) -> bool:
        """Final items wait for room, or do so no longer; and how many may be made before they would. True when that may open the gate."""
        opens = (self.blocked and not blocked) or places != self.places
        if blocked != self.blocked or places != self.places:
            self.places = places
            self._set(self.allowed, blocked)
        return opens

    def granted(self, seq: int, allowed: int, ahead: float, now: float) -> None:
        """The server's allowance, in the answer of push `seq`; one that has crossed a hand-back is void."""
        if not self.limited or seq < self._returned:
            return
        self.ahead = ahead
        if allowed > (self.allowed or 0):
            self._grown, self._asked = now, -math.inf
        if allowed != self.allowed:
            self._set(allowed, self.blocked)

    def sent(self, seq: int, inserted: int, kept: int, now: float) -> None:
        """Push `seq` says how many items have been inserted, and, unless `kept` is KEPT_ALL, hands back what is allowed beyond that."""
        if kept != KEPT_ALL:
            self._returned, self._asked = seq, -math.inf  # who hands back does not wait: that is to be said by itself
        if inserted > self._inserted:
            self._inserted, self._grown = inserted, now

    def due(self, now: float) -> float:
        """Seconds until the server is to be told: that unused allowance is handed back, or that callers wait for some; infinite where neither is."""
        if not self.limited:
            return math.inf
        if self.left:
            return max(0.0, self._grown + HAND_BACK_S - now)
        return max(0.0, self._asked + ASK_AGAIN_S - now) if self.awaited else math.inf

    def hand_back(self, now: float) -> None:
        """Closes the gate where the items stand, if it is time to: the payload that is drawn next says so."""
        if self.limited and self.left and now >= self._grown + HAND_BACK_S:
            self._set(self._inserted, self.blocked)

    def said(self, now: float) -> None:
        """A payload was drawn, which tells the server that callers wait, where they do."""
        if self.awaited:
            self._asked = now

    def why(self) -> tuple[str, dict[str, Any]] | None:
        """Why `add` waits, with who is ahead by how much and the setting that holds it, or None where this table is not the reason."""
        limits, capacity, name = self.settings.get("limits", {}), self.settings.get("capacity", {}), self.settings.get("name")
        if self.blocked:
            waiting = self._memory.unsent(self._table)[0]
            bound = f"capacity.items = {capacity['items']:,}" if capacity.get("items") else "server.memory"
            return (
                f"table {name!r} is full ({bound}), and with capacity.when_full = 'block' nothing in it gives way: "
                f"this actor is ahead of the learners by {waiting:,} items, which wait until learners have taken some",
                {"table": name, "ahead": waiting, "setting": "capacity.when_full"},
            )
        if self.allowed is None or self._memory.stats()["tables"][self._table]["inserted"] < self.allowed:
            return None
        limit = f"limits.samples_per_insert = {limits['samples_per_insert']:g} with limits.tolerance = {limits.get('tolerance', 0):g}"
        details = {"table": name, "ahead": self.ahead, "setting": "limits.samples_per_insert"}
        if self.ahead > 0:
            return f"actors of table {name!r} are ahead of its learners by {self.ahead:,.6g} items, as far as {limit} lets them", details
        return f"the server allows this actor no more than {self.allowed:,} items of table {name!r} now ({limit})", details

    def _set(self, allowed: int | None, blocked: bool) -> None:
        self.allowed, self.blocked = allowed, blocked
        # A lower allowance is one handed back (cpp/core/cache.h), so with a limiter places do not bound it.
        self._memory.gate(self._table, self.places if allowed is None else allowed, blocked)
