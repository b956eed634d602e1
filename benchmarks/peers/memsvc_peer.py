"""memsvc itself: the daemon in a process of its own, by shared memory or by sockets alone, and the server in its user's process."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from memsvc_client import Actor, Endpoint, Learner, ZmqEndpoint

import memsvc
from memsvc.children import Children
from peers.peer import Peer, Work, Writer

_EPISODE = 240  # steps; three whole sequences of 80
_TICKS = 16  # of random data, used in turn
_ENVS = {"fill": {"A": 16, "B": 256, "C": 16}, "insert": {"A": 16, "B": 512, "C": 16}, "chunk": {"A": 512, "B": 512, "C": 16}, "add": {}}


def _stored(learner: Any) -> int:
    table = learner.server_stats(timeout=60)["tables"][0]
    return int(table["items"]) + int(table["evicted"])


class _Writer(Writer):
    """Steps of several environments by add_batch, or of one by add."""

    def __init__(self, work: Work, endpoint: str | Endpoint, way: str) -> None:
        self._envs = _ENVS[way].get(work.name, 1)
        self._alone = way == "add"
        self._actor = Actor(endpoint, name=f"compare-{way}-{os.getpid()}", envs=self._envs)
        self._watch = Learner(endpoint, table="replay", batch_size=1, prefetch=0)
        # The service makes the discount of sequences: what it lists are the fields to give.
        names = [name for name, _, _ in work.fields if work.length == 1 or name != "discount"]
        columns = work.columns(max(1, _TICKS * self._envs // work.length))
        flat = {name: columns[name].reshape(-1, *columns[name].shape[2 if work.length > 1 else 1 :]) for name in names}
        rows = len(flat[names[0]])
        self._priorities = work.priorities(rows)
        self._tick = 0
        if self._alone:
            self._steps = [{name: column[i] if column.ndim > 1 else column[i].item() for name, column in flat.items()} for i in range(rows)]
            self._each = self._priorities.tolist()
        else:
            starts = range(0, rows - self._envs + 1, self._envs)
            self._steps = [{name: column[at : at + self._envs] for name, column in flat.items()} for at in starts]
            self._each = [self._priorities[at : at + self._envs] for at in starts]
        self._last = np.ones(self._envs, np.bool_)

    def write(self) -> None:
        """See Writer."""
        at = self._tick % len(self._steps)
        self._tick += 1
        last = self._tick % _EPISODE == 0
        if self._alone:
            self._actor.add(**self._steps[at], priority=self._each[at])
            if last:
                self._actor.end_episode(terminated=True)
        else:
            self._actor.add_batch(**self._steps[at], priority=self._each[at], terminated=self._last if last else None)

    def finish(self) -> None:
        """See Writer."""
        self._actor.flush(timeout=120)

    def stored(self) -> int:
        """See Writer."""
        return _stored(self._watch)

    def close(self) -> None:
        """See Writer."""
        self._actor.close()
        self._watch.close()


class _Memsvc(Peer):
    """What the three have in common: the learner's side."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._stack = contextlib.ExitStack()
        self._fresh = work.priorities(work.batch)
        self._drawn: Any = None
        self._single: Any = None

    def _make_learner(self, **settings: Any) -> Learner:
        return self._stack.enter_context(Learner(self.address, table="replay", batch_size=self.work.batch, **settings))

    def fill(self) -> None:
        """See Peer."""
        writer = self.writer(self.work, self.address, "fill")
        while writer.stored() < self.work.items:
            for _ in range(_EPISODE):
                writer.write()
            writer.finish()
        writer.close()

    def draw(self) -> int:
        """See Peer."""
        self._drawn = self._drawn or self._make_learner()
        return len(self._drawn.sample(timeout=60).keys)

    def draw_and_update(self) -> int:
        """See Peer."""
        self._drawn = self._drawn or self._make_learner()
        batch = self._drawn.sample(timeout=60)
        self._drawn.update_priorities(batch.keys, self._fresh)
        return len(batch.keys)

    def draw_alone(self) -> int:
        """See Peer."""
        self._single = self._single or self._make_learner(prefetch=0)
        return len(self._single.sample(timeout=60).keys)

    def settle(self) -> None:
        """See Peer. The statistics follow what the learner sent before."""
        self._drawn.server_stats(timeout=60)

    @staticmethod
    def writer(work: Work, address: Any, way: str) -> Writer:
        """See Peer."""
        return _Writer(work, address, way)

    def close(self) -> None:
        """See Peer."""
        self._stack.close()


class Apart(_Memsvc):
    """The daemon in its own process; clients of this kernel find its shared memory by themselves."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="compare-")))
        file = folder / "memsvc.toml"
        file.write_text(work.config)
        children = self._stack.enter_context(Children(folder))
        self._address = str(children.serve(folder, file)["address"])

    @property
    def address(self) -> Any:
        """See Peer."""
        return self._address


class Sockets(Apart):
    """The same by sockets alone, as from another host."""

    @property
    def address(self) -> Any:
        """See Peer."""
        return ZmqEndpoint(self._address, shared=False)


class Inside(_Memsvc):
    """A memsvc.Server of this process: plain calls."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        with tempfile.TemporaryDirectory(prefix="compare-") as folder:
            file = Path(folder) / "memsvc.toml"
            file.write_text(work.config)
            self._server = self._stack.enter_context(memsvc.Server(memsvc.Config.load(file)))

    @property
    def address(self) -> Any:
        """See Peer."""
        return self._server.endpoint
