"""Servers for the client's tests: small, on a free port, in process or over sockets."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import memsvc

KINDS = ("local", "tcp", "ipc")
STEP = {
    "obs": {"dtype": "float32", "shape": [3]},
    "action": {"dtype": "int32"},
    "reward": {"dtype": "float32"},
}
UNION = {"name": "union", "item": {"kind": "step"}, "actor": {"select": "all", "linger_ms": 5}, "priority": {"source": "given", "exponent": 1.0}}
CACHES = {
    "name": "replay",
    "item": {"kind": "transition", "n_step": 1, "next": ["obs"]},
    "actor": {"cache": 16, "every": 16, "linger_ms": 5},
    "priority": {"source": "max"},
}


class Served:
    """A running server and how a client is told of it: `where` is an address, or an endpoint in process."""

    def __init__(self, server: Any, kind: str) -> None:
        self.server = server
        self.where: Any = server.endpoint if kind == "local" else server.address

    def actor(self, **settings: Any) -> Any:
        from memsvc_client import Actor

        return Actor(self.where, **{"timeout": 10, **settings})

    def learner(self, **settings: Any) -> Any:
        from memsvc_client import Learner

        return Learner(self.where, **{"timeout": 10, **settings})

    def table(self, index: int = 0) -> dict[str, Any]:
        return dict(self.server.stats()["tables"][index])


def config(address: str, *tables: dict[str, Any], step: dict[str, Any] | None = None, memory: str = "8MiB") -> Any:
    """A checked configuration without gRPC."""
    server = {"address": address, "memory": memory, "control": "", "http": "", "seed": 7}
    return memsvc.Config.from_dict({"server": server, "step": step or STEP, "table": list(tables or (UNION,))})


@contextlib.contextmanager
def serve(kind: str, tmp_path: Path, *tables: dict[str, Any], step: dict[str, Any] | None = None, memory: str = "8MiB") -> Iterator[Served]:
    """A server of its own for one test."""
    address = f"ipc://{tmp_path}/s" if kind == "ipc" else "tcp://127.0.0.1:0"
    with memsvc.Server(config(address, *tables, step=step, memory=memory)) as server:
        yield Served(server, kind)


def until(done: Callable[[], Any], timeout: float = 10.0) -> Any:
    """Looks until `done()` is true, and returns it; fails the test when it does not become so."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = done()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError("it did not happen in time")


def background(call: Callable[[], Any]) -> Callable[[float], Any]:
    """Runs `call` in a thread; what it returns joins and gives the result, or the exception as a value."""
    out: list[Any] = []

    def run() -> None:
        try:
            out.append(call())
        except Exception as error:
            out.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result(timeout: float = 10.0) -> Any:
        thread.join(timeout)
        assert not thread.is_alive(), "the call still waits"
        return out[0]

    return result
