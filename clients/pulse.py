"""Whether the server is there: when it was last heard, when to ask, and whether a HELLO is under way. No clock and no socket of its own."""

from __future__ import annotations

PING_S = 2.0  # silence after which the server is asked whether it is there
LOST_S = 6.0  # silence after which it counts as gone: nothing more is sent into the dark
GREET_S = 10.0  # a HELLO without an answer is said again after this


class Pulse:
    """Used by one thread; `heard` and `lost` may be read by others."""

    def __init__(self, now: float) -> None:
        self.heard = now
        self.lost = False
        self.greeting = False
        self._pinged = self._greeted = now

    def hear(self, now: float) -> None:
        """Something came."""
        self.heard = now
        self.lost = False

    def greet(self, now: float) -> None:
        """A HELLO goes out; until `greeted` nothing but it makes sense."""
        self.greeting = True
        self._greeted = now

    def greeted(self) -> None:
        """Its WELCOME has come."""
        self.greeting = False

    def late_greeting(self, now: float) -> bool:
        """True when the HELLO should be said again."""
        return self.greeting and now - self._greeted >= GREET_S

    def ping_due(self, now: float) -> bool:
        """True when a PING should go out now; counts it as sent. Rarer when the server is gone: all of them arrive when it is back."""
        if now - self.heard < PING_S or now - self._pinged < (GREET_S if self.lost else PING_S):
            return False
        self._pinged = now
        return True

    def just_lost(self, now: float) -> bool:
        """True once, when the silence has become too long."""
        if self.lost or now - self.heard < LOST_S:
            return False
        self.lost = True
        return True
