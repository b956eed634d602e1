"""benchmarks/run.py runs, and its rows say what a figure needs; no speed is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parents[1] / "benchmarks" / "run.py"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(RUN), *args], capture_output=True, text=True, timeout=120, check=False)


def test_a_quick_run_of_one_workload_writes_complete_rows(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    done = run("--quick", "--only", "B", "--repeats", "3", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(text) for text in out.read_text().splitlines()]
    metrics = {"insert": "items/s", "add": "us/step", "sample": "items/s", "sample_update": "items/s"}
    assert [(r["transport"], r["metric"]) for r in rows] == [(t, m) for t in ("process", "ipc", "tcp") for m in metrics]
    for row in rows:
        assert row["workload"] == "B"
        assert row["unit"] == metrics[row["metric"]]
        assert len(row["repeats"]) == 3
        assert row["median"] == sorted(row["repeats"])[1] > 0
        assert min(row["items"]) > 0, "what is counted is what arrived"
        assert row["item_bytes"] == 168
        assert row["date"].endswith("+00:00")
        assert row["commit"]
        assert row["command"].startswith("python benchmarks/run.py --quick --only B")
        assert {"cpu", "cores", "memory_gib", "kernel", "python", "load"} <= set(row["machine"])
        for name in ("gb_per_s", "cpu_s_per_gb", "memcpy_bytes_per_s", "take_items_per_s", "ratio_memcpy", "ratio_take"):
            assert row[name] > 0, name
        assert ("p99_ms" in row) == row["metric"].startswith("sample")
    assert "target <= 6" in done.stdout
    assert "target >= 3,000,000" in done.stdout


def test_an_unknown_name_is_told_what_there_is(tmp_path: Path) -> None:
    done = run("--only", "Z/sample", "--out", str(tmp_path / "rows.jsonl"))
    assert done.returncode == 2
    assert "workloads A, B, C" in done.stderr
    assert not (tmp_path / "rows.jsonl").exists()


def test_bytes_per_draw_fall_towards_the_key_s_sixteen(tmp_path: Path) -> None:
    script = RUN.with_name("wire.py")
    done = subprocess.run([sys.executable, str(script), "--quick", "--out", str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(text) for text in (tmp_path / "wire.jsonl").read_text().splitlines()]
    assert len({row["series"] for row in rows}) == 4
    for series in {row["series"] for row in rows}:
        first, last = [row for row in rows if row["series"] == series][:: sum(row["series"] == series for row in rows) - 1]
        assert first["date"].endswith("+00:00")
        assert first["command"].startswith("python benchmarks/wire.py --quick")
        assert 16 <= last["bytes_per_draw"] < 24 < first["bytes_per_draw"]
        assert last["held_items"] <= last["memories_items"]
    assert (tmp_path / "wire.png").stat().st_size > 10_000
