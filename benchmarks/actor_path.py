"""What the figures of metrics.py do not say of an actor's path: the calls' own costs, each stage's CPU, and how much the push thread stands in the
way of other Python threads. `python benchmarks/actor_path.py [--workload B] [--envs 512]` prints the stages.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from memsvc_core import Memory, Replay
from metrics import Measure, Run, writer
from service import Service
from workloads import EPISODE, WORKLOADS, Workload

import memsvc

_MESSAGE_BYTES = 1_000_000
_HEADER_BYTES = 64
_WINDOW_S = 0.1  # of counting


def stages(workload: Workload, seconds: float) -> dict[str, float]:
    """CPU ns a step of Memory.add_batch, Memory.draw and Replay.push in this thread, without sockets; medians over pieces of the time. The table is
    full and evicts what is oldest: the steady state.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "memsvc.toml"
        file.write_text(workload.config("tcp://127.0.0.1:0"))
        config = memsvc.Config.load(file)
    schema, specs = config.specs()
    replay = Replay(schema, specs, config.server.memory, 1, 1)
    actor, streams = replay.join("stages", workload.envs, "default")
    memory = Memory(schema, specs, streams, 1)
    steps, priorities = workload.columns(workload.envs), workload.priorities(workload.envs)
    ends = np.ones(workload.envs, np.bool_)
    spent = dict.fromkeys(("add", "draw", "push"), 0)
    pushed = 0

    def timed(stage: str, call: Callable[[], object]) -> object:
        start = time.thread_time_ns()
        result = call()
        spent[stage] += time.thread_time_ns() - start
        return result

    def episode() -> None:
        nonlocal pushed
        for tick in range(1, EPISODE + 1):
            last = ends if tick == EPISODE else None
            timed("add", lambda last=last: memory.add_batch(None, None, steps, priorities, -1, last, None, None))
            while memory.unsent(0)[1] >= _MESSAGE_BYTES:
                frame = timed("draw", lambda: memory.draw(0, 1, _MESSAGE_BYTES, _HEADER_BYTES))
                timed("push", lambda frame=frame: replay.push(actor, frame[_HEADER_BYTES:]))
                pushed += 1
                memory.settled(pushed - 1)

    while replay.stats()["tables"][0]["evicted"] < workload.items // 4:
        episode()
    pieces: list[dict[str, float]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or not pieces:
        spent = dict.fromkeys(spent, 0)
        episode()
        pieces.append({stage: ns / (EPISODE * workload.envs) for stage, ns in spent.items()})
    return {stage: statistics.median(piece[stage] for piece in pieces) for stage in spent}


def add_batch(service: Service, stack: ExitStack) -> Measure:
    """us a call of actor.add_batch, the median, while the sender works; waits for room in a full memory are no cost of the call, so they are counted
    by their CPU only.
    """
    actor = stack.enter_context(service.actor(envs=service.workload.envs))
    player = writer(service.workload, actor)

    def measure(seconds: float) -> Run:
        before, start = service.stored(), time.perf_counter()
        calls = []
        while time.perf_counter() - start < seconds:
            then = time.thread_time_ns()
            player.write()
            calls.append((time.thread_time_ns() - then) / 1e3)
        took = time.perf_counter() - start
        actor.flush(timeout=120)
        return Run(service.stored() - before, took, statistics.median(calls), [call / 1e3 for call in calls])

    return measure


def own_rate(service: Service, stack: ExitStack) -> Measure:
    """The share of its time in which a Python thread that counts is not kept waiting by others of its process, while an actor's push thread sends and
    a learner draws. 1: never kept waiting. For a workload with caches, where an actor sends what learners draw: no step is added meanwhile.

    Time in which it waits for a processor is left out, so neighbours do not matter: Linux says of a thread how long it ran and how long it was ready
    to. What is left is the GIL. Its `items` are the pushes sent meanwhile.
    """
    workload = service.workload
    actor = stack.enter_context(service.actor(envs=workload.envs))
    learner = stack.enter_context(service.learner())
    player = writer(workload, actor)
    for _ in range(workload.items // workload.envs):
        player.write()
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            learner.sample(timeout=60)

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(stop.set)

    def measure(seconds: float) -> Run:
        pushed, shares, start = actor.stats()["pushes"][0], [], time.perf_counter()
        while time.perf_counter() - start < seconds:
            shares.append(_counted(_WINDOW_S))
        return Run(actor.stats()["pushes"][0] - pushed, time.perf_counter() - start, statistics.median(shares))

    return measure


def _counted(seconds: float) -> float:
    (ran, queued), start = _scheduled_s(), time.perf_counter()
    count = 0
    while time.perf_counter() - start < seconds:
        for _ in range(1000):
            count += 1
    (ran_after, queued_after), took = _scheduled_s(), time.perf_counter() - start
    return min(1.0, (ran_after - ran) / (took - (queued_after - queued)))


def _scheduled_s() -> tuple[float, float]:
    # How long this thread has run, and been ready to.
    ran, queued, _ = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()
    return int(ran) / 1e9, int(queued) / 1e9


def main() -> None:
    """Prints the stages' costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, default="B")
    parser.add_argument("--envs", type=int, default=0, help="rows of one add_batch (0: the workload's own)")
    parser.add_argument("--seconds", type=float, default=3.0)
    chosen = parser.parse_args()
    workload = WORKLOADS[chosen.workload]
    if chosen.envs:
        workload = replace(workload, envs=chosen.envs)
    costs = stages(workload, chosen.seconds)
    total = sum(costs.values())
    print(f"{workload.name}, {workload.envs} environments: " + ", ".join(f"{stage} {ns:.0f}" for stage, ns in costs.items()), end="")
    print(f", together {total:.0f} CPU ns a step, {total / workload.step_bytes:.3f} CPU-s/GB")


if __name__ == "__main__":
    main()
