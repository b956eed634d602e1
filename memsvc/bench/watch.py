"""Watch: what the server says of itself, its tables and what has arrived."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memsvc_client import Endpoint, Link
from memsvc_client.waiting import SLICE_S
from memsvc_client.welcome import greet, hello_message, unique_name
from memsvc_proto.errors import ConfigError, UnknownTable, Unreachable
from memsvc_proto.wire import Kind, Message

from .workloads import EPISODE, content_bytes, step_bytes

_ANSWER_S = 10.0
_GONE = ("evicted", "aged", "exhausted", "deleted")
_FILL_BYTES = 2 << 30  # most that a table without a bound of its own is filled with
_MEMORY_BYTES = 256 << 20  # most that an actor's memory is filled with


@dataclass(frozen=True)
class Count:
    """What a table has counted at `time` (time.monotonic): `arrived` items, or draws where actors send caches, and what it holds."""

    time: float
    arrived: int
    held: int
    """Items that can be drawn, at the server or, with caches, in all actors' memories."""
    store_bytes: float
    """Of the server's memory, all indices included, what the steps held take."""
    stored: int
    """Items in the store."""


class Watch:
    """A link of its own to the server of `endpoint`, as a learner that draws nothing. For one thread.

    Calls `check` several times a second while it waits; what that raises ends the wait. Raises Unreachable, UnknownTable, ConfigError where several
    tables are there and none is named.
    """

    def __init__(self, endpoint: Endpoint, table: str | None, check: Callable[[], None]) -> None:
        def clock() -> float:
            check()
            return time.monotonic()

        self._where, self._clock, self._seq = str(endpoint), clock, 1
        self._link: Link = endpoint.connect("door")
        try:
            welcome = greet(self._link, hello_message(1, "learner", unique_name("bench")), _ANSWER_S, self._where, clock)
            names = [str(settings["name"]) for settings in welcome.tables]
            if table is None and len(names) > 1:
                raise ConfigError(f"--table: there are {', '.join(names)}; say which one learners draw from")
            if table is not None and table not in names:
                raise UnknownTable(f"--table {table!r}: there is no such table; there are: {', '.join(names)}", tables=names)
        except BaseException:
            self._link.close()
            raise
        self._index = 0 if table is None else names.index(table)
        self.fields = welcome.raw_schema
        self.settings: Mapping[str, Any] = welcome.tables[self._index]
        self.table = names[self._index]
        self.tables = welcome.tables
        self.item_bytes = content_bytes(welcome.specs[self._index].columns)
        """Of one item in a batch."""
        self.step_bytes = step_bytes(self.fields)

    @property
    def whole(self) -> bool:
        """Whether the server holds every item, once; else actors hold them and send caches of draws."""
        return bool(self.settings["actor"]["select"] == "all")

    @property
    def given(self) -> bool:
        """Whether actors pass priorities."""
        return any(settings["priority"]["source"] == "given" for settings in self.tables)

    @property
    def unit(self) -> list[str]:
        """Fields that are discounts."""
        gammas = [part.get("gamma") for settings in self.tables for part in (settings["item"], settings["returns"] or {})]
        return [gamma for gamma in gammas if isinstance(gamma, str)]

    @property
    def waits(self) -> str:
        """The setting that makes one side wait for the other, or ""."""
        limits, capacity = self.settings["limits"], self.settings["capacity"]
        if limits["samples_per_insert"] > 0:
            return "limits.samples_per_insert"
        if capacity["when_full"] == "block":
            return 'capacity.when_full = "block"'
        return "limits.max_times_sampled" if limits["max_times_sampled"] else ""

    @property
    def episode(self) -> int:
        """Steps of an episode to play, so that it has items."""
        item = self.settings["item"]
        return max(EPISODE, 3 * int(item["length"]), 2 * int(item["n_step"]))

    @property
    def fresh_steps(self) -> float:
        """Steps that one more item brings, in the middle of an episode."""
        item = self.settings["item"]
        return float(min(item["stride"], item["length"])) if item["kind"] == "sequence" else 1.0

    def envs(self) -> int:
        """Environments of an actor, so that its memory holds two episodes of each: 16 at most."""
        return int(max(1, min(16, self.settings["actor"]["max_steps"] // (2 * self.episode))))

    def fill_steps(self, actors: int, envs: int) -> int:
        """Steps that each of so many actors records first, so that the table is full: a little more than it holds, or than actors' memories hold.
        0 where writers would wait for learners.
        """
        if not self.whole:
            bound = min(int(self.settings["actor"]["max_steps"]), _MEMORY_BYTES // max(1, self.step_bytes))
            return max(4 * envs, bound)
        if self.waits:
            return 0
        item, capacity = self.settings["item"], int(self.settings["capacity"]["items"])
        room = int(self._stats()["capacity_steps"])
        steps = room if not capacity else min(room, math.ceil(capacity * self.fresh_steps))
        steps = min(steps, _FILL_BYTES // max(1, self.step_bytes))
        # Overlapping windows lose some of their number at the end of an episode.
        lost = 1 + (item["length"] - item["stride"]) / self.episode if item["kind"] == "sequence" else 1.0
        steps = max(steps, int(self.settings["limits"]["min_items"] * self.fresh_steps))
        return math.ceil(1.05 * lost * steps / actors) + envs * self.episode

    def count(self) -> Count:
        """The counts now. Raises Unreachable."""
        before = time.monotonic()
        stats = self._stats()
        table = stats["tables"][self._index]
        now = (before + time.monotonic()) / 2
        arrived = table["items"] + sum(table[key] for key in _GONE) if self.whole else sum(actor["received"] for actor in table["actors"])
        used = stats["bytes"] * stats["steps"] / max(1, stats["capacity_steps"])
        return Count(now, int(arrived), int(table["population"]), used, int(table["items"]))

    def held(self) -> int:
        """Items that can be drawn, of all tables together."""
        return sum(int(table["population"]) for table in self._stats()["tables"])

    def players(self) -> int:
        """Actors that are connected."""
        return sum(peer["role"] == "actor" for peer in self._stats()["peers"])

    def others(self) -> int:
        """Clients of the server that are connected, this one not counted."""
        return len({peer["name"] for peer in self._stats()["peers"]}) - 1

    def pid(self) -> int | None:
        """The server's process where it runs on this machine, as far as can be seen from here; else None."""
        host = self._where.partition("://")[2].rpartition(":")[0]
        near = self._where.startswith("ipc:") or host in ("localhost", "127.0.0.1", "[::1]", socket.gethostname())
        pid = int(self._stats()["pid"])
        return pid if near and (pid == os.getpid() or Path(f"/proc/{pid}").exists()) else None

    def close(self) -> None:
        """Frees the link; idempotent."""
        self._link.close()

    def _stats(self) -> dict[str, Any]:
        self._seq += 1
        self._link.send(Message(Kind.STATS, self._seq))
        deadline = time.monotonic() + _ANSWER_S
        while (left := deadline - self._clock()) > 0:
            message = self._link.receive(min(left, SLICE_S))
            if message is not None and message.kind is Kind.STATS and message.seq == self._seq:
                return dict(message.meta)
        raise Unreachable(f"the server at {self._where} has not told its statistics within {_ANSWER_S:g} s", address=self._where)
