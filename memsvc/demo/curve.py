"""The learning curve as a picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib

from .progress import RECENT_EPISODES, Progress

matplotlib.use("Agg")  # needs no display
from matplotlib import pyplot


def save(progress: Progress, title: str, goal: float, path: Path) -> None:
    """Writes a PNG: returns of the actors' episodes, their running mean, the greedy evaluations, and the goal where there is one. Raises OSError."""
    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    times = [time_s for time_s, _ in progress.episodes]
    returns = [total for _, total in progress.episodes]
    axes.plot(times, returns, ".", color="0.75", markersize=3, label="episodes of the actors")
    recent = [returns[max(0, i + 1 - RECENT_EPISODES) : i + 1] for i in range(len(returns))]
    axes.plot(times, [sum(window) / len(window) for window in recent], color="tab:blue", label=f"mean of {RECENT_EPISODES}")
    if progress.greedy:
        axes.plot(*zip(*progress.greedy, strict=True), "o-", color="tab:orange", markersize=4, label="greedy, mean of 20")
    if goal:
        axes.axhline(goal, color="tab:green", linestyle="--", label=f"goal {goal:g}")
    axes.set(title=title, xlabel="seconds", ylabel="return")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
