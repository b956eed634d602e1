"""Crew: who works in a run. Processes of their own around a daemon, or threads of this process around an embedded server."""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsvc_proto.errors import MemsvcError

from ..children import ChildFailed, Children
from ..config import Config
from .work import Plan, work

if TYPE_CHECKING:
    from memsvc_client import Endpoint

_END_S = 10.0

Source = Callable[[str], tuple[str, Config]]
"""An address -> the text of a memsvc.toml and the same, checked, with that address."""


class Processes:
    """A daemon and workers, each a process of its own. For one thread.

    `source` gives the configuration of a daemon of its own; None: the server at `address` is there already. `shared`: False keeps clients from
    shared memory. Raises ChildFailed where the daemon does not come up.
    """

    def __init__(self, source: Source | None, address: str, ipc: bool, shared: bool, check: Callable[[], None]) -> None:
        self._stack = ExitStack()
        self._shared = shared
        self._plans: list[Plan] = []
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="memsvc-bench-")))
        try:
            self._children = self._stack.enter_context(Children(folder))
            if source is not None:
                text, config = source(f"ipc://{folder}/door" if ipc else "tcp://127.0.0.1:0")
                file = folder / "memsvc.toml"
                file.write_text(text)
                server = config.server
                flags = ("--address", server.address, "--memory", str(server.memory), "--control", "", "--seed", str(server.seed), "--advertise", "")
                address = str(self._children.serve(folder, file, *flags, check=check)["address"])
        except BaseException:
            self._stack.close()
            raise
        self.address = address
        self._daemons = len(self._children.pids)

    @property
    def endpoint(self) -> Endpoint:
        """For this process's own look at the server."""
        from memsvc_client import ZmqEndpoint

        return ZmqEndpoint(self.address)

    @property
    def lines(self) -> queue.Queue[tuple[str, dict[str, Any]]]:
        """(worker's name, line) of everything that was said."""
        return self._children.lines

    def start(self, plan: Plan) -> None:
        """Starts a worker."""
        self._plans.append(plan)
        self._children.start(plan.name, "memsvc.bench.work", plan.dumps(), environment=None if self._shared else {"MEMSVC_SHARED": "0"})

    def check(self) -> None:
        """Raises ChildFailed when anything has ended by itself."""
        self._children.check()

    def pids(self) -> dict[str, list[int]]:
        """Processes by what they are: daemon (where it is this run's own), actor, learner."""
        pids = self._children.pids
        found = {"daemon": pids[: self._daemons]}
        for plan, pid in zip(self._plans, pids[self._daemons :], strict=True):
            found.setdefault(plan.role, []).append(pid)
        return {role: those for role, those in found.items() if those}

    def close(self) -> None:
        """Ends every process, the daemon last, and removes every file; a few seconds at most. Idempotent."""
        self._stack.close()


class Threads:
    """The same in one process, by plain calls. Raises ConfigError, MemoryError where the server does not come up."""

    def __init__(self, source: Source) -> None:
        from ..server import Server

        _, config = source("tcp://127.0.0.1:0")
        self.lines: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self._server = Server(config)
        self.address = self._server.address
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failed: list[tuple[str, BaseException]] = []

    @property
    def endpoint(self) -> Endpoint:
        """For this process's own look at the server."""
        return self._server.endpoint

    def start(self, plan: Plan) -> None:
        """Starts a worker."""
        self._threads.append(threading.Thread(target=self._work, args=(plan,), name=plan.name))
        self._threads[-1].start()

    def check(self) -> None:
        """Raises ChildFailed when a worker has failed."""
        for name, error in self._failed:
            what = error.message if isinstance(error, MemsvcError) else repr(error)
            raise ChildFailed(f"the {name} thread ended: {what}") from error

    def pids(self) -> dict[str, list[int]]:
        """This process, which is everything."""
        return {"all": [os.getpid()]}

    def close(self) -> None:
        """Ends every thread, then the server; a few seconds at most. Idempotent."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_END_S)
        self._server.close()

    def _work(self, plan: Plan) -> None:
        try:
            work(plan, self._server.endpoint, self._stop, lambda line: self.lines.put((plan.name, line)))
        except BaseException as error:  # shown by whoever checks
            if not self._stop.is_set():
                self._failed.append((plan.name, error))
