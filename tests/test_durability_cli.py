"""Durability from the command line: what `check` says, `serve` refuses, and `checkpoint` takes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from memsvc_client import Actor, Learner
from serving import until

CONFIG = """
[server]
address = "tcp://127.0.0.1:0"
control = "127.0.0.1:0"
memory = "4MiB"
durability = "{mode}"
data = "data"

[step]
obs = {{ dtype = "float32", shape = [3] }}

[[table]]
name = "union"
item = {{ kind = "step" }}
actor = {{ select = "all" }}
priority = {{ source = "given", exponent = {exponent} }}
"""
MEMSVC = (sys.executable, "-m", "memsvc")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MEMSVC, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


@contextlib.contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[dict[str, Any]]:
    ready = folder / "ready"
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen([*MEMSVC, "serve", "m.toml", "--ready-file", "ready", *arguments], cwd=folder, stderr=log)
    try:
        until(lambda: ready.exists() or process.poll() is not None, 60)
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        yield json.loads(ready.read_text())
        process.terminate()
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(30)


def test_a_daemon_in_snapshot_mode_from_start_to_mismatch(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(CONFIG.format(mode="snapshot", exponent=1.0))
    checked = run(tmp_path, "check", "m.toml")
    assert checked.returncode == 0
    assert "disk       up to" in checked.stdout
    with serving(tmp_path) as about:
        with Actor(about["address"], name="a", timeout=20) as actor, Learner(about["address"], table="union", batch_size=4, timeout=20) as learner:
            for i in range(20):
                actor.add(obs=np.full(3, i, np.float32), priority=1.0)
            actor.end_episode(terminated=True)
            actor.flush(timeout=20)
            assert learner.publish({"w": np.ones(1000, np.float32)}) == 1
        taken = run(tmp_path, "checkpoint", about["address"])
        assert taken.returncode == 0, taken.stderr
        assert json.loads(taken.stdout)["items"] == {"union": 20}
        assert json.loads(run(tmp_path, "checkpoint", about["control"]).stdout)["items"] == {"union": 20}
    with serving(tmp_path) as about:
        stats = json.loads(run(tmp_path, "stats", about["address"]).stdout)
        assert stats["tables"][0]["items"] == 20
        assert stats["parameters"]["default"]["version"] == 1
        assert stats["durability"]["restored"]["items"] == {"union": 20}
    assert "restored 20 items of 'union'" in (tmp_path / "log").read_text()
    (tmp_path / "m.toml").write_text(CONFIG.format(mode="snapshot", exponent=0.5))
    refused = run(tmp_path, "serve", "m.toml")
    assert refused.returncode == 2
    assert "table.union.priority.exponent: 1.0 -> 0.5" in refused.stderr
    with serving(tmp_path, "--on-mismatch", "config") as about:
        stats = json.loads(run(tmp_path, "stats", about["address"]).stdout)
        assert stats["tables"][0]["items"] == 20


def test_a_checkpoint_without_durability_is_refused_with_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(CONFIG.format(mode="off", exponent=1.0).replace('data = "data"', ""))
    with serving(tmp_path) as about:
        refused = run(tmp_path, "checkpoint", about["address"])
        assert refused.returncode == 1
        assert "server.durability" in refused.stderr
