"""The service under measurement: in this process, or as a daemon of its own reached through shared memory, ipc or tcp. All give the same clients."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from machine import cpu_seconds
from memsvc_client import Actor, Learner, ZmqEndpoint
from workloads import Workload

import memsvc
from memsvc.bench.writer import Writer
from memsvc.children import Children

TRANSPORTS = ("process", "shm", "ipc", "tcp")
_SPAWN = multiprocessing.get_context("spawn")


class Service:
    """One running server with an empty table. A context manager; leaving it ends the server and removes its files."""

    def __init__(self, workload: Workload, transport: str) -> None:
        self.workload = workload
        self.transport = transport
        self.pids = [os.getpid()]
        self.address = ""  # of the daemon, where it is one
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
        children = self._stack.enter_context(Children(file.parent))
        address = children.serve(file.parent, file)["address"]
        self.pids += children.pids
        self.address = address
        self._endpoint = endpoint = ZmqEndpoint(address, shared=self.transport == "shm")
        self._actor = lambda **settings: Actor(endpoint, **settings)
        self._learner = lambda **settings: Learner(endpoint, **settings)
        if self.transport == "shm" and not self._shares():
            raise NotShared("clients of a daemon on this host use sockets: shared memory is off, or not in this version")

    def actor(self, envs: int) -> Actor:
        """A new actor; the caller closes it."""
        return self._actor(name=f"bench-{envs}", envs=envs)

    def learner(self, prefetch: int = 2) -> Learner:
        """A new learner of the workload's batch size; the caller closes it."""
        return self._learner(table="replay", batch_size=self.workload.batch, prefetch=prefetch)

    @contextmanager
    def inserting(self) -> Iterator[None]:
        """Inserts as fast as it can meanwhile: a process of its own, or a thread of this one where the server is in it. Returns once it does."""
        begun, stop = _SPAWN.Event(), _SPAWN.Event()
        if self.transport == "process":
            worker: Any = threading.Thread(target=insert, args=(self._actor, self.workload, begun, stop))
        else:
            worker = _SPAWN.Process(target=insert, args=(partial(Actor, self._endpoint), self.workload, begun, stop), daemon=True)
        worker.start()
        try:
            while not begun.wait(0.1):
                if not worker.is_alive():
                    raise RuntimeError("the inserting process has ended by itself")
            if self.transport != "process":
                self.pids.append(worker.pid)
            yield
        finally:
            stop.set()
            worker.join()
            self.pids = [pid for pid in self.pids if pid != getattr(worker, "pid", None)]

    def stored(self) -> int:
        """Items that have arrived at the server so far, by its own count."""
        if self._watch is None:
            self._watch = self._stack.enter_context(self._learner(table="replay", batch_size=1, prefetch=0))
        table = self._watch.server_stats(timeout=60)["tables"][0]
        return int(table["items"]) + int(table["evicted"])

    def _shares(self) -> bool:
        deadline = time.monotonic() + 1.0
        with self.learner() as learner:
            while learner.stats().get("transport") == "socket" and time.monotonic() < deadline:
                time.sleep(0.02)
            return learner.stats().get("transport") == "shared"

    def cpu(self) -> float:
        """CPU seconds of all processes that take part."""
        return cpu_seconds(self.pids)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()


class NotShared(Exception):
    """Shared memory was asked for, and clients do not use it."""


def insert(connect: Callable[..., Actor], workload: Workload, begun: Any, stop: Any) -> None:
    """Adds the workload's steps until `stop`; sets `begun` with the first."""
    with connect(name="bench-inserting", envs=workload.envs) as actor:
        player = Writer(actor, workload.fields, workload.envs, given=True, seed=1)
        while not stop.is_set():
            player.write()
            begun.set()
