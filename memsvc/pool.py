"""Frames that are written again only when nobody looks at them any more (fresh memory costs 20 to 30 times a reused page)."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from typing import Any, TypeAlias

import numpy as np
from memsvc_proto.wire import ALIGN
from numpy.typing import NDArray

Frame: TypeAlias = NDArray[np.uint8]


def _counts(frame: Frame) -> tuple[int, int]:
    # A view is based on the frame (memoryviews) or on the array under it (numpy collapses chains of views), so both are counted.
    return sys.getrefcount(frame), sys.getrefcount(frame.base)


def _new(size: int) -> Frame:
    raw = np.empty(size + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + size]


class Pool:
    """Frames by size, 64-byte aligned. Thread-safe. Keeps at most `limit` bytes for reuse; what is asked for beyond that is fresh and forgotten."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._frames: OrderedDict[int, list[Frame]] = OrderedDict()  # by size, least recently used first
        self._bytes = 0
        self._free = self._measure()

    @property
    def bytes(self) -> int:
        """Bytes that the pool keeps, in use or free."""
        return self._bytes

    def take(self, size: int) -> Frame:
        """A frame of `size` bytes with any content. It counts as in use while it, or any view of it, is referenced outside the pool."""
        with self._lock:
            frames = self._frames.get(size)
            if frames is None:
                frames = self._frames[size] = []
            else:
                self._frames.move_to_end(size)
            found = self._unused(frames)
            if found is not None:
                return found
            if self._bytes + size > self._limit:
                self._shrink(size)
            frame = _new(size)
            if self._bytes + size <= self._limit:
                frames.append(frame)
                self._bytes += size
            return frame

    def _unused(self, frames: list[Frame]) -> Frame | None:
        for frame in frames:
            if _counts(frame) == self._free:
                return frame
        return None

    def _shrink(self, size: int) -> None:
        for other in list(self._frames):
            if other == size:
                continue
            kept = [frame for frame in self._frames[other] if _counts(frame) != self._free]
            self._bytes -= other * (len(self._frames[other]) - len(kept))
            if kept:
                self._frames[other] = kept
            else:
                del self._frames[other]
            if self._bytes + size <= self._limit:
                return

    def _measure(self) -> tuple[int, int]:
        # What an unused frame's counts are depends on the interpreter's version, so it is measured with the loop that uses it.
        counts: list[Any] = []
        for frame in [_new(ALIGN)]:
            counts.append(_counts(frame))
        return (counts[0][0], counts[0][1])
