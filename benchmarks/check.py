"""The regression guard, `make bench-check`: costs against those of bare numpy and memcpy in the same run, by floors that hold on any machine.

A ratio is the product's items per CPU second, of all processes that take part, over the reference's: the time that neighbours take does not count,
nor how many cores there are. It is the median of five short repeats, product and reference in turn; what falls below is measured once more. Exits 1
with the names that fell below their floors in floors.json again. `--store` writes the floors anew: .65 of what is measured now.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

import machine
import memsvc_core
import metrics
import numpy as np
from service import NotShared, Service
from workloads import WORKLOADS, Workload

FLOORS = Path(__file__).parent / "floors.json"
MARGIN = 0.65
TREE_LEAVES = 1_000_000

Rate = Callable[[float], float]
"""Works for so many seconds -> amount per CPU second."""


class Reference(Protocol):
    """Something bare to compare with: `act` moves `amount` of it."""

    amount: int

    def act(self) -> None:
        """Moves it."""


@dataclass(frozen=True)
class Guard:
    """One ratio: which metric of which workload and transport, over which reference; `by_bytes` compares bytes instead of items."""

    name: str
    metric: Callable[[Service, ExitStack], metrics.Measure]
    workload: str
    transport: str
    reference: Callable[[Workload], Reference]
    by_bytes: bool = False

    def open(self, service: Service, stack: ExitStack) -> tuple[Rate, Rate]:
        """(product, reference), in the same unit."""
        measure, workload = self.metric(service, stack), service.workload
        unit = workload.item_bytes if self.by_bytes else 1
        reference = self.reference(workload)

        def product(seconds: float) -> float:
            before = cpu(service)
            run = measure(seconds)
            return run.items * unit / (cpu(service) - before)

        return product, lambda seconds: alone(reference.act, reference.amount, seconds)


def cpu(service: Service) -> float:
    """CPU seconds so far: this process's to the microsecond, the others' to a clock tick."""
    return time.process_time() + machine.cpu_seconds(service.pids[1:])


def alone(act: Callable[[], object], amount: int, seconds: float) -> float:
    """`amount` times calls of `act` per CPU second of this process."""
    act()
    calls, end, before = 0, time.perf_counter() + seconds, time.process_time()
    while time.perf_counter() < end:
        act()
        calls += 1
    return calls * amount / max(1e-6, time.process_time() - before)


def memcpy(_: Workload) -> Reference:
    """The plain copy, for bytes."""
    return machine.Memcpy()


GUARDS = (
    Guard("sample A in process / numpy take", metrics.sample, "A", "process", machine.Take),
    Guard("insert A in process / memcpy", metrics.insert, "A", "process", memcpy, by_bytes=True),
    Guard("sample A shared memory / memcpy", metrics.sample, "A", "shm", memcpy, by_bytes=True),
    Guard("insert A shared memory / memcpy", metrics.insert, "A", "shm", memcpy, by_bytes=True),
    Guard("sample A tcp / memcpy", metrics.sample, "A", "tcp", memcpy, by_bytes=True),
    Guard("insert A tcp / memcpy", metrics.insert, "A", "tcp", memcpy, by_bytes=True),
    Guard("sample B in process / numpy take", metrics.sample, "B", "process", machine.Take),
    Guard("sample and update B in process / numpy take", metrics.sample_update, "B", "process", machine.Take),
    Guard("insert B in process / numpy copy", metrics.insert, "B", "process", machine.Copy),
    Guard("insert B tcp / numpy copy", metrics.insert, "B", "tcp", machine.Copy),
    Guard("sample B tcp / numpy take", metrics.sample, "B", "tcp", machine.Take),
)
TREE = ("tree draw / numpy gather", "tree update / numpy gather")


def tree(leaves: int) -> dict[str, tuple[Rate, Rate]]:
    """Draws and updates of 256 at a time in a tree of so many leaves, against a random gather out of as many numbers."""
    rng = np.random.default_rng(2)
    made = memsvc_core.SumTree(leaves, 1)
    made.update(np.arange(leaves), rng.random(leaves) + 0.01)
    indices, weights = rng.integers(0, leaves, (64, 256)), rng.random(256) + 0.01
    turn, gather = cycle(indices), machine.Gather(leaves)

    def over_gather(act: Callable[[], object]) -> tuple[Rate, Rate]:
        return lambda seconds: alone(act, 256, seconds), lambda seconds: alone(gather.act, gather.amount, seconds)

    return {TREE[0]: over_gather(lambda: made.draw(256)), TREE[1]: over_gather(lambda: made.update(next(turn), weights))}


def ratios(product: Rate, reference: Rate, seconds: float, repeats: int) -> list[float]:
    """Of each repeat: the reference is measured before and after, so that a neighbour who comes or goes weighs on both."""
    found, before = [], reference(seconds / 2)
    for _ in range(repeats):
        mine, after = product(seconds), reference(seconds / 2)
        found.append(2 * mine / (before + after))
        before = after
    return found


def measure(guards: list[Guard], trees: bool, small: int, seconds: float, repeats: int) -> dict[str, list[float]]:
    """Ratios by name; those over shared memory are missing where clients do not use it."""
    found: dict[str, list[float]] = {}
    for letter, transport in dict.fromkeys((guard.workload, guard.transport) for guard in guards):
        try:
            service = Service(WORKLOADS[letter].smaller(small), transport)
        except NotShared as error:
            print(f"{letter} {transport}: left out: {error}", flush=True)
            continue
        with service:
            metrics.fill(service)
            for guard in (one for one in guards if (one.workload, one.transport) == (letter, transport)):
                with ExitStack() as stack:
                    found[guard.name] = ratios(*guard.open(service, stack), seconds, repeats)
    for name, pair in (tree(TREE_LEAVES // small) if trees else {}).items():
        found[name] = ratios(*pair, seconds, repeats)
    return found


def table(found: dict[str, list[float]], floors: dict[str, float]) -> list[str]:
    """Prints a line a ratio; returns the names that fell below, or that no floor is stored for."""
    print(f"{'':<46}{'ratio':>9}{'lowest':>9}{'highest':>9}{'floor':>9}")
    below = []
    for name, runs in found.items():
        ratio, floor = statistics.median(runs), floors.get(name)
        fine = floor is not None and ratio >= floor
        below += [] if fine else [name]
        verdict = "" if fine else "   NO FLOOR: --store" if floor is None else "   BELOW"
        shown = "-" if floor is None else f"{floor:.3g}"
        print(f"{name:<46}{ratio:>9.3g}{min(runs):>9.3g}{max(runs):>9.3g}{shown:>9}{verdict}")
    return below


def main(argv: list[str]) -> int:
    """Measures, prints the table, and says which ratios fell below. 0: none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="ratios whose name contains it; may be repeated")
    parser.add_argument("--store", action="store_true", help=f"write floors: {MARGIN:g} of what is measured; those not measured stay as they are")
    parser.add_argument("--floors", type=Path, default=FLOORS, help=f"default: {FLOORS.name}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4, help="of one repeat")
    parser.add_argument("--quick", action="store_true", help="small tables, one moment each: a check that it runs")
    args = parser.parse_args(argv)
    wanted = args.only or [""]
    guards = [guard for guard in GUARDS if any(part in guard.name for part in wanted)]
    trees = any(part in name for part in wanted for name in TREE)
    if not guards and not trees:
        print(f"nothing matches {args.only}; there are: {', '.join([*(guard.name for guard in GUARDS), *TREE])}", file=sys.stderr)
        return 2
    small, seconds, repeats = (20, 0.02, 1) if args.quick else (2, args.seconds, args.repeats)
    found = measure(guards, trees, small, seconds, repeats)
    kept: dict[str, Any] = json.loads(args.floors.read_text()) if args.floors.exists() else {"floors": {}}
    if args.store:
        command = shlex.join(["python", "benchmarks/check.py", *argv])
        floors = {name: float(f"{MARGIN * statistics.median(runs):.3g}") for name, runs in found.items()}
        about = {"date": machine.now(), "commit": machine.commit(), "command": command, "machine": machine.describe()}
        kept = about | {"floors": kept["floors"] | floors}
        args.floors.write_text(json.dumps(kept, indent=1) + "\n")
    below = table(found, kept["floors"])
    if any(name in kept["floors"] for name in below):
        print("once more, those that fell below: a neighbour may have come or gone", flush=True)
        again = measure([guard for guard in guards if guard.name in below], any(name in below for name in TREE), small, seconds, repeats)
        below = table({name: again[name] for name in below}, kept["floors"])
    if below:
        print(f"below their floors: {', '.join(below)}", file=sys.stderr)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
