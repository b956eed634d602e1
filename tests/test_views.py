"""Views: what numpy.ndarray(shape, dtype, buffer, offset) makes, in one call."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from memsvc_core import Views

COLUMNS = [("obs", "<f4", (3, 17), 0), ("done", "|b1", (3,), 256), ("none", "<i8", (0, 2), 320), ("key", "<u8", (3,), 320)]
BYTES = 344


def test_views_equal_numpy_s_own() -> None:
    buffer = np.random.default_rng(1).integers(0, 2, BYTES, np.uint8)
    for view, (_, dtype, shape, offset) in zip(Views(COLUMNS).of(buffer), COLUMNS, strict=True):
        expected = np.ndarray(shape, dtype, buffer, offset)
        assert view.dtype == expected.dtype
        assert view.flags == expected.flags
        np.testing.assert_array_equal(view, expected)
        view[:] = 1
        assert (expected == 1).all()


def test_views_keep_their_buffer_alive_and_let_go_of_it() -> None:
    buffer = bytearray(BYTES)
    before = sys.getrefcount(buffer)
    views = Views(COLUMNS).of(buffer)
    assert sys.getrefcount(buffer) == before + len(COLUMNS)
    last = views[-1]
    del views
    gc.collect()
    last[:] = 7
    assert buffer[320] == 7
    del last
    assert sys.getrefcount(buffer) == before


def test_a_buffer_that_may_not_be_written_gives_views_that_may_not() -> None:
    assert not any(view.flags.writeable for view in Views(COLUMNS).of(bytes(BYTES)))


def test_a_buffer_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="343 bytes"):
        Views(COLUMNS).of(bytes(BYTES - 1))
