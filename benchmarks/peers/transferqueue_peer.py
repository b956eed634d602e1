"""TransferQueue: a store of LLM trainers. It has no priorities and evicts nothing: draws are uniform, what was inserted is cleared between runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue.sampler import BaseSampler

from peers.peer import Array, Peer, Work, Writer

_ROWS = {"A": 512, "B": 4096}


class Uniform(BaseSampler):  # type: ignore[misc]
    """Uniform draws with replacement; nothing is ever consumed."""

    def __init__(self) -> None:
        super().__init__()
        self._rng = np.random.default_rng(1)

    def sample(self, ready_indexes: list[int], batch_size: int, *args: Any, **kwargs: Any) -> tuple[list[int], list[int]]:
        """Indexes drawn, and those that are used up."""
        return [ready_indexes[i] for i in self._rng.integers(0, len(ready_indexes), batch_size)], []


def _whole(column: Any, rows: int) -> Array:
    """The column as one numpy array: rows come back as a jagged tensor, whose values lie in one piece."""
    values = column.values() if column.is_nested else column
    return np.asarray(values.numpy()).reshape(rows, -1)


class _Writer(Writer):
    """`put` of many rows at once."""

    def __init__(self, work: Work, address: str, way: str) -> None:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level="error")
            tq.init()
        self._client = tq.get_client()
        self._partition = "table" if way == "fill" else "inserted"
        self._rows = min(_ROWS[work.name], work.items)
        columns = {name: torch.from_numpy(np.array(column)) for name, column in work.columns(self._rows).items()}
        self._batch = TensorDict({name: column if column.ndim > 1 else column[:, None] for name, column in columns.items()}, batch_size=self._rows)
        self._count = 0

    def write(self) -> None:
        """See Writer: returns when it is stored."""
        self._client.put(self._batch, partition_id=self._partition)
        self._count += self._rows

    def finish(self) -> None:
        """See Writer."""

    def stored(self) -> int:
        """See Writer: puts that were confirmed."""
        return self._count

    def make_room(self) -> None:
        """See Writer."""
        if self._count:
            self._client.clear_partition(self._partition)


class TransferQueue(Peer):
    """A Ray of its own, the controller, and two storage units."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        context = ray.init(
            address="local", num_cpus=4, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False, logging_level="error"
        )
        self._address: str = context.address_info["gcs_address"]
        tq.init(OmegaConf.create({"controller": {"sampler": Uniform()}}, flags={"allow_objects": True}))
        self._client = tq.get_client()
        self._names = [name for name, _, _ in work.fields]

    def fill(self) -> None:
        """See Peer."""
        writer = _Writer(self.work, self._address, "fill")
        while writer.stored() < self.work.items:
            writer.write()

    def draw(self) -> int:
        """See Peer."""
        meta = self._client.get_meta(data_fields=self._names, batch_size=self.work.batch, partition_id="table", mode="fetch", task_name="learn")
        data = self._client.get_data(meta)
        columns = [_whole(data[name], self.work.batch) for name in self._names]
        return len(columns[0])

    @staticmethod
    def writer(work: Work, address: Any, way: str) -> Writer:
        """See Peer."""
        return _Writer(work, address, way)

    @property
    def address(self) -> Any:
        """See Peer."""
        return self._address

    def close(self) -> None:
        """See Peer."""
        tq.close()
        ray.shutdown()
