"""What the figures are measured on and against: what `memsvc bench` has of that, the commit, and what bare numpy reaches in the same run."""

from __future__ import annotations

import json
import shlex
import subprocess
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from workloads import Workload

from memsvc.bench.machine import cpu_seconds, describe, memcpy_rate, now, rate

__all__ = ["Copy", "Gather", "Memcpy", "Take", "about", "commit", "cpu_seconds", "describe", "keep", "memcpy_rate", "now", "rate", "take_rate"]


def commit() -> str:
    """The checkout's commit, with "+" where tracked files differ from it; "none" outside a repository or before the first commit."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        dirty = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return head + ("+" if dirty else "")


def about(script: str, argv: list[str], **more: Any) -> dict[str, Any]:
    """What every row of a run has: date, commit, command, machine, and `more`. `script`: its name in this folder."""
    command = shlex.join(["python", f"benchmarks/{script}", *argv])
    return {"date": now(), "commit": commit(), "command": command, "machine": describe(), **more}


def keep(rows: list[dict[str, Any]], file: Path) -> None:
    """Writes a JSON line a row, and says where; makes the folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} rows in {file}")


def take_rate(workload: Workload, seconds: float = 0.3) -> float:
    """Items/s of the floor: uniform random indices and one numpy take a column, from a table of the workload's size into reused arrays."""
    take = Take(workload)
    return rate(take.act, take.amount, seconds)


class Memcpy:
    """Copies of 64 MiB, beyond most caches: `act` copies `amount` bytes."""

    def __init__(self) -> None:
        self.amount = 1 << 26
        self._source, self._target = np.ones(self.amount, np.uint8), np.ones(self.amount, np.uint8)

    def act(self) -> None:
        """One copy."""
        np.copyto(self._target, self._source)


class Take:
    """The floor of take_rate: `act` takes `amount` items, one batch."""

    def __init__(self, workload: Workload) -> None:
        self.amount = workload.batch
        self._items, self._rng = workload.items, np.random.default_rng(1)
        self._columns = {name: np.zeros((workload.items, workload.length, *shape), dtype) for name, dtype, shape in workload.fields}
        for column in self._columns.values():
            column[:] = 1
        self._out = {name: np.ones((workload.batch, *column.shape[1:]), column.dtype) for name, column in self._columns.items()}

    def act(self) -> None:
        """One batch."""
        chosen = self._rng.integers(0, self._items, self.amount)
        for name, column in self._columns.items():
            np.take(column, chosen, axis=0, out=self._out[name], mode="clip")


class Copy:
    """What inserting costs at least: `act` copies the `amount` rows of one add_batch into a ring of columns."""

    def __init__(self, workload: Workload) -> None:
        self.amount, self._at = workload.envs, 0
        self._data = workload.columns(workload.envs)
        self._size = max(1, workload.items // workload.envs) * workload.envs
        self._ring = {name: np.ones((self._size, *column.shape[1:]), column.dtype) for name, column in self._data.items()}

    def act(self) -> None:
        """One add_batch."""
        for name, column in self._data.items():
            self._ring[name][self._at : self._at + self.amount] = column
        self._at = (self._at + self.amount) % self._size


class Gather:
    """Random float64 out of `size`, by numpy: `act` gathers `amount` of them."""

    def __init__(self, size: int) -> None:
        self.amount = 256
        self._values, self._out = np.random.default_rng(0).random(size), np.empty(self.amount)
        self._indices = cycle(np.random.default_rng(1).integers(0, size, (64, self.amount)))

    def act(self) -> None:
        """One gather."""
        np.take(self._values, next(self._indices), out=self._out, mode="clip")
