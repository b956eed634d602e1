"""The three workloads of the comparison: what a step is, the table over it, and random steps to fill it with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

EPISODE = 240  # steps; three whole sequences, and each actor's memory holds two episodes of all its environments

Array = np.ndarray[Any, Any]
Field = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True)
class Workload:
    """Items of `length` steps each; a table of `items`, drawn in batches of `batch`; `envs` rows are inserted by one add_batch."""

    name: str
    fields: tuple[Field, ...]
    item: str
    length: int
    items: int
    batch: int
    envs: int
    actor_steps: int

    @property
    def step_bytes(self) -> int:
        """Bytes of one step's fields."""
        return sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for _, dtype, shape in self.fields)

    @property
    def item_bytes(self) -> int:
        """Bytes of one item: its steps' fields, and the discount where the service makes it."""
        return self.length * (self.step_bytes + (4 if self.length > 1 else 0))

    def smaller(self, times: int) -> Workload:
        """The same workload over a table a fraction as large."""
        return replace(self, items=self.items // times)

    def config(self, address: str) -> str:
        """A memsvc.toml whose table holds exactly `items`: one union tree, uniform random given priorities, exponent .6."""
        rows = int(self.items * self.length * 1.25)
        memory = rows * (self.step_bytes + 8 + 512)
        step = "\n".join(f'{name} = {{ dtype = "{dtype}", shape = {list(shape)} }}' for name, dtype, shape in self.fields)
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
item     = {self.item}
priority = {{ source = "given", exponent = 0.6 }}
actor    = {{ select = "all", max_steps = {self.actor_steps} }}
capacity = {{ items = {self.items} }}
"""

    def columns(self, rows: int, seed: int = 0) -> dict[str, Array]:
        """Random steps, [rows, ...] a field: incompressible bytes, or normal floats."""
        rng = np.random.default_rng(seed)
        made: dict[str, Array] = {}
        for name, dtype, shape in self.fields:
            if np.dtype(dtype).kind == "f":
                made[name] = rng.standard_normal((rows, *shape)).astype(dtype)
            else:
                made[name] = rng.integers(0, 256, (rows, *shape)).astype(dtype)
        return made

    def priorities(self, rows: int, seed: int = 0) -> Array:
        """Uniform in (.01, 1.01]."""
        return 1.01 - np.random.default_rng(seed).random(rows)


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
_STEP, _SEQUENCE = '{ kind = "step" }', '{ kind = "sequence", length = 80, stride = 80 }'

WORKLOADS = {
    "A": Workload("A", _PIXELS, _STEP, length=1, items=30_000, batch=256, envs=16, actor_steps=8_192),
    "B": Workload("B", _VECTOR, _STEP, length=1, items=200_000, batch=256, envs=256, actor_steps=131_072),
    "C": Workload("C", _FRAMES, _SEQUENCE, length=80, items=1_000, batch=32, envs=16, actor_steps=8_192),
}
