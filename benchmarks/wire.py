"""Bytes on the wire per draw, as the server comes to hold the actors' memories: `python benchmarks/wire.py [--quick]`.

A draw of an item that the server holds travels as key and weight alone, 16 bytes (DEFINITIONS 7). Over tcp, actors record a memory each, then a
learner draws; from time to time the bytes of all pushes and the draws that came with them are read. Writes results/wire.jsonl, a row a reading, and
wire.png.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import machine
import numpy as np
from memsvc_client import Actor, Learner

import memsvc
from memsvc.bench.workloads import settings

RESULTS = Path(__file__).parent / "results"
KEY_BYTES = 16
EPISODE = 200

Steps = dict[str, tuple[str, tuple[int, ...]]]

_FRAME: Steps = {"obs": ("uint8", (84, 84)), "action": ("int32", ()), "reward": ("float32", ())}
_VECTOR: Steps = {"obs": ("float32", (39,)), "action": ("float32", ()), "reward": ("float32", ()), "value": ("float32", ())}
_TRANSITION = '{ kind = "transition", n_step = 3, next = ["obs"] }'
_SEQUENCE = '{ kind = "sequence", length = 20, stride = 10 }'


@dataclass(frozen=True)
class Series:
    """`actors` memories of `steps` steps each, drawn `turns` times as often as they have items, in batches of 256."""

    name: str
    fields: Steps
    item: str
    steps: int
    actors: int = 4
    turns: float = 20.0

    @property
    def step_bytes(self) -> int:
        """Bytes of one step's fields."""
        return sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in self.fields.values())

    def config(self) -> str:
        """A server whose store holds every memory twice."""
        memory = 2 * self.actors * self.steps * (self.step_bytes + 400) + (4 << 20)
        fields = [(name, dtype, shape) for name, (dtype, shape) in self.fields.items()]
        return settings("tcp://127.0.0.1:0", memory, fields, self.item, f"{{ cache = 64, every = 1024, max_steps = {2 * self.steps} }}")

    def play(self, actor: Actor, seed: int) -> None:
        """Random steps and priorities, episodes of 200."""
        rng = np.random.default_rng(seed)
        for i in range(self.steps):
            step = {}
            for name, (dtype, shape) in self.fields.items():
                random = rng.integers(0, 256, shape) if dtype == "uint8" else rng.standard_normal(shape)
                step[name] = np.asarray(random).astype(dtype)
            actor.add(**step, priority=1.01 - rng.random())
            if i % EPISODE == EPISODE - 1:
                actor.end_episode(terminated=True)


SERIES = (
    Series("84x84 frames, transitions", _FRAME, _TRANSITION, 2_000),
    Series("84x84 frames, sequences of 20", _FRAME, _SEQUENCE, 6_000),
    Series("168-byte steps, transitions", _VECTOR, _TRANSITION, 2_000),
    Series("168-byte steps, sequences of 20", _VECTOR, _SEQUENCE, 6_000),
)


def received(table: dict[str, Any]) -> int:
    """Draws that have come to the server."""
    return sum(actor["received"] for actor in table["actors"])


def settled(server: memsvc.Server, actors: list[Actor]) -> tuple[dict[str, Any], int]:
    """(the table's statistics, bytes of all pushes) once nothing is under way any more."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        before = server.stats()["tables"][0]
        time.sleep(0.03)
        told, after = [actor.stats() for actor in actors], server.stats()["tables"][0]
        if received(before) == received(after) and not any(stats["window"]["bytes"] for stats in told):
            return after, sum(stats["acknowledged_bytes"] for stats in told)
    raise TimeoutError("actors and server have not come to rest within 60 s")


def measure(series: Series) -> Iterator[dict[str, Any]]:
    """Plays, draws, and yields the readings, each with what has come since the one before."""
    with ExitStack() as stack:
        server = stack.enter_context(memsvc.Server(memsvc.Config.parse(series.config())))
        actors = [stack.enter_context(Actor(server.address, name=f"actor-{k}", seed=k + 1)) for k in range(series.actors)]
        for k, actor in enumerate(actors):
            series.play(actor, k)
            actor.flush()  # the server knows how large the memory is
        learner = stack.enter_context(Learner(server.address, table="replay", batch_size=256, prefetch=1))
        start, before, goal = time.perf_counter(), (0, 0), 0.25
        while goal <= series.turns:
            learner.sample(timeout=60)
            table = server.stats()["tables"][0]
            if received(table) < goal * table["population"]:
                continue
            table, pushed = settled(server, actors)
            draws = received(table)
            yield {
                "series": series.name,
                "step_bytes": series.step_bytes,
                "seconds": round(time.perf_counter() - start, 3),
                "memories_items": table["population"],
                "held_items": table["items"],
                "draws": draws,
                "bytes": pushed,
                "bytes_per_draw": (pushed - before[1]) / (draws - before[0]),
            }
            before, goal = (draws, pushed), 1.2 * draws / table["population"]


def plot(rows: list[dict[str, Any]], about: dict[str, Any], path: Path) -> None:
    """Bytes per draw over draws per item, both logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    for name in dict.fromkeys(row["series"] for row in rows):
        own = [row for row in rows if row["series"] == name]
        axes.loglog([r["draws"] / r["memories_items"] for r in own], [r["bytes_per_draw"] for r in own], marker=".", label=name)
    axes.axhline(KEY_BYTES, color="black", linewidth=1, linestyle="--", label="key and weight: 16 bytes")
    axes.set(xlabel="draws so far per item in the actors' memories", ylabel="bytes of pushes per draw, since the last reading")
    axes.set_title("Payload once: bytes on the wire per draw as the server comes to hold the memories")
    axes.legend()
    figure.text(0.01, -0.03, f"{about['command']}, commit {about['commit']}, {about['date']}, {about['machine']['cpu']}", fontsize=7)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def main(argv: list[str]) -> int:
    """Measures all series, prints the readings, and writes rows and plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="memories a tenth as large: a check that it runs")
    parser.add_argument("--out", type=Path, default=None, help=f"folder; default: {RESULTS.name}/, nothing with --quick")
    args = parser.parse_args(argv)
    about = machine.about("wire.py", argv)
    rows: list[dict[str, Any]] = []
    for series in SERIES:
        for row in measure(replace(series, steps=series.steps // 10) if args.quick else series):
            rows.append(about | row)
            share = row["held_items"] / row["memories_items"]
            print(f"{series.name:<32}{row['draws']:>9,} draws  {share:4.0%} held {row['bytes_per_draw']:12,.1f} bytes a draw", flush=True)
    out = args.out or (None if args.quick else RESULTS)
    if out:
        machine.keep(rows, out / "wire.jsonl")
        plot(rows, about, out / "wire.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
