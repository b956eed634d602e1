"""`memsvc bench` as a user runs it, and its parts that have an answer of their own. No speed is asserted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keyed import play
from memsvc_client import Actor, ConfigError, UnknownTable
from serving import CACHES, config

import memsvc
from memsvc import bench
from memsvc.bench.latencies import Latencies
from memsvc.bench.meter import Meter
from memsvc.bench.options import Options
from memsvc.bench.watch import Count
from memsvc.bench.workloads import WORKLOADS, random_steps

BENCH = [sys.executable, "-m", "memsvc", "bench", "--plain"]
PNG = b"\x89PNG\r\n\x1a\n"
OWN = """
[server]
address = "tcp://127.0.0.1:7700"
memory = "8MiB"
[step]
obs = { dtype = "float16", shape = [3, 2] }
done = { dtype = "bool" }
value = { dtype = "float32" }
reward = { dtype = "float64" }
gamma = { dtype = "float32" }
[[table]]
name = "steps"
item = { kind = "step" }
actor = { select = "all", max_steps = 4_000 }
[[table]]
name = "windows"
item = { kind = "sequence", length = 8, stride = 4, gamma = "gamma" }
priority = { source = "return" }
returns = { gamma = "gamma", lambda = 0.9 }
actor = { max_steps = 4_000 }
"""


def measured(tmp_path: Path, **options: Any) -> dict[str, Any]:
    out = tmp_path / "row.json"
    assert bench.run(Options(seconds=0.3, plain=True, json=str(out), **options)) == 0
    row: dict[str, Any] = json.loads(out.read_text())
    return row


def children_of(pid: int) -> set[int]:
    return {int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()}


@pytest.fixture
def server() -> Iterator[memsvc.Server]:
    with memsvc.Server(memsvc.Config.parse(WORKLOADS["vector"].of(500).config("tcp://127.0.0.1:0"))) as running:
        yield running


def test_threads_of_one_process_give_a_whole_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = measured(tmp_path, workload="vector", items=2_000, transport="inproc", batch=64, envs=32, update=True)
    assert (row["workload"], row["actors"], row["learners"], row["batch"], row["envs"], row["select"]) == ("vector", 1, 1, 64, 32, "all")
    for way in ("in", "out"):
        one = row[way]
        assert one["items"] > 0, "what is counted is what arrived"
        assert one["items_per_s"] == pytest.approx(one["items"] / row["counted_s"], rel=0.05)
        assert one["bytes_per_s"] == pytest.approx(168 * one["items_per_s"])
        assert one["of_memcpy"] == pytest.approx(one["bytes_per_s"] / row["memcpy_bytes_per_s"])
        assert one["transport"] == ["process"]
        assert 0 < one["p50_ms"] <= one["p99_ms"]
        assert one["call_ms_shares"][-1][1] == 1
    assert row["item_bytes"] == row["step_bytes"] == row["store"]["raw_bytes_per_item"] == 168
    assert row["store"]["items"] <= 2_000
    assert 168 < row["store"]["bytes_per_item"] < 1_000
    assert {"cpu", "cores", "memory_gib", "kernel", "python", "load"} <= set(row["machine"])
    assert row["date"].endswith("+00:00")
    assert list(row["cpu"]["seconds"]) == ["all"]
    said = capsys.readouterr().out
    assert "memsvc bench vector: 1 actor, 1 learner, batch 64" in said
    for name in ("items/s", "MB/s", "of memcpy", "p50 ms", "p99 ms", "CPU-seconds per GB", "bytes per item", "sample+update"):
        assert name in said


def test_one_side_alone_is_measured_alone(tmp_path: Path) -> None:
    drawn = measured(tmp_path, workload="vector", items=1_000, transport="inproc", actors=0)
    assert drawn["in"] is None
    assert drawn["out"]["items"] > 0
    assert 500 < drawn["store"]["items"] <= 1_000, "filled first"
    inserted = measured(tmp_path, workload="football", items=128, transport="inproc", learners=0, envs=2)
    assert inserted["out"] is None
    assert inserted["in"]["steps_per_s"] > 0


def test_processes_measure_the_user_s_own_file(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    arguments = ["--config", "own.toml", "--table", "windows", "--seconds", "0.6", "--batch", "16", "--json", "row.json", "--plot", "row.png"]
    done = subprocess.run([*BENCH, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=100, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads((tmp_path / "row.json").read_text())
    assert row["command"].startswith("memsvc bench --plain --config own.toml")
    assert (row["table"], row["select"], row["workload"]) == ("windows", "prioritized", "own.toml")
    assert row["in"]["items"] > 0
    assert row["out"]["items"] > 0
    assert row["item_bytes"] == 8 * (12 + 1 + 4 + 8 + 4 + 3 * 8), "fields; discount, return and advantage as the reward"
    assert set(row["cpu"]["seconds"]) == {"daemon", "actor", "learner"}
    assert "draws in" in done.stdout
    assert (tmp_path / "row.png").read_bytes().startswith(PNG)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.toml", "row.json", "row.png"], "no file is left"


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [*BENCH, "vector", "--items", "1000", "--seconds", "60", "--actors", "2", "--transport", "ipc"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        deadline = time.monotonic() + 60
        while len(children := children_of(process.pid)) < 4:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, said
    assert "interrupted" in said
    assert "Traceback" not in said
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.iterdir())


def test_a_server_that_holds_something_is_not_written_to_unasked(server: memsvc.Server, tmp_path: Path) -> None:
    with server.actor() as actor:
        for _ in range(8):
            actor.add(**{name: column[0] for name, column in WORKLOADS["vector"].columns(1).items()}, priority=1.0)
        actor.end_episode(terminated=True)
        actor.flush()
    before = server.stats()["tables"][0]
    for options in ({}, {"actors": 0, "update": True}):
        with pytest.raises(ConfigError, match=r"holds 8 items, .*add --yes"):
            bench.run(Options(address=server.address, plain=True, **options))
    after = server.stats()["tables"][0]
    assert (after["items"], after["total"]) == (before["items"], before["total"])
    row = measured(tmp_path, address=server.address, batch=8, envs=4, yes=True)
    assert row["out"]["items"] > 0
    assert set(row["cpu"]["seconds"]) == {"daemon", "actor", "learner"}
    after = server.stats()["tables"][0]
    assert after["items"] == 500 < after["evicted"]


def test_an_empty_server_has_nothing_to_draw(server: memsvc.Server) -> None:
    with pytest.raises(ConfigError, match="holds nothing to draw"):
        bench.run(Options(address=server.address, actors=0, plain=True))
    with pytest.raises(UnknownTable, match="'relay': there is no such table; there are: replay"):
        bench.run(Options(address=server.address, table="relay", plain=True))


def test_caches_whose_actors_have_left_are_not_waited_for() -> None:
    with memsvc.Server(config("tcp://127.0.0.1:0", {**CACHES, "priority": {"source": "given"}}, memory="1MiB")) as held:
        with Actor(held.address, timeout=10) as actor:
            play(actor)
        with pytest.raises(ConfigError, match="'replay' is drawn from its actors' caches, and no actor is there"):
            bench.run(Options(address=held.address, actors=0, plain=True))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cubes"], "WORKLOAD 'cubes': there is pixels, vector, sequence, football"),
        (["vector", "--config", "x.toml"], "WORKLOAD and --config: one alone"),
        (["--config", "absent.toml"], "--config absent.toml: No such file"),
        (["--actors", "0", "--learners", "0"], "--actors 0 --learners 0: nothing is left"),
        (["--address", "tcp://127.0.0.1:9", "--transport", "inproc"], "--transport inproc: the server of --address is reached by tcp"),
        (["--plot", "figures.svg"], "--plot figures.svg: expected a name that ends in .png"),
    ],
)
def test_wrong_arguments_are_one_sentence_and_status_2(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = subprocess.run([*BENCH, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"memsvc: {says}")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    "options",
    [
        {"actors": -1}, {"batch": 0}, {"items": 0}, {"envs": 0}, {"prefetch": 9}, {"seconds": 0.0}, {"seconds": float("nan")},
        {"update": True, "learners": 0},
        {"table": "replay"}, {"transport": "pigeon"}, {"json": "no/such/folder/x"}, {"json": "."}, {"items": 3, "address": "tcp://127.0.0.1:1"},
        {"config": "a", "address": "tcp://127.0.0.1:1"},
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused_before_anything_runs(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^--{next(iter(options))}"):
        Options(**options)


def test_a_picture_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'memsvc\[bench\]'"):
        Options(plot="x.png")


def test_tables_that_make_one_side_wait_are_not_measured_with_one_side(tmp_path: Path) -> None:
    file = tmp_path / "queue.toml"
    limits = 'sampler = "fifo"\ncapacity = { items = 64, when_full = "block" }\nlimits = { max_times_sampled = 1 }\n'
    file.write_text(OWN.partition('[[table]]\nname = "windows"')[0].replace("memory", 'control = ""\nmemory') + limits)
    for options in ({"actors": 0}, {"learners": 0}):
        with pytest.raises(ConfigError, match='when_full = "block", so that one side waits'):
            bench.run(Options(config=str(file), transport="inproc", plain=True, **options))
    row = measured(tmp_path, config=str(file), transport="inproc", batch=16, envs=4)
    assert row["out"]["items"] > 0
    assert row["in"]["items"] > 0


def test_shared_memory_that_is_not_there_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMSVC_SHARED", "0")
    with pytest.raises(ConfigError, match="by socket, not by shared memory"):
        bench.run(Options(workload="vector", items=500, transport="shm", seconds=0.2, plain=True))


def test_quantiles_of_calls_are_those_of_numpy_within_a_per_cent() -> None:
    ms = np.random.default_rng(3).lognormal(0, 2, 20_000)
    halves = [Latencies(), Latencies()]
    for i, one in enumerate(ms):
        halves[i % 2].add(one)
    halves[0] += Latencies(json.loads(json.dumps(halves[1].counts)))
    assert len(halves[0]) == len(ms)
    for q in (0.01, 0.5, 0.99):
        assert halves[0].quantile(q) == pytest.approx(np.quantile(ms, q), rel=0.01)
    assert Latencies().quantile(0.5) is None


def test_counts_between_two_lines_are_in_proportion() -> None:
    meter = Meter(batch=10, fill=0)
    for time_s, batches in ((1.0, 0), (2.0, 100), (4.0, 140)):
        line = {"role": "learner", "phase": "work", "time": time_s, "batches": batches, "waits": 0, "calls": {"0": 1}, "transport": "socket"}
        meter.take("learner-0", line)
    assert meter.total("learner", "batches", 0.5) == 0
    assert meter.total("learner", "batches", 1.25) == 25
    assert meter.total("learner", "batches", 3.0) == 120
    assert meter.total("learner", "batches", 9.0) == 140
    assert meter.grown("learner", "batches", 1.5, 3.5) == 80
    assert len(meter.calls("learner", 1.0, 4.0)) == 2
    for time_s, arrived in ((1.5, 0), (2.5, 50), (3.5, 150)):
        meter.look(Count(time_s, arrived, 0, 0.0, 0))
    assert meter.series(1.5, 3.5) == [(0.5, 50.0, 600.0), (1.5, 100.0, 200.0)]


def test_random_steps_fit_every_dtype() -> None:
    fields = [(kind, kind, (2,)) for kind in ("bool", "int8", "uint64", "float16", "complex64")] + [("gamma", "float32", ())]
    made = random_steps(fields, 50, seed=1, unit=("gamma",))
    assert all(made[name].dtype == np.dtype(dtype) and made[name].shape == (50, *shape) for name, dtype, shape in fields)
    assert set(np.unique(made["bool"])) == {False, True}
    assert 0 <= made["gamma"].min() < made["gamma"].max() <= 1


def test_no_thread_outlives_a_run(tmp_path: Path) -> None:
    before = threading.active_count()
    measured(tmp_path, workload="vector", items=500, transport="inproc")
    assert threading.active_count() <= before


def test_ctrl_c_ends_the_wait_for_a_server_that_is_not_there(tmp_path: Path) -> None:
    command, environment = [*BENCH, "--address", "tcp://127.0.0.1:9"], os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, env=environment)
    try:
        deadline = time.monotonic() + 30
        while len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 3:  # zmq's two are there
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, said
    assert "Traceback" not in said
