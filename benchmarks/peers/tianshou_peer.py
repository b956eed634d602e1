"""tianshou: its prioritized vector buffer, in process."""

from __future__ import annotations

from typing import Any

import numpy as np
from tianshou.data import Batch, PrioritizedVectorReplayBuffer

from peers.peer import Peer, Work

_ENVS = 16  # buffers side by side; a vectorised add takes one row of each


class Vector(Peer):
    """The fields under tianshou's own names; what has none of them goes to `info`. obs_next is kept where the workload has it."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._buffer = PrioritizedVectorReplayBuffer(total_size=work.items, buffer_num=_ENVS, alpha=0.6, beta=0.4)
        self._fresh = work.priorities(work.batch)

    def fill(self) -> None:
        """See Peer."""
        rows = 32 * _ENVS
        columns, ends = self.work.columns(rows), np.zeros(_ENVS, np.bool_)
        batches = []
        for at in range(0, rows, _ENVS):
            part: dict[str, Any] = {name: column[at : at + _ENVS] for name, column in columns.items()}
            names = {"obs": part["obs"], "act": part["action"], "rew": part["reward"], "info": Batch(discount=part["discount"])}
            after = {"obs_next": part["next_obs"]} if "next_obs" in part else {}
            batches.append(Batch(**names, **after, terminated=ends, truncated=ends))
        for turn in range(-(-self.work.items // _ENVS)):
            self._buffer.add(batches[turn % len(batches)])
        for start in range(0, len(self._buffer), rows):
            index = np.arange(start, min(start + rows, len(self._buffer)))
            self._buffer.update_weight(index, self.work.priorities(len(index), start))

    def draw(self) -> int:
        """See Peer."""
        return len(self._buffer.sample(self.work.batch)[1])

    def draw_and_update(self) -> int:
        """See Peer."""
        index = self._buffer.sample(self.work.batch)[1]
        self._buffer.update_weight(index, self._fresh)
        return len(index)
