"""Reverb: the server in a process of its own, its fastest writer and its dataset.

Settings are the best of those tried on two cores. Inserting: client.writer with one chunk a step and 1,000 items in flight takes a third of
TrajectoryWriter's CPU seconds, whatever its chunk length. Drawing: TrajectoryDataset with two batches in flight, batched and prefetched by tf.data,
two workers for small items and one for large; more workers, interleaved datasets or the bare Sampler were no faster.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

from peers.peer import Peer, Work, Writer


def _serve(work: Work, port: Any) -> None:
    table = reverb.Table(
        "replay",
        reverb.selectors.Prioritized(0.6),
        reverb.selectors.Fifo(),
        max_size=work.items,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    server = reverb.Server([table], port=None)
    port.value = server.port
    server.wait()


class _Writer(Writer):
    """reverb.Writer: a step a call; a chunk is the same, 512 times."""

    def __init__(self, work: Work, port: int, way: str) -> None:
        self._client = reverb.Client(f"localhost:{port}")
        self._length = work.length
        self._writer = self._client.writer(max_sequence_length=work.length, chunk_length=work.length, max_in_flight_items=1000)
        rows = work.rows({"A": 256, "B": 4096, "C": 16}[work.name])
        if work.length > 1:
            rows = [{name: value[t] for name, value in row.items()} for row in rows for t in range(work.length)]
        self._rows, self._at = rows, 0
        self._priorities = work.priorities(len(rows)).tolist()
        self._each = 512 if way == "chunk" else 1

    def write(self) -> None:
        """See Writer."""
        for _ in range(self._each):
            for _ in range(self._length):
                self._writer.append(self._rows[self._at])
                self._at = (self._at + 1) % len(self._rows)
            self._writer.create_item("replay", self._length, self._priorities[self._at])

    def finish(self) -> None:
        """See Writer."""
        self._writer.flush()

    def stored(self) -> int:
        """See Writer."""
        return int(self._client.server_info()["replay"].rate_limiter_info.insert_stats.completed)

    def close(self) -> None:
        """See Writer."""
        self._writer.close()


class Reverb(Peer):
    """One prioritized table."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        context = multiprocessing.get_context("spawn")
        port = context.Value("i", 0, lock=False)
        self._process = context.Process(target=_serve, args=(work, port), daemon=True)
        self._process.start()
        while not port.value:
            self._process.join(0.05)
            if not self._process.is_alive():
                raise RuntimeError("the server process ended")
        self._port: int = port.value
        self._client = reverb.Client(f"localhost:{self._port}")
        self._fresh = work.priorities(work.batch).tolist()
        self._batches: Any = None

    def fill(self) -> None:
        """See Peer."""
        writer = self.writer(self.work, self._port, "insert")
        for _ in range(self.work.items):
            writer.write()
        writer.finish()
        writer.close()

    def _next(self) -> Any:
        if self._batches is None:
            work = self.work
            dataset = reverb.TrajectoryDataset(
                f"localhost:{self._port}",
                "replay",
                dtypes={name: tf.as_dtype(dtype) for name, dtype, _ in work.fields},
                shapes={name: tf.TensorShape([None, *shape]) for name, _, shape in work.fields},
                max_in_flight_samples_per_worker=2 * work.batch,
                num_workers_per_iterator=2 if work.name == "B" else 1,
            )
            self._batches = dataset.batch(work.batch, drop_remainder=True).prefetch(2).as_numpy_iterator()
        return next(self._batches)

    def draw(self) -> int:
        """See Peer."""
        return len(self._next().info.key)

    def draw_and_update(self) -> int:
        """See Peer."""
        keys = self._next().info.key.reshape(self.work.batch, -1)[:, 0]
        self._client.mutate_priorities("replay", updates=dict(zip(keys.tolist(), self._fresh, strict=True)))
        return len(keys)

    def draw_alone(self) -> int:
        """See Peer."""
        sampler = self._client._client.NewSampler("replay", self.work.batch, self.work.batch)
        items = [sampler.GetNextTrajectory() for _ in range(self.work.batch)]
        columns = [np.stack(column) for column in zip(*items, strict=True)]
        return len(columns[0])

    @staticmethod
    def writer(work: Work, address: Any, way: str) -> Writer:
        """See Peer."""
        return _Writer(work, address, way)

    @property
    def address(self) -> Any:
        """See Peer."""
        return self._port

    def close(self) -> None:
        """See Peer."""
        os.kill(self._process.pid or 0, signal.SIGKILL)
        self._process.join()
