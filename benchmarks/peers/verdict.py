"""Raw repeats into rows, and rows into the table that says which targets are reached."""

from __future__ import annotations

import statistics
from typing import Any

from peers.systems import BOUNDS, METRICS, RATIOS


def rate(metric: str, run: dict[str, Any]) -> float:
    """The figure of one repeat in the metric's unit."""
    if METRICS[metric][2] == "ms":
        return float(run["p50_ms"])
    if metric.endswith("mixed_insert"):
        return float(run["inserted"] / run["insert_seconds"])
    return float(run["items"] / run["seconds"])


def figures(metric: str, runs: list[dict[str, Any]], item_bytes: int, memcpy_bytes_per_s: float) -> dict[str, Any]:
    """The row's figures: median, spread (smallest, largest) and every repeat; CPU seconds of all the system's processes per GB that arrived."""
    values = [rate(metric, run) for run in runs]
    moved = sum(run["items"] + run.get("inserted", 0) for run in runs)
    # Of a synchronous batch the figure is its time; its bandwidth still follows from what arrived.
    rates = [run["items"] / run["seconds"] for run in runs] if METRICS[metric][2] == "ms" else values
    gigabytes = statistics.median(rates) * item_bytes / 1e9
    row: dict[str, Any] = {
        "median": statistics.median(values),
        "spread": [min(values), max(values)],
        "repeats": values,
        "items": [run["inserted" if metric.endswith("mixed_insert") else "items"] for run in runs],
        "gb_per_s": gigabytes,
        "ratio_memcpy": gigabytes * 1e9 / memcpy_bytes_per_s,
        "cpu_s_per_gb": sum(run["cpu_seconds"] for run in runs) / (moved * item_bytes / 1e9) if moved else None,
    }
    if "p50_ms" in runs[0] and not metric.endswith("mixed_insert"):
        row |= {name: statistics.median(run[name] for run in runs) for name in ("p50_ms", "p99_ms")}
    return row


def _reached(good: bool) -> str:
    return "reached" if good else "NOT REACHED"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines: every figure by metric, then the target ratios and the absolute bounds. What failed or was not measured says so."""
    found = {(row["metric"], row["system"]): row for row in rows}
    lines = []
    for metric, (_, what, unit) in METRICS.items():
        several = [row for row in rows if row["metric"] == metric]
        lines += [f"{what} ({unit})"] if several else []
        for row in several:
            lines.append(f"  {row['system']:<16}{_figures(row)}")
    lines.append("targets: memsvc / peer in this run (spread over the repeats)")
    for metric, ours, peers, least in RATIOS:
        mine = found.get((metric, ours))
        others = [found[metric, peer] for peer in peers if "median" in found.get((metric, peer), {})]
        name = f"  {metric:<16}{ours} / {' or '.join(peers)}"
        if mine is None or "median" not in mine or not others:
            failed = any("failed" in found.get((metric, system), {}) for system in (ours, *peers))
            lines.append(f"{name:<56} >= {least:g}: {'failed' if failed else 'not measured'}")
            continue
        best = max(others, key=lambda row: float(row["median"]))
        ratio = mine["median"] / best["median"]
        each = [a / b for a, b in zip(mine["repeats"], best["repeats"], strict=False)]
        lines.append(f"{name:<56} >= {least:g}: {ratio:.2f} ({min(each):.2f}..{max(each):.2f}) {_reached(ratio >= least)}")
    lines.append("targets: absolute, on an idle machine of two cores")
    for metric, ours, field, bound in BOUNDS:
        mine = found.get((metric, ours), {})
        at_most = field == "cpu_s_per_gb" or METRICS[metric][2] == "ms"
        name = f"  {metric:<16}{ours} {field if field != 'median' else METRICS[metric][2]} {'<=' if at_most else '>='} {bound:,g}"
        if mine.get(field) is None:
            lines.append(f"{name:<60}: not measured")
            continue
        good = mine[field] <= bound if at_most else mine[field] >= bound
        lines.append(f"{name:<60}: {mine[field]:,.3g} {_reached(good)}")
    return lines


def _figures(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"failed: {row['failed'].splitlines()[-1][:150] if row['failed'] else '?'}"
    digits = 3 if row["unit"] == "ms" else 0
    low, high = row["spread"]
    cpu = f"{row['cpu_s_per_gb']:10.3f} CPU-s/GB" if row["cpu_s_per_gb"] is not None else ""
    return f"{row['median']:14,.{digits}f}  ({low:,.{digits}f}..{high:,.{digits}f}) {row['gb_per_s']:8.2f} GB/s {cpu}"
