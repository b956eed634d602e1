"""Child processes of a command: a daemon, actors, learners. They end with the command, however it ends."""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
START_S = 120.0
STOP_S = 5.0
LOG_LINES = 12
_LOOK_S = 0.02


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
        self._may_end: set[str] = set()
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        """Of every child that has been started."""
        return [child.pid for child in self._running.values()]

    def start(self, name: str, module: str, *arguments: str, ends: bool = False, environment: Mapping[str, str] | None = None) -> None:
        """Runs `python -m module arguments`; what it writes to standard error goes to a file of the folder. `ends`: it may end by itself, with
        status 0. `environment`: variables that it gets beside this process's.
        """
        if ends:
            self._may_end.add(name)
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
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | dict(environment or {}),
            )
        self._running[name] = child
        self._readers.append(threading.Thread(target=self._read, args=(name, child), daemon=True))
        self._readers[-1].start()

    def _read(self, name: str, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):
                self.lines.put((name, json.loads(line)))

    def serve(self, folder: Path, file: Path, *flags: str, check: Callable[[], None] = lambda: None, within_s: float = START_S) -> dict[str, Any]:
        """Starts `memsvc serve file flags` as "daemon", the first child, and returns its ready file's content once it serves.

        Calls `check` while it waits (which may raise); ChildFailed when the daemon ends, or takes longer than `within_s`.
        """
        ready = folder / "ready.json"
        self.start("daemon", "memsvc.cli", "serve", str(file), "--ready-file", str(ready), *flags)
        deadline = time.monotonic() + within_s
        while True:
            check()
            self.check()
            try:
                about: dict[str, Any] = json.loads(ready.read_text())
                return about
            except (OSError, ValueError):
                if time.monotonic() > deadline:
                    raise ChildFailed(self.failure("daemon", f"has not served within {within_s:.0f} s")) from None
                time.sleep(_LOOK_S)

    def check(self) -> None:
        """Raises ChildFailed if a child that is not stopped yet has ended by itself with a failure, or at all unless it may."""
        for name, child in self._running.items():
            status = child.poll()
            if status is not None and (status != 0 or name not in self._may_end):
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


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM and SIGHUP set, in the main thread; what was set before comes back.

    Not an exception out of nowhere: between the birth of a child and the note of its pid it would lose the child. So every wait has to be short.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda *_: interrupted.set()) for number in numbers]
    try:
        yield interrupted
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


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
