"""kill -9 of a real daemon under load, at any moment: what it had acknowledged is there once, with its priority, and no key comes again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memsvc_client import Actor, Learner
from memsvc_proto.errors import MemsvcError
from serving import until

import memsvc

CONFIG = """
[server]
address = "ipc://{path}/door"
memory = "64MiB"
control = ""
durability = "journal"
data = "{path}/data"
fsync_ms = {fsync_ms}
snapshot_s = 1

[step]
id = {{ dtype = "int64" }}
obs = {{ dtype = "uint8", shape = [100] }}

[[table]]
name = "union"
item = {{ kind = "step" }}
actor = {{ select = "all", linger_ms = 2 }}
priority = {{ source = "given", exponent = 1.0 }}
"""


@contextlib.contextmanager
def daemon(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that serves; killed at the end."""
    ready = path / "ready"
    ready.unlink(missing_ok=True)
    with open(path / "log", "ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "memsvc", "serve", "m.toml", "--ready-file", str(ready)], cwd=path, stderr=log)
    try:
        until(lambda: ready.exists() or process.poll() is not None, 60)
        assert process.poll() is None, (path / "log").read_text()[-2000:]
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(30)


class Load(threading.Thread):
    """An actor that adds steps with ids of its own, and flushes now and then: `safe` of them are acknowledged."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__(daemon=True)
        self.number, self.address = number, address
        self.added = self.safe = 0
        self.stop = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            with Actor(self.address, name=f"a{self.number}", timeout=60) as actor:
                while not self.stop.is_set():
                    for _ in range(random.Random(self.added).randrange(1, 60)):
                        i = self.number * 1_000_000 + self.added
                        actor.add(id=i, obs=np.full(100, i % 251, np.uint8), priority=1.0 + i % 7)
                        self.added += 1
                    actor.end_episode(terminated=True)
                    actor.flush(timeout=60)
                    self.safe = self.added
        except Exception as error:
            self.failure = error


def held(path: Path) -> dict[int, tuple[int, float]]:
    """{id: (key, priority)} of what the data folder holds, by a server of this process; each item once, and whole."""
    config = memsvc.Config.load(path / "m.toml", {"server.address": "tcp://127.0.0.1:0"})
    with memsvc.Server(config) as server:
        stats = server.stats()
        assert stats["durability"]["damage"] == 0, stats["durability"]["damages"]
        items, saved = server.engine.replay, server.engine.replay.save()
        found = saved.items(0)
        rows = np.zeros((len(saved.row_keys), 112), np.uint8)
        assert items.rows(saved.row_keys, rows).all()
        where = dict(zip(saved.row_keys.tolist(), rows, strict=True))
        out: dict[int, tuple[int, float]] = {}
        for key, value in zip(found["key"].tolist(), found["value"].tolist(), strict=True):
            row = where[key]
            i = int(row[:8].view(np.int64)[0])
            assert i not in out, "an item is there twice"
            assert (row[8:108] == i % 251).all()
            out[i] = (key, value)
        return out


@pytest.mark.parametrize("seed", range(2))
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, seed: int) -> None:
    (tmp_path / "m.toml").write_text(CONFIG.format(path=tmp_path, fsync_ms=0))
    rng = random.Random(seed)
    loads: list[Load] = []
    updated: dict[int, float] = {}
    keys: dict[int, int] = {}
    address = f"ipc://{tmp_path}/door"
    for turn in range(4):
        sent: dict[int, float] = {}
        with daemon(tmp_path) as process:
            if not loads:
                loads = [Load(address, n) for n in range(3)]
                for load in loads:
                    load.start()
            with contextlib.suppress(MemsvcError), Learner(address, table="union", batch_size=16, timeout=20) as learner:
                deadline = time.monotonic() + 0.5 + rng.random()
                while time.monotonic() < deadline:
                    batch: Any = learner.sample(timeout=20)
                    ids, priority = batch["id"].tolist(), 100.0 + turn
                    # A key names one item for ever, over all restarts.
                    for key, i in zip(batch.keys.tolist(), ids, strict=True):
                        assert keys.setdefault(key, i) == i
                    learner.update_priorities(batch.keys, np.full(16, priority))
                    sent |= dict.fromkeys(ids, priority)
                until(lambda learner=learner: learner.sample(timeout=20) and not learner.stats()["pending"], 30)
                updated |= sent
            assert process.poll() is None
            before = [load.safe for load in loads]
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
        found = held(tmp_path)
        for load, safe in zip(loads, before, strict=True):
            assert load.failure is None
            first = load.number * 1_000_000
            missing = [i for i in range(first, first + safe) if i not in found]
            assert not missing, f"{len(missing)} acknowledged items are missing, from {missing[0]}"
        assert updated
        for i, priority in updated.items():
            assert found[i][1] >= priority, "an acknowledged priority is missing"
        by_key = {key: i for i, (key, _) in found.items()}
        assert all(by_key.get(key, i) == i for key, i in keys.items())
    with daemon(tmp_path):
        for load in loads:
            load.stop.set()
        for load in loads:
            load.join(60)
            assert load.failure is None
    found = held(tmp_path)
    assert sorted(found) == sorted(load.number * 1_000_000 + i for load in loads for i in range(load.added))
