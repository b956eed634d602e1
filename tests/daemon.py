"""A server in a process of its own, and an actor that plays to it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from memsvc_client import Actor
from serving import UNION


def numbered(i: int) -> dict[str, Any]:
    return {"obs": np.full(3, i, np.float32), "action": i, "reward": 0.0, "priority": 1.0}


def play(actor: Actor, steps: int = 20) -> None:
    for i in range(steps):
        actor.add(**numbered(i))
    actor.end_episode(True)


@contextlib.contextmanager
def daemon(address: str = "tcp://127.0.0.1:0", *tables: dict[str, Any]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    code = f"import sys, memsvc; s = memsvc.Server({as_dict(address, *tables)!r}); print(s.address, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def as_dict(address: str, *tables: dict[str, Any]) -> dict[str, Any]:
    """A configuration that another process can read."""
    from serving import STEP

    return {"server": {"address": address, "memory": "8MiB", "control": "", "http": ""}, "step": STEP, "table": list(tables or (UNION,))}
