"""How many bytes the server takes for those of the steps that it holds, and pushes for those that they bring; and that what is kept in few bytes is
kept exactly (DESIGN 6; cpp/core/store.h, items.h, wide.h; benchmarks/memory.py measures the same of a daemon).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from memsvc_core import Replay, Schema, TableSpec
from rig import Rig, table
from test_two_stage import FIELDS, GIVEN

PIXELS = [("obs", "|u1", (4, 84, 84)), ("action", "<i4", ()), ("reward", "<f4", ()), ("discount", "<f4", ())]
VECTOR = [("obs", "<f4", (17,)), ("action", "<f4", (6,)), ("reward", "<f4", ()), ("discount", "<f4", ()), ("next_obs", "<f4", (17,))]
FRAME = [("obs", "|u1", (84, 84)), ("action", "<i4", ()), ("reward", "<f4", ())]
STEP = {"kind": "step"}
STACK = {"kind": "transition", "n_step": 1, "frame_stack": 4, "stack": ["obs"], "next": ["obs"]}
CASES = {
    "A, all": (PIXELS, STEP, "all", 1.05),
    "B, all": (VECTOR, STEP, "all", 1.3),
    "B, caches": (VECTOR, STEP, "prioritized", 1.3),
    "stacked frames, all": (FRAME, STACK, "all", 1.15),
    "stacked frames, caches": (FRAME, STACK, "prioritized", 1.15),
}


def raw_bytes(fields) -> int:
    """Of one step."""
    return sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for _, dtype, shape in fields)


@pytest.mark.parametrize("memory", [64 << 20, 256 << 20, 8 << 30])
@pytest.mark.parametrize("case", CASES)
def test_the_server_takes_no_more_bytes_for_its_steps_than_promised(case, memory):
    fields, item, select, limit = CASES[case]
    schema = Schema(fields)
    account = Replay.footprint(schema, [TableSpec(schema, table(item=item, priority=GIVEN, actor={"select": select}))], memory)
    assert memory * 0.99 < account["bytes"] <= memory
    assert account["bytes"] / (account["steps"] * raw_bytes(fields)) <= limit
    assert account["items"] == [account["steps"]]


def test_a_table_that_may_hold_most_of_the_store_takes_no_more_for_its_bound():
    fields, item, select, _ = CASES["B, all"]
    schema = Schema(fields)
    free, bounded = (
        TableSpec(schema, table(item=item, priority=GIVEN, actor={"select": select}, **more)) for more in ({}, {"capacity": {"items": 300_000}})
    )
    without, within = (Replay.footprint(schema, [spec], 80 << 20) for spec in (free, bounded))
    assert 300_000 < without["steps"] < 400_000
    assert within == {**without, "items": [300_000]}


def test_a_bound_just_below_the_store_is_kept(rng):
    rig = Rig(FIELDS, table(priority=GIVEN, actor={"select": "all"}, capacity={"items": 1700}), memory_bytes=1 << 17)
    steps = rig.replay.stats()["capacity_steps"]
    assert 1700 < steps < 2200
    peer = rig.join()
    for i in range(5000):
        peer.memory.add(0, {"id": i, "p": 1.0, "x": 0.0}, 1.0, -1)
    peer.memory.end(0, True, None)
    while rig.push(peer, 0, max_bytes=1 << 14):
        assert rig.replay.stats()["tables"][0]["items"] <= 1700
    assert rig.replay.stats()["tables"][0]["items"] == 1700
    assert set(np.concatenate([rig.draw(256)["id"] for _ in range(120)]).tolist()) == set(range(3300, 5000))


@pytest.mark.parametrize("case", [case for case in CASES if case != "B, caches"])  # there draws of 16 bytes count, and no bound is promised
def test_pushes_take_no_more_bytes_for_their_steps_than_promised(case, rng):
    fields, item, select, limit = CASES[case]
    rig = Rig(fields, table(item=item, priority=GIVEN, actor={"select": select}))
    peer = rig.join()
    step = {name: rng.integers(0, 256, shape).astype(dtype) for name, dtype, shape in fields}
    for i in range(240):
        peer.memory.add(0, step, 0.5, -1)
        if i % 120 == 119:
            peer.memory.end(0, True, None)
    rig.replay.expect(0, 240)
    pushed = sum(rig.push(peer, 64) for _ in range(4)) if select == "prioritized" else rig.push(peer, 0, max_bytes=1 << 24)
    assert pushed / (rig.replay.stats()["steps"] * raw_bytes(fields)) <= limit


def test_a_row_that_very_many_hold_stays_as_long_as_one_of_them_does():
    rig = Rig(FIELDS, table(priority=GIVEN, actor={"select": "all"}))
    peer = rig.join()
    peer.memory.add(0, {"id": 7, "p": 1.0, "x": 0.0}, 1.0, -1)
    peer.memory.end(0, True, None)
    rig.push_all(peer)
    for _ in range(2):
        assert (rig.draw(140_000)["id"] == 7).all()  # a batch holds its rows once a draw, beyond what two bytes count
    rig.replay.delete(0, np.array([rig.draw(1)["keys"][0]], np.uint64))
    assert rig.replay.stats()["steps"] == 0


def test_versions_of_any_size_come_back_as_they_were_given(rng):
    rig = Rig(FIELDS, table(priority=GIVEN, actor={"select": "all"}))
    peer = rig.join()
    edges = [-1, 0, 1, 2**31 - 3, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**62 - 2, 2**62 - 1]
    given: list[int] = []
    for _ in range(4):
        for version in rng.permutation([*edges, *rng.integers(0, 2**62, 40), *edges]):
            peer.memory.add(0, {"id": len(given), "p": 1.0, "x": 0.0}, 1.0, int(version))
            given.append(int(version))
        rig.push_all(peer)
        batch = rig.draw(4000)
        np.testing.assert_array_equal(batch["versions"], np.array(given)[batch["id"]])
        rig.replay.delete(0, np.unique(batch["keys"])[::2])  # their places, and the places of their versions, come to others


def test_the_benchmark_of_bytes_runs_and_its_parts_make_the_whole(tmp_path):
    script = Path(__file__).parent.parent / "benchmarks" / "memory.py"
    command = [sys.executable, str(script), "--memory", "16", "--only", "B", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "memory.jsonl").read_text().splitlines()]
    assert [row["series"] for row in rows] == ["B, all", "B, caches"]
    for row in rows:
        assert row["ratio"] * row["step_bytes"] == pytest.approx(sum(row["bytes_per_step"].values()), rel=0.005)
        assert 1 < row["wire_ratio"] < 1.5
