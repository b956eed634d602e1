"""A link of a test that loses, repeats and reorders messages, and the servers behind it, which go and come."""

from __future__ import annotations

import random
import threading
from collections import deque
from typing import Any

import numpy as np
from memsvc_proto import wire
from memsvc_proto.wire import Kind, Message
from serving import Inbox, config

from memsvc.engine import Engine

STEP = {"id": {"dtype": "int64"}, "pad": {"dtype": "uint8", "shape": [200]}}


class Wild:
    """A link of a test: messages wait in two queues, and `rng` says which are lost, sent twice, or overtaken. Connections break and begin anew, with
    the same peer (as zmq does behind the scenes) or a new one. `calm` ends all that.
    """

    transport = "socket"
    parted = False
    slots = None
    malformed = renewed = breaks = 0
    trouble = ""
    refused = False
    moved = 0.0

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng
        self.up: deque[bytes] = deque()
        self.peer = Inbox(world.engine, "door")
        self.woken = threading.Event()
        self.closed = False

    def send(self, message: Message, frame: Any = None) -> None:
        if message.kind is Kind.PUSH and self.world.loses:
            self.world.loses -= 1
        elif frame is None:
            self.up.append(wire.pack(message))
        else:
            wire.pack_into(message, frame)
            self.up.append(frame.tobytes())

    def reserve(self, size: int) -> None: ...

    def let_go(self, seq: int) -> None: ...

    def withdraw(self, seq: int) -> None: ...

    def share(self, *_: Any, **__: Any) -> None: ...

    def wake(self) -> None:
        self.woken.set()

    def close(self) -> None:
        self.closed = True

    def receive(self, timeout_s: float) -> Message | None:
        self._weather()
        while self.up:
            raw = self.up.popleft()
            times = 2 if self._happens(0.05) else 1
            for _ in range(times):
                self.world.engine.handle(self.peer, wire.unpack(raw))
            if self._happens(0.1) and len(self.up) > 1:
                self.up.rotate(1)
            if self._happens(0.3):
                break
        got = self.peer.got
        if self._happens(0.05) and len(got) > 1:
            got[0], got[1] = got[1], got[0]
        if got and not self.world.held:
            message = got.pop(0)
            if self._happens(0.05):
                got.append(message)
            return wire.unpack(bytearray(wire.pack(message)))
        self.woken.wait(min(timeout_s, 0.002))
        self.woken.clear()
        return None

    def _happens(self, chance: float) -> bool:
        return not self.world.calm and self.rng.random() < chance

    def _weather(self) -> None:
        if self._happens(0.01):  # cut and made anew: part of what was under way is lost
            for queue in (self.up, self.peer.got):
                for _ in range(self.rng.randint(0, len(queue))):
                    queue.pop()
        if self._happens(0.005):
            self.world.engine.lost(self.peer)
            self.peer = Inbox(self.world.engine, "door")
        if self._happens(0.003):
            self.peer = Inbox(self.world.engine, "door")  # the old one is not noticed yet
        if self._happens(self.world.restarts):
            self.world.restart()
            self.up.clear()
            self.peer = Inbox(self.world.engine, "door")


class World:
    """An engine, an endpoint whose links are Wild, and what all engines so far have counted."""

    ahead = True

    def __init__(self, seed: int, *tables: dict[str, Any], restarts: float = 0.0, engine: Engine | None = None) -> None:
        self.rng = random.Random(seed)
        self.tables, self.restarts, self.calm = tables, restarts, False
        self.loses = 0  # so many of the pushes to come
        self.engine = engine or self._made()
        self.links: list[Wild] = []
        self.held = False  # nothing that the server says arrives

    def __str__(self) -> str:
        return "a wild link"

    def connect(self, role: str) -> Wild:
        self.links.append(Wild(self))
        return self.links[-1]

    def restart(self) -> None:
        self.engine = self._made()

    def _made(self) -> Engine:
        return Engine(config("tcp://127.0.0.1:0", *self.tables, step=STEP))

    def ids(self, streams: list[int], steps: int) -> dict[int, int]:
        """What the engine's first table holds of these streams: the id stored under each step number."""
        engine, spec = self.engine, self.engine.tables[0].spec
        keys = np.array([(stream << 36) + step for stream in streams for step in range(steps)], np.uint64)
        size, layout = spec.layout(len(keys))
        out = np.zeros(size, np.uint8)
        found = engine.replay.get(0, keys, out, 0)[0]
        _, layout = spec.layout(found)
        at = {name: offset for name, _, _, offset in layout}
        ids = out[at["id"] :][: 8 * found].view(np.int64)
        return dict(zip(out[at["keys"] :][: 8 * found].view(np.uint64).tolist(), ids.tolist(), strict=True))


def record(i: int) -> dict[str, Any]:
    return {"id": i, "pad": np.full(200, i % 251, np.uint8)}


def balanced(stats: dict[str, Any]) -> bool:
    box = stats["outbox"]
    parts = ("acknowledged", "pending", "refused", "lost")
    return all(box["sent"][unit] == sum(box[part][unit] for part in parts) for unit in ("pushes", "items", "bytes"))
