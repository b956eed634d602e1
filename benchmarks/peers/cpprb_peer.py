"""cpprb: its prioritized buffer in process, and the one in shared memory between processes of one host."""

from __future__ import annotations

from typing import Any

import cpprb
import numpy as np

from peers.peer import Array, Peer, Work, Writer


class _Writer(Writer):
    """Chunks, or item by item, straight into the buffer; its index is what has been stored."""

    def __init__(self, work: Work, buffer: Any, way: str) -> None:
        self._buffer, self._count = buffer, 0
        self._rows = 1 if way == "add" else 512
        columns = work.columns(512)
        starts = range(0, 512, self._rows)
        self._chunks = [{name: column[at : at + self._rows] for name, column in columns.items()} for at in starts]
        if way == "add":
            self._chunks = [{name: column[0] for name, column in chunk.items()} for chunk in self._chunks]
        self._priorities = [work.priorities(self._rows, at).astype(np.float32) for at in starts]

    def write(self) -> None:
        """See Writer."""
        at = self._count // self._rows % len(self._chunks)
        self._buffer.add(**self._chunks[at], priorities=self._priorities[at])
        self._count += self._rows

    def finish(self) -> None:
        """See Writer: `add` returns when it is done."""

    def stored(self) -> int:
        """See Writer."""
        return self._count


class _Cpprb(Peer):
    """Either buffer; `kind` says which."""

    kind: Any

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        fields = {name: {"shape": shape or 1, "dtype": np.dtype(dtype)} for name, dtype, shape in work.fields}
        self._buffer = type(self).kind(work.items, fields, alpha=0.6, eps=1e-6)
        self._fresh = work.priorities(work.batch).astype(np.float32)

    def fill(self) -> None:
        """See Peer."""
        writer = self.writer(self.work, self._buffer, "chunk")
        while writer.stored() < self.work.items:
            writer.write()

    def _sample(self) -> dict[str, Array]:
        drawn: dict[str, Array] = self._buffer.sample(self.work.batch, beta=0.4)
        return drawn

    def draw(self) -> int:
        """See Peer."""
        return len(self._sample()["indexes"])

    def draw_and_update(self) -> int:
        """See Peer."""
        indexes = self._sample()["indexes"]
        self._buffer.update_priorities(indexes, self._fresh)
        return len(indexes)

    @staticmethod
    def writer(work: Work, address: Any, way: str) -> Writer:
        """See Peer."""
        return _Writer(work, address, way)

    @property
    def address(self) -> Any:
        """See Peer: the buffer itself, which forked processes inherit."""
        return self._buffer


class Inside(_Cpprb):
    """PrioritizedReplayBuffer."""

    kind = cpprb.PrioritizedReplayBuffer


class Shared(_Cpprb):
    """MPPrioritizedReplayBuffer. Its locks reach other processes by inheritance alone."""

    start_method = "fork"
    kind = cpprb.MPPrioritizedReplayBuffer
