"""Meter: what has arrived, and when, put together from the server's counts and the workers' lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .latencies import Latencies
from .watch import Count

_LATELY_S = 2.0


@dataclass
class Track:
    """One worker's lines, in order of time."""

    role: str
    lines: list[dict[str, Any]] = field(default_factory=list)

    def at(self, time: float, key: str) -> float:
        """The count `key` at that time, by the lines before and after it; the nearest line's where it lies outside of them."""
        before = None
        for line in self.lines:
            if line["time"] >= time:
                if before is None:
                    return float(line[key])
                share = (time - before["time"]) / (line["time"] - before["time"])
                return float(before[key] + share * (line[key] - before[key]))
            before = line
        return float(before[key]) if before else 0.0


class Meter:
    """For one thread. `batch`: items of a batch; `fill`: steps of all actors to record first."""

    def __init__(self, batch: int, fill: int) -> None:
        self._batch, self._fill = batch, fill
        self._tracks: dict[str, Track] = {}
        self.counts: list[Count] = []
        """The server's, in order of time."""

    def take(self, name: str, line: dict[str, Any]) -> None:
        """A worker's line."""
        self._tracks.setdefault(name, Track(line["role"])).lines.append(line)

    def look(self, count: Count) -> None:
        """The server's counts."""
        self.counts.append(count)

    def working(self, role: str) -> int:
        """Workers that are past their preparations."""
        return sum(track.lines[-1]["phase"] != "fill" for track in self._of(role))

    def heard(self, role: str, time: float) -> bool:
        """Whether every worker of the role has said something since; one that waits says so every 3 s."""
        return all(track.lines[-1]["time"] >= time for track in self._of(role))

    def transports(self, role: str) -> list[str]:
        """How its workers reach the server: "shared", "socket" or "process"."""
        return sorted({str(track.lines[-1]["transport"]) for track in self._of(role)})

    def total(self, role: str, key: str, time: float) -> float:
        """Sum of a count over the workers at that time."""
        return sum(track.at(time, key) for track in self._of(role))

    def grown(self, role: str, key: str, begin: float, end: float) -> float:
        """By how much it grew in between."""
        return self.total(role, key, end) - self.total(role, key, begin)

    def calls(self, role: str, begin: float, end: float) -> Latencies:
        """Calls told of in between."""
        found = Latencies()
        for track in self._of(role):
            for line in track.lines:
                if begin < line["time"] <= end:
                    found += Latencies(line["calls"])
        return found

    def series(self, begin: float, end: float) -> list[tuple[float, float, float]]:
        """(seconds since begin, items/s that arrived, items/s drawn) between each two looks at the server."""
        inside = [count for count in self.counts if begin <= count.time <= end]
        return [
            (
                (then.time + now.time) / 2 - begin,
                (now.arrived - then.arrived) / (now.time - then.time),
                self._batch * self.grown("learner", "batches", then.time, now.time) / (now.time - then.time),
            )
            for then, now in pairwise(inside)
            if now.time > then.time
        ]

    def rows(self) -> list[tuple[str, str]]:
        """See display.State: the state now."""
        written = sum(track.lines[-1]["steps"] for track in self._of("actor"))
        filling = any(track.lines[-1]["phase"] == "fill" for track in self._of("actor"))
        rows = [("filled", f"{min(written, self._fill):,.0f} of {self._fill:,} steps")] if filling and self._fill else []
        if self.counts:
            rows += [("held items", f"{self.counts[-1].held:,}"), ("in/s", f"{self._lately(self._arrived):,.0f}")]
        if any(True for _ in self._of("learner")):
            rows.append(("out/s", f"{self._batch * self._lately(lambda time: self.total('learner', 'batches', time)):,.0f}"))
            p50 = self.calls("learner", self.counts[-1].time - _LATELY_S, self.counts[-1].time).quantile(0.5) if self.counts else None
            rows.append(("p50 ms", "-" if p50 is None else f"{p50:.3f}"))
        return rows

    def _arrived(self, time: float) -> float:
        return next((count.arrived for count in reversed(self.counts) if count.time <= time), self.counts[0].arrived)

    def _lately(self, total: Callable[[float], float]) -> float:
        now = self.counts[-1].time
        then = next((count.time for count in self.counts if count.time >= now - _LATELY_S), now)
        return (total(now) - total(then)) / (now - then) if now > then else 0.0

    def _of(self, role: str) -> Iterator[Track]:
        return (track for track in self._tracks.values() if track.role == role)
