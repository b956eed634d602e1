"""Batches that a learner has asked for, and those that are here and were not returned yet. Its owner guards it."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from memsvc_proto.errors import MemsvcError
from numpy.typing import NDArray

from .batch import Batch

MOST_ASKED = 8
"""Requests that may wait at the server at once (memsvc/table.py, CREDITS)."""


class Ready(NamedTuple):
    """A batch that has come, with the seq of its SAMPLE (0: of an earlier server) and the min_version that was asked for."""

    batch: Batch
    seq: int
    min_version: int | None
    newest: int
    """Version of the learner's topic that was known to it when it asked."""
    frame: NDArray[np.uint8] | None = None
    """The slot of shared memory in which it lies."""


class Stock:
    """Requests of different min_version are apart: a batch is drawn from the items that its request allowed, and only from those."""

    def __init__(self) -> None:
        self.asked: dict[int, int | None] = {}  # seq -> min_version
        self._newest: dict[int, int] = {}  # seq -> newest version then
        self._frames: dict[int, NDArray[np.uint8]] = {}  # seq -> the slot that the server may write into until it has answered
        self.ready: deque[Ready] = deque()
        self.refused: dict[int | None, MemsvcError] = {}  # the answer to a SAMPLE, by min_version

    def missing(self, ahead: int, min_version: int | None) -> int:
        """Requests that bring the batches of `min_version`, here or on their way, to `ahead`, as far as the server takes them; 0 or less: none."""
        known = len(self.asked) + len(self.ready)
        if known:
            known = list(self.asked.values()).count(min_version) + [one.min_version for one in self.ready].count(min_version)
        return min(ahead - known, MOST_ASKED - len(self.asked))

    def ask(self, seq: int, min_version: int | None, newest: int, frame: NDArray[np.uint8] | None = None) -> None:
        """A SAMPLE went out, while `newest` was the newest version known; its batch is wanted in the slot `frame`."""
        self.asked[seq], self._newest[seq] = min_version, newest
        if frame is not None:
            self._frames[seq] = frame

    def frame(self, seq: int) -> NDArray[np.uint8] | None:
        """The slot that was asked for with `seq`."""
        return self._frames.get(seq)

    def answered(self, seq: int) -> int | None:
        """It has been answered, with a batch or without; returns its min_version."""
        self._newest.pop(seq, None)
        self._frames.pop(seq, None)
        return self.asked.pop(seq, None)

    def came(self, seq: int, batch: Batch, frame: NDArray[np.uint8] | None = None) -> None:
        """The answer of `seq`, which lies in the slot `frame`, or in its message. Where calls with ever other min_versions give up before their
        answers come, the oldest of those are let go; what the server counts as on its way comes back to it when the learner leaves.
        """
        newest = self._newest.get(seq, 0)
        self.ready.append(Ready(batch, seq, self.answered(seq), newest, frame))
        late = [one for one in self.ready if one.min_version is not None]
        if len(late) > MOST_ASKED:
            self.ready.remove(late[0])

    def take(self, min_version: int | None) -> Ready | None:
        """The oldest that is here of `min_version`."""
        for one in self.ready:
            if one.min_version == min_version:
                self.ready.remove(one)
                return one
        return None

    def restart(self, kept: bool = True) -> None:
        """A server that knows nothing of these requests. Not `kept`: it gives what is here, and was not returned, to whoever asks next."""
        self.asked.clear()
        self._newest.clear()
        self._frames.clear()
        self.ready = deque(one._replace(seq=0) for one in self.ready if kept)
