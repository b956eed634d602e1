"""Writer: plays random steps of a schema into an actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .workloads import EPISODE, Field, random_priorities, random_steps, step_bytes

_TICKS = 16  # of random data, used in turn
_DATA_BYTES = 64 << 20  # most that they take, but for two of them


class Writer:
    """Adds one step of each of `envs` environments a call, with terminated episodes of `episode` steps. `given`: with priorities; `unit`: as
    random_steps. Not thread-safe.
    """

    def __init__(
        self, actor: Any, fields: Sequence[Field], envs: int, given: bool, episode: int = EPISODE, unit: Sequence[str] = (), seed: int = 0
    ) -> None:
        self.steps = 0
        """Written so far."""
        self._actor, self._envs, self._episode, self._tick = actor, envs, episode, 0
        ticks = max(2, min(_TICKS, _DATA_BYTES // max(1, envs * step_bytes(fields))))
        columns = random_steps(fields, envs * ticks, seed, unit)
        self._data = [{name: column[tick * envs : (tick + 1) * envs] for name, column in columns.items()} for tick in range(ticks)]
        self._priorities = [random_priorities(envs, seed + tick) if given else None for tick in range(ticks)]
        self._last = np.ones(envs, np.bool_)

    def write(self) -> None:
        """One add_batch. Its errors, after which nothing has been written."""
        at = self._tick % len(self._data)
        terminated = self._last if (self._tick + 1) % self._episode == 0 else None
        self._actor.add_batch(**self._data[at], priority=self._priorities[at], terminated=terminated)
        self._tick += 1
        self.steps += self._envs
