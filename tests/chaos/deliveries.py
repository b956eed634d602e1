"""What the queue has given: each item once, but for what DEFINITIONS 9 gives again, or a learner's own death has lost.

A batch counts as delivered once the server hears TAKEN of it, and a learner has 1 + PREFETCH batches on their way at the most, so whenever the two
part (a learner is killed; or it joins anew, since its connection or its server broke) the last 1 + PREFETCH batches that it returned before may
come again, and no others. A learner that is killed between sample() and its note takes one batch with it.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .content import DRAW, identities
from .learners import BATCH, NUMBERS, PREFETCH

_ANEW = " has joined the server at "


class Given(NamedTuple):
    """Batches of one run of a learner, in their order."""

    items: NDArray[np.uint64]
    """[n, BATCH], identities."""
    may_repeat: NDArray[np.bool_]
    """[n]."""


def draws_in(path: Path) -> NDArray[Any]:
    """Records of a learner's run; the last may have been cut off by its death, or all of them."""
    raw = path.read_bytes() if path.exists() else b""
    return np.frombuffer(raw[: len(raw) // DRAW.itemsize * DRAW.itemsize], DRAW)


def given(folder: Path, name: str, run: int, killed: bool, table: str) -> Given:
    """What a run of a learner has drawn from a table."""
    draws = draws_in(folder / f"{name}.{run}.draws")
    mine = draws[draws["table"] == NUMBERS[table]]
    mine = mine[: len(mine) // BATCH * BATCH].reshape(-1, BATCH)
    may = np.zeros(len(mine), bool)
    parted = _joined_anew(folder / f"{name}.{run}.log") + [np.inf] * killed
    for at in parted:
        before = int((mine["at"][:, 0] < at).sum())
        may[max(0, before - 1 - PREFETCH) : before] = True
    return Given(identities(mine["tag"].reshape(-1, 4)).reshape(-1, BATCH), may)


def _joined_anew(log: Path) -> list[float]:
    lines = [line for line in log.read_text(errors="replace").splitlines() if _ANEW in line and line.endswith("are made again")]
    return [datetime.datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp() for line in lines]


def repeated(runs: list[Given], left: NDArray[np.uint64]) -> tuple[int, NDArray[np.uint64]]:
    """(items that were given again, those of them that nothing explains). `runs` in the order of time; `left`: given last."""
    items = np.concatenate([*(one.items.reshape(-1) for one in runs), left])
    may = np.concatenate([*(np.repeat(one.may_repeat, BATCH) for one in runs), np.zeros(len(left), bool)])
    # Of an item's deliveries all but the last must be of those that may be followed by another.
    order = np.argsort(items, kind="stable")
    again = items[order][1:] == items[order][:-1]
    wrong = again & ~may[order][:-1]
    return int(again.sum()), np.unique(items[order][1:][wrong])
