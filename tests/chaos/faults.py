"""What is done to the processes, and when: a plan that follows from the seed alone, and its execution."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

from .world import Worker, World

KILL, STOP, CUT = "kill", "stop", "cut"
LONGEST_S = 8.0


class Fault(NamedTuple):
    """One thing that happens."""

    at: float
    """Seconds since the beginning."""
    target: str
    kind: str
    lasts: float
    """Seconds: of a stop or a cut; of the pause before a killed process is started again."""
    how: str = ""
    """Of a cut: "cut", "freeze" or "drop"."""

    def __str__(self) -> str:
        return f"{self.at:7.2f} s  {self.kind:4} {self.target:10} {self.lasts:4.1f} s {self.how}"


def plan(seed: int, seconds: float, world: World, every: tuple[float, float], kills_daemon: bool, longest: float = LONGEST_S) -> list[Fault]:
    """Faults from the first second on, one every `every` seconds; the last has passed by `seconds`."""
    rng, faults, at = random.Random(seed), list[Fault](), 1.0
    names = [client.name for client in world.clients]
    cuttable = [client.name for client in world.clients if client.network is not None]
    while True:
        at += rng.uniform(*every)
        if at >= seconds - 1:
            return faults
        kind = rng.choice((KILL, KILL, STOP, CUT))
        lasts = rng.uniform(0.1, 1.5) if kind == KILL else rng.uniform(1.0, longest)
        how = rng.choice(("cut", "freeze", "drop")) if kind == CUT else ""
        if kind == CUT:
            target = rng.choice(cuttable)
        elif kind == KILL and not kills_daemon:
            target = rng.choice(names)
        else:
            target = "daemon" if rng.random() < 0.25 else rng.choice(names)
        faults.append(Fault(at, target, kind, min(lasts, max(0.1, seconds - at)), how))


class Tormentor:
    """Carries a plan out. `history` holds what has really happened, from `began` (time.time()) on."""

    def __init__(self, world: World, faults: list[Fault]) -> None:
        self.history: list[Fault] = []
        self.began = 0.0
        self._world, self._faults = world, faults
        self._workers = {worker.name: worker for worker in [*world.clients, world.daemon]}

    def run(self, seconds: float) -> None:
        """Takes `seconds`, and leaves everything running."""
        self.began = time.time()
        began = time.monotonic()
        undo: list[tuple[float, Worker, str]] = []
        waiting: Iterator[Fault] = iter(self._faults)
        fault = next(waiting, None)
        while True:
            now = time.monotonic() - began
            for due in [one for one in undo if one[0] <= now or now >= seconds]:
                undo.remove(due)
                self._undo(due[1], due[2])
            while fault is not None and fault.at <= now:
                worker = self._workers[fault.target]
                if self._do(worker, fault):
                    self.history.append(fault._replace(at=round(now, 2)))
                    undo.append((now + fault.lasts, worker, fault.kind))
                fault = next(waiting, None)
            if now >= seconds and not undo:
                self._world.await_daemon()
                return
            self._world.look()
            time.sleep(0.05)

    def _do(self, worker: Worker, fault: Fault) -> bool:
        if not worker.alive:
            return False  # it was killed, and has not been started again yet
        if fault.kind == KILL:
            worker.kill()
        elif fault.kind == STOP and not worker.stopped:
            worker.signal(signal.SIGSTOP)
        elif fault.kind == CUT and not worker.cut:
            assert worker.network is not None
            worker.cut = True
            if fault.how == "cut":
                worker.network.cut(refuse=True)
            else:
                getattr(worker.network, fault.how)()
        else:
            return False
        return True

    def _undo(self, worker: Worker, kind: str) -> None:
        if kind == KILL:
            if worker is self._world.daemon:
                self._world.daemon.start()
            else:
                worker.start()
        elif kind == STOP:
            worker.signal(signal.SIGCONT)
        else:
            worker.cut = False
            assert worker.network is not None
            worker.network.resume()
