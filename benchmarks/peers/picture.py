"""The rows as one picture: bars a metric, and what memcpy alone would reach in that run as a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.systems import METRICS


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Writes `file` (PNG); nothing where no row has a figure. What failed is named without a bar. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [metric for metric in METRICS if any(row["metric"] == metric and "median" in row for row in rows)]
    if not shown:
        return
    wide = min(3, len(shown))
    tall = -(-len(shown) // wide)
    figure, grid = pyplot.subplots(tall, wide, figsize=(6.2 * wide, 3.1 * tall), squeeze=False)
    for axes in grid.flat[len(shown) :]:
        axes.axis("off")
    for metric, axes in zip(shown, grid.flat, strict=False):
        of_metric = [row for row in rows if row["metric"] == metric]
        bars = [row for row in of_metric if "median" in row][::-1]
        values = [row["median"] for row in bars]
        errors = [[row["median"] - row["spread"][0] for row in bars], [row["spread"][1] - row["median"] for row in bars]]
        colours = ["#c2410c" if row["system"].startswith("memsvc") else "#64748b" for row in bars]
        axes.barh([row["system"] for row in bars], values, xerr=errors, color=colours, ecolor="#1f2937", capsize=2)
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 3, max(values) * 12)
        unit = METRICS[metric][2]
        for at, value in enumerate(values):
            axes.text(value * 1.25, at, f"{value:.3g} ms" if unit == "ms" else f"{value:,.0f}", va="center", fontsize=8)
        limit = bars[0]["memcpy_bytes_per_s"] / bars[0]["item_bytes"]
        limit = bars[0]["batch"] / limit * 1e3 if unit == "ms" else limit
        left, right = axes.get_xlim()
        axes.axvline(limit, color="#0f766e", linestyle="--", linewidth=1)
        axes.set_xlim(min(left, limit / 2), max(right, limit * 2))
        failed = ", ".join(row["system"] for row in of_metric if "failed" in row)
        axes.set_xlabel(f"failed: {failed}" if failed else "", fontsize=8)
        axes.set_title(f"{METRICS[metric][1]} ({unit})", fontsize=10)
        axes.tick_params(labelsize=8)
    first = rows[0]
    what = f"{first['date'][:10]}, {first['commit']}, {first['machine']['cpu']}, {first['machine']['cores']} cores"
    figure.suptitle(f"{what}: medians and spread; dashed: memcpy in this run", fontsize=11)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
