"""Slots: the places in shared memory into which a server draws batches, each written again only when nobody looks at it any more."""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from .memory_file import MemoryFile

EARLIER = 2
"""Batches that a caller may keep beside the newest one before further ones are copied for it."""
SPARE = EARLIER + 2
"""Slots beyond those of the batches that are asked for ahead: of the earlier ones, of the newest, and one to draw into."""


class Slots:
    """Numbered from 0. A slot is in use while its frame, or any view of it, is referenced outside. One thread at a time uses this."""

    def __init__(self, memory: MemoryFile, start: int, stride: int, size: int, count: int) -> None:
        self._memory, self._start, self._stride = memory, start, stride
        self._taken = 0  # slots whose memory the system has given; the first are used first, so what a caller does not need costs nothing
        whole = memoryview(memory.bytes)  # type: ignore[arg-type]
        self._frames = [_frame(whole[at : at + size]) for at in range(start, start + count * stride, stride)]
        self._unused = self._measure()

    def free(self) -> tuple[int, NDArray[np.uint8]] | None:
        """A slot that nobody uses, and its frame, which is to be kept while it is wanted; None where there is none."""
        number = self._first()
        if number < 0:
            return None
        if number >= self._taken:
            try:
                self._memory.take(self._start + number * self._stride, self._stride)
            except OSError:  # the machine, or this container, has no more: the batch comes without
                return None
            self._taken = number + 1
        return number, self._frames[number]

    @property
    def short(self) -> bool:
        """True when none is free."""
        return self._first() < 0

    def _first(self) -> int:
        number = 0
        for frame in self._frames:  # a plain loop, as in _measure: others count differently
            if sys.getrefcount(frame) == self._unused:
                return number
            number += 1  # noqa: SIM113
        return -1

    def _measure(self) -> int:
        # What the count of an unused frame is depends on the interpreter's version, so it is measured with the loop that uses it.
        counts: list[int] = []
        for frame in [_frame(memoryview(bytearray(8)))]:
            counts.append(sys.getrefcount(frame))
        return counts[0]


def _frame(part: memoryview) -> NDArray[np.uint8]:
    # numpy bases views of views on the last array of a chain: here that is the frame, since what it rests on is none.
    return np.frombuffer(part, np.uint8)
