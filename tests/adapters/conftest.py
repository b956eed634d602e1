"""A daemon as users run it, for the adapters' tests. They run in an environment of their own: see `make test-adapters`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# The main environment has no TensorFlow, the adapters' has no PyTorch.
collect_ignore = [] if importlib.util.find_spec("tensorflow") else ["test_tensorflow.py"]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """serve(text of a memsvc.toml) starts `memsvc serve` and returns its address; at the end it must stop on SIGTERM with status 0."""
    running: list[subprocess.Popen[bytes]] = []

    def start(config: str) -> str:
        file, ready = tmp_path / f"memsvc-{len(running)}.toml", tmp_path / f"ready-{len(running)}.json"
        file.write_text('[server]\naddress = "tcp://127.0.0.1:0"\nmemory = "64MiB"\nseed = 7\n' + config)
        daemon = subprocess.Popen([sys.executable, "-m", "memsvc.cli", "serve", str(file), "--ready-file", str(ready)])
        running.append(daemon)
        for _ in range(600):
            if ready.exists():
                return str(json.loads(ready.read_text())["address"])
            assert daemon.poll() is None, f"the daemon ended with status {daemon.returncode}"
            time.sleep(0.05)
        raise AssertionError("the daemon was not ready after 30 s")

    try:
        yield start
        for daemon in running:
            daemon.terminate()
        assert [daemon.wait(timeout=10) for daemon in running] == [0] * len(running)
    finally:
        for daemon in running:
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()
