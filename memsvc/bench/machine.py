"""What figures are measured on and against: the machine, CPU seconds of processes, and what a plain memcpy reaches in the same run."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np


def describe() -> dict[str, Any]:
    """CPU model, cores this process may use, memory in GiB, kernel, Python and numpy, and the load (1 minute) that was there before the run."""
    model: list[str] = []
    with contextlib.suppress(OSError):
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


def now() -> str:
    """UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system seconds of these processes, all threads, so far. The resolution is a clock tick (10 ms). OSError: one has ended."""
    tick = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in pids:
        # The command's name, in brackets, may hold blanks: count fields behind it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / tick
    return total


def memcpy_rate(seconds: float = 0.2) -> float:
    """Bytes/s of copying 64 MiB, beyond most caches: the median of three parts of `seconds`."""
    source, target = np.ones(1 << 26, np.uint8), np.ones(1 << 26, np.uint8)
    return rate(lambda: np.copyto(target, source), source.nbytes, seconds)


def rate(call: Callable[[], object], amount: int, seconds: float) -> float:
    """`amount` times calls a second: the median of three parts of `seconds`, after one call that is not counted."""
    call()
    rates = []
    for _ in range(3):
        calls, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds / 3:
            call()
            calls += 1
        rates.append(calls * amount / (time.perf_counter() - start))
    return sorted(rates)[1]
