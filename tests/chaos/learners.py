"""One learner process: draws from its tables in turn, notes every item it got, gives priorities, publishes. `python -m chaos.learners` + JSON.

It goes on whatever happens to its server, and ends at SIGTERM.
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
from memsvc_client import Learner, NotReady, Unreachable, WindowFull
from network import ProxiedEndpoint

from .content import DRAW, QUEUE, REPLAY, TABLES, UNION, Notes, body_of, torn

BATCH, PREFETCH = 32, 2
PUBLISH_S = 1.0
PIECES = 400
"""Bodies in published parameters: 200 KB, which go through shared memory where there is any."""
NUMBERS = {table["name"]: i for i, table in enumerate(TABLES)}


class Drawing:
    """Learners of several tables, one after the other; `counts` holds items drawn by table."""

    def __init__(self, endpoint: Any, tables: list[str], draws: Notes, notes: Notes, stop: threading.Event, seed: list[int]) -> None:
        self.counts = dict.fromkeys(tables, 0)
        self.learners: dict[str, Learner] = {}
        self._draws, self._notes, self._stop = draws, notes, stop
        self._rng = np.random.default_rng(seed)
        for table in tables:
            while table not in self.learners and not stop.is_set():
                with contextlib.suppress(Unreachable):
                    self.learners[table] = Learner(endpoint, table=table, batch_size=BATCH, prefetch=PREFETCH, timeout=5.0)

    def draw(self) -> bool:
        """A batch of each table, where there is one within a second; False where none was."""
        drawn = False
        for table, learner in self.learners.items():
            if self._stop.is_set():
                break
            try:
                batch = learner.sample(timeout=1.0)
            except (NotReady, Unreachable):
                continue
            drawn = True
            records = np.empty(len(batch.keys), DRAW)
            records["table"], records["key"], records["at"], records["tag"] = NUMBERS[table], batch.keys, time.time(), batch["tag"]
            self._draws.records(records)
            self.counts[table] += len(records)
            for wrong in torn(batch):
                self._notes.line(event="torn", table=table, wrong=wrong)
            if table in (UNION, REPLAY) and self._rng.random() < 0.5:
                with contextlib.suppress(WindowFull):
                    learner.update_priorities(batch.keys, self._rng.uniform(0.1, 2.0, len(batch.keys)))
        return drawn


def run(folder: str, where: Any, name: str, slot: int, run: int, tables: list[str], publishes: bool) -> None:
    """Draws until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    notes = Notes(Path(folder) / f"{name}.{run}.drawn")
    endpoint = where if isinstance(where, str) else ProxiedEndpoint(*where)
    drawing = Drawing(endpoint, tables, Notes(Path(folder) / f"{name}.{run}.draws"), notes, stop, [slot, run])
    publisher = drawing.learners.get(UNION if UNION in tables else QUEUE)
    version, published, next_publish, next_note = 0, 0, time.monotonic(), 0.0
    while not stop.is_set():
        drawing.draw()
        now = time.monotonic()
        if now >= next_note:
            next_note = now + 0.5
            notes.line(event="drawn", counts=drawing.counts)
        if publishes and publisher is not None and now >= next_publish:
            next_publish = now + PUBLISH_S
            tag = np.array([slot, run, 0, published], np.int64)
            with contextlib.suppress(Unreachable):
                made = publisher.publish({"tag": tag, "body": np.tile(body_of(tag), PIECES)}, timeout=2.0)
                published += 1
                if made <= version:
                    raise AssertionError(f"version {made} was given after {version}")
                version = made
        stop.wait(0.005)
    stats = {}
    for table, learner in drawing.learners.items():
        stats[table] = learner.stats()
        learner.close()
    notes.line(event="end", counts=drawing.counts, published=published, version=version, stats=stats)


if __name__ == "__main__":
    faulthandler.enable()  # who does not end is asked where it is, by SIGABRT
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run(**json.loads(sys.argv[1]))
