"""Nanoseconds an index of the priority tree, 256 at a time, by number of leaves: `python benchmarks/tree.py [--quick] [--out FILE]`.

Beside draws and updates, in turns, stands what numpy takes for the least that such work needs: a search in sums that are ready made, and a gather of
as many random numbers out of as many leaves. Prints a table; with --out it writes a JSON line a row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import machine
import memsvc_core
import numpy as np

BATCH = 256
LEAVES = (100_000, 1_000_000, 10_000_000)
# ns an index at 1e6 leaves, on an idle machine with AVX-512.
TARGETS = {"draw": 20.0, "update": 15.0}


def work(leaves: int) -> dict[str, Callable[[], object]]:
    """What is timed, by name; each call is BATCH indices."""
    rng = np.random.default_rng(2)
    weights = rng.random(leaves) + 0.01
    trees = {"": memsvc_core.SumTree(leaves, 1), " scalar": memsvc_core.SumTree(leaves, 1, simd=False)}
    if not trees[""].vectorised:
        del trees[" scalar"]
    for tree in trees.values():
        tree.update(np.arange(leaves), weights)
    sums = np.cumsum(weights)
    masses = cycle((np.arange(BATCH) + rng.random((64, BATCH))) * (sums[-1] / BATCH))
    at, new = cycle(rng.integers(0, leaves, (64, BATCH))), rng.random(BATCH) + 0.01
    calls: dict[str, Callable[[], object]] = {}
    for kind, tree in trees.items():
        calls[f"draw{kind}"] = lambda tree=tree: tree.draw(BATCH)  # type: ignore[misc]
        calls[f"update{kind}"] = lambda tree=tree: tree.update(next(at), new)  # type: ignore[misc]
    calls["numpy search"] = lambda: np.searchsorted(sums, next(masses))
    calls["numpy gather"] = machine.Gather(leaves).act
    return calls


def nanoseconds(call: Callable[[], object], seconds: float) -> float:
    """CPU nanoseconds an index of as many calls as fit into `seconds`."""
    call()
    done, start, end = 0, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(64):
            call()
        done += 64
    return (time.process_time() - start) / (done * BATCH) * 1e9


def main(argv: list[str]) -> int:
    """Prints the table and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="does it run? no figures to keep")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="writes the rows here")
    args = parser.parse_args(argv)
    seconds, repeats, shrink = (0.005, 1, 100) if args.quick else (0.1, args.repeats, 1)
    about = machine.about("tree.py", argv)
    rows = []
    for leaves in (count // shrink for count in LEAVES):
        calls = work(leaves)
        turns = [{name: nanoseconds(call, seconds) for name, call in calls.items()} for _ in range(repeats)]
        row = {"leaves": leaves, "ns": {name: round(statistics.median(turn[name] for turn in turns), 2) for name in calls}}
        rows.append(row | {"turns": turns} | about)
        print(f"{leaves:>12,} leaves, ns an index: " + ", ".join(f"{name} {ns:.1f}" for name, ns in row["ns"].items()), flush=True)  # type: ignore[attr-defined]
    print("targets at 1,000,000 leaves: " + ", ".join(f"{name} <= {ns:.0f}" for name, ns in TARGETS.items()))
    if args.out:
        args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
