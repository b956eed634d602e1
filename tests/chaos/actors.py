"""One actor process: adds steps at a steady rate, notes what was acknowledged, and looks at published parameters. `python -m chaos.actors` + JSON.

It goes on whatever happens to its server, and ends, everything delivered, at SIGTERM.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from memsvc_client import Actor, NotReady, Unreachable, WindowFull
from network import ProxiedEndpoint

from .content import BODY_BYTES, ENVS, FINAL, Notes, body_of, step

FLUSH_S = 0.4
END_S = 60.0


class Playing:
    """ENVS episodes that go on at once; `counts` holds steps added so far by env."""

    def __init__(self, actor: Actor, slot: int, run: int) -> None:
        self.counts = [0] * ENVS
        self.full = 0
        self._actor, self._slot, self._run = actor, slot, run
        self._rng = np.random.default_rng([slot, run])
        self._left = [0] * ENVS  # steps to the end of the episode

    def play(self, stop: threading.Event) -> bool:
        """A step of every env; False where the actor had no room until it was to end."""
        for env in range(ENVS):
            self._left[env] = self._left[env] or int(self._rng.integers(5, 60))
            fields = step(self._slot, self._run, env, self.counts[env])
            while True:
                try:
                    self._actor.add(env=env, priority=float(self._rng.uniform(0.1, 2.0)), **fields)
                    break
                except WindowFull:
                    self.full += 1
                    if stop.is_set():
                        return False
            self.counts[env] += 1
            self._left[env] -= 1
            if not self._left[env]:
                self.end(env)
        return True

    def end(self, env: int) -> None:
        """Ends the episode of an env."""
        self._left[env] = 0
        tag = np.array([self._slot, self._run, env, self.counts[env] + FINAL], np.int64)
        self._actor.end_episode(terminated=bool(self._rng.random() < 0.5), env=env, final={"tag": tag, "body": body_of(tag)})

    @property
    def final(self) -> list[int]:
        """Steps, by env, whose items are final: the newest of an episode is once the next one is there."""
        return [count - (left > 0) for count, left in zip(self.counts, self._left, strict=True)]


def _look_at(params: Any) -> int:
    # Returns the version in them, after a look whether they are whole.
    tag, body = params.arrays["tag"], params.arrays["body"]
    if not np.array_equal(body, np.tile(body_of(tag), len(body) // BODY_BYTES)):
        raise AssertionError(f"torn parameters of version {params.version}: {tag.tolist()}")
    return int(params.version)


def run(folder: str, where: Any, name: str, slot: int, run: int, rate: float, spool: str | None) -> None:
    """Plays until SIGTERM. `rate`: steps a second, of all envs together."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    notes = Notes(Path(folder) / f"{name}.{run}.acked")
    endpoint = where if isinstance(where, str) else ProxiedEndpoint(*where)
    more = {"spool": spool} if spool else {}
    actor = None
    while actor is None and not stop.is_set():
        with contextlib.suppress(Unreachable):
            actor = Actor(endpoint, name=name, envs=ENVS, timeout=5.0, seed=slot * 1000 + run, **more)
    if actor is None:
        return
    playing, version = Playing(actor, slot, run), -1
    notes.line(event="began")
    began, next_flush = time.monotonic(), time.monotonic() + FLUSH_S
    while not stop.is_set():
        if not playing.play(stop):
            break
        now = time.monotonic()
        behind = now - began - sum(playing.counts) / rate
        if behind > 0.5:
            began += behind  # a pause is not made up for
        elif behind < 0:
            stop.wait(-behind)
        if now >= next_flush:
            final = playing.final
            with contextlib.suppress(Unreachable, WindowFull):
                actor.flush(2.0)
                notes.line(event="acked", counts=final)
            with contextlib.suppress(Unreachable, NotReady):
                params = actor.params(0.0)
                if params is not None:
                    seen = _look_at(params)
                    if seen <= version:
                        raise AssertionError(f"version {seen} came after {version}")
                    version = seen
            next_flush = time.monotonic() + FLUSH_S
    for env in range(ENVS):
        playing.end(env)
    final = playing.final
    with contextlib.suppress(Unreachable, WindowFull):
        actor.flush(END_S)
        notes.line(event="acked", counts=final)
    stats = actor.stats()
    unsent = actor.close(5.0)
    notes.line(event="end", counts=playing.counts, full=playing.full, version=version, unsent=list(unsent), stats=stats)


if __name__ == "__main__":
    faulthandler.enable()  # who does not end is asked where it is, by SIGABRT
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run(**json.loads(sys.argv[1]))
