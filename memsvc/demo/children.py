"""The demo's child processes: the daemon, the actors and the learner. They end with the demo, however it ends."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
STOP_S = 5.0
LOG_LINES = 12


class ChildFailed(Exception):
    """A child process could not start or ended by itself; the message says which, how, and the last lines that it wrote."""


def _end_with_parent() -> None:
    # The finally clauses of a parent that is killed never run; the kernel's signal does not need them.
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Children:
    """Starts processes of this interpreter and reads their JSON lines. Use it as a context manager: leaving it ends every child. For one thread.

    `lines` holds (name, object) of every line that a child has written, in order of arrival.
    """

    def __init__(self, folder: Path) -> None:
        self.lines: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self._folder = folder
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self, name: str, module: str, *arguments: str) -> None:
        """Runs `python -m module arguments`; what it writes to standard error goes to a file of the folder."""
        # A session of its own: Ctrl-C reaches this process alone, which then ends the children in order.
        with open(self._folder / f"{name}.log", "wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=_end_with_parent,
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self._running[name] = child
        self._readers.append(threading.Thread(target=self._read, args=(name, child), daemon=True))
        self._readers[-1].start()

    def _read(self, name: str, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):
                self.lines.put((name, json.loads(line)))

    def check(self) -> None:
        """Raises ChildFailed if a child that is not stopped yet has ended by itself with a failure, or at all unless it is the learner."""
        for name, child in self._running.items():
            status = child.poll()
            if status is not None and (status != 0 or name != "learner"):
                raise ChildFailed(self.failure(name, f"ended with status {status}"))

    def ended(self, name: str) -> bool:
        """Whether that child has ended, and all its lines have arrived."""
        position = list(self._running).index(name)
        return self._running[name].poll() is not None and not self._readers[position].is_alive()

    def failure(self, name: str, what: str) -> str:
        """A sentence with the child's last lines of standard error."""
        tail = (self._folder / f"{name}.log").read_text(errors="replace").splitlines()[-LOG_LINES:]
        return f"the {name} process {what}" + (":\n  " + "\n  ".join(tail) if tail else " and said nothing")

    def stop(self) -> None:
        """Ends every child by SIGTERM, the daemon last, so that clients can say good-bye to it; by SIGKILL after 5 s. Safe to call twice."""
        children = list(self._running.values())
        # All clients at once, then the daemon: it was started first.
        _end(children[1:])
        _end(children[:1])
        self._running.clear()
        for reader in self._readers:
            reader.join()
        self._readers.clear()


def _end(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        child.terminate()
    deadline = time.monotonic() + STOP_S
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
