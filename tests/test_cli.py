"""The command line, run as a user runs it: processes, signals, exit statuses, what is printed where."""

from __future__ import annotations

import contextlib
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

import pytest
import zmq
from memsvc_proto import wire
from memsvc_proto.wire import Kind, Message

CONFIG = """
[server]
address = "tcp://127.0.0.1:0"
memory = "4MiB"

[step]
obs = { dtype = "uint8", shape = [84, 84] }
action = { dtype = "int32" }
reward = { dtype = "float32" }

[[table]]
name = "replay"
item = { kind = "transition", n_step = 3, frame_stack = 4, stack = ["obs"], next = ["obs"] }
"""
MEMSVC = (sys.executable, "-m", "memsvc")


def run(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MEMSVC, *arguments], cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "memsvc.toml").write_text(CONFIG)
    return tmp_path


@contextlib.contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A daemon and what its ready file says; killed at the end if it still runs."""
    ready = folder / "ready.json"
    process = subprocess.Popen([*MEMSVC, "serve", *arguments, "--ready-file", str(ready)], cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 30
        while not ready.exists():
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process, json.loads(ready.read_text())
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_daemon_serves_until_told_and_ends_well(folder: Path, number: signal.Signals) -> None:
    with serving(folder) as (process, ready):
        assert set(ready) == {"address", "control", "http", "pid"}
        assert ready["pid"] == process.pid
        assert ready["http"] is None
        assert ready["address"].startswith("tcp://127.0.0.1:")
        assert not ready["address"].endswith(":0")
        assert os.listdir(folder) == ["ready.json", "memsvc.toml"] or sorted(os.listdir(folder)) == ["memsvc.toml", "ready.json"]
        printed = run("stats", ready["address"], cwd=folder)
        assert printed.returncode == 0
        assert json.loads(printed.stdout)["tables"][0]["name"] == "replay"
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(10) == 0
        assert time.monotonic() - began < 2.0
        assert not (folder / "ready.json").exists()
        assert process.stderr is not None
        log = process.stderr.read()
        assert f"serving replay on {ready['address']}" in log
        assert "Traceback" not in log


def test_the_daemon_ends_within_two_seconds_under_load(folder: Path) -> None:
    with serving(folder) as (process, ready):
        peers = [zmq.Context.instance().socket(zmq.DEALER) for _ in range(50)]
        for peer in peers:
            peer.setsockopt(zmq.LINGER, 0)
            peer.connect(ready["address"])
            peer.send(wire.pack(Message(Kind.SAMPLE, 1, a=8, f=60)))
            peer.send(wire.pack(Message(Kind.PING, 2)))
        for peer in peers:
            assert peer.poll(10_000)
        stop = threading.Event()
        peers[0].setsockopt(zmq.SNDTIMEO, 50)

        def flood() -> None:
            while not stop.is_set():
                with contextlib.suppress(zmq.Again):
                    peers[0].send(b"x" * 10_000)

        thread = threading.Thread(target=flood)
        thread.start()
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(2.0) == 0
        finally:
            stop.set()
            thread.join()
            for peer in peers:
                peer.close(0)


def test_flags_win_over_variables_and_variables_over_the_file(folder: Path) -> None:
    address = f"ipc://{folder}/door"
    os.environ["MEMSVC_SERVER_MEMORY"] = "2MiB"
    try:
        with serving(folder, "memsvc.toml", "--address", address, "--control", "") as (_, ready):
            assert ready["address"] == address
            assert ready["control"] is None
            assert json.loads(run("stats", address, cwd=folder).stdout)["bytes"] <= 3 << 20
    finally:
        del os.environ["MEMSVC_SERVER_MEMORY"]


def test_configuration_errors_are_one_line_and_status_2(folder: Path) -> None:
    (folder / "memsvc.toml").write_text(CONFIG.replace("n_step = 3", "n_step = 0"))
    for command in ("serve", "check"):
        done = run(command, cwd=folder)
        assert (done.returncode, done.stderr) == (2, "memsvc: table[0].item.n_step: expected a positive integer, got 0\n")
    done = run("serve", "absent.toml", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("memsvc: absent.toml: there is no such file")
    assert run("serve", "--adress", "x", cwd=folder).returncode == 2


def test_a_taken_port_ends_the_second_daemon_with_a_sentence(folder: Path) -> None:
    with serving(folder) as (_, ready):
        done = run("serve", "--address", ready["address"], "--control", "", cwd=folder)
        assert done.returncode == 2
        assert "server.address" in done.stderr
        assert "in use by another process" in done.stderr
        assert "Traceback" not in done.stderr


def test_check_prints_schema_columns_footprint_and_ports(folder: Path) -> None:
    done = run("check", cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["obs", "|u1", "[84,", "84]"] in lines
    assert ["next_obs", "|u1", "[4,", "84,", "84]"] in lines
    assert ["discount", "<f4", "[]"] in lines
    assert ["address", "tcp://127.0.0.1:0"] in lines
    assert "  select:      prioritized: actors send caches of draws by weight; over all of them P = w / W\n" in done.stdout
    assert "  changeable:  priority.exponent, importance.beta, item.gamma, limits.samples_per_insert" in done.stdout
    memory = next(line for line in lines if line[0] == "memory")
    taken, steps = int(memory[1]), int(memory[4])
    assert taken + (1 << 20) >= 4 << 20
    assert 0.5 < steps * (84 * 84 + 8) / (4 << 20) <= 1.0


def test_check_tells_of_keys_and_data_what_a_start_would(folder: Path) -> None:
    assert run("keys", "k", cwd=folder).returncode == 0
    kept = {"MEMSVC_SERVER_DURABILITY": "snapshot", "MEMSVC_SERVER_DATA": "d", "MEMSVC_SERVER_KEYS": "k"}
    done = run("check", cwd=folder, env=kept)
    assert done.returncode == 0, done.stderr
    assert "k: 1 actor, 1 admin, 1 learner, 1 viewer\n" in done.stdout
    assert "data       d: nothing yet\n" in done.stdout
    with serving(folder, "--durability", "snapshot", "--data", "d", "--keys", "k") as (process, _):
        assert "of a server that runs" in run("check", cwd=folder, env=kept).stdout
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    assert "bytes of a server that ended in order\n" in run("check", cwd=folder, env=kept).stdout
    file = folder / "memsvc.toml"
    file.write_text(file.read_text().replace("84, 84", "42, 42"))
    done = run("check", cwd=folder, env=kept)
    assert done.returncode == 1
    assert "was written under another configuration (step.obs.shape: [84,84] -> [42,42]" in done.stderr.replace(", 84", ",84").replace(", 42", ",42")
    (folder / "k").chmod(0o755)
    assert "server.keys: k has mode 0755" in run("check", cwd=folder, env=kept).stderr


def test_check_refuses_what_the_machine_does_not_have(folder: Path) -> None:
    done = run("check", cwd=folder, env={"MEMSVC_SERVER_MEMORY": "800TiB"})
    assert done.returncode == 1
    assert done.stderr.startswith("memsvc: server.memory: ")
    assert "exceeds" in done.stderr


def test_check_refuses_a_memory_that_serve_refuses(folder: Path) -> None:
    small = {"MEMSVC_SERVER_MEMORY": "1000"}
    assert run("serve", cwd=folder, env=small).returncode == 2
    done = run("check", cwd=folder, env=small)
    assert done.returncode == 1
    least = int(done.stderr.split("at least ")[1].split(" ")[0].replace(",", ""))
    assert run("check", cwd=folder, env={"MEMSVC_SERVER_MEMORY": str(least)}).returncode == 0


def test_an_ipc_path_does_not_delete_the_file_that_lies_there(folder: Path) -> None:
    precious = folder / "precious"
    precious.write_text("data")
    done = run("serve", "--address", f"ipc://{precious}", cwd=folder)
    assert done.returncode == 2
    assert "is no socket" in done.stderr
    assert precious.read_text() == "data"


def test_a_ready_file_that_cannot_be_written_is_a_sentence(folder: Path) -> None:
    done = run("serve", "--ready-file", str(folder / "missing" / "ready.json"), cwd=folder)
    assert done.returncode == 1
    assert "memsvc: --ready-file: " in done.stderr
    assert "Traceback" not in done.stderr


def test_sigterm_to_a_stopped_daemon_ends_it_when_it_goes_on(folder: Path) -> None:
    with serving(folder) as (process, _):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        process.terminate()
        process.send_signal(signal.SIGCONT)
        assert process.wait(2) == 0


def test_settings_are_changed_while_it_runs(folder: Path) -> None:
    with serving(folder) as (_, ready):

        def change(*arguments: str) -> subprocess.CompletedProcess[str]:
            return run("set", ready["address"], *arguments, cwd=folder)

        done = change("replay", "limits.samples_per_insert=2", "limits.tolerance=66", "priority.exponent=0.25")
        assert done.returncode == 0, done.stderr
        limits = json.loads(done.stdout)["limits"]
        assert (limits["samples_per_insert"], limits["tolerance"]) == (2.0, 66.0)
        kept = json.loads(run("stats", ready["address"], cwd=folder).stdout)["tables"][0]
        assert kept["settings"] == json.loads(done.stdout)
        assert kept["limiter"]["sampled"] == 0
        for arguments, status, message in (
            (("replay", "limits.tolerance=1"), 1, "memsvc: limits.tolerance: expected at least 1 + samples_per_insert = 1 + 2 = 3"),
            (("replay", "priority.exponent=high"), 1, 'memsvc: priority.exponent: expected a number >= 0, got "high"'),
            (("replay", "item.n_step=1"), 1, "memsvc: item.n_step: cannot be changed while the server runs"),
            (("relay", "priority.exponent=1"), 1, f"memsvc: there is no table 'relay' at {ready['address']}; there are: replay"),
            (("replay", "priority.exponent"), 2, "memsvc: priority.exponent: expected PATH=VALUE, as in priority.exponent=0.5"),
        ):
            done = change(*arguments)
            assert done.returncode == status
            assert done.stderr.startswith(message)
            assert done.stderr.count("\n") == 1


def test_stats_of_nobody_is_a_sentence_and_status_1(folder: Path) -> None:
    done = run("stats", "tcp://127.0.0.1:9", "--timeout", "0.2", cwd=folder)
    assert done.returncode == 1
    assert done.stderr == "memsvc: no memsvc server answered at tcp://127.0.0.1:9 within 0.2 s\n"
    assert run("stats", "here", cwd=folder).returncode == 1


def test_help_lists_exactly_what_exists(folder: Path) -> None:
    done = run("--help", cwd=folder)
    commands = done.stdout.split("Commands:")[1].splitlines()
    assert [line.split()[0] for line in commands if line.strip()] == ["bench", "check", "checkpoint", "demo", "keys", "serve", "set", "stats"]
    for command in ("bench", "check", "checkpoint", "demo", "keys", "serve", "set", "stats"):
        assert run(command, "--help", cwd=folder).returncode == 0
    assert run("--version", cwd=folder).stdout.startswith("memsvc")
