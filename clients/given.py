"""Arrays that a training process hands in, of whatever framework: checked, and as numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from memsvc_proto.errors import ConfigError, SchemaError
from numpy.typing import NDArray


def array(name: str, value: Any) -> NDArray[Any]:
    """`value` as numpy reads it; SchemaError, which names it, where numpy does not."""
    try:
        return np.asarray(value)
    except Exception as error:
        raise SchemaError(f"{name}: {type(value).__name__} is no array for numpy: {error}", field=name) from error


def version_of(name: str, value: Any) -> int:
    """A version of parameters: an integer from -1 (before the first publication) to 2^62 - 1. Raises ConfigError, which names the argument."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not -1 <= value < 1 << 62:
        raise ConfigError(f"{name}: expected a version, an integer from -1 to 2^62 - 1, got {value!r}")
    return int(value)


def keys_of(value: Any) -> NDArray[np.uint64]:
    """Items' keys, uint64[n]. Raises SchemaError for other dtypes and shapes."""
    keys = array("keys", value)
    if keys.ndim != 1:
        raise SchemaError(f"keys: expected one dimension, got shape {list(keys.shape)}", field="keys")
    if not keys.size:
        return np.empty(0, np.uint64)
    if keys.dtype not in (np.uint64, np.int64):
        raise SchemaError(f"keys: expected uint64 (batch.keys), or int64 with the same bits, got {keys.dtype}", field="keys")
    return np.ascontiguousarray(keys).view(np.uint64)


def priorities_of(value: Any, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Raw priorities, float64[n], one for each key; they may be NaN, infinite or negative. Raises SchemaError for other dtypes and shapes."""
    values = array("priorities", value)
    if values.dtype.kind not in "biuf":
        raise SchemaError(f"priorities: expected real numbers, got {values.dtype}", field="priorities")
    if values.shape != keys.shape:
        raise SchemaError(f"priorities: shape {list(values.shape)} for {len(keys)} keys; expected one for each key", field="priorities")
    return values.astype(np.float64, copy=False)
