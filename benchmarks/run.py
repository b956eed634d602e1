"""Measures memsvc on the workloads of README.md and writes one JSON line a figure: `python benchmarks/run.py [--quick] [--only B/sample] ...`."""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import machine
import numpy as np
from metrics import METRICS, Run, fill
from service import TRANSPORTS, NotShared, Service
from workloads import WORKLOADS, Workload

RESULTS = Path(__file__).parent / "results" / "run.jsonl"

# (workload, transport, metric): the bound, "at least" but for times. On an idle machine of two cores.
TARGETS = {
    ("A", "shm", "sample"): 500e3,
    ("B", "shm", "sample"): 3e6,
    ("C", "shm", "sample"): 24.8e3,
    ("B", "shm", "sample_update"): 1.5e6,
    ("A", "shm", "sample_sync"): 0.6,
    ("B", "shm", "sample_sync"): 0.15,
    ("A", "shm", "insert"): 150e3,
    ("B", "shm", "insert"): 2.5e6,
    ("A", "tcp", "sample"): 106e3,
    ("B", "process", "sample"): 6e6,
    ("B", "process", "add"): 3.0,
    ("B", "shm", "add"): 3.0,
}
_TIMES = ("us/step", "ms")


def wanted(workload: str, metric: str, only: list[str]) -> bool:
    """Whether --only asks for this pair; no --only asks for all."""
    return not only or any(fnmatch.fnmatch(f"{workload}/{metric}", pattern if "/" in pattern else f"{pattern}/*") for pattern in only)


def figures(workload: Workload, metric: str, service: Service, args: argparse.Namespace, floor: dict[str, float]) -> dict[str, Any]:
    """Measures one metric args.repeats times; the row without what all rows share."""
    unit, open_measure = METRICS[metric]
    runs: list[Run] = []
    with ExitStack() as stack:
        measure = open_measure(service, stack)
        before = service.cpu()
        runs = [measure(args.seconds) for _ in range(args.repeats)]
        cpu = service.cpu() - before
    gigabytes = sum(run.items + (run.inserted or 0) for run in runs) * workload.item_bytes / 1e9
    rate = statistics.median(run.items / run.seconds for run in runs)
    row: dict[str, Any] = {
        "workload": workload.name,
        "transport": service.transport,
        "metric": metric,
        "unit": unit,
        "median": statistics.median(run.value for run in runs),
        "repeats": [run.value for run in runs],
        "items": [run.items for run in runs],
        "item_bytes": workload.item_bytes,
        "table_items": workload.items,
        "batch": workload.envs if metric == "insert" else 1 if metric == "add" else workload.batch,
        "gb_per_s": rate * workload.item_bytes / 1e9,
        "cpu_s_per_gb": cpu / gigabytes if gigabytes else None,
        **floor,
        "ratio_memcpy": rate * workload.item_bytes / floor["memcpy_bytes_per_s"],
        "ratio_take": rate / floor["take_items_per_s"],
    }
    if runs[0].inserted is not None:
        row["inserted"] = [run.inserted for run in runs]
        row["insert_items_per_s"] = statistics.median((run.inserted or 0) / run.seconds for run in runs)
    calls = [ms for run in runs for ms in run.calls_ms]
    if calls:
        row["p50_ms"], row["p99_ms"] = (float(np.percentile(calls, q)) for q in (50, 99))
    return row


def verdict(row: dict[str, Any]) -> str:
    """The bound of TARGETS and whether it is reached, or nothing where there is none."""
    bound = TARGETS.get((row["workload"], row["transport"], row["metric"]))
    if bound is None:
        return ""
    at_most = row["unit"] in _TIMES
    reached = row["median"] <= bound if at_most else row["median"] >= bound
    return f"target {'<=' if at_most else '>='} {bound:,.{0 if bound >= 100 else 2}f}: {'reached' if reached else 'NOT REACHED'}"


def line(row: dict[str, Any]) -> str:
    """The row for a reader."""
    cpu = f"{row['cpu_s_per_gb']:8.3f}" if row["cpu_s_per_gb"] is not None else "       -"
    latency = f"  p50/p99 {row['p50_ms']:.3f}/{row['p99_ms']:.3f} ms" if "p50_ms" in row else ""
    head = f"{row['workload']} {row['transport']:<8}{row['metric']:<14}{row['median']:14,.{3 if row['unit'] == 'ms' else 1}f} {row['unit']:<8}"
    latency += f"  inserts meanwhile {row['insert_items_per_s']:,.1f}/s" if "inserted" in row else ""
    ratios = f"{row['ratio_memcpy']:.2f} of memcpy  {row['ratio_take']:.2f} of take"
    return f"{head}{row['gb_per_s']:7.2f} GB/s {cpu} CPU-s/GB  {ratios}{latency}  {verdict(row)}"


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="WORKLOAD/METRIC", help="for example B/sample, B or */insert; may be repeated")
    parser.add_argument("--transport", action="append", choices=TRANSPORTS, help="may be repeated; default: all")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="0.1 s a repeat, tables a tenth as large: a check that it runs, no figures to keep")
    parser.add_argument("--out", type=Path, help=f"JSON lines; default: {RESULTS.parent.name}/{RESULTS.name} for a whole run, else nowhere")
    args = parser.parse_args(argv)
    whole = not (args.only or args.transport or args.quick)
    args.out = args.out or (RESULTS if whole else None)
    args.seconds = 0.1 if args.quick else args.seconds
    return args


def main(argv: list[str]) -> int:
    """Runs what is asked for, prints a line a figure, and writes all rows at the end."""
    args = parse(argv)
    about = machine.about("run.py", argv)
    memcpy = machine.memcpy_rate()
    print(f"{about['machine']}, memcpy {memcpy / 1e9:.1f} GB/s", flush=True)
    rows: list[dict[str, Any]] = []
    for workload in WORKLOADS.values():
        metrics = [metric for metric in METRICS if wanted(workload.name, metric, args.only)]
        if not metrics:
            continue
        workload = workload.smaller(10) if args.quick else workload
        floor = {"memcpy_bytes_per_s": memcpy, "take_items_per_s": machine.take_rate(workload)}
        for transport in args.transport or TRANSPORTS:
            try:
                service = Service(workload, transport)
            except NotShared as error:
                print(f"{workload.name} {transport:<8}skipped: {error}", flush=True)
                continue
            with service:
                fill(service)
                for metric in metrics:
                    rows.append(about | figures(workload, metric, service, args, floor))
                    print(line(rows[-1]), flush=True)
    if not rows:
        print(f"nothing matches {args.only}: workloads {', '.join(WORKLOADS)}, metrics {', '.join(METRICS)}", file=sys.stderr)
        return 2
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{len(rows)} rows in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
