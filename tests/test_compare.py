"""benchmarks/compare.py runs with what is here, its rows are complete, and what fails is told instead of hidden; no speed is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import peers` finds the benchmarks' package; the child finds it through the environment that it is given."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def compare(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARKS / "compare.py"), *args], capture_output=True, text=True, timeout=120, check=False)


def test_a_quick_run_against_the_floor_writes_complete_rows_and_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    done = compare("--quick", "--peers", "numpy", "--only", "B/sample", "B/add", "A/mixed*", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(text) for text in out.read_text().splitlines()]
    mixed = [("A/mixed_sample", "memsvc"), ("A/mixed_insert", "memsvc")]
    drawn = [("B/sample", name) for name in ("memsvc", "memsvc-inside", "numpy")]
    assert [(row["metric"], row["system"]) for row in rows] == [*mixed, *drawn, ("B/add", "memsvc")]
    for row in rows:
        assert "failed" not in row, row["failed"]
        assert row["spread"][0] <= row["median"] <= row["spread"][1]
        assert min(row["items"]) > 0, "what is counted is what arrived"
        assert row["command"].startswith("python benchmarks/compare.py --quick --peers numpy")
        assert row["versions"]["numpy"]
        assert row["item_bytes"] == (28_236 if row["workload"] == "A" else 168)
        for name in ("gb_per_s", "cpu_s_per_gb", "memcpy_bytes_per_s", "ratio_memcpy"):
            assert row[name] > 0, name
    assert out.with_suffix(".png").stat().st_size > 10_000
    assert "B/sample        memsvc / reverb                        >= 40: not measured" in done.stdout


def test_an_unknown_name_is_told_what_there_is() -> None:
    for args, word in ((("--only", "Z/sample"), "B/add_batch"), (("--peers", "redis"), "cpprb-shared")):
        done = compare("--quick", *args)
        assert done.returncode == 2
        assert word in done.stderr


def test_a_system_that_fails_has_rows_that_say_why(peers: None) -> None:
    from peers.verdict import table

    row: dict[str, Any] = {"metric": "B/add", "system": "cpprb", "unit": "items/s", "failed": "ValueError: no room"}
    lines = table([row])
    assert "  cpprb           failed: ValueError: no room" in lines
    assert any("memsvc / cpprb" in line and line.endswith("failed") for line in lines)


def test_a_runner_outlives_an_error_and_leaves_no_process(peers: None, tmp_path: Path) -> None:
    from peers.system import Failed, System

    system = System("floor", "numpy", "peers.floor", "Ring", tmp_path / "log")
    work = {"name": "B", "fields": [["obs", "float32", [3]]], "length": 1, "items": 100, "batch": 8, "config": ""}
    try:
        with pytest.raises(Failed, match="not open") as early:
            system.ask(60, do="fill")
        assert not early.value.lost
        system.ask(60, do="open", work=work)
        system.ask(60, do="fill")
        with pytest.raises(Failed, match="NotImplementedError"):
            system.ask(60, do="insert", seconds=0.01)
        system.freeze()
        system.thaw()
        assert system.ask(60, do="sample", seconds=0.01)["items"] % 8 == 0
        assert system.processes()
    finally:
        system.close()
    assert system.processes() == []
    with pytest.raises(Failed) as late:
        system.ask(1, do="fill")
    assert late.value.lost
