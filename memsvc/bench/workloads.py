"""Workloads: what a step is, the table over it, and random steps to fill it with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

EPISODE = 240  # steps; three whole sequences, and an actor's memory holds two episodes of all its environments

Array = np.ndarray[Any, Any]
Field = tuple[str, str, tuple[int, ...]]

_MESSAGES_BYTES = 4 << 20  # a store that is smaller than what arrives at once holds nothing for long
_NOT_CONTENT = ("keys", "probabilities", "weights", "versions", "mask", "length")


def random_steps(fields: Iterable[Field], rows: int, seed: int = 0, unit: Sequence[str] = ()) -> dict[str, Array]:
    """Random steps, [rows, ...] a field: incompressible bytes in integers, normal floats, and floats from 0 to 1 where the field is named by `unit`
    (discounts).
    """
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for name, dtype, shape in fields:
        kind, size = np.dtype(dtype).kind, (rows, *shape)
        if name in unit:
            made[name] = rng.random(size).astype(dtype)
        elif kind in "fc":
            made[name] = rng.standard_normal(size).astype(dtype)
        else:
            made[name] = rng.integers(0, 2 if kind == "b" else 256, size).astype(dtype)
    return made


def random_priorities(rows: int, seed: int = 0) -> Array:
    """Uniform in (.01, 1.01]."""
    return 1.01 - np.random.default_rng(seed).random(rows)


def step_bytes(fields: Iterable[Field]) -> int:
    """Bytes of one step's fields."""
    return sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for _, dtype, shape in fields)


def content_bytes(columns: Iterable[Field]) -> int:
    """Bytes of one item as a learner trains on it: of a table's columns (TableSpec.columns) without keys, weights and masks."""
    return step_bytes(column for column in columns if column[0] not in _NOT_CONTENT)


def settings(address: str, memory: int, fields: Iterable[Field], item: str, actor: str, items: int = 0) -> str:
    """A memsvc.toml of one table, "replay", with given priorities and exponent .6. `memory`: bytes; `item`, `actor`: as they stand in [[table]];
    `items`: the most that it holds, 0 for what fits.
    """
    step = "\n".join(f'{name} = {{ dtype = "{dtype}", shape = {list(shape)} }}' for name, dtype, shape in fields)
    return f"""
[server]
address = "{address}"
memory  = {memory}
control = ""
http    = ""
seed    = 1
[step]
{step}
[[table]]
name     = "replay"
item     = {item}
priority = {{ source = "given", exponent = 0.6 }}
actor    = {actor}
capacity = {{ items = {items} }}
"""


@dataclass(frozen=True)
class Workload:
    """Items of `length` steps each; a table of `items`, drawn in batches of `batch`; `envs` rows are inserted by one add_batch.

    `select`: "all", where the server holds every item, or "prioritized", where actors hold them and send caches. `actor_steps`: of an actor's memory.
    """

    name: str
    fields: tuple[Field, ...]
    item: str
    length: int
    items: int
    batch: int
    envs: int
    actor_steps: int
    select: str = "all"

    @property
    def step_bytes(self) -> int:
        """Bytes of one step's fields."""
        return step_bytes(self.fields)

    @property
    def item_bytes(self) -> int:
        """Bytes of one item of these steps as inserted: its steps' fields, and the discount where the service makes it."""
        return self.length * (self.step_bytes + (4 if self.length > 1 else 0))

    def smaller(self, times: int) -> Workload:
        """The same workload over a table a fraction as large."""
        return self.of(self.items // times)

    def of(self, items: int) -> Workload:
        """The same workload over a table of so many items."""
        return replace(self, items=items)

    def config(self, address: str, actors: int = 1) -> str:
        """A memsvc.toml for so many actors whose table holds `items`, with uniform random given priorities and exponent .6: in one union tree, or
        spread over the actors' memories.
        """
        whole = self.select == "all"
        rows = int(self.items * self.length * (1.25 if whole else 2.0)) + 64
        actor_steps = self.actor_steps if whole else max(4 * self.envs, self.items // max(1, actors))
        memory = rows * (self.step_bytes + 8 + 512) + _MESSAGES_BYTES
        actor = f'{{ select = "{self.select}", max_steps = {actor_steps} }}'
        return settings(address, memory, self.fields, self.item, actor, self.items if whole else 0)

    def columns(self, rows: int, seed: int = 0) -> dict[str, Array]:
        """Random steps, [rows, ...] a field."""
        return random_steps(self.fields, rows, seed)

    def priorities(self, rows: int, seed: int = 0) -> Array:
        """Uniform in (.01, 1.01]."""
        return random_priorities(rows, seed)


_SCALARS: tuple[Field, ...] = (("action", "int32", ()), ("reward", "float32", ()))
_PIXELS: tuple[Field, ...] = (("obs", "uint8", (4, 84, 84)), *_SCALARS, ("discount", "float32", ()))
_VECTOR: tuple[Field, ...] = (
    ("obs", "float32", (17,)),
    ("action", "float32", (6,)),
    ("reward", "float32", ()),
    ("discount", "float32", ()),
    ("next_obs", "float32", (17,)),
)
_FRAMES: tuple[Field, ...] = (("obs", "uint8", (84, 84)), *_SCALARS)
_FOOTBALL: tuple[Field, ...] = (("obs", "uint8", (96, 72, 4)), *_SCALARS)
_STEP, _SEQUENCE = '{ kind = "step" }', '{ kind = "sequence", length = 80, stride = 80 }'
_TRANSITION = '{ kind = "transition", n_step = 3, next = ["obs"] }'

WORKLOADS = {
    one.name: one
    for one in (
        Workload("pixels", _PIXELS, _STEP, length=1, items=30_000, batch=256, envs=16, actor_steps=8_192),
        Workload("vector", _VECTOR, _STEP, length=1, items=200_000, batch=256, envs=256, actor_steps=131_072),
        Workload("sequence", _FRAMES, _SEQUENCE, length=80, items=1_000, batch=32, envs=16, actor_steps=8_192),
        Workload("football", _FOOTBALL, _TRANSITION, length=1, items=8_192, batch=256, envs=16, actor_steps=8_192, select="prioritized"),
    )
}
"""pixels, vector and sequence are what other systems were measured with: every item is sent once, the server draws from the whole table. football is
the two-stage path: actors hold 3-step transitions of 96 x 72 x 4 frames in their memories and send caches of draws."""
