"""What one client does to the others: `python benchmarks/neighbours.py [--quick]`.

One daemon, an actor that pushes and a learner that samples, each timing its own calls, alternately alone and beside a third client, which waits for
data that is not there (`starved`), sends 10,000 priorities at a time (`updates`), or pushes without a pause (`flood`); and beside a process that has
nothing to do with the daemon and takes a core (`spin`): what flood costs more than that is the daemon's doing.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import machine
import numpy as np
from memsvc_client import Actor, Learner
from memsvc_proto.errors import NotReady
from metrics import fill
from service import Service
from workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results" / "neighbours.jsonl"
ENVS = 16
PAUSE_S = 0.001  # between two calls, so that two cores are not full of those who measure
NEVER = 1 << 40  # a version that nobody publishes
UPDATES = 10_000

Role = Callable[[str, float], list[float]]


def push(address: str, seconds: float) -> list[float]:
    """Milliseconds of each push, from add_batch to its acknowledgement."""
    workload = WORKLOADS["B"]
    steps, priorities = workload.columns(ENVS), workload.priorities(ENVS)
    with Actor(address, envs=ENVS) as actor:

        def call() -> None:
            actor.add_batch(**steps, priority=priorities)
            actor.flush(timeout=60)

        return timed(call, seconds)


def sample(address: str, seconds: float) -> list[float]:
    """Milliseconds of each sample() that asks when it is called."""
    with Learner(address, batch_size=256, prefetch=0) as learner:
        return timed(lambda: learner.sample(timeout=60), seconds)


def starved(address: str, seconds: float) -> list[float]:
    """Waits for items of a version that nobody has published."""
    end = time.perf_counter() + seconds
    with Learner(address, batch_size=256, prefetch=0) as learner:
        while (left := end - time.perf_counter()) > 0:
            with contextlib.suppress(NotReady):
                learner.sample(timeout=left, min_version=NEVER)
    return []


def updates(address: str, seconds: float) -> list[float]:
    """Sends 10,000 priorities in one call, again and again; at most fifty calls a second."""
    with Learner(address, batch_size=UPDATES, prefetch=0) as learner:
        keys = learner.sample(timeout=60).keys
        priorities = np.random.default_rng(1).random(len(keys))
        timed(lambda: learner.update_priorities(keys, priorities), seconds, pause=0.02)
    return []


def flood(address: str, seconds: float) -> list[float]:
    """An actor that adds as fast as its window lets it, 512 steps a call."""
    workload = WORKLOADS["B"]
    steps, priorities = workload.columns(512), workload.priorities(512)
    with Actor(address, envs=512) as actor:
        timed(lambda: actor.add_batch(**steps, priority=priorities), seconds, pause=0.0)
    return []


def spin(address: str, seconds: float) -> list[float]:
    """Takes a core, and speaks to nobody."""
    del address
    numbers = np.random.default_rng(1).random(1 << 16)
    timed(lambda: np.sort(numbers), seconds, pause=0.0)
    return []


def timed(call: Callable[[], Any], seconds: float, pause: float = PAUSE_S) -> list[float]:
    """Milliseconds of each call, the first few left out."""
    took: list[float] = []
    for _ in range(3):
        call()
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        call()
        took.append((time.perf_counter() - start) * 1e3)
        if pause:
            time.sleep(pause)
    return took


def serve(role: Role, address: str, pipe: Connection) -> None:
    """A process of its own: plays its role for as long as it is told, until it is told 0."""
    while (seconds := pipe.recv()) > 0:
        pipe.send(role(address, seconds))


def together(pipes: list[Connection], seconds: float) -> list[list[float]]:
    """All of them at once."""
    for pipe in pipes:
        pipe.send(seconds)
    return [pipe.recv() for pipe in pipes]


def measure(third: Role, address: str, seconds: float, runs: int) -> dict[str, Any]:
    """Median, p99 and worst of pushes and samples, medians over runs, alone and beside `third`."""
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    try:
        for role in (push, sample, third):
            mine, theirs = context.Pipe()
            child = context.Process(target=serve, args=(role, address, theirs), daemon=True)
            child.start()
            pipes.append(mine)
            children.append(child)
        together(pipes, 0.2)
        row: dict[str, Any] = {"third": third.__name__, "runs": runs, "seconds": seconds}
        found: dict[str, list[float]] = {}
        for _ in range(runs):
            for situation, who in (("alone", pipes[:2]), ("beside", pipes)):
                for name, took in zip(("push", "sample"), together(who, seconds), strict=False):
                    for percent in (50, 99):
                        found.setdefault(f"{name}_{situation}_p{percent}_ms", []).append(float(np.percentile(took, percent)))
                    found.setdefault(f"{name}_{situation}_worst_ms", []).append(max(took))
        row |= {name: round(statistics.median(values), 4) for name, values in found.items()}
        for name in ("push", "sample"):
            for p in ("p50", "p99"):
                row[f"{name}_{p}_ratio"] = round(row[f"{name}_beside_{p}_ms"] / row[f"{name}_alone_{p}_ms"], 3)
        return row
    finally:
        for pipe in pipes:
            pipe.send(0)
        for child in children:
            child.join(10)


def line(row: dict[str, Any], name: str) -> str:
    """One side's figures for a reader."""
    parts = [
        f"{when} p50 {row[f'{name}_{when}_p50_ms']:.2f} p99 {row[f'{name}_{when}_p99_ms']:.2f} worst {row[f'{name}_{when}_worst_ms']:.2f} ms"
        for when in ("alone", "beside")
    ]
    return f"{row['third']:<8} {name:<7} {'  '.join(parts)}  ratios {row[f'{name}_p50_ratio']:.2f} {row[f'{name}_p99_ratio']:.2f}"


def main(argv: list[str]) -> int:
    """Measures the situations and prints them; writes the rows of a whole run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a table a tenth as large, short runs: a check that it works")
    parser.add_argument("--out", type=Path, help=f"default: {RESULTS.parent.name}/{RESULTS.name} for a whole run, else nowhere")
    args = parser.parse_args(argv)
    seconds, runs = (0.3, 1) if args.quick else (1.5, 7)
    about = machine.about("neighbours.py", argv)
    rows = []
    with Service(WORKLOADS["B"].smaller(10 if args.quick else 1), "tcp") as service:
        fill(service)
        for third in (starved, updates, flood, spin):
            rows.append(about | measure(third, service.address, seconds, runs))
            for name in ("push", "sample"):
                print(line(rows[-1], name), flush=True)
    out = args.out or (None if args.quick else RESULTS)
    if out:
        machine.keep(rows, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
