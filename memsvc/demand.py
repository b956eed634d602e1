"""How many stage-one draws learners are to find in stock: the number that `Replay.expect` shares out among the actors."""

from __future__ import annotations

from collections import deque

FLOOR = 1024
WINDOW_S = 0.25
_STEP_S = WINDOW_S / 10
BATCHES = 4


class Demand:
    """max(1,024, 4 x the largest batch asked, draws taken in the last 0.25 s). Not thread-safe: its owner's lock guards it.

    Times are seconds of any clock.
    """

    def __init__(self) -> None:
        self._largest = 0
        self._buckets: deque[list[float]] = deque()  # [begin, draws], one per 25 ms in which something was taken
        self._taken = 0

    def asked(self, batch: int) -> None:
        """A learner asks for batches of this size."""
        self._largest = max(self._largest, batch)

    def took(self, draws: int, now: float) -> None:
        """Draws were delivered."""
        if self._buckets and now - self._buckets[-1][0] < _STEP_S:
            self._buckets[-1][1] += draws
        else:
            self._buckets.append([now, draws])
        self._taken += draws

    def level(self, now: float) -> int:
        """The stock to expect now."""
        while self._buckets and now - self._buckets[0][0] > WINDOW_S:
            self._taken -= int(self._buckets.popleft()[1])
        return max(FLOOR, BATCHES * self._largest, self._taken)
