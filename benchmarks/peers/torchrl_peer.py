"""torchrl: its tensordict buffer with a prioritized sampler and contiguous storage, in process."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

from peers.peer import Peer, Work


class Prioritized(Peer):
    """TensorDictPrioritizedReplayBuffer over LazyTensorStorage; numpy arrays share the tensors' memory."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        storage = LazyTensorStorage(work.items)
        self._buffer = TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=storage, batch_size=work.batch, priority_key="priority")
        self._fresh = torch.from_numpy(work.priorities(work.batch)).float()
        self._names = [name for name, _, _ in work.fields]

    def fill(self) -> None:
        """See Peer."""
        rows = 512
        columns = {name: torch.from_numpy(column.copy()) for name, column in self.work.columns(rows).items()}
        for start in range(0, self.work.items, rows):
            index = self._buffer.extend(TensorDict(columns, batch_size=rows), update_priority=False)
            self._buffer.update_priority(index, torch.from_numpy(self.work.priorities(rows, start)).float())

    def draw(self) -> int:
        """See Peer."""
        drawn = self._buffer.sample()
        columns = [drawn[name].numpy() for name in self._names]
        return len(columns[0])

    def draw_and_update(self) -> int:
        """See Peer."""
        drawn = self._buffer.sample()
        self._buffer.update_priority(drawn["index"], self._fresh)
        return len(drawn["index"])
