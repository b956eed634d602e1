"""mixed_priorities: R2D2's mix of a sequence's errors (DEFINITIONS 4), against loops."""

from __future__ import annotations

import numpy as np
import pytest
from memsvc_client import ConfigError, SchemaError, mixed_priorities


def naive(errors, eta, burn_in, mask):
    """The definition, one row after the other."""
    out = []
    for row, real in zip(errors, mask, strict=True):
        d = [abs(x) for t, (x, is_real) in enumerate(zip(row, real, strict=True)) if is_real and t >= burn_in]
        d = d or [abs(x) for x, is_real in zip(row, real, strict=True) if is_real]
        out.append(eta * max(d) + (1 - eta) * sum(d) / len(d) if d else 0.0)
    return out


def test_golden():
    assert mixed_priorities([[0.1, 0.5, 0.2]]) == pytest.approx([0.476667], abs=5e-7)
    assert mixed_priorities([[9.0, -0.1, 0.5, -0.2]], burn_in=1) == pytest.approx([0.476667], abs=5e-7)


def test_against_loops(rng):
    for _ in range(200):
        b, length = rng.integers(1, 6), rng.integers(1, 9)
        errors = rng.normal(0, 3, (b, length))
        mask = np.arange(length) < rng.integers(0, length + 1, (b, 1))
        if rng.random() < 0.3:
            mask = rng.random((b, length)) < 0.5
        eta, burn_in = float(rng.random()), int(rng.integers(0, length + 2))
        got = mixed_priorities(errors, eta, burn_in, mask)
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, naive(errors, eta, burn_in, mask), rtol=1e-12)


def test_what_stands_behind_the_mask_does_not_count():
    errors = np.array([[1.0, 2.0, np.nan], [1.0, 2.0, 3.0]], np.float32)
    mask = np.array([[True, True, False], [False, False, False]])
    assert mixed_priorities(errors, mask=mask).tolist() == pytest.approx([0.9 * 2 + 0.1 * 1.5, 0.0])
    assert np.isnan(mixed_priorities(errors)[0])  # and is refused by key


def test_shapes_of_nothing():
    assert mixed_priorities(np.zeros((0, 5))).shape == (0,)
    assert mixed_priorities(np.zeros((3, 0))).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("error", "arguments", "word"),
    [
        (SchemaError, {"errors": [1.0, 2.0]}, r"errors: .*\[B, L\]"),
        (SchemaError, {"errors": [["a"]]}, "errors"),
        (SchemaError, {"errors": np.zeros((2, 3), complex)}, "errors"),
        (SchemaError, {"mask": np.ones((2, 2), bool)}, "mask"),
        (SchemaError, {"mask": np.ones((2, 3))}, "mask"),
        (ConfigError, {"eta": 1.1}, "eta"),
        (ConfigError, {"eta": float("nan")}, "eta"),
        (ConfigError, {"burn_in": -1}, "burn_in"),
        (ConfigError, {"burn_in": 1.0}, "burn_in"),
    ],
)
def test_what_is_refused(error, arguments, word):
    with pytest.raises(error, match=word):
        mixed_priorities(**{"errors": np.ones((2, 3)), **arguments})
