"""What the demo knows of its run, put together from the children's status lines."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

RECENT_EPISODES = 20
RATE_WINDOW_S = 5.0


class Counter:
    """A count that grows, and its rate. Times are seconds of one clock. Not thread-safe."""

    def __init__(self) -> None:
        self.value = 0.0
        self._first: tuple[float, float] | None = None
        self._recent: deque[tuple[float, float]] = deque()

    def set(self, time_s: float, value: float) -> None:
        """The count is `value` at `time_s`."""
        self.value = value
        self._first = self._first or (time_s, value)
        self._recent.append((time_s, value))
        while len(self._recent) > 2 and self._recent[0][0] < time_s - RATE_WINDOW_S:
            self._recent.popleft()

    @property
    def rate(self) -> float:
        """Per second over the last five seconds, 0 before the second value."""
        return self._between(self._recent[0]) if self._recent else 0.0

    @property
    def mean_rate(self) -> float:
        """Per second since the first value, 0 before the second value."""
        return self._between(self._first) if self._first else 0.0

    def _between(self, first: tuple[float, float]) -> float:
        time_s, value = self._recent[-1]
        return (value - first[1]) / (time_s - first[0]) if time_s > first[0] else 0.0


@dataclass
class Progress:
    """The state of a run. `episodes` and `greedy` are the learning curve: (seconds since the start, return). Not thread-safe."""

    time_s: float = 0.0
    steps: dict[str, Counter] = field(default_factory=dict)
    draws: Counter = field(default_factory=Counter)
    batches: Counter = field(default_factory=Counter)
    version: int = 0
    age: float = 0.0
    loss: float = 0.0
    episodes: list[tuple[float, float]] = field(default_factory=list)
    greedy: list[tuple[float, float]] = field(default_factory=list)
    result: float | None = None
    playing: dict[str, int] = field(default_factory=dict)
    lags: list[int] = field(default_factory=list)

    def take(self, name: str, line: dict[str, Any], time_s: float) -> None:
        """One line of the actor or learner `name`, arrived `time_s` seconds after the start."""
        self.time_s = time_s
        if "steps" in line:
            self.steps.setdefault(name, Counter()).set(time_s, line["steps"])
            self.episodes += [(time_s, total) for total in line["returns"]]
            self.playing[name] = line["version"]
            self.lags.append(self.lag)
        if "updates" in line:
            self.batches.set(time_s, line["updates"])
            self.draws.set(time_s, line["draws"])
            self.version = line["version"]
            self.age, self.loss = line.get("age", self.age), line.get("loss", self.loss)
        if "greedy" in line:
            self.greedy.append((time_s, line["greedy"]))
        self.result = line.get("result", self.result)

    @property
    def mean_return(self) -> float | None:
        """Of the last 20 episodes that the actors ended, exploration included; None before the first."""
        recent = [total for _, total in self.episodes[-RECENT_EPISODES:]]
        return sum(recent) / len(recent) if recent else None

    @property
    def lag(self) -> int:
        """By how many versions the actor that is furthest behind plays with older parameters than the newest, as last reported."""
        return max(0, self.version - min(self.playing.values(), default=self.version))

    @property
    def steps_rate(self) -> float:
        """Environment steps per second over all actors, lately."""
        return sum(counter.rate for counter in self.steps.values())

    def rows(self) -> list[tuple[str, str]]:
        """(what, how much) for the display, in order."""
        steps = sum(counter.value for counter in self.steps.values())
        return [
            ("return", "-" if self.mean_return is None else f"{self.mean_return:.1f}"),
            ("greedy", f"{self.greedy[-1][1]:.1f}" if self.greedy else "-"),
            ("steps", f"{steps:,.0f}"),
            ("steps/s", f"{self.steps_rate:,.0f}"),
            ("draws/s", f"{self.draws.rate:,.0f}"),
            ("batches/s", f"{self.batches.rate:,.1f}"),
            ("version", f"{self.version:,}"),
            ("lag", f"{self.lag:,}"),
            ("item age", f"{self.age:,.1f}"),
            ("loss", f"{self.loss:.4f}"),
        ]

    def summary(self) -> str:
        """One line with the rates over the whole run."""
        steps = sum(counter.mean_rate for counter in self.steps.values())
        lag = sum(self.lags) / len(self.lags) if self.lags else 0.0
        return (
            f"{steps:,.0f} steps/s, {self.draws.mean_rate:,.0f} draws/s, {self.batches.mean_rate:,.1f} batches/s, "
            f"{self.version:,} versions, mean lag {lag:.1f} versions, {len(self.episodes):,} episodes"
        )
