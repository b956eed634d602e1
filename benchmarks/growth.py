"""What a batch of 256 costs as a table grows, in the core alone, without sockets or daemon: `python benchmarks/growth.py [--quick] [--only NAME]`.

`items`: draws from 1e5, 1e6 and 1e7 items. `actors`: the same items of 1 to 1,000 actors, with select = "all" and with caches. `update`: the slowest
of the draws beside learners' updates of 10,000 priorities. `publish`: the same beside a version that makes 1e6 items too stale. `min_version`: draws
from the newest half of 1e6 items. Writes results/growth.jsonl, a row a figure.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import machine
import numpy as np
from memsvc_core import Memory, Replay

import memsvc

RESULTS = Path(__file__).parent / "results"
BATCH = 256
ENVS = 1024
STOCK = 8192  # draws that caches are to hold together
CACHE = 16
ITEM_BYTES = 192  # of a step of 24 bytes with every index, its share of a tree's levels, and room for draws
SIZES = (100_000, 1_000_000, 10_000_000)
ACTORS = (1, 10, 100, 1000)
UPDATED = 10_000
RUNS = 10
LIMITS = {"items": 2.0, "actors": 1.5}  # times the smallest one's cost


class Service:
    """A core with `actors` memories that joined it by plain calls, and `items` items of steps of 24 bytes over all of them."""

    def __init__(self, items: int, actors: int, select: str, staleness: int = -1) -> None:
        envs = max(1, min(ENVS, items // actors // 8))
        each = items // actors // envs * envs
        self._schema, self._specs = memsvc.Config.parse(_config(select, staleness, each + envs)).specs()
        memory = items * ITEM_BYTES + (64 << 20)
        self.replay = Replay(self._schema, self._specs, memory, 1, 1)
        self._rng, self._select = np.random.default_rng(3), select
        self._actors: list[tuple[int, Memory]] = []
        self.replay.expect(0, STOCK)
        for k in range(actors):
            number, streams = self.replay.join(f"actor-{k}", envs)
            one = Memory(self._schema, self._specs, streams, 1 + k)
            self._actors.append((number, one))
            for step in range(each // envs):
                self._add(one, envs, version=2 * step // max(each // envs, 1))
                if select == "all" and step % 64 == 0:
                    self._send(number, one)
        for _ in range(2):
            self.serve()  # one cache of each actor, then what the core wants of it
        size, layout = self._specs[0].layout(BATCH)
        # Two batches, in turn, as a learner has them.
        self._outs = [np.zeros(size + 64, np.uint8) for _ in range(2)]
        self._at = next(offset for name, _, _, offset in layout if name == "keys")
        self._turn = 0

    def _add(self, memory: Memory, envs: int, version: int) -> None:
        step = {
            "obs": self._rng.random((envs, 4), np.float32),
            "action": self._rng.integers(0, 9, envs).astype(np.int32),
            "reward": self._rng.random(envs, np.float32),
        }
        memory.add_batch(None, None, step, self._rng.random(envs) + 0.01, version, None, None, None)

    def _send(self, number: int, memory: Memory, draws: int = 0) -> None:
        while (payload := memory.draw(0, draws, 1 << 22, 0)) is not None:
            self.replay.push(number, payload)
            if draws or self._select != "all":
                return

    def serve(self) -> None:
        """Every actor does what the core asks of it."""
        for number, memory in self._actors:
            wanted, missing, evicted = self.replay.notices(number, 0)
            memory.evicted(0, evicted)
            memory.missing(0, missing)
            if self._select == "all" or wanted > 0:
                self._send(number, memory, wanted)

    def draw(self, least: int | None = None) -> np.ndarray[Any, Any] | None:
        """A batch's keys, as a view; None where caches have too few draws left."""
        self._turn ^= 1
        out = self._outs[self._turn]
        found = self.replay.draw(0, BATCH, out, 0, least)
        return None if found is None else out[self._at : self._at + 8 * BATCH].view(np.uint64)

    def cost(self, seconds: float, least: int | None = None) -> float:
        """Median microseconds of a draw. Stocks are filled up now and then, outside of what is timed."""
        took: list[float] = []
        start = time.perf_counter()
        while not took or time.perf_counter() - start < seconds:
            if self._select != "all":
                self.serve()
            for _ in range(STOCK // BATCH // 2):
                before = time.perf_counter()
                if self.draw(least) is None:
                    break
                took.append(time.perf_counter() - before)
        return statistics.median(took) * 1e6


def _config(select: str, staleness: int, steps: int) -> str:
    return f"""
[server]
address = "tcp://127.0.0.1:0"
seed    = 1
[step]
obs    = {{ dtype = "float32", shape = [4] }}
action = {{ dtype = "int32", shape = [] }}
reward = {{ dtype = "float32", shape = [] }}
[[table]]
name     = "replay"
item     = {{ kind = "step" }}
priority = {{ source = "given", exponent = 0.6 }}
actor    = {{ select = "{select}", max_steps = {steps}, cache = {CACHE} }}
limits   = {{ max_staleness = {staleness} }}
"""


Figure = dict[str, Any]


def items(shrink: int, seconds: float) -> Iterator[Figure]:
    """Draws by the number of items."""
    for count in (size // shrink for size in SIZES):
        yield {"items": count, "actors": 1, "select": "all", "us": Service(count, 1, "all").cost(seconds)}


def actors(shrink: int, seconds: float) -> Iterator[Figure]:
    """Draws by the number of actors."""
    for select in ("all", "prioritized"):
        for count in (many for many in ACTORS if SIZES[0] // shrink >= 32 * many):
            service = Service(SIZES[0] // shrink, count, select)
            for _ in range(4):
                service.cost(seconds / 8)  # until most payloads are there
            yield {"items": SIZES[0] // shrink, "actors": count, "select": select, "us": service.cost(seconds)}


@contextmanager
def _beside(act: Callable[[], object], times: int | None) -> Iterator[threading.Event]:
    """`act` in a thread of its own, so often or until the end; what is yielded is set when it is over."""
    over, stop = threading.Event(), threading.Event()

    def run() -> None:
        for _ in repeat(None) if times is None else repeat(None, times):
            if stop.is_set():
                break
            act()
        over.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield over
    finally:
        stop.set()
        thread.join()


def _slowest(service: Service, seconds: float, over: threading.Event | None = None) -> float:
    """Milliseconds of the slowest draw in so long a time, or until it is over."""
    worst, start = 0.0, time.perf_counter()
    while worst == 0 or (time.perf_counter() - start < seconds and not (over and over.is_set())):
        before = time.perf_counter()
        if service.draw() is None:
            service.serve()
            continue
        worst = max(worst, time.perf_counter() - before)
    return worst * 1e3


def update(shrink: int, seconds: float) -> Iterator[Figure]:
    """The slowest draws of short runs, without and beside updates of UPDATED priorities: medians."""
    for select in ("all", "prioritized"):
        service = Service(SIZES[1] // shrink, 10, select)
        known = [keys.copy() for keys in (service.draw() for _ in range(STOCK // 4 // BATCH)) if keys is not None]
        keys = np.resize(np.concatenate(known), UPDATED)
        priorities = np.random.default_rng(5).random(UPDATED) + 0.01
        alone, beside = [], []
        for _ in range(RUNS):
            service.serve()
            alone.append(_slowest(service, seconds / RUNS))
            with _beside(partial(service.replay.update, 0, keys, priorities), None):
                beside.append(_slowest(service, seconds / RUNS))
        worst = {"worst_ms": statistics.median(beside), "worst_alone_ms": statistics.median(alone)}
        yield {"items": SIZES[1] // shrink, "actors": 10, "select": select, **worst}


def publish(shrink: int, seconds: float) -> Iterator[Figure]:
    """The slowest draw while all items of version 0, half of the table, become too stale; and of as short runs without that, the median."""
    service = Service(2 * SIZES[1] // shrink, 1, "all", staleness=0)
    took: list[float] = []

    def act() -> None:
        start = time.perf_counter()
        service.replay.publish("default", 1)
        took.append(time.perf_counter() - start)

    alone = statistics.median(_slowest(service, seconds / RUNS) for _ in range(RUNS))
    with _beside(act, 1) as over:
        beside = _slowest(service, 60.0, over)
    gone = int(service.replay.stats()["tables"][0]["aged"])
    yield {
        "items": 2 * SIZES[1] // shrink,
        "actors": 1,
        "select": "all",
        "stale": gone,
        "publish_ms": took[0] * 1e3,
        "worst_ms": beside,
        "worst_alone_ms": alone,
    }


def min_version(shrink: int, seconds: float) -> Iterator[Figure]:
    """Draws from those items whose version is 1 or newer."""
    service = Service(SIZES[1] // shrink, 1, "all")
    yield {"items": SIZES[1] // shrink, "actors": 1, "select": "all", "least": 1, "us": service.cost(seconds, 1), "any_us": service.cost(seconds)}


FIGURES = {"items": items, "actors": actors, "update": update, "publish": publish, "min_version": min_version}


def main(argv: list[str]) -> int:
    """Prints the figures and writes their rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="does it run? no figures to keep")
    parser.add_argument("--only", action="append", choices=FIGURES)
    parser.add_argument("--out", type=Path, help="writes the rows here (without --quick and --only: results/growth.jsonl)")
    args = parser.parse_args(argv)
    shrink, seconds = (100, 0.02) if args.quick else (1, 2.0)
    about = machine.about("growth.py", argv, batch=BATCH)
    rows = []
    for name in args.only or FIGURES:
        first: dict[str, float] = {}
        for row in FIGURES[name](shrink, seconds):
            figures = ", ".join(f"{key} {value:,.2f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
            if name in LIMITS:
                row["ratio"] = row["us"] / first.setdefault(row["select"], row["us"])
                figures += f": {row['ratio']:.2f} times the first, bound {LIMITS[name]}"
            rows.append({"figure": name, **row} | about)
            print(f"{name:<12} {figures}", flush=True)
    out = args.out or (None if args.quick or args.only else RESULTS / "growth.jsonl")
    if out:
        out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
