"""Priorities on their way from a learner: those to be sent, and those sent that the server has not answered, which go again after a break."""

from __future__ import annotations

from collections import deque

import numpy as np
from memsvc_proto.wire import HEADER_BYTES
from numpy.typing import NDArray

MOST_BYTES = 64 << 20
"""Beyond this the oldest are forgotten: priorities steer the draws to come, so the newest count."""


class Updates:
    """Frames of UPDATE messages in the order in which they were given: it stays the same however often they are sent, so the newest priority of a key
    wins, and to apply one twice is to apply it once. Its owner guards it.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.forgotten = 0
        """Keys whose priorities may never have arrived."""
        self.due: deque[NDArray[np.uint8]] = deque()
        self._sent: dict[int, NDArray[np.uint8]] = {}  # by seq

    @property
    def keys(self) -> int:
        """Keys whose priorities have no answer yet."""
        return (self.bytes - HEADER_BYTES * (len(self.due) + len(self._sent))) // 16

    @property
    def unanswered(self) -> int:
        """Messages that were sent and have no answer yet."""
        return len(self._sent)

    def add(self, frame: NDArray[np.uint8]) -> None:
        """To be sent, behind all others."""
        self.due.append(frame)
        self.bytes += frame.nbytes
        while self.bytes > MOST_BYTES and len(self._sent) + len(self.due) > 1:
            oldest = self._sent.pop(next(iter(self._sent))) if self._sent else self.due.popleft()
            self.bytes -= oldest.nbytes
            self.forgotten += (oldest.nbytes - HEADER_BYTES) // 16

    def sent(self, seq: int) -> None:
        """The first that was due went out; nobody writes to it any more."""
        self._sent[seq] = self.due.popleft()

    def withdraw(self, frame: NDArray[np.uint8]) -> bool:
        """Takes back what was added last; False where it has been sent."""
        if not self.due or self.due[-1] is not frame:
            return False
        self.bytes -= self.due.pop().nbytes
        return True

    def answered(self, seq: int) -> None:
        """An answer has come, perhaps to one of these."""
        frame = self._sent.pop(seq, None)
        if frame is not None:
            self.bytes -= frame.nbytes

    def restart(self) -> None:
        """What has no answer may be lost: it is due again."""
        # Copies: an earlier link may still be sending a frame, with the header that is in it.
        self.due.extendleft(frame.copy() for frame in reversed(self._sent.values()))
        self._sent.clear()
