"""Bytes of the server for a byte of the steps that it holds, and of pushes for a byte of their steps: `python benchmarks/memory.py [--quick]`.

For each series a daemon of its own is filled to the brim. Printed are the bytes of a step by part, as cpp/core lays them out, what the process has
taken beyond an idle one without a memory, and what the actor pushed. Writes results/memory.jsonl, a row a series.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import numpy as np
from memsvc_client import Actor, Learner, ZmqEndpoint
from memsvc_core import Replay

import memsvc
from memsvc.bench.workloads import settings
from memsvc.children import Children

RESULTS = Path(__file__).parent / "results"
EPISODE = 240
ENVS = 16
DRAW_BYTES = 24  # of a place for a draw: weight, item, next, segment, steps
SMALLEST = 4 << 20  # the memory of the idle server whose other bytes are compared with

Steps = dict[str, tuple[str, tuple[int, ...]]]
Array = np.ndarray[Any, Any]

_SCALARS: Steps = {"action": ("int32", ()), "reward": ("float32", ())}
_PIXELS: Steps = {"obs": ("uint8", (4, 84, 84)), **_SCALARS, "discount": ("float32", ())}
_FRAME: Steps = {"obs": ("uint8", (84, 84)), **_SCALARS}
_VECTOR: Steps = {
    "obs": ("float32", (17,)),
    "action": ("float32", (6,)),
    "reward": ("float32", ()),
    "discount": ("float32", ()),
    "next_obs": ("float32", (17,)),
}
_STEP = '{ kind = "step" }'
_STACK = '{ kind = "transition", n_step = 1, frame_stack = 4, stack = ["obs"], next = ["obs"] }'


@dataclass(frozen=True)
class Series:
    """A table over these fields, and how much more than the steps' own bytes server and pushes may take."""

    name: str
    fields: Steps
    item: str
    select: str
    limit: float
    wire_limit: float | None  # None: draws travel too, so it depends on how often an item is drawn

    @property
    def step_bytes(self) -> int:
        """Bytes of one step's fields."""
        return sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in self.fields.values())

    def config(self, memory: int) -> str:
        """A server of `memory` bytes; an actor's memory holds three times as many steps."""
        most = max(3 * memory // self.step_bytes, 8 * EPISODE * ENVS) if self.select != "all" else 4 * EPISODE * ENVS
        fields = [(name, dtype, shape) for name, (dtype, shape) in self.fields.items()]
        return settings("tcp://127.0.0.1:0", memory, fields, self.item, f'{{ select = "{self.select}", max_steps = {most} }}')


SERIES = (
    Series("A, all", _PIXELS, _STEP, "all", 1.05, 1.05),
    Series("B, all", _VECTOR, _STEP, "all", 1.3, 1.3),
    Series("B, caches", _VECTOR, _STEP, "prioritized", 1.3, None),
    Series("frames, stack of 4, all", _FRAME, _STACK, "all", 1.15, 1.15),
    Series("frames, stack of 4, caches", _FRAME, _STACK, "prioritized", 1.15, 1.15),
)


def parts(series: Series, memory: int) -> dict[str, float]:
    """Bytes of a step by part (cpp/core: place() of Store, Items, Caches; what they leave is the tree). ValueError where they miss the core's sum."""
    schema, specs = memsvc.Config.parse(series.config(memory)).specs()
    account = Replay.footprint(schema, specs, memory)
    items = account["items"][0] / account["steps"]
    whole, windows = series.select == "all", series.item != _STEP
    of = {
        "rows": -(-series.step_bytes // 8) * 8,
        "keys": 8,
        "references": 2,
        "free slots": 1 / 8,
        "index": 4 * 4 / 3,
        "item: version": 4 * items,
        "item: priority or weight": 8 * items,
        "item: order": 8 * items,
        "item: arriving": items / 8,
        "item: span and head": 6 * items * windows,
        "item: computed columns": specs[0].item_bytes * items,
        "item: learners' updates": 8 * items * (not whole),
        "draws": 0 if whole else DRAW_BYTES * min(max(memory // 845, 4096), 1 << 20) / account["steps"],
    }
    total = account["bytes"] / account["steps"]
    rest = total - sum(of.values())
    if whole:
        of["tree"] = rest
    elif abs(rest) > 0.005 * total:
        raise ValueError(f"{series.name}: all parts but {rest:.2f} bytes a step are accounted for: cpp/core has changed")
    return {name: value for name, value in of.items() if value}


@contextmanager
def daemon(series: Series, memory: int) -> Iterator[tuple[str, int]]:
    """(address, process) of a server that is ready."""
    with tempfile.TemporaryDirectory(prefix="memsvc-bench-") as name, Children(folder := Path(name)) as children:
        file = folder / "memsvc.toml"
        file.write_text(series.config(memory))
        yield children.serve(folder, file)["address"], children.pids[0]


def own_bytes(pid: int) -> int:
    """Resident bytes that are the process's own: neither files nor memory that a client lends it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024


class Player:
    """Random steps of ENVS environments, episodes of EPISODE, by add_batch."""

    def __init__(self, series: Series, actor: Actor) -> None:
        self._actor, self._tick, self.steps = actor, 0, 0
        self._rng = np.random.default_rng(1)
        self._columns = {
            name: (self._rng.integers(0, 256, (2 * ENVS, *shape)) if dtype == "uint8" else self._rng.standard_normal((2 * ENVS, *shape))).astype(
                dtype
            )
            for name, (dtype, shape) in series.fields.items()
        }

    def play(self, ticks: int) -> None:
        """So many steps of every environment."""
        for _ in range(ticks):
            at = self._tick % ENVS
            self._tick += 1
            ends = np.full(ENVS, self._tick % EPISODE == 0)
            columns = {name: column[at : at + ENVS] for name, column in self._columns.items()}
            self._actor.add_batch(**columns, priority=1.01 - self._rng.random(ENVS), terminated=ends)
            self.steps += ENVS


def fill(series: Series, actor: Actor, learner: Learner) -> tuple[int, int]:
    """Fills the store, then beyond; returns (distinct steps that travelled, bytes of their pushes) from before anything was evicted."""
    player = Player(series, actor)
    told = learner.server_stats(timeout=60)
    capacity, travelled = told["capacity_steps"], (0, 0)
    while told["tables"][0]["evicted"] == 0:
        if series.select == "all" or player.steps < 3 * capacity:
            player.play(min(EPISODE, max(1, capacity // ENVS // 8)))
        else:
            for _ in range(max(1, capacity // 50 // 256)):
                learner.sample(timeout=60)
        actor.flush(timeout=120)
        told = learner.server_stats(timeout=60)
        if told["tables"][0]["evicted"] == 0:
            travelled = (told["steps"], actor.stats()["acknowledged_bytes"])
    return travelled


def measure(series: Series, memory: int) -> dict[str, Any]:
    """One row."""
    with daemon(series, SMALLEST) as (_, pid):
        bare = own_bytes(pid) - SMALLEST
    with daemon(series, memory) as (address, pid):
        endpoint = ZmqEndpoint(address, shared=False)
        with Actor(endpoint, name="filler", envs=ENVS) as actor, Learner(endpoint, table="replay", batch_size=256, prefetch=0) as learner:
            ready = own_bytes(pid)
            steps, pushed = fill(series, actor, learner)
            told, full = learner.server_stats(timeout=60), own_bytes(pid)
    of = parts(series, memory)
    return {
        "series": series.name,
        "step_bytes": series.step_bytes,
        "memory": memory,
        "steps": told["steps"],
        "bytes_per_step": of,
        "ratio": told["bytes"] / (told["capacity_steps"] * series.step_bytes),
        "process_ratio": (full - bare) / (told["steps"] * series.step_bytes),
        "process_bytes": {"bare": bare, "ready": ready, "full": full},
        "wire_ratio": pushed / (steps * series.step_bytes),
        "limit": series.limit,
        "wire_limit": series.wire_limit,
    }


def main(argv: list[str]) -> int:
    """Measures all series, prints them and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the memory: a check that it runs")
    parser.add_argument("--only", default="", help="series whose name begins so")
    parser.add_argument("--memory", type=int, default=256, help="of the server, MiB")
    parser.add_argument("--out", type=Path, default=None, help=f"folder; default: {RESULTS.name}/, nothing with --quick or --only")
    args = parser.parse_args(argv)
    about = machine.about("memory.py", argv)
    rows: list[dict[str, Any]] = []
    for series in SERIES:
        if not series.name.startswith(args.only):
            continue
        rows.append(row := about | measure(series, (args.memory << 20) // (4 if args.quick else 1)))
        print(f"{series.name}: {row['step_bytes']:,} bytes a step, {row['steps']:,} held")
        for name, value in row["bytes_per_step"].items():
            print(f"    {name:<28}{value:12,.2f}{value / row['step_bytes']:10.4f}")
        print(f"    {'store, of the steps':<40}{row['ratio']:10.4f}   at most {row['limit']}")
        print(f"    {'process, of the steps':<40}{row['process_ratio']:10.4f}")
        promise = "" if row["wire_limit"] is None else f"   at most {row['wire_limit']}"
        print(f"    {'pushes, of their steps':<40}{row['wire_ratio']:10.4f}{promise}", flush=True)
    out = args.out or (None if args.quick or args.only else RESULTS)
    if out:
        machine.keep(rows, out / "memory.jsonl")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
