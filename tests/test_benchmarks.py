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
    metrics = {"insert": "items/s", "add": "us/step", "sample": "items/s", "sample_update": "items/s", "sample_sync": "ms", "mixed": "items/s"}
    transports = ["process", *([] if "shm     skipped" in done.stdout else ["shm"]), "ipc", "tcp"]
    assert [(r["transport"], r["metric"]) for r in rows] == [(t, m) for t in transports for m in metrics]
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
        assert ("p99_ms" in row) == (row["metric"] not in ("insert", "add"))
        if row["metric"] == "mixed":
            assert sum(row["inserted"]) > 0 <= row["insert_items_per_s"]
    assert "target <= 3.00" in done.stdout
    assert "target >= 6,000,000" in done.stdout


def test_the_guard_tells_what_fell_below_its_floor(tmp_path: Path) -> None:
    floors = tmp_path / "floors.json"

    def check(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(RUN.with_name("check.py")), "--quick", "--floors", str(floors), *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    only = ("--only", "sample B in process", "--only", "tree")
    assert check(*only).returncode == 1, "no floors yet"
    done = check(*only, "--store")
    assert done.returncode == 0, done.stdout + done.stderr
    stored = json.loads(floors.read_text())
    names = ["sample B in process / numpy take", "tree draw / numpy gather", "tree update / numpy gather"]
    assert list(stored["floors"]) == names
    assert {"date", "commit", "command", "machine"} <= set(stored)
    floors.write_text(json.dumps({"floors": dict(zip(names, (1e-9, 1e9, 1e-9), strict=True))}))
    done = check(*only)
    assert done.returncode == 1
    assert done.stderr == "below their floors: tree draw / numpy gather\n"
    assert done.stdout.count("BELOW") == 2, "measured twice"
    assert check("--only", "nothing").returncode == 2


def test_every_guard_has_its_floor() -> None:
    listed = subprocess.run([sys.executable, str(RUN.with_name("check.py")), "--only", "?"], capture_output=True, text=True, timeout=60, check=False)
    names = set(listed.stderr.split("there are: ")[1].strip().split(", "))
    assert names == set(json.loads(RUN.with_name("floors.json").read_text())["floors"])


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
        # An item of little weight may come late, and with it its payload: then the reading before has none.
        least = min(row["bytes_per_draw"] for row in rows if row["series"] == series)
        assert 16 <= least < 24 < first["bytes_per_draw"]
        assert last["held_items"] <= last["memories_items"]
    assert (tmp_path / "wire.png").stat().st_size > 10_000


def test_parameters_are_measured_beside_plain_pub_sub(tmp_path: Path) -> None:
    script = RUN.with_name("parameters.py")
    done = subprocess.run(
        [sys.executable, str(script), "--quick", "--only", "0", "--out", str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (row,) = [json.loads(line) for line in (tmp_path / "parameters.jsonl").read_text().splitlines()]
    assert (row["bytes"], row["subscribers"]) == (1_000_000, 4)
    assert len(row["ms"]) == len(row["plain_ms"]) == 3
    assert row["ratio"] > 0


def test_growth_is_measured_by_items_actors_and_long_work_beside(tmp_path: Path) -> None:
    script, out = RUN.with_name("growth.py"), tmp_path / "growth.jsonl"
    done = subprocess.run([sys.executable, str(script), "--quick", "--out", str(out)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["figure"] for row in rows} == {"items", "actors", "update", "publish", "min_version"}
    assert [row["items"] for row in rows if row["figure"] == "items"] == [1000, 10_000, 100_000]
    assert {(row["actors"], row["select"]) for row in rows if row["figure"] == "actors"} == {(n, s) for n in (1, 10) for s in ("all", "prioritized")}
    assert all(row.get("us", row.get("worst_ms")) > 0 for row in rows)
    (publication,) = [row for row in rows if row["figure"] == "publish"]
    assert publication["stale"] > publication["items"] / 3
