"""id-echo: a FIFO queue into the learner's process; every item is delivered once. Only inserting compares: its consumer is the server."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

import echo
import numpy as np

from peers.peer import Peer, Work, Writer


def _example(work: Work) -> dict[str, Any]:
    return {name: np.zeros(([work.length] if work.length > 1 else []) + list(shape) or [1], dtype) for name, dtype, shape in work.fields}


def _serve(work: Work, port: Any, consumed: Any) -> None:
    """The learner's process: takes every batch, and counts."""
    server = echo.Server(_example(work), batch_size=work.batch, transport=echo.TcpTransport(port=0, num_threads=2), num_drainers=1)
    server.start()
    port.value = server.port
    for _ in server.dataset_iter():
        consumed.value += work.batch


class _Writer(Writer):
    """TcpClient.send, an item at a time: the client has no other way."""

    def __init__(self, work: Work, address: Any) -> None:
        port, self._consumed = address
        self._client = echo.TcpClient("127.0.0.1", port.value, _example(work))
        self._rows = [{name: np.atleast_1d(value) for name, value in row.items()} for row in work.rows(64 if work.name == "A" else 4096)]
        self._work, self._sent = work, 0

    def write(self) -> None:
        """See Writer."""
        self._client.send(self._rows[self._sent % len(self._rows)])
        self._sent += 1

    def finish(self) -> None:
        """See Writer: up to the last whole batch, which is all that ever comes out."""
        target = self._sent // self._work.batch * self._work.batch
        while self._consumed.value < target:
            os.sched_yield()

    def stored(self) -> int:
        """See Writer."""
        return int(self._consumed.value)

    def close(self) -> None:
        """See Writer."""
        self._client.close()


class Queue(Peer):
    """A server process that consumes at once."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        context = multiprocessing.get_context("spawn")
        self._port, self._consumed = context.Value("i", 0, lock=False), context.Value("q", 0, lock=False)
        self._process = context.Process(target=_serve, args=(work, self._port, self._consumed), daemon=True)
        self._process.start()
        while not self._port.value:
            self._process.join(0.02)
            if not self._process.is_alive():
                raise RuntimeError("the server process ended")

    def fill(self) -> None:
        """See Peer: a queue keeps nothing."""

    @staticmethod
    def writer(work: Work, address: Any, way: str) -> Writer:
        """See Peer."""
        return _Writer(work, address)

    @property
    def address(self) -> Any:
        """See Peer."""
        return self._port, self._consumed

    def close(self) -> None:
        """See Peer."""
        os.kill(self._process.pid or 0, signal.SIGKILL)
        self._process.join()
