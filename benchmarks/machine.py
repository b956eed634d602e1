"""What the figures are measured on and against: the machine, CPU seconds of processes, and what bare numpy reaches in the same run."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from workloads import Workload


def describe() -> dict[str, Any]:
    """CPU model, cores this process may use, memory in GiB, kernel, Python and numpy, and the load (1 minute) that was there before the run."""
    model = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": model[0] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """The checkout's commit, with "+" where tracked files differ from it; "none" outside a repository or before the first commit."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        dirty = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return head + ("+" if dirty else "")


def now() -> str:
    """UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system seconds of these processes, all threads, so far. The resolution is a clock tick (10 ms)."""
    tick = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in pids:
        # The command's name, in brackets, may hold blanks: count fields behind it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / tick
    return total


def memcpy_rate(seconds: float = 0.2) -> float:
    """Bytes/s of copying 64 MiB, beyond most caches."""
    source, target = np.ones(1 << 26, np.uint8), np.ones(1 << 26, np.uint8)
    return _rate(lambda: np.copyto(target, source), source.nbytes, seconds)


def take_rate(workload: Workload, seconds: float = 0.3) -> float:
    """Items/s of the floor: uniform random indices and one numpy take a column, from a table of the workload's size into reused arrays."""
    rng = np.random.default_rng(1)
    columns = {name: np.zeros((workload.items, workload.length, *shape), dtype) for name, dtype, shape in workload.fields}
    for column in columns.values():
        column[:] = 1
    out = {name: np.ones((workload.batch, *column.shape[1:]), column.dtype) for name, column in columns.items()}

    def take() -> None:
        chosen = rng.integers(0, workload.items, workload.batch)
        for name, column in columns.items():
            np.take(column, chosen, axis=0, out=out[name], mode="clip")

    return _rate(take, workload.batch, seconds)


def _rate(call: Callable[[], None], amount: int, seconds: float) -> float:
    call()
    rates = []
    for _ in range(3):
        calls, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds / 3:
            call()
            calls += 1
        rates.append(calls * amount / (time.perf_counter() - start))
    return sorted(rates)[1]
