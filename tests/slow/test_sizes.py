"""Sizes at which integers and patience end: parameters around 2^31 bytes and of 5 GB, batches of 4 GB, steps of 100 MB. Run by `make test-slow`."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memsvc_client import Actor, Learner
from memsvc_proto.errors import ProtocolError
from serving import UNION, config, serve

import memsvc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GB = 1 << 30
STEP = {"obs": {"dtype": "uint8", "shape": [1 << 20]}, "action": {"dtype": "int32"}}


@pytest.fixture(params=["tcp", "shared"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MEMSVC_SHARED", "1" if request.param == "shared" else "0")
    return str(request.param)


@pytest.fixture(autouse=True)
def enough() -> None:
    """Needs up to 16 GB."""
    gc.collect()  # what the test before it held
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    if free < 14 * GB:
        pytest.skip(f"{free / GB:.0f} GB are free, this takes up to 14")


class Neighbour:
    """A learner and an actor of the same server that go on meanwhile: their longest waits, in seconds."""

    def __init__(self, address: str) -> None:
        self.slowest = {"sample": 0.0, "flush": 0.0}
        self._stop = threading.Event()
        self._learner, self._actor = Learner(address, table="small", batch_size=4, timeout=30), Actor(address, timeout=30)
        self._threads = [threading.Thread(target=self._go_on, args=(name,)) for name in self.slowest]

    def _go_on(self, name: str) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            if name == "sample":
                self._learner.sample()
            else:
                self._actor.add(obs=np.ones(1 << 20, np.uint8), action=1)
                self._actor.end_episode(True)
                self._actor.flush()
            self.slowest[name] = max(self.slowest[name], time.monotonic() - began)
            time.sleep(0.01)

    def __enter__(self) -> Neighbour:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._learner.close()
        self._actor.close()


def served(tmp_path: Path, memory: str = "256MiB") -> Any:
    return serve(
        "tcp",
        tmp_path,
        UNION | {"priority": {"source": "max"}},
        UNION | {"name": "small", "priority": {"source": "max"}, "capacity": {"items": 16}},
        step=STEP,
        memory=memory,
    )


def pattern(size: int) -> np.ndarray:
    """Bytes of which no two stretches are alike for long."""
    out = np.empty(size, np.uint8)
    block = np.random.default_rng(size).integers(0, 256, 1 << 24, np.uint8)
    for at in range(0, size, len(block)):
        end = min(size, at + len(block))
        out[at:end] = block[: end - at]
        out[at : min(end, at + 8)] = np.frombuffer(at.to_bytes(8, "little"), np.uint8)[: min(8, end - at)]
    return out


def check(array: np.ndarray, size: int) -> None:
    """That it is `pattern(size)`, a piece at a time."""
    assert array.nbytes == size
    block = np.random.default_rng(size).integers(0, 256, 1 << 24, np.uint8)
    for at in range(0, size, len(block)):
        end = min(size, at + len(block))
        assert (array[at + 8 : end] == block[8 : end - at]).all()
        assert array[at : min(end, at + 8)].tobytes() == at.to_bytes(8, "little")[: min(8, end - at)]


@pytest.mark.parametrize("size", [(1 << 31) - 1, 1 << 31, (1 << 31) + 1, 5_000_000_000])
def test_parameters(kind, size, tmp_path):
    with served(tmp_path) as server, Neighbour(server.where) as neighbour:
        publisher, reader = Learner(server.where, table="union", timeout=30), Learner(server.where, table="union", timeout=30)
        array = pattern(size)
        began = time.monotonic()
        assert publisher.publish({"w": array}, timeout=600) == 1
        published = time.monotonic() - began
        del array
        publisher.close()
        gc.collect()
        began = time.monotonic()
        params = reader.params(600)
        fetched = time.monotonic() - began
        assert params is not None
        check(params.arrays["w"], size)
        reader.close()
    print(f"\n{size:,} bytes, {kind}: published in {published:.1f} s, fetched in {fetched:.1f} s; others waited at most {neighbour.slowest}")


def test_a_batch_of_four_gigabytes(kind, tmp_path):
    items = 4000
    with served(tmp_path) as server:
        with server.actor() as actor:
            for i in range(64):
                actor.add(obs=np.full(1 << 20, i, np.uint8), action=i)
            actor.end_episode(True)
            actor.flush(60)
        with Neighbour(server.where) as neighbour, server.learner(table="union", batch_size=items, prefetch=0, timeout=300) as learner:
            for _ in range(2):
                began = time.monotonic()
                batch = learner.sample(300)
                took = time.monotonic() - began
                assert batch["obs"].nbytes == items << 20
                assert (batch["obs"] == batch["action"][:, None].astype(np.uint8)).all()
                del batch
                print(f"\na batch of {items} MiB, {kind}: {took:.1f} s; others waited at most {neighbour.slowest}")
        with server.learner(table="union", batch_size=5000, prefetch=0) as learner, pytest.raises(ProtocolError, match="at most 4 GiB"):
            learner.sample()


def test_a_step_of_a_hundred_megabytes(kind):
    step = {"obs": {"dtype": "uint8", "shape": [100_000_000]}, "action": {"dtype": "int32"}}
    table = UNION | {"priority": {"source": "max"}, "actor": {**UNION["actor"], "max_steps": 8}}
    with memsvc.Server(config("tcp://127.0.0.1:0", table, step=step, memory="6500MB")) as server:
        actor, learner = Actor(server.address, timeout=60), Learner(server.address, batch_size=2, prefetch=0, timeout=60)
        began = time.monotonic()
        for i in range(6):
            actor.add(obs=np.full(100_000_000, i, np.uint8), action=i)
        actor.end_episode(True)
        actor.flush(120)
        pushed = time.monotonic() - began
        for _ in range(4):
            batch = learner.sample(60)
            assert (batch["obs"] == batch["action"][:, None].astype(np.uint8)).all()
        print(f"\n6 steps of 100 MB, {kind}: {pushed:.1f} s")
        actor.close()
        learner.close()
