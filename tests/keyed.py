"""Servers with keys for tests, and somebody who asks them one thing at a time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from memsvc_client import ZmqEndpoint
from memsvc_proto.wire import Kind, Message
from serving import STEP, UNION


def settings(address: str, folder: Path | None) -> dict[str, Any]:
    """A small server's configuration."""
    server = {"address": address, "memory": "8MiB", "control": "", "http": "", "seed": 7, "keys": str(folder or "")}
    return {"server": server, "step": STEP, "table": [UNION]}


def play(actor: Any, n: int = 32) -> None:
    """n steps, acknowledged."""
    for i in range(n):
        actor.add(obs=np.full(3, i, np.float32), action=i, reward=float(i), priority=1.0)
    actor.end_episode(terminated=True)
    actor.flush(10)


class Asking:
    """A link that asks one thing at a time."""

    def __init__(self, address: str, file: Path | str, role: str = "door", shared: bool = False) -> None:
        self.endpoint = ZmqEndpoint(address, shared=shared, keys=file)
        self.link = self.endpoint.connect("door")
        self.seq = 0

    def ask(self, kind: Kind, timeout: float = 10.0, **parts: Any) -> Message:
        """The message that answers."""
        self.seq += 1
        self.link.send(Message(kind, self.seq, **parts))
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            message = self.link.receive(0.2)
            if message is not None and message.seq == self.seq:
                return message
        raise AssertionError("no answer")

    def hello(self, role: str) -> Message:
        """The answer to HELLO."""
        return self.ask(Kind.HELLO, meta={"role": role, "name": f"t-{role}", "pid": 1, "host": "h", "envs": 1, "versions": {}, "epoch": ""})

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *exception: object) -> None:
        self.link.close()
