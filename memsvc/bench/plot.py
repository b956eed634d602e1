"""The figures as a picture; matplotlib (memsvc[bench]) is imported here alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # needs no display
from matplotlib import pyplot

_COLOURS = {"in": "tab:blue", "out": "tab:orange"}


def save(row: Mapping[str, Any], title: str, path: Path) -> None:
    """Writes a PNG: GB/s in and out over time under the memcpy of the same run, and the share of calls that took at most so long. Raises OSError."""
    figure, (rates, calls) = pyplot.subplots(1, 2, figsize=(11, 4.5), dpi=120, layout="constrained")
    times = [point[0] for point in row["series"]]
    for place, way in enumerate(_COLOURS, 1):
        one = row[way]
        if one is None:
            continue
        item_bytes = one["bytes_per_s"] / one["items_per_s"] if one["items_per_s"] else 0.0
        label = f"{way}: {one['items_per_s']:,.0f} items/s"
        rates.plot(times, [point[place] * item_bytes / 1e9 for point in row["series"]], ".-", color=_COLOURS[way], label=label)
        if one["call_ms_shares"]:
            name = "add_batch" if way == "in" else "sample + update" if row["update"] else "sample"
            calls.plot(*zip(*one["call_ms_shares"], strict=True), color=_COLOURS[way], label=f"{name}: p50 {one['p50_ms']:.3f} ms")
            calls.set_xscale("log")
    rates.axhline(row["memcpy_bytes_per_s"] / 1e9, color="black", linestyle="--", linewidth=1, label="one memcpy")
    rates.set(xlabel="seconds", ylabel="GB/s", title="what arrived", ylim=(0, None))
    calls.set(xlabel="milliseconds a call", ylabel="share of calls", title="latency", ylim=(0, 1))
    for axes in (rates, calls):
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize="small")
    figure.suptitle(title)
    figure.savefig(path)
    pyplot.close(figure)
