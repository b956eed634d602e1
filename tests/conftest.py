"""Fixtures that several test files share."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers of a test: always the same ones."""
    return np.random.default_rng(20261130)
