"""RLlib: its multi-agent prioritized buffer in a Ray actor, as Ape-X of RLlib holds it; batches travel through Ray's object store."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import ray
from ray.rllib.policy.sample_batch import DEFAULT_POLICY_ID, SampleBatch
from ray.rllib.utils.replay_buffers import MultiAgentPrioritizedReplayBuffer

from peers.peer import Array, Peer, Work, Writer

_AHEAD = 3  # calls under way, drawing as inserting: more gained nothing
_ROWS = {"insert": {"A": 64, "B": 512}, "chunk": {"A": 512, "B": 512}, "add": {}}


class Table:
    """The actor: RLlib's buffer, and a count of what it took."""

    def __init__(self, items: int) -> None:
        self._buffer = MultiAgentPrioritizedReplayBuffer(
            capacity=items, prioritized_replay_alpha=0.6, prioritized_replay_beta=0.4, prioritized_replay_eps=1e-6
        )
        self._taken = 0

    def add(self, batch: Any) -> None:
        """Rows with their weights."""
        self._buffer.add(batch)
        self._taken += batch.count

    def sample(self, rows: int) -> dict[str, Array]:
        """The columns of a batch."""
        drawn = self._buffer.sample(rows).policy_batches[DEFAULT_POLICY_ID]
        return {name: np.asarray(drawn[name]) for name in drawn}

    def update(self, index: Array, priorities: Array) -> None:
        """New priorities."""
        self._buffer.update_priorities({DEFAULT_POLICY_ID: (index, priorities)})

    def taken(self) -> int:
        """Items that have arrived."""
        return self._taken


class _Writer(Writer):
    """Batches of rows by an actor call, a few under way at a time."""

    def __init__(self, work: Work, address: str, way: str) -> None:
        if not ray.is_initialized():
            ray.init(address=address, namespace="compare", log_to_driver=False, logging_level="error")
        self._table: Any = ray.get_actor("table", namespace="compare")
        each = _ROWS[way].get(work.name, 1)
        columns = work.columns(4 * each) | {"weights": work.priorities(4 * each)}
        self._batches = [SampleBatch({name: column[at : at + each] for name, column in columns.items()}) for at in range(0, 4 * each, each)]
        self._count = 0
        self._under_way: list[Any] = []

    def write(self) -> None:
        """See Writer."""
        if len(self._under_way) >= _AHEAD:
            ray.get(self._under_way.pop(0))
        self._under_way.append(self._table.add.remote(self._batches[self._count % len(self._batches)]))
        self._count += 1

    def finish(self) -> None:
        """See Writer."""
        ray.get(self._under_way)
        self._under_way.clear()

    def stored(self) -> int:
        """See Writer."""
        return int(ray.get(self._table.taken.remote()))


class Rllib(Peer):
    """A Ray of its own and the actor in it."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        context = ray.init(
            address="local",
            namespace="compare",
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=600 << 20,
            log_to_driver=False,
            logging_level="error",
        )
        self._address: str = context.address_info["gcs_address"]
        self._table: Any = ray.remote(Table).options(name="table", num_cpus=0).remote(work.items)
        ray.get(self._table.taken.remote())
        self._fresh = work.priorities(work.batch)
        self._asked: list[Any] = []
        self._updates: list[Any] = []

    def fill(self) -> None:
        """See Peer."""
        writer = self.writer(self.work, self._address, "chunk")
        for _ in range(-(-self.work.items // 512)):
            writer.write()
        writer.finish()

    def _next(self) -> dict[str, Array]:
        while len(self._asked) < _AHEAD:
            self._asked.append(self._table.sample.remote(self.work.batch))
        got: dict[str, Array] = ray.get(self._asked.pop(0))
        return got

    def draw(self) -> int:
        """See Peer."""
        return len(self._next()["batch_indexes"])

    def draw_and_update(self) -> int:
        """See Peer."""
        index = self._next()["batch_indexes"]
        self._updates = [*self._updates[-_AHEAD:], self._table.update.remote(index, self._fresh)]
        return len(index)

    def draw_alone(self) -> int:
        """See Peer."""
        while self._asked:
            ray.get(self._asked.pop())
        return len(ray.get(self._table.sample.remote(self.work.batch))["batch_indexes"])

    def settle(self) -> None:
        """See Peer."""
        ray.get(self._updates)

    @staticmethod
    def writer(work: Work, address: Any, way: str) -> Writer:
        """See Peer."""
        return _Writer(work, address, way)

    @property
    def address(self) -> Any:
        """See Peer."""
        return self._address

    def close(self) -> None:
        """See Peer. Ray's processes take a moment."""
        ray.shutdown()
        time.sleep(0.2)
