"""The examples run as a reader would run them: each a script of its own, against a real daemon."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "clients" / "examples"


def run(script: str, *arguments: str, timeout: float = 120) -> str:
    done = subprocess.run([sys.executable, str(EXAMPLES / script), *arguments], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quickstart_runs_and_is_short() -> None:
    assert "'next_obs': ('float32', (32, 4))" in run("quickstart.py")
    text = (EXAMPLES / "quickstart.py").read_text()
    docstring = ast.parse(text).body[0].end_lineno
    code = [line for line in text.splitlines()[docstring:] if line.strip() and not line.strip().startswith(("#", "import "))]
    assert len(code) <= 20


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A daemon with the examples' own configuration, on a free port."""
    file, ready = tmp_path / "cartpole.toml", tmp_path / "ready.json"
    file.write_text(re.sub(r'address = "[^"]*"', 'address = "tcp://127.0.0.1:0"', (EXAMPLES / "cartpole.toml").read_text()))
    daemon = subprocess.Popen([sys.executable, "-m", "memsvc.cli", "serve", str(file), "--ready-file", str(ready)], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 30
        while not ready.exists():
            assert daemon.poll() is None, daemon.stderr.read() if daemon.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield json.loads(ready.read_text())["address"]
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(5) == 0
    finally:
        daemon.kill()
        daemon.wait()


def test_actor_and_learner_against_a_daemon(address: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    # The actor first: it has to wait for parameters, and the learner for items. It plays until the learner has enough.
    command = [sys.executable, str(EXAMPLES / "actor.py"), address, "actor-0", "1000000"]
    actor = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        learner = run("learner.py", address, "400")
        actor.send_signal(signal.SIGINT)
        said, errors = actor.communicate(timeout=20)
    finally:
        actor.kill()
        actor.wait()
    assert actor.returncode == 0, errors
    assert re.search(r"400 updates, version 41, loss \d+\.\d+, drawn from [\d,]+ items", learner)
    played = [int(version) for version in re.findall(r"actor-0: [\d,]+ steps, parameters (\d+), mean return \d+", said)]
    assert played == sorted(played)
    assert played[-1] > 1, "the actor has taken up newer parameters"
