"""What a step holds: its identity (tag), a body that follows from the tag alone, and a reward that follows from its number. So whoever draws it can
tell whether it is whole, and whose it is. Also the tables over it, and files of records that survive kill -9.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FINAL = 1 << 40
"""Added to the number of an observation after an episode's last step."""
BODY_BYTES = 512
ENVS = 2
N_STEP, GAMMA = 3, 0.5
STEP = {"tag": {"dtype": "int64", "shape": [4]}, "body": {"dtype": "uint8", "shape": [BODY_BYTES]}, "reward": {"dtype": "float32"}}
_ALL = {"select": "all", "linger_ms": 5, "max_steps": 5000}
LEDGER, UNION, QUEUE, REPLAY = "ledger", "union", "queue", "replay"
TABLES: list[dict[str, Any]] = [
    # An order gives every item once a batch: one batch of the whole table is everything that was stored.
    {"name": LEDGER, "item": {"kind": "step"}, "actor": _ALL, "sampler": "fifo", "priority": {"source": "given", "exponent": 1.0}},
    {"name": UNION, "item": {"kind": "step"}, "actor": _ALL, "priority": {"source": "given", "exponent": 1.0}},
    {
        "name": QUEUE,
        "item": {"kind": "step"},
        "actor": _ALL,
        "sampler": "fifo",
        "limits": {"max_times_sampled": 1},
        "priority": {"source": "given", "exponent": 1.0},
    },
    {
        "name": REPLAY,
        "item": {"kind": "transition", "n_step": N_STEP, "gamma": GAMMA, "next": ["tag", "body"]},
        "actor": {"cache": 32, "every": 32, "linger_ms": 5, "max_steps": 5000},
        "priority": {"source": "given", "exponent": 1.0},
    },
]
DRAW = np.dtype([("table", "<u4"), ("key", "<u8"), ("at", "<f8"), ("tag", "<i8", (4,))])
"""A learner's record of one drawn item; `at`: time.time() once it had its batch."""


def body_of(tag: NDArray[np.int64]) -> NDArray[np.uint8]:
    """u8[BODY_BYTES] of a tag i64[4] (slot, run, env, number)."""
    return np.frombuffer(hashlib.blake2b(tag.tobytes(), digest_size=64).digest() * (BODY_BYTES // 64), np.uint8)


def reward_of(number: Any) -> Any:
    """Of the step with this number: a small integer, so that sums of three are exact."""
    return number % 7


def identities(tags: NDArray[np.int64]) -> NDArray[np.uint64]:
    """u64[n] of tags i64[n, 4]."""
    slot, run, env, number = (tags[:, i].astype(np.uint64) for i in range(4))
    return (slot << np.uint64(56)) | (run << np.uint64(44)) | (env << np.uint64(40)) | number


def step(slot: int, run: int, env: int, number: int) -> dict[str, Any]:
    """The fields of one step."""
    tag = np.array([slot, run, env, number], np.int64)
    return {"tag": tag, "body": body_of(tag), "reward": float(reward_of(number))}


def torn(batch: Any) -> list[str]:
    """What is wrong with the items of a batch; [] when every one is whole."""
    wrong = []
    for i, tag in enumerate(batch["tag"]):
        if not np.array_equal(batch["body"][i], body_of(tag)):
            wrong.append(f"body of {tag.tolist()}")
        if "next_tag" not in batch:
            if batch["reward"][i] != reward_of(int(tag[3])):
                wrong.append(f"reward of {tag.tolist()}: {batch['reward'][i]}")
            continue
        after = batch["next_tag"][i]
        steps = int(after[3]) % FINAL - int(tag[3])
        if not np.array_equal(tag[:3], after[:3]) or not 1 <= steps <= N_STEP or not np.array_equal(batch["next_body"][i], body_of(after)):
            wrong.append(f"next of {tag.tolist()}: {after.tolist()}")
        elif batch["reward"][i] != sum(GAMMA**k * reward_of(int(tag[3]) + k) for k in range(steps)):
            wrong.append(f"return of {tag.tolist()} over {steps} steps: {batch['reward'][i]}")
    return wrong


class Notes:
    """Lines of JSON, or records, at the end of a file, each by one write: what was written before a kill is there after it."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def line(self, **what: Any) -> None:
        """One object, with the time."""
        os.write(self._fd, (json.dumps({"at": round(time.time(), 3), **what}) + "\n").encode())

    def records(self, records: NDArray[Any]) -> None:
        """As they are."""
        raw = records.tobytes()
        assert os.write(self._fd, raw) == len(raw)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What Notes.line has written."""
    return [json.loads(one) for one in path.read_text().splitlines()] if path.exists() else []
