"""The parent's side: one measured system as a child process with all that it starts; frozen while another is measured."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from peers.environments import interpreter, room

_MARK = "COMPARE_SYSTEM"
_TICK = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A system did not do what was asked; the message says why. `lost`: it cannot be asked again. The run goes on without it."""

    def __init__(self, message: str, lost: bool = True) -> None:
        super().__init__(message)
        self.lost = lost


class System:
    """A runner in the peer's interpreter. Not thread-safe. Its log, stderr of all its processes, is at `log`."""

    def __init__(self, name: str, environment: str, module: str, kind: str, log: Path) -> None:
        """Starts the runner (which starts nothing yet). Failed where its environment cannot be made."""
        self.name, self.log = name, log
        try:
            python = interpreter(environment)
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            raise Failed(str(error)) from None
        mark = f"{os.getpid()}-{name}"
        self._wanted = f"{_MARK}={mark}".encode()
        settings = {_MARK: mark, "PYTHONPATH": str(room()), "TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR", "RAY_DEDUP_LOGS": "0"}
        self._child = subprocess.Popen(
            [str(python), "-u", "-m", "peers.runner", module, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("wb"),
            env=os.environ | settings,
            cwd=room(),
            start_new_session=True,
        )

    def ask(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        """One request and its answer. Failed where the runner answers an error, ends, or says nothing for `timeout_s`."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise Failed(f"the runner ended: {self._tail()}") from None
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise Failed(f"no answer to {request['do']} within {timeout_s:.0f} s: {self._tail()}")
        line = self._child.stdout.readline()
        if not line:
            raise Failed(f"the runner ended: {self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"], lost=False)
        return answer

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-300:].strip()

    def processes(self) -> list[int]:
        """Every living process that the runner started, itself included: they inherit a mark in their environment, whatever session they are in."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self._wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def cpu_seconds(self) -> float:
        """User and system seconds so far of all these processes, and of children of theirs that have ended. Resolution 10 ms a process."""
        total = 0
        for pid in self.processes():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += sum(int(fields[i]) for i in range(11, 15))
        return total / _TICK

    def _signal(self, number: int) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def freeze(self) -> None:
        """Stops all its processes, so that what spins or beats while idle disturbs nobody."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets them go on."""
        self._signal(signal.SIGCONT)

    def close(self, timeout_s: float = 15.0) -> None:
        """Ends the runner in its own way; what is left after `timeout_s` is killed. Idempotent."""
        self.thaw()
        assert self._child.stdin is not None
        try:
            self._child.stdin.close()
        except BrokenPipeError:
            print(f"{self.name}: had ended by itself", file=sys.stderr)
        try:
            self._child.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            print(f"{self.name}: did not end within {timeout_s:.0f} s, killed", file=sys.stderr)
        deadline = time.monotonic() + 5
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)
        self._child.wait()
