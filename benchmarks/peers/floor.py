"""The floor: columns of numpy, a ring index, uniform random indices and one take a column. No priorities, no process, no lock."""

from __future__ import annotations

import numpy as np

from peers.peer import Array, Peer, Work


class Ring(Peer):
    """A ring of preallocated columns."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._rng = np.random.default_rng(1)
        one = work.columns(1)
        self._columns: dict[str, Array] = {name: np.zeros((work.items, *column.shape[1:]), column.dtype) for name, column in one.items()}
        self._out: dict[str, Array] = {name: np.zeros((work.batch, *column.shape[1:]), column.dtype) for name, column in one.items()}

    def fill(self) -> None:
        """See Peer."""
        rows = 16 if self.work.length > 1 else 256
        chunk = self.work.columns(rows)
        for start in range(0, self.work.items, rows):
            for name, column in self._columns.items():
                part = column[start : start + rows]
                part[:] = chunk[name][: len(part)]

    def draw(self) -> int:
        """See Peer."""
        chosen = self._rng.integers(0, self.work.items, self.work.batch)
        for name, column in self._columns.items():
            np.take(column, chosen, axis=0, out=self._out[name], mode="clip")
        return self.work.batch
