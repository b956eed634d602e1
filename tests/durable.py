"""Engines with a data folder, without sockets; crashes by copying the folder as it is; and what a table holds, to be compared."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from memsvc_proto.wire import Kind
from serving import Playing, until

import memsvc
from memsvc.durability.keeper import Keeper
from memsvc.engine import Engine

STEP = {"id": {"dtype": "int64"}, "obs": {"dtype": "float32", "shape": [3]}}
UNION = {"name": "union", "item": {"kind": "step"}, "actor": {"select": "all"}, "priority": {"source": "given", "exponent": 1.0}}
CACHES = {"name": "replay", "item": {"kind": "step"}, "actor": {"cache": 16, "every": 16}, "priority": {"source": "given", "exponent": 1.0}}


def config(data: Path, *tables: dict[str, Any], step: dict[str, Any] | None = None, **server: Any) -> Any:
    """A checked configuration with a journal at `data`."""
    base = {"address": "tcp://127.0.0.1:0", "memory": "8MiB", "control": "", "http": "", "seed": 7, "durability": "journal", "data": str(data)}
    return memsvc.Config.from_dict({"server": {**base, **server}, "step": step or STEP, "table": list(tables or (UNION,))})


class Player(Playing):
    """An actor with a session; pushes are numbered, and `acknowledged` is the newest number that was."""

    def __init__(self, engine: Engine, name: str, session: int = 1, streams: tuple[int, ...] = (), first: int = 1) -> None:
        super().__init__(engine, name, session=f"{session:016x}", streams=list(streams), first=first)
        self.number = first - 1
        self.streams = self.welcome["streams"]

    def play(self, steps: int, priority: float | None = 1.0, version: int = -1) -> None:
        """One finished episode; obs says what id says."""
        for _ in range(steps):
            self.memory.add(0, {"id": self.steps, "obs": np.full(3, self.steps, np.float32)}, priority, version)
            self.steps += 1
        self.memory.end(0, True, None)

    def payload(self, draws: int = 64, table: int = 0) -> Any:
        """What is to be pushed next, or None."""
        return self.memory.draw(table, draws, 1 << 20, 0)

    def put(self, payload: Any, table: int = 0) -> int:
        """Pushes without waiting; returns the number."""
        self.number += 1
        self.say(Kind.PUSH, table=table, body=payload, b=self.number)
        return self.number

    @property
    def acknowledged(self) -> int:
        """Number of the newest push that is acknowledged."""
        return max((int(one.f) for one in self.of(Kind.ACK)), default=0)

    def give(self, draws: int = 64, table: int = 0, union: bool = True) -> None:
        """Pushes what there is (of caches: one), and waits until it is acknowledged."""
        while (payload := self.payload(draws, table)) is not None:
            number = self.put(payload, table)
            until(lambda number=number: self.acknowledged >= number)
            if not union:
                return


class House:
    """An engine with durability; a context, closed in order at its end."""

    def __init__(self, data: Path, *tables: dict[str, Any], on_mismatch: str | None = None, **server: Any) -> None:
        self.data = data
        self.keeper = Keeper(config(data, *tables, **server), on_mismatch)
        self.engine = Engine(self.keeper.config, keeper=self.keeper)
        self.keeper.attach(self.engine)
        self.open = True

    def __enter__(self) -> House:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """An orderly end."""
        if self.open:
            self.open = False
            self.keeper.close(10)

    def crash(self, to: Path) -> Path:
        """The folder as a power cut would leave it now; this engine goes on."""
        if to.exists():
            shutil.rmtree(to)
        shutil.copytree(self.data, to)
        return to

    @property
    def stats(self) -> dict[str, Any]:
        """Of durability."""
        return dict(self.engine.stats()["durability"])

    def table(self, index: int = 0) -> dict[str, Any]:
        """A table's statistics."""
        return dict(self.engine.stats()["tables"][index])

    def items(self, table: int = 0) -> dict[int, tuple[float, int]]:
        """{key: (value, id)} of what a table holds; each item's steps are looked at."""
        saved = self.engine.replay.save()
        found = saved.items(table)
        keys = found["key"]
        out = np.zeros((len(saved.row_keys), 24), np.uint8)
        assert self.engine.replay.rows(saved.row_keys, out).all()
        ids = dict(zip(saved.row_keys.tolist(), out[:, :8].copy().view(np.int64)[:, 0].tolist(), strict=True))
        for i, obs in zip(ids.values(), out[:, 8:20].copy().view(np.float32), strict=True):
            assert (obs == i).all()
        assert len(set(keys.tolist())) == len(keys)
        return {int(key): (float(value), ids[int(key)]) for key, value in zip(keys, found["value"], strict=True)}


def answer_to(peer: Any, seq: int) -> Any:
    """What has come for `seq`: of a table that counts deliveries once the journal is on disk."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for one in list(peer.got):
            if one.seq == seq:
                return one
        time.sleep(0.001)
    raise AssertionError(f"no answer to {seq}")
