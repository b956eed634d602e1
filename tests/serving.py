"""Servers for tests: small, on a free port, in process or over sockets; and peers of an engine that has none."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from memsvc_core import Memory, Schema, TableSpec
from memsvc_proto.wire import Kind, Message

import memsvc
from memsvc.engine import Engine
from memsvc.peer import Peer

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


class Inbox(Peer):
    """A peer of an engine without a carrier: it keeps what it is sent, in `got`."""

    def __init__(self, engine: Engine, link: str = "draw") -> None:
        super().__init__(link)
        self.engine = engine
        self.got: list[Message] = []
        self.seq = 0

    def send(self, message: Message, frame: Any = None) -> None:
        self.got.append(message)

    def in_flight(self) -> int:
        return 0

    def say(self, kind: Kind, **parts: Any) -> int:
        """Gives the engine a message; returns its seq."""
        self.seq += 1
        self.engine.handle(self, Message(kind, self.seq, **parts))
        return self.seq

    def ask(self, kind: Kind, **parts: Any) -> Message:
        """The last answer to a message."""
        seq = self.say(kind, **parts)
        return next(one for one in reversed(self.got) if one.seq == seq)

    def of(self, *kinds: Kind) -> list[Message]:
        """What came of these kinds."""
        return [one for one in self.got if one.kind in kinds]

    def hello(self, role: str, name: str, **more: Any) -> Message:
        """The answer to a HELLO."""
        return self.ask(Kind.HELLO, meta={"role": role, "name": name, "pid": 1, "host": "h", "versions": {}, "epoch": "", **more})

    def sample(self, batch: int, table: int = 0, timeout: float = 30.0, **meta: Any) -> int:
        """Asks for a batch; returns the seq."""
        return self.say(Kind.SAMPLE, table=table, a=batch, f=timeout, meta=meta)


class Playing(Inbox):
    """An actor of an engine: the core's local memory, and steps whose `id` counts them."""

    def __init__(self, engine: Engine, name: str, envs: int = 1, **more: Any) -> None:
        super().__init__(engine, "door")
        self.welcome = self.hello("actor", name, envs=envs, **more).meta
        schema = Schema([(n, d, tuple(s)) for n, d, s in self.welcome["schema"]])
        self.specs = [TableSpec(schema, one) for one in self.welcome["tables"]]
        self.memory = Memory(schema, self.specs, self.welcome["streams"], 3)
        self.steps = 0

    def play(self, steps: int, priority: float | None = 1.0, version: int = -1) -> None:
        """One finished episode."""
        for _ in range(steps):
            self.memory.add(0, {"id": self.steps}, priority, version)
            self.steps += 1
        self.memory.end(0, True, None)

    def push(self, draws: int = 1 << 12, table: int = 0) -> Message:
        """Sends what there is, as a payload; returns its ACK."""
        payload = self.memory.draw(table, draws, 1 << 20, 0)
        assert payload is not None
        return self.ask(Kind.PUSH, table=table, body=payload)

    def acks(self) -> list[Message]:
        """Acknowledgements so far; forgets them."""
        found = self.of(Kind.ACK)
        self.got = [one for one in self.got if one.kind is not Kind.ACK]
        return found


def columns(spec: TableSpec, message: Message) -> dict[str, np.ndarray]:
    """A BATCH's columns, or those of ITEMS."""
    size, layout = spec.layout(message.a) if message.a else (0, [])
    body = np.frombuffer(message.body, np.uint8)
    assert body.nbytes == size
    return {n: body[at : at + np.dtype(d).itemsize * int(np.prod(s))].view(d).reshape(s) for n, d, s, at in layout}
