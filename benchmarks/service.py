"""The service under measurement: in this process, or as a daemon of its own reached through ipc or tcp. Both give the same clients."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from machine import cpu_seconds
from memsvc_client import Actor, Learner
from workloads import Workload

import memsvc

TRANSPORTS = ("process", "ipc", "tcp")


class Service:
    """One running server with an empty table. A context manager; leaving it ends the server and removes its files."""

    def __init__(self, workload: Workload, transport: str) -> None:
        self.workload = workload
        self.transport = transport
        self.pids = [os.getpid()]
        self._stack = ExitStack()
        self._watch: Learner | None = None
        folder = Path(tempfile.mkdtemp(prefix="memsvc-bench-"))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        file = folder / "memsvc.toml"
        file.write_text(workload.config(f"ipc://{folder}/door" if transport == "ipc" else "tcp://127.0.0.1:0"))
        try:
            self._start(file)
        except BaseException:
            self._stack.close()
            raise

    def _start(self, file: Path) -> None:
        if self.transport == "process":
            server = self._stack.enter_context(memsvc.Server(memsvc.Config.load(file)))
            self._actor: Callable[..., Actor] = server.actor
            self._learner: Callable[..., Learner] = server.learner
            return
        ready, log = file.with_name("ready.json"), file.with_name("log")
        command = [sys.executable, "-m", "memsvc.cli", "serve", str(file), "--ready-file", str(ready)]
        with log.open("wb") as output:
            daemon = subprocess.Popen(command, stdout=output, stderr=output)
        self._stack.callback(_end, daemon)
        deadline = time.monotonic() + 120
        while not ready.exists():
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the daemon does not serve (status {daemon.returncode}): {log.read_text()[-1000:]}")
            time.sleep(0.02)
        address = json.loads(ready.read_text())["address"]
        self.pids.append(daemon.pid)
        self._actor = lambda **settings: Actor(address, **settings)
        self._learner = lambda **settings: Learner(address, **settings)

    def actor(self, envs: int) -> Actor:
        """A new actor; the caller closes it."""
        return self._actor(name=f"bench-{envs}", envs=envs)

    def learner(self) -> Learner:
        """A new learner of the workload's batch size; the caller closes it."""
        return self._learner(table="replay", batch_size=self.workload.batch)

    def stored(self) -> int:
        """Items that have arrived at the server so far, by its own count."""
        if self._watch is None:
            self._watch = self._stack.enter_context(self._learner(table="replay", batch_size=1, prefetch=0))
        table = self._watch.server_stats(timeout=60)["tables"][0]
        return int(table["items"]) + int(table["evicted"])

    def cpu(self) -> float:
        """CPU seconds of all processes that take part."""
        return cpu_seconds(self.pids)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(timeout=10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
