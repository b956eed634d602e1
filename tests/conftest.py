"""Fixtures that several test files share."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

# Shells start what runs in the background with Ctrl-C ignored, and children inherit that; tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers of a test: always the same ones."""
    return np.random.default_rng(20261130)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of keys that no test changes."""
    folder = tmp_path_factory.mktemp("keys") / "server"
    from memsvc.keys import make

    make(folder)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of another server."""
    folder = tmp_path_factory.mktemp("other") / "server"
    from memsvc.keys import make

    make(folder)
    return folder
