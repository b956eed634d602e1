"""The way from `add` to the server: what a memory keeps until its pushes are answered, payloads written where they are sent from, and the GIL."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from memsvc_core import Memory, Schema, TableSpec
from rig import Rig, read, table
from serving import until

LARGE = [("id", "<i8", ()), ("obs", "|u1", (4096,)), ("reward", "<f4", ())]
ALL = {"sampler": "uniform", "actor": {"select": "all", "max_steps": 20_000}}
STEP = table(item={"kind": "step"}, **ALL)
STACKED = table(item={"kind": "transition", "n_step": 3, "frame_stack": 2, "stack": ["obs"], "next": ["obs"]}, **ALL)
SWITCHES = Path("/proc/self/task")


def steps(first: int, n: int) -> dict[str, np.ndarray]:
    ids = np.arange(first, first + n)
    return {"id": ids, "obs": np.repeat(ids % 251, 4096).astype("u1").reshape(n, 4096), "reward": np.ones(n, "f4")}


def filled(settings: dict, ticks: int, envs: int = 4) -> Memory:
    schema = Schema(LARGE)
    memory = Memory(schema, [TableSpec(schema, settings)], list(range(1, envs + 1)), 1)
    for tick in range(ticks):
        memory.add_batch(None, None, steps(tick * envs, envs), None, -1, None, None, None)
    return memory


def drawn(memory: Memory) -> int:
    payloads = 0
    while memory.draw(0, 1, 1 << 20, 64) is not None:
        payloads += 1
    return payloads


@pytest.mark.parametrize("settings", [STEP, STACKED], ids=["step", "stacked"])
def test_large_rows_are_kept_until_the_server_has_answered(settings):
    memory = filled(settings, 1500)
    payloads = drawn(memory)
    for tick in range(1500, 1800):
        memory.add_batch(None, None, steps(tick * 4, 4), None, -1, None, None, None)
    assert memory.stats()["steps"] == 4 * 1800  # within 64 MB everything may still be asked for
    memory.settled(payloads // 2)
    for tick in range(1800, 3600):
        memory.add_batch(None, None, steps(tick * 4, 4), None, -1, None, None, None)
        drawn(memory)
    assert 10_800 < memory.stats()["steps"] < 12_000  # without the first half of 6,000, which was answered
    memory.settled(1 << 30)
    for tick in range(3600, 8000):
        memory.add_batch(None, None, steps(tick * 4, 4), None, -1, None, None, None)
        drawn(memory)
    assert memory.stats()["steps"] * 4096 <= (4 << 20) + 16 * 4096 + (1 << 20)


def test_what_the_server_asks_for_again_is_kept_although_newer_payloads_are_answered():
    memory = filled(STEP, 600)
    first = read(memory.draw(0, 1, 1 << 20, 0), 0)
    wanted = np.array([item[0] for item in first.items], np.uint64)
    memory.missing(0, wanted)
    memory.settled(1 << 30)
    for tick in range(600, 1500):
        memory.add_batch(None, None, steps(tick * 4, 4), None, -1, None, None, None)
    again = read(memory.draw(0, 1, 1 << 24, 0), 0)
    assert len(again.gone) == 0
    assert {item[0] for item in again.items} >= set(wanted.tolist())
    assert set(again.rows.tolist()) >= set(wanted.tolist())


@pytest.mark.parametrize("settings", [STEP, STACKED], ids=["step", "stacked"])
def test_everything_arrives_through_a_memory_that_keeps_little(settings, rng):
    rig = Rig(LARGE, settings, memory_bytes=64 << 20)
    peer = rig.join(envs=3)
    payloads = 0
    for tick in range(900):
        last = np.array([tick % 90 == 89] * 3)
        peer.memory.add_batch(None, None, steps(tick * 3, 3), None, -1, last, None, None)
        if rng.random() < 0.1:
            payloads += len(peer.sent)
            peer.sent.clear()
            rig.push_all(peer)
            peer.memory.settled(payloads)
    rig.push_all(peer)
    stats = rig.stats()
    assert stats["items"] + stats["evicted"] == 2700
    assert peer.asked == 0
    assert peer.memory.stats()["steps"] < 2000
    batch = rig.draw(512)
    newest = batch["obs"][:, -1] if settings is STACKED else batch["obs"]
    assert (newest[:, 0] == batch["id"] % 251).all()
    assert (newest == newest[:, :1]).all()


def test_a_payload_is_the_same_in_memory_of_the_caller():
    one, other = filled(STEP, 50), filled(STEP, 50)
    raw = np.zeros(2 << 20, np.uint8)
    out = raw[-raw.ctypes.data % 64 :][: 1 << 20]
    while (frame := one.draw(0, 1, 1 << 18, 64)) is not None:
        placed = other.draw(0, 1, 1 << 18, 64, out)
        assert np.shares_memory(placed, out)
        assert np.array_equal(frame, placed)
    assert other.draw(0, 1, 1 << 18, 64, out) is None
    # What does not fit there comes in memory of its own.
    one, other = filled(STEP, 50), filled(STEP, 50)
    frame, placed = one.draw(0, 1, 1 << 18, 64), other.draw(0, 1, 1 << 18, 64, out[:4096])
    assert not np.shares_memory(placed, out)
    assert np.array_equal(frame, placed)
    with pytest.raises(ValueError, match="multiple of 64"):
        other.draw(0, 1, 1 << 18, 64, out[1:])


def scheduled() -> tuple[int, int]:
    ran, queued, _ = (SWITCHES / str(threading.get_native_id()) / "schedstat").read_text().split()
    return int(ran), int(queued)


def counted(seconds: float) -> float:
    """The share of the time in which this thread was not kept from counting by the GIL; waits for a processor are left out."""
    before, start = scheduled(), time.perf_counter()
    count = 0
    while time.perf_counter() - start < seconds:
        for _ in range(1000):
            count += 1
    took, after = time.perf_counter() - start, scheduled()
    return (after[0] - before[0]) / (took * 1e9 - (after[1] - before[1]))


@pytest.mark.skipif(not (SWITCHES / str(threading.get_native_id()) / "schedstat").exists(), reason="the system does not say how long threads waited")
def test_pushes_and_draws_do_not_hold_up_other_threads(tmp_path):
    from memsvc_client import Actor, Learner

    file, ready = tmp_path / "memsvc.toml", tmp_path / "ready.json"
    file.write_text(
        f"""
        [server]
        address = "ipc://{tmp_path}/s"
        memory = "64MiB"
        control = ""
        http = ""
        [step]
        obs = {{ dtype = "uint8", shape = [4096] }}
        [[table]]
        name = "replay"
        item = {{ kind = "step" }}
        priority = {{ source = "max" }}
        actor = {{ select = "prioritized", cache = 256, max_steps = 4000 }}
        """
    )
    stop = threading.Event()
    with subprocess.Popen([sys.executable, "-m", "memsvc.cli", "serve", str(file), "--ready-file", str(ready)]) as daemon:
        try:
            address = json.loads(until(lambda: ready.exists() and ready.read_text(), timeout=60))["address"]
            with Actor(address, envs=50) as actor, Learner(address, table="replay", batch_size=64) as learner:
                for tick in range(60):
                    actor.add_batch(obs=np.full((50, 4096), tick, np.uint8))

                def draw() -> None:
                    while not stop.is_set():
                        learner.sample(timeout=30)

                thread = threading.Thread(target=draw)
                thread.start()
                try:
                    before = actor.stats()["pushes"][0]
                    assert statistics.median(counted(0.1) for _ in range(15)) >= 0.8
                    assert actor.stats()["pushes"][0] > before
                finally:
                    stop.set()
                    thread.join()
        finally:
            daemon.terminate()
            daemon.wait(timeout=20)
