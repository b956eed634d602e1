"""What a measured system implements, in its own environment: a table, a learner that draws, and writers that insert. numpy alone, Python 3.10 on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Work:
    """A workload as plain data: an item has `length` steps of `fields` (name, dtype, shape of a step); a table of `items`, batches of `batch`."""

    name: str
    fields: list[tuple[str, str, list[int]]]
    length: int
    items: int
    batch: int
    config: str  # memsvc.toml of the workload, which memsvc alone reads

    @property
    def item_bytes(self) -> int:
        """Bytes of one item's columns."""
        return self.length * sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for _, dtype, shape in self.fields)

    def columns(self, items: int, seed: int = 0) -> dict[str, Array]:
        """Random items, [items, (length,) ...] a field: bytes that do not compress, or normal floats."""
        rng = np.random.default_rng(seed)
        made: dict[str, Array] = {}
        for name, dtype, shape in self.fields:
            whole = (items, *((self.length,) if self.length > 1 else ()), *shape)
            if np.dtype(dtype).kind == "f":
                made[name] = rng.standard_normal(whole, np.float32).astype(dtype)
            elif dtype == "uint8":
                made[name] = np.frombuffer(rng.bytes(int(np.prod(whole))), np.uint8).reshape(whole)
            else:
                made[name] = rng.integers(0, 18, whole).astype(dtype)
        return made

    def rows(self, items: int, seed: int = 0) -> list[dict[str, Array]]:
        """The same, a dict an item."""
        columns = self.columns(items, seed)
        return [{name: column[i] for name, column in columns.items()} for i in range(items)]

    def priorities(self, items: int, seed: int = 0) -> Array:
        """float64[items], uniform in (.01, 1.01]."""
        return 1.01 - np.random.default_rng(seed).random(items)


class Writer(ABC):
    """One actor's way in. Used by one thread; made in the process that inserts."""

    @abstractmethod
    def write(self) -> None:
        """Inserts one item, or one chunk of them; may return before they arrived, and waits where the system's window is full."""

    @abstractmethod
    def finish(self) -> None:
        """Returns when everything written has arrived at the server."""

    @abstractmethod
    def stored(self) -> int:
        """Items that have arrived at the server so far, by its own count where it keeps one."""

    def make_room(self) -> None:  # noqa: B027 (most systems evict by themselves)
        """Called between runs: deletes what a system that evicts nothing still holds."""

    def close(self) -> None:  # noqa: B027 (some writers have no connection)
        """Frees the writer's connection."""


class Peer:
    """One system with one table of the workload's size, served as its makers advise. What a system lacks, its methods leave to these, which raise.

    The constructor starts it and returns when it serves; close() ends every process that it started.
    """

    start_method = "spawn"  # of the actor process of "mixed"

    def __init__(self, work: Work) -> None:
        self.work = work

    def fill(self) -> None:
        """Writes until the table holds work.items items."""
        raise NotImplementedError(f"{type(self).__name__} cannot be filled")

    def draw(self) -> int:
        """One batch as stacked numpy arrays in the learner's hands, asked ahead where the system can; items in it."""
        raise NotImplementedError(f"{type(self).__name__} draws no batches")

    def draw_and_update(self) -> int:
        """draw, then a new priority for every item of the batch."""
        raise NotImplementedError(f"{type(self).__name__} takes no priorities back")

    def draw_alone(self) -> int:
        """draw with nothing asked ahead: the call is the round trip."""
        return self.draw()

    def settle(self) -> None:
        """Waits until what draw_and_update sent has been taken in, where that can be asked."""

    @staticmethod
    def writer(work: Work, address: Any, way: str) -> Writer:
        """A writer for `address`, in whatever process this is called. `way`: "insert" (the fastest), "add" (one by one), "chunk" (512 at a time)."""
        raise NotImplementedError("this system has no writer of its own")

    @property
    def address(self) -> Any:
        """What a process started by multiprocessing needs in order to write."""
        raise NotImplementedError(f"{type(self).__name__} cannot be reached from another process")

    def close(self) -> None:
        """Ends what the constructor started."""
