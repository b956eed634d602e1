"""Figures of one window of time: rates, latencies, CPU, memory. The dictionary is what --json writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .latencies import Latencies
from .meter import Meter
from .watch import Count, Watch


def figures(
    meter: Meter, watch: Watch, begin: Count, end: Count, batch: int, memcpy: float, cpu: Mapping[str, float], workers: Mapping[str, int]
) -> dict[str, Any]:
    """`memcpy`: bytes/s; `cpu`: seconds in the window by kind of process; `workers`: how many actors and learners worked.

    "in" counts items that arrived at the server (draws, where actors send caches), by its own count; "out" batches that `sample` returned. Bytes in
    are those of the items' own steps, or of acknowledged messages where caches make the two differ; bytes out those of the columns that a learner
    trains on.
    """
    took = end.time - begin.time
    arrived = end.arrived - begin.arrived
    bytes_in = arrived * watch.fresh_steps * watch.step_bytes if watch.whole else meter.grown("actor", "bytes", begin.time, end.time)
    drawn = batch * meter.grown("learner", "batches", begin.time, end.time)
    bytes_out = drawn * watch.item_bytes
    moved = {"in": (arrived, bytes_in, "actor"), "out": (drawn, bytes_out, "learner")}
    found: dict[str, Any] = {
        "counted_s": round(took, 4),
        "table": watch.table,
        "select": watch.settings["actor"]["select"],
        "item_bytes": watch.item_bytes,
        "step_bytes": watch.step_bytes,
        "memcpy_bytes_per_s": memcpy,
    }
    for way, (items, size, role) in moved.items():
        found[way] = None
        if workers[role]:
            found[way] = {
                "items": round(items),
                "items_per_s": items / took,
                "bytes_per_s": size / took,
                "of_memcpy": size / took / memcpy,
                "transport": meter.transports(role),
                "waits": round(meter.grown(role, "waits", begin.time, end.time)),
                **_latencies(meter.calls(role, begin.time, end.time)),
            }
    if workers["actor"]:
        found["in"]["steps_per_s"] = meter.grown("actor", "steps", begin.time, end.time) / took
    total = sum(size for (_, size, role) in moved.values() if workers[role])
    found["cpu"] = {"seconds": dict(cpu), "per_gb": sum(cpu.values()) / total * 1e9 if total else None}
    found["store"] = {
        "items": end.stored,
        "bytes_per_item": end.store_bytes / end.stored if end.stored else None,
        "raw_bytes_per_item": watch.fresh_steps * watch.step_bytes if watch.whole else None,
    }
    found["series"] = [[round(value, 4) for value in point] for point in meter.series(begin.time, end.time)]
    return found


def _latencies(calls: Latencies) -> dict[str, Any]:
    return {
        "calls": len(calls),
        "p50_ms": calls.quantile(0.5),
        "p99_ms": calls.quantile(0.99),
        "call_ms_shares": [[round(ms, 5), round(share, 5)] for ms, share in calls.shares()],
    }
