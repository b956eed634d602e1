"""The chaos test's short form: a few seconds of faults from a fixed seed (`make chaos` has minutes, and a seed of its own each time)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from chaos.content import N_STEP, step, torn
from chaos.run import chaos

SECONDS = 7.0


@pytest.mark.timeout(120)
def test_what_was_acknowledged_is_there_once_after_kills_stops_and_cuts(tmp_path: Path) -> None:
    holds, told = chaos(tmp_path, seed=19, seconds=SECONDS, actors=3, learners=2, every=(0.6, 1.2), longest=2.0)
    print(told)
    assert holds, told


def test_a_torn_item_is_noticed() -> None:
    whole = {name: np.stack([np.asarray(step(1, 2, 0, n)[name]) for n in range(4)]) for name in ("tag", "body", "reward")}
    assert torn(whole) == []
    whole["body"][2, 100] ^= 1
    assert len(torn(whole)) == 1
    whole["body"][2, 100] ^= 1
    after = {"next_tag": whole["tag"][[N_STEP]], "next_body": whole["body"][[N_STEP]]}
    first = {name: column[:1] for name, column in whole.items()} | after
    first["reward"] = np.array([0 + 0.5 * 1 + 0.25 * 2])
    assert torn(first) == []
    first["reward"][0] += 1
    assert len(torn(first)) == 1
