"""The processes of the chaos test, and what can be done to them: kill, stop, cut off, start again."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from network import Proxies

from .content import LEDGER, QUEUE, REPLAY, STEP, TABLES, UNION

TESTS = Path(__file__).resolve().parent.parent
READY_S = 60.0


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Worker:
    """One process that is started again under the same name after it was killed."""

    def __init__(self, name: str, folder: Path, command: Callable[[int], list[str]], environment: dict[str, str], network: Proxies | None) -> None:
        self.name, self.network = name, network
        self.runs = self.kills = 0
        self.stopped = self.cut = False
        self.process: subprocess.Popen[bytes] | None = None
        self._folder, self._command, self._environment = folder, command, environment

    def log(self, run: int) -> Path:
        """Where its standard error of this run is."""
        return self._folder / f"{self.name}.{run}.log"

    def start(self) -> None:
        """The next run."""
        with open(self.log(self.runs), "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self._command(self.runs)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,
                env=os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | self._environment,
            )
        self.runs += 1

    @property
    def alive(self) -> bool:
        """It runs, or is stopped."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """0 before the first run."""
        return self.process.pid if self.process else 0

    def kill(self) -> None:
        """SIGKILL, and waits for its end."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.kills += 1
        self.stopped = False

    def signal(self, number: int) -> None:
        """SIGSTOP, SIGCONT, SIGTERM."""
        assert self.process is not None
        if self.alive:
            self.process.send_signal(number)
            self.stopped = number == signal.SIGSTOP

    def rss(self) -> int:
        """Resident bytes of its own now, without memory shared with others (rings are touched as far as they are used); 0 where it does not run."""
        try:
            resident, shared = Path(f"/proc/{self.pid}/statm").read_text().split()[1:3]
        except (OSError, ValueError):
            return 0
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


class World:
    """A daemon, actors and learners. Every second client reaches the daemon through Proxies of its own, the others share memory with it. Leaving it
    kills whatever runs.
    """

    def __init__(self, folder: Path, actors: int, learners: int, rate: float, server: dict[str, Any], spooled: bool = False) -> None:
        """`rate`: steps a second of each actor; `server`: settings beside address and memory, such as durability."""
        self.folder = folder
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self._networks: list[Proxies] = []
        self.samples: list[tuple[float, int, int]] = []
        """(time, run of the daemon, its resident bytes)."""
        settings = {"memory": "256MiB", "control": "", "http": "", "seed": 7, "address": self.address, **server}
        (folder / "memsvc.toml").write_text(toml(settings, STEP, TABLES))
        ready = folder / "ready.json"
        serve = ["-m", "memsvc.cli", "serve", str(folder / "memsvc.toml"), "--ready-file", str(ready)]
        self.daemon = Worker("daemon", folder, lambda run: serve, {}, None)
        self.actors = [self._client("actor", slot, rate=rate, spool=self._spool(slot) if spooled else None) for slot in range(actors)]
        jobs = [{"tables": [UNION, REPLAY, LEDGER], "publishes": True}, {"tables": [QUEUE, REPLAY], "publishes": False}]
        self.learners = [self._client("learner", slot, **jobs[slot % 2]) for slot in range(learners)]

    @property
    def clients(self) -> list[Worker]:
        """Actors and learners."""
        return [*self.actors, *self.learners]

    def start(self) -> None:
        """Everything; returns when the daemon serves."""
        self.daemon.start()
        self.await_daemon()
        for client in self.clients:
            client.start()

    def await_daemon(self) -> None:
        """Until it serves, and says so by the file that it writes. Raises AssertionError where that takes too long."""
        deadline = time.monotonic() + READY_S
        while self._ready() != self.daemon.pid:
            if not self.daemon.alive or time.monotonic() > deadline:
                raise AssertionError("the daemon does not serve:\n" + self.daemon.log(self.daemon.runs - 1).read_text()[-2000:])
            time.sleep(0.01)

    def _ready(self) -> int:
        try:
            return int(json.loads((self.folder / "ready.json").read_text())["pid"])
        except (OSError, ValueError):
            return 0

    def look(self) -> None:
        """Takes a sample of the daemon's memory."""
        if self.daemon.alive and self._ready() == self.daemon.pid:
            self.samples.append((time.monotonic(), self.daemon.runs - 1, self.daemon.rss()))

    def end(self, workers: list[Worker], within_s: float) -> list[str]:
        """SIGTERM to them; returns who did not end by itself, with status 0, in time."""
        for worker in workers:
            worker.signal(signal.SIGTERM)
        wrong, deadline = [], time.monotonic() + within_s
        for worker in workers:
            assert worker.process is not None
            try:
                status = worker.process.wait(max(0.1, deadline - time.monotonic()))
                if status:
                    wrong.append(f"{worker.name} ended with status {status}")
            except subprocess.TimeoutExpired:
                wrong.append(f"{worker.name} did not end within {within_s:g} s")
                worker.signal(signal.SIGABRT)
        return wrong

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in [*self.clients, self.daemon]:
            if worker.process is not None and worker.alive:
                worker.kill()
        for network in self._networks:
            network.close()

    def _spool(self, slot: int) -> str | None:
        # Two of eight: one with shared memory, one without.
        return str(self.folder / f"spool.{slot}") if slot % 8 in (2, 3) else None

    def _client(self, kind: str, slot: int, **settings: Any) -> Worker:
        name, network, where = f"{kind}-{slot}", None, self.address
        if slot % 2:
            network = Proxies(self.address)
            self._networks.append(network)
            where = network.arguments  # type: ignore[assignment]

        def command(run: int) -> list[str]:
            return [
                "-m",
                f"chaos.{kind}s",
                json.dumps({"folder": str(self.folder), "where": where, "name": name, "slot": slot, "run": run, **settings}),
            ]

        return Worker(name, self.folder, command, {"MEMSVC_SHARED": "0"} if network else {}, network)


def free_port() -> int:
    """A port of this host that is free."""
    # Below those that the system gives to outgoing connections: one of a client that tries again must not take it while the daemon is away.
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def toml(server: dict[str, Any], step: dict[str, Any], tables: list[dict[str, Any]]) -> str:
    """The text of a memsvc.toml."""

    def inline(value: Any) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{key} = {inline(one)}" for key, one in value.items()) + " }"
        return json.dumps(value)

    lines = ["[server]", *(f"{key} = {inline(value)}" for key, value in server.items()), "[step]"]
    lines += [f"{name} = {inline(field)}" for name, field in step.items()]
    for table in tables:
        lines += ["[[table]]", *(f"{key} = {inline(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"
