"""Sets of 64-bit keys as ranges: a segment's rows, and the rows that a snapshot needs, mostly come in long runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]


class Ranges:
    """Disjoint [start, end), ascending, none empty. Immutable."""

    def __init__(self, starts: Keys, ends: Keys) -> None:
        self.starts = starts
        self.ends = ends
        lengths = (ends - starts).astype(np.int64)
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])

    @staticmethod
    def of(keys: Keys) -> Ranges:
        """Of keys in any order; duplicates count once. O(n + r log r) with r ascending runs: np.unique would hash every key, with the GIL held."""
        keys = np.asarray(keys, np.uint64)
        if not len(keys):
            return Ranges(keys, keys)
        breaks = np.flatnonzero(keys[1:] - keys[:-1] != 1)
        starts = keys[np.concatenate([[0], breaks + 1])]
        ends = keys[np.concatenate([breaks, [len(keys) - 1]])] + np.uint64(1)
        order = np.argsort(starts, kind="stable")
        starts, reach = starts[order], np.maximum.accumulate(ends[order])
        first = np.concatenate([[True], starts[1:] > reach[:-1]])  # else it begins in what there is, or at its end
        return Ranges(starts[first], reach[np.concatenate([first[1:], [True]])])

    def __len__(self) -> int:
        return int(self._before[-1])

    def keys(self) -> Keys:
        """All of them, ascending."""
        if not len(self):
            return np.zeros(0, np.uint64)
        lengths = np.diff(self._before)
        offsets = np.arange(len(self), dtype=np.uint64) - np.repeat(self._before[:-1], lengths).astype(np.uint64)
        return np.asarray(np.repeat(self.starts, lengths) + offsets, np.uint64)

    def has(self, keys: Keys) -> NDArray[np.bool_]:
        """Which of `keys` are among them."""
        if not len(self):
            return np.zeros(len(keys), np.bool_)
        place = np.searchsorted(self.starts, keys, "right").astype(np.int64) - 1
        return np.asarray((place >= 0) & (keys < self.ends[np.maximum(place, 0)]), np.bool_)

    def common(self, other: Ranges) -> int:
        """How many keys are in both."""
        return int((other._below(self.ends) - other._below(self.starts)).sum())

    def without(self, other: Ranges) -> Ranges:
        """Those that are not in `other`."""
        return self._swept(other, wanted=False)

    def within(self, other: Ranges) -> Ranges:
        """Those that are in both."""
        return self._swept(other, wanted=True)

    def joined(self, other: Ranges) -> Ranges:
        """Those in either."""
        both = self.without(other)
        starts = np.concatenate([both.starts, other.starts])
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.concatenate([both.ends, other.ends])[order]
        return _merged(starts, ends)

    def _below(self, points: Keys) -> NDArray[np.int64]:
        if not len(self):
            return np.zeros(len(points), np.int64)
        place = np.searchsorted(self.starts, points, "right").astype(np.int64) - 1
        at = np.maximum(place, 0)
        inside = np.minimum(points, self.ends[at]) - np.minimum(points, self.starts[at])
        return np.asarray(np.where(place >= 0, self._before[at] + inside.astype(np.int64), 0), np.int64)

    def _swept(self, other: Ranges, wanted: bool) -> Ranges:
        points = np.concatenate([self.starts, self.ends, other.starts, other.ends])
        n, m = len(self.starts), len(other.starts)
        mine = np.concatenate([np.ones(n, np.int64), -np.ones(n, np.int64), np.zeros(2 * m, np.int64)])
        others = np.concatenate([np.zeros(2 * n, np.int64), np.ones(m, np.int64), -np.ones(m, np.int64)])
        order = np.argsort(points, kind="stable")
        points, mine, others = points[order], np.cumsum(mine[order]), np.cumsum(others[order])
        chosen = (mine > 0) & ((others > 0) == wanted)
        if len(points):
            chosen[:-1] &= points[1:] > points[:-1]
        at = np.flatnonzero(chosen)
        return _merged(points[at], points[at + 1])


def _merged(starts: Keys, ends: Keys) -> Ranges:
    if not len(starts):
        return Ranges(starts, ends)
    apart = starts[1:] != ends[:-1]
    return Ranges(starts[np.concatenate([[True], apart])], ends[np.concatenate([apart, [True]])])
