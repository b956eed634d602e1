"""Latencies: how long calls took, as counts in buckets one per cent apart, so that any number of them is small and can be added up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

_STEP = math.log(1.01)


class Latencies:
    """Milliseconds of calls. Not thread-safe."""

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        """`counts`: what `counts` of another one gave."""
        self._counts: Counter[int] = Counter({int(bucket): count for bucket, count in (counts or {}).items()})

    def __len__(self) -> int:
        return self._counts.total()

    def __iadd__(self, other: Latencies) -> Latencies:
        self._counts += other._counts
        return self

    def add(self, ms: float) -> None:
        """One call."""
        self._counts[round(math.log(max(ms, 1e-6)) / _STEP)] += 1

    @property
    def counts(self) -> dict[str, int]:
        """JSON: calls by bucket."""
        return {str(bucket): count for bucket, count in self._counts.items()}

    def quantile(self, q: float) -> float | None:
        """Milliseconds that the share `q` of all calls did not exceed, to half a per cent; None without calls."""
        need, seen = q * len(self), 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= need:
                return math.exp(bucket * _STEP)
        return None

    def shares(self) -> list[tuple[float, float]]:
        """(milliseconds, share of the calls that took at most that), ascending."""
        seen, points = 0, []
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            points.append((math.exp(bucket * _STEP), seen / len(self)))
        return points
