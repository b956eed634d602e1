"""`make soak`: SOAK_S seconds (240) of everything that could make a server or an actor grow, all at once, and the slope of their memory.

Actors as fast as they can, a learner that takes a tenth of it, an episode that never ends, a sleeping subscriber of parameters, a learner that asks
and never reads, and 10,000 clients that connect, say HELLO and vanish. SOAK_DURABILITY: "off", "snapshot" or "journal" (in the folder of the run).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from memsvc_client import Actor, Learner, NotReady, Unreachable, WindowFull
from memsvc_client.welcome import hello_message
from memsvc_proto import wire
from memsvc_proto.wire import Kind, Message

from .world import Worker, free_port, toml

STEP = {"obs": {"dtype": "uint8", "shape": [1024]}, "reward": {"dtype": "float32"}}
_ACTOR = {"select": "all", "linger_ms": 5, "max_steps": 5000}
TABLES: list[dict[str, Any]] = [
    {"name": "union", "item": {"kind": "step"}, "actor": _ACTOR, "priority": {"source": "given", "exponent": 1.0}},
    {"name": "once", "item": {"kind": "step"}, "actor": _ACTOR, "sampler": "fifo", "limits": {"max_times_sampled": 1}},
    {
        "name": "replay",
        "item": {"kind": "transition", "n_step": 3, "next": ["obs"]},
        "actor": {"max_steps": 5000, "linger_ms": 5},
        "priority": {"source": "given", "exponent": 1.0},
    },
]
CLIENTS = 10_000
AT_ONCE = 200
BATCH = 64
GROWTH_BYTES = 4 << 20
"""What memory may differ by between the first and the last of the samples that count: allocators and pools breathe."""

DISK_GROWTH = 0.25
"""The same of a journal's files, as a share of their mean: it grows until a snapshot, and then what is dead goes."""


def act(address: str, name: str, endless: bool, rate: float) -> None:
    """An actor process: for ever."""
    actor = Actor(address, name=name, envs=2, timeout=2.0, seed=1)
    obs, steps, began = np.arange(1024).astype(np.uint8), 0, time.monotonic()
    while True:
        for env in range(2):
            with contextlib.suppress(WindowFull):
                actor.add(env=env, obs=obs, reward=1.0, priority=1.0)
            if not endless and steps % 100 == 99:
                actor.end_episode(terminated=True, env=env)
        steps += 1
        ahead = steps * 2 / rate - (time.monotonic() - began) if rate else 0.0
        if ahead > 0.005:
            time.sleep(ahead)


def sleep(address: str) -> None:
    """A process for ever: a subscriber that never reads, and a learner that asks and never reads."""
    # Of its own, and killed: libzmq ends a process whose stalled socket has lost its connection (its issue 3937; clients/sockets.py).
    with Learner(address, table="union", batch_size=1, prefetch=0) as learner:
        stats = learner.server_stats()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    asleep, deaf = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    asleep.setsockopt(zmq.SUBSCRIBE, b"")
    for socket, where in ((asleep, "params"), (deaf, "draw")):
        socket.setsockopt(zmq.RCVHWM, 10)
        socket.connect(stats[where])
    deaf.send(wire.pack(hello_message(1, "learner", "deaf", table=0, batch=BATCH)))
    seq = 1
    while True:
        for table in range(len(TABLES)):
            seq += 1
            with contextlib.suppress(zmq.Again):
                deaf.send(wire.pack(Message(Kind.SAMPLE, seq, table, BATCH, 0, 0.05)), zmq.NOBLOCK)
        time.sleep(0.02)


class Crowd:
    """What is done to the daemon, in threads of this process, until `stop`."""

    def __init__(self, address: str, stop: threading.Event, clients: int, seconds: float) -> None:
        self.address, self.stop, self.seconds = address, stop, seconds
        self.clients = clients
        self.vanished = self.drawn = self.published = 0
        self.context = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 4096)
        with Learner(address, table="union", batch_size=1, prefetch=0) as learner:
            self.stats = learner.server_stats()

    def run(self) -> list[threading.Thread]:
        """Starts it all."""
        threads = [threading.Thread(target=one, daemon=True) for one in (self.learn, self.vanish)]
        for thread in threads:
            thread.start()
        return threads

    def learn(self) -> None:
        """Slow learners of every table, and a publisher."""
        learners = [Learner(self.address, table=table["name"], batch_size=BATCH, timeout=5.0) for table in TABLES]
        while not self.stop.wait(0.05):
            for learner in learners:
                with contextlib.suppress(NotReady, Unreachable):
                    batch = learner.sample(timeout=0.2)
                    self.drawn += len(batch.keys)
                    learner.update_priorities(batch.keys, np.ones(len(batch.keys)))
            with contextlib.suppress(Unreachable):
                learners[0].publish({"w": np.zeros(50_000, np.float32)})
                self.published += 1
        for learner in learners:
            learner.close()

    def vanish(self) -> None:
        """Actors, learners and viewers that say HELLO and are never heard again."""
        pause = max(0.0, self.seconds / self.clients * AT_ONCE - 0.5)
        while not self.stop.is_set() and self.vanished < self.clients:
            sockets = []
            for _ in range(min(AT_ONCE, self.clients - self.vanished)):
                number = self.vanished + len(sockets)
                kind = ("actor", "learner", "viewer")[number % 3]
                socket = self.context.socket(zmq.DEALER)
                socket.connect(self.stats["draw"] if kind == "learner" else self.address)
                more: dict[str, Any] = {"table": 0, "batch": BATCH} if kind == "learner" else {"session": f"{number + 1:016x}"}
                socket.send(wire.pack(hello_message(1, kind, f"vanishing-{number}", int(kind == "actor"), **more)))
                if kind == "learner":
                    socket.send(wire.pack(Message(Kind.SAMPLE, 2, 1, BATCH, 0, 5.0)))
                sockets.append(socket)
            for socket in sockets:
                socket.poll(2000)
                socket.close(0)
            self.vanished += len(sockets)
            self.stop.wait(pause)


def slope(samples: list[tuple[float, int]]) -> tuple[float, float]:
    """(bytes a second, bytes over the whole) by regression."""
    at, size = np.array(samples, float).T
    rate = float(np.polyfit(at - at[0], size, 1)[0])
    return rate, rate * float(at[-1] - at[0])


def soak(folder: Path, seconds: float, clients: int = CLIENTS, warm: float = 0.4, durability: str = "off") -> tuple[bool, str]:
    """Whether everything stayed flat from `warm` (a share of `seconds`) on, and what to print."""
    address = f"tcp://127.0.0.1:{free_port()}"
    settings = {"memory": "64MiB", "control": "", "http": "", "seed": 7, "address": address}
    if durability != "off":
        settings |= {"durability": durability, "data": str(folder / "data"), "fsync_ms": 100, "snapshot_s": 20.0}
    (folder / "memsvc.toml").write_text(toml(settings, STEP, TABLES))
    ready = folder / "ready.json"
    daemon = Worker("daemon", folder, lambda run: ["-m", "memsvc.cli", "serve", str(folder / "memsvc.toml"), "--ready-file", str(ready)], {}, None)
    doing = [("fast", False, 0.0), ("endless", True, 2000.0)]
    actors = [
        Worker(name, folder, lambda run, args=(address, *one): ["-m", "chaos.soak", json.dumps(args)], {}, None)  # type: ignore[misc]
        for one in doing
        for name in one[:1]
    ]
    sleeper = Worker("sleeper", folder, lambda run: ["-m", "chaos.soak", json.dumps([address])], {}, None)
    stop, samples = threading.Event(), {worker.name: list[tuple[float, int]]() for worker in [daemon, *actors]}
    disk: list[tuple[float, int]] = []
    try:
        daemon.start()
        _until(ready.exists, 30)
        for worker in [*actors, sleeper]:
            worker.start()
        began = time.monotonic()
        crowd = Crowd(address, stop, clients, 0.9 * seconds)
        threads = crowd.run()
        while time.monotonic() - began < seconds:
            time.sleep(0.2)
            if time.monotonic() - began > warm * seconds:
                for worker in [daemon, *actors]:
                    samples[worker.name].append((time.monotonic(), worker.rss()))
                disk.append((time.monotonic(), _bytes_in(folder / "data")))
        with Learner(address, table="union", batch_size=1, prefetch=0) as learner:
            stats = learner.server_stats()
        stop.set()
        for thread in threads:
            thread.join(10)
    finally:
        stop.set()
        asleep = sleeper.alive
        for worker in [*actors, sleeper, daemon]:
            if worker.process is not None and worker.alive:
                worker.kill()
    told, holds = [f"soak, {seconds:g} s, durability {durability}, slopes over the last {100 - 100 * warm:.0f} %"], True
    for name, taken in samples.items():
        rate, growth = slope(taken)
        flat = growth < GROWTH_BYTES and min(size for _, size in taken) > 0
        holds = holds and flat
        told.append(f"  {'ok  ' if flat else 'WRONG'} {name}: {taken[-1][1] / 2**20:.1f} MiB, {rate / 1024:+.2f} KiB/s, {growth / 2**20:+.2f} MiB")
    if durability != "off":
        rate, growth = slope(disk)
        size = [one for _, one in disk]
        flat = growth < DISK_GROWTH * float(np.mean(size))
        holds = holds and flat
        told.append(f"  {'ok  ' if flat else 'WRONG'} on disk: {min(size) / 2**20:.0f} to {max(size) / 2**20:.0f} MiB, {growth / 2**20:+.0f} MiB")
    made = [table["inserted"] for table in stats["tables"]]
    told.append(
        f"  {crowd.vanished} clients vanished; made {made}, {crowd.drawn} drawn, {crowd.published} published; {stats['connections']} connections"
    )
    told.append(f"  {json.dumps(stats['counts'])} {json.dumps(stats['queues'])}")
    holds = holds and asleep and crowd.vanished == clients and min(made) > 10 * BATCH and crowd.drawn > 0 and not stats["counts"]["failures"]
    return holds, "\n".join(told)


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # it may go meanwhile
            total += path.stat().st_size
    return total


def _until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        time.sleep(0.02)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        given = json.loads(sys.argv[1])
        act(*given) if len(given) > 1 else sleep(*given)
    with tempfile.TemporaryDirectory(prefix="memsvc-soak-") as place:
        fine, said = soak(Path(place), float(os.environ.get("SOAK_S") or 240), durability=os.environ.get("SOAK_DURABILITY") or "off")
    print(said)
    sys.exit(not fine)
