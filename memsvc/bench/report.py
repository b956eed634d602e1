"""The report: one table for a reader, from the figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WAYS = {"in": "add_batch", "out": "sample"}
_PATHS = {"shared": "shared memory", "socket": "sockets", "process": "plain calls in one process"}


def lines(row: Mapping[str, Any]) -> list[str]:
    """The table and what it was measured on."""
    shown = [
        _title(row),
        "",
        f"{'':<10}{'items/s':>14}{'MB/s':>12}{'of memcpy':>12}{'call':>15}{'p50 ms':>10}{'p99 ms':>10}   over",
    ]
    for way, call in _WAYS.items():
        one = row[way]
        if one is None:
            continue
        call = "sample+update" if way == "out" and row["update"] else call
        what = "draws in" if way == "in" and row["select"] != "all" else way
        over = ", ".join(_PATHS.get(path, path) for path in one["transport"])
        shown.append(
            f"{what:<10}{one['items_per_s']:>14,.0f}{one['bytes_per_s'] / 1e6:>12,.1f}{one['of_memcpy']:>12.3f}{call:>15}"
            f"{_number(one['p50_ms']):>10}{_number(one['p99_ms']):>10}   {over}"
        )
    shown += ["", *(f"{what:<22}{text}" for what, text in _rest(row))]
    return shown


def _title(row: Mapping[str, Any]) -> str:
    several = [f"{row[role]} {role[:-1] if row[role] == 1 else role}" for role in ("actors", "learners")]
    return f"memsvc bench {row['workload']}: {', '.join(several)}, batch {row['batch']:,}, {row['counted_s']:.1f} s, {row['date']}"


def _rest(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    cpu, store, machine = row["cpu"], row["store"], row["machine"]
    each = ", ".join(f"{role} {seconds / row['counted_s']:.2f}" for role, seconds in cpu["seconds"].items())
    per_gb = "-" if cpu["per_gb"] is None else f"{cpu['per_gb']:.3f}"
    missing = "" if row["server_cpu"] else "; without the server's, which is not seen from here"
    rest = [("CPU-seconds per GB", f"{per_gb} of in and out, all processes (cores in use: {each}{missing})")]
    if store["bytes_per_item"] is not None:
        raw = store["raw_bytes_per_item"]
        ratio = f", {store['bytes_per_item'] / raw:.3f} of its own steps' {raw:,.0f}" if raw else ""
        rest.append(("bytes per item", f"{store['bytes_per_item']:,.0f} in the store{ratio}; {row['item_bytes']:,} in a batch"))
    waits = sum(row[way]["waits"] for way in _WAYS if row[way] is not None)
    if waits:
        rest.append(("waits", f"{waits:,} calls waited 3 s for the other side in vain"))
    rest.append(("memcpy", f"{row['memcpy_bytes_per_s'] / 1e9:.1f} GB/s in the same run"))
    rest.append(("machine", f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']}, memsvc {row['version']}"))
    return rest


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
