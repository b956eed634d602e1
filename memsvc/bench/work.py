"""What the actors and learners of `memsvc bench` do: `python -m memsvc.bench.work PLAN`, or threads of one process.

They say in lines what they have done: {"role", "time" (time.monotonic), "phase": "fill" | "ready" | "work" | "end", "steps", "bytes" acknowledged,
"batches", "waits", "calls" since the last line (Latencies.counts), "transport"}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from memsvc_proto.errors import MemsvcError

from .latencies import Latencies
from .workloads import EPISODE, random_priorities

if TYPE_CHECKING:
    from memsvc_client import Actor, Endpoint, Learner

Tell = Callable[[dict[str, Any]], None]

LINE_EVERY_S = 0.2
_WAIT_S = 3.0  # the longest that a call holds up the end
_FLUSH_S = 120.0
_READY_S = 60.0  # within which a learner has its first batch
_WARM_CALLS = 8


@dataclass(frozen=True)
class Plan:
    """One worker's orders; JSON. `fill`: steps to record first; `idle`: then nothing more."""

    role: str
    number: int
    address: str
    table: str
    fields: list[tuple[str, str, tuple[int, ...]]]
    envs: int = 1
    given: bool = False
    unit: tuple[str, ...] = ()
    episode: int = EPISODE
    fill: int = 0
    idle: bool = False
    batch: int = 1
    prefetch: int = 2
    update: bool = False

    @property
    def name(self) -> str:
        """Of the worker: "actor-0"."""
        return f"{self.role}-{self.number}"

    def dumps(self) -> str:
        """JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> Plan:
        """From JSON."""
        values = json.loads(text)
        return Plan(**values | {"fields": [(name, dtype, tuple(shape)) for name, dtype, shape in values["fields"]], "unit": tuple(values["unit"])})


class Lines:
    """A worker's lines, one every 0.2 s at most. Not thread-safe."""

    def __init__(self, role: str, tell: Tell, look: Callable[[], dict[str, Any]]) -> None:
        self.calls = Latencies()
        self.waits = 0
        self._role, self._tell, self._look = role, tell, look
        self._due = 0.0

    def write(self, phase: str, now: float | None = None) -> None:
        """A line; with `now` (time.monotonic()) only if one is due."""
        if now is not None and now < self._due:
            return
        line = {"role": self._role, "phase": phase, **self._look(), "waits": self.waits, "calls": self.calls.counts, "time": time.monotonic()}
        self._due = line["time"] + LINE_EVERY_S
        self.calls = Latencies()
        self._tell(line)


def work(plan: Plan, where: str | Endpoint, stop: threading.Event, tell: Tell) -> None:
    """Connects to the server and works until `stop`. Raises what the client raises."""
    from memsvc_client import Actor, Learner

    path = "socket" if isinstance(where, str) else "process"
    if plan.role == "actor":
        with Actor(where, name=f"bench-{os.getpid()}-{plan.name}", envs=plan.envs, timeout=_WAIT_S, seed=plan.number + 1) as actor:
            play(plan, actor, stop, lambda line: tell({"transport": path} | line))
    else:
        with Learner(where, table=plan.table, batch_size=plan.batch, prefetch=plan.prefetch) as learner:
            draw(plan, learner, stop, lambda line: tell({"transport": path} | line))


def play(plan: Plan, actor: Actor, stop: threading.Event, tell: Tell) -> None:
    """Fills, flushes, and adds steps until `stop`. `calls` are those of add_batch; a wait is one that had no room for 3 s."""
    from memsvc_client import WindowFull

    from .writer import Writer

    writer = Writer(actor, plan.fields, plan.envs, plan.given, plan.episode, plan.unit, seed=1_000 * plan.number)

    def look() -> dict[str, Any]:
        stats = actor.stats()
        return {"steps": writer.steps, "bytes": stats["acknowledged_bytes"]} | _path(stats)

    lines = Lines(plan.role, tell, look)
    phase, now = "fill", time.monotonic()
    while not stop.is_set():
        if phase == "fill" and writer.steps >= plan.fill:
            if plan.fill:
                actor.flush(timeout=_FLUSH_S)
            lines.write("ready")
            phase, now = "work", time.monotonic()
            if plan.idle:
                stop.wait()
                break
        try:
            writer.write()
        except WindowFull:
            lines.waits += 1
        then, now = now, time.monotonic()
        lines.calls.add((now - then) * 1e3)
        lines.write(phase, now)
    lines.write("end")


def draw(plan: Plan, learner: Learner, stop: threading.Event, tell: Tell) -> None:
    """Draws batches until `stop`; with `update`, sends new priorities for all their items. `calls` are sample and update together; a wait is a batch
    that was not there within 3 s.
    """
    from memsvc_client import NotReady

    priorities = random_priorities(plan.batch, plan.number)
    batches = 0

    def look() -> dict[str, Any]:
        return {"batches": batches} | _path(learner.stats())

    lines = Lines(plan.role, tell, look)
    deadline = time.monotonic() + _READY_S
    phase, now = "fill", time.monotonic()
    while not stop.is_set():
        try:
            batch = learner.sample(timeout=_WAIT_S)
        except NotReady:
            if phase == "fill" and time.monotonic() > deadline:
                raise
            lines.waits += 1
            lines.write(phase)
            now = time.monotonic()
            continue
        if plan.update:
            learner.update_priorities(batch.keys, priorities)
        batches += 1
        then, now = now, time.monotonic()
        lines.calls.add((now - then) * 1e3)
        if phase == "fill" and batches >= _WARM_CALLS:
            lines.write("ready")
            phase = "work"
        lines.write(phase, now)
    lines.write("end")


def _path(stats: dict[str, Any]) -> dict[str, Any]:
    return {"transport": stats["transport"]} if "transport" in stats else {}


def main(plan: Plan) -> None:
    """A worker's process: until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        work(plan, plan.address, stop, lambda line: print(json.dumps(line), flush=True))
    except MemsvcError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main(Plan.loads(sys.argv[1]))
