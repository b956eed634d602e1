"""Recovery: finds out which pushes were lost on their way, from what the server says. No clock, thread or socket of its own.

A connection that was cut and made anew behind the scenes loses what was under way. Where the link notices, the actor joins anew; else the next push
shows it (a gap), and where there is none, the answer to a PING does: it says which push the server has taken last.
"""

from __future__ import annotations

import math

from .outbox import TRIES, Outbox, Push

ASK_S = 2.0
"""Time without an acknowledgement after which the server is asked what it has, while anything is out."""

STALL_S = 0.5
"""Time without an acknowledgement after which a spool takes what the window has no room for."""

_AGAIN_S = 0.1  # pause before a push goes again to a server that failed over it; then twice as long each time


class Recovery:
    """Used by one thread. Numbers are those of pushes."""

    def __init__(self, outbox: Outbox) -> None:
        self.paused_until = -math.inf
        """Before this nothing is sent again."""
        self._outbox = outbox
        self._moved = -math.inf
        self._asked = (0, 0)  # seq of the last PING, and what had been sent before it
        self._rewound = 0  # where sending has begun anew last, until something from there on is acknowledged

    def moved(self, now: float) -> None:
        """Something was acknowledged, or sent when nothing was out."""
        self._moved = now

    def stalled(self, now: float) -> bool:
        """True where something has been out for STALL_S, and nothing was acknowledged meanwhile."""
        return len(self._outbox) > 0 and now - self._moved >= STALL_S

    def due(self, now: float) -> bool:
        """True when a PING should ask what the server has."""
        return self._outbox.flown >= self._outbox.first and now - self._moved >= ASK_S

    def asked(self, seq: int, now: float) -> None:
        """That PING, or one for another reason, was sent as `seq`."""
        self._moved, self._asked = now, (seq, self._outbox.flown)

    def answered(self, seq: int, taken: int) -> None:
        """Its PONG: what was sent before it and is above `taken` was lost, and is sent again."""
        asked, flown = self._asked
        if seq == asked and taken < flown:
            self._rewind(taken + 1)

    def gap(self, expected: int) -> bool:
        """The server has had a push before one that it waits for: sending goes on from there. False where this side has that one no more: the server
        is to hear so.
        """
        if expected < self._outbox.first:
            return False
        # The pushes behind the lost one were on their way too: each of them finds the same gap.
        if expected != self._rewound:
            self._rewind(expected)
        return True

    def failed(self, push: Push, now: float) -> bool:
        """The server failed over this push: it is sent again. False: that was tried often enough."""
        push.tries += 1
        if push.tries >= TRIES:
            return False
        self.paused_until = now + _AGAIN_S * 2**push.tries
        self._rewind(push.number)
        return True

    def joined(self) -> None:
        """Another connection, or another server: everything that is out is sent again."""
        self.paused_until, self._rewound = -math.inf, 0
        self._outbox.rewind(self._outbox.first)
        self._asked = (0, 0)

    def _rewind(self, number: int) -> None:
        self._rewound = number
        self._outbox.rewind(number)
        self._asked = (0, 0)  # it asked of what was sent before
