"""The measurements: each opens its client once and then gives one `Run` a call. What is counted is what arrived, not what was sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from service import Service
from workloads import EPISODE, Workload

from memsvc.bench.writer import Writer


@dataclass
class Run:
    """One repeat: items that arrived in `seconds`, the figure in the metric's unit, and each call's milliseconds where they mean something."""

    items: int
    seconds: float
    value: float
    calls_ms: list[float] = field(default_factory=list)
    inserted: int | None = None
    """Items that another process has inserted meanwhile, where one does."""


Measure = Callable[[float], Run]


def writer(workload: Workload, actor: Any, seed: int = 0) -> Writer:
    """Plays the workload's envs into an actor by add_batch, with episodes of EPISODE steps."""
    return Writer(actor, workload.fields, workload.envs, given=True, seed=seed)


def fill(service: Service) -> None:
    """Writes until the table holds all its items, and some have been evicted: the steady state."""
    with service.actor(envs=service.workload.envs) as actor:
        player = writer(service.workload, actor)
        while service.stored() <= service.workload.items:
            for _ in range(EPISODE):
                player.write()
            actor.flush(timeout=120)


def insert(service: Service, stack: ExitStack) -> Measure:
    """items/s from add_batch until the server has acknowledged the last, by the server's count."""
    actor = stack.enter_context(service.actor(envs=service.workload.envs))
    player = writer(service.workload, actor)

    def measure(seconds: float) -> Run:
        before, start = service.stored(), time.perf_counter()
        while time.perf_counter() - start < seconds:
            player.write()
        actor.flush(timeout=120)
        took = time.perf_counter() - start
        arrived = service.stored() - before
        return Run(arrived, took, arrived / took)

    return measure


def add(service: Service, stack: ExitStack) -> Measure:
    """us a step of the loop that calls actor.add, ends of episodes included; the sender works meanwhile, the last flush is not timed."""
    workload = service.workload
    actor = stack.enter_context(service.actor(envs=1))
    columns, priorities = workload.columns(EPISODE), workload.priorities(EPISODE).tolist()
    scalars = {name for name, _, shape in workload.fields if not shape}
    steps = [{name: column[i].item() if name in scalars else column[i] for name, column in columns.items()} for i in range(EPISODE)]

    def measure(seconds: float) -> Run:
        before, start, done = service.stored(), time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            for step, priority in zip(steps, priorities, strict=True):
                actor.add(**step, priority=priority)
            actor.end_episode(terminated=True)
            done += len(steps)
        took = time.perf_counter() - start
        actor.flush(timeout=120)
        return Run(service.stored() - before, took, took / done * 1e6)

    return measure


def sample(service: Service, stack: ExitStack) -> Measure:
    """items/s of learner.sample: whole batches of numpy arrays, as a training loop gets them."""
    return _draw(service, stack, update=False)


def sample_update(service: Service, stack: ExitStack) -> Measure:
    """items/s of learner.sample, with a new priority sent back for every item."""
    return _draw(service, stack, update=True)


def sample_sync(service: Service, stack: ExitStack) -> Measure:
    """Median milliseconds of learner.sample with prefetch = 0: each call is a whole round trip."""
    measure = _draw(service, stack, update=False, prefetch=0)

    def median(seconds: float) -> Run:
        run = measure(seconds)
        run.value = float(np.median(run.calls_ms))
        return run

    return median


def mixed(service: Service, stack: ExitStack) -> Measure:
    """items/s of learner.sample, while a process of its own (a thread, in process) inserts as fast as it can: both rates."""
    stack.enter_context(service.inserting())
    measure = _draw(service, stack, update=False)

    def both(seconds: float) -> Run:
        before = service.stored()
        run = measure(seconds)
        run.inserted = service.stored() - before
        return run

    return both


def _draw(service: Service, stack: ExitStack, update: bool, prefetch: int = 2) -> Measure:
    learner = stack.enter_context(service.learner(prefetch))
    priorities = service.workload.priorities(service.workload.batch)
    for _ in range(8):
        learner.sample(timeout=60)

    def measure(seconds: float) -> Run:
        items, calls, start = 0, [], time.perf_counter()
        end = start + seconds
        then = start
        while then < end:
            batch = learner.sample(timeout=60)
            if update:
                learner.update_priorities(batch.keys, priorities)
            items += len(batch.keys)
            now = time.perf_counter()
            calls.append((now - then) * 1e3)
            then = now
        return Run(items, then - start, items / (then - start), calls)

    return measure


METRICS: dict[str, tuple[str, Callable[[Service, ExitStack], Measure]]] = {
    "insert": ("items/s", insert),
    "add": ("us/step", add),
    "sample": ("items/s", sample),
    "sample_update": ("items/s", sample_update),
    "sample_sync": ("ms", sample_sync),
    "mixed": ("items/s", mixed),
}
