"""One priority for a sequence out of the errors of its steps (R2D2; DEFINITIONS 4)."""

from __future__ import annotations

from typing import Any

import numpy as np
from memsvc_proto.errors import ConfigError, SchemaError
from numpy.typing import NDArray

from .given import array


def mixed_priorities(errors: Any, eta: float = 0.9, burn_in: int = 0, mask: Any = None) -> NDArray[np.float64]:
    """float64[B]: eta * max_t |d_t| + (1 - eta) * mean_t |d_t| of each row of `errors` [B, L] (arrays of any framework that numpy reads).

    t runs over the real steps after the first `burn_in`: those where `mask` (bool[B, L], `batch["mask"]`; None: all) is true. A row that has none
    after burn-in takes all its real steps, one without a real step is 0; so the service mixes the errors that actors pass too. Signs are ignored.
    Raises SchemaError for wrong shapes or dtypes, ConfigError for eta outside 0 .. 1 or a negative burn_in. NaN stays NaN: update_priorities refuses
    it by key.

    Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning (2019), 2.3.
    """
    values = array("errors", errors)
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise SchemaError(f"errors: expected real numbers of shape [B, L], got {values.dtype} {list(values.shape)}", field="errors")
    if not 0 <= eta <= 1:
        raise ConfigError(f"eta: expected a number from 0 to 1, got {eta!r}")
    if not isinstance(burn_in, (int, np.integer)) or burn_in < 0:
        raise ConfigError(f"burn_in: expected an integer >= 0, got {burn_in!r}")
    real = np.ones(values.shape, bool) if mask is None else array("mask", mask)
    if real.shape != values.shape or real.dtype != np.bool_:
        raise SchemaError(f"mask: expected bool {list(values.shape)}, as errors has, got {real.dtype} {list(real.shape)}", field="mask")
    after = real & (np.arange(values.shape[1]) >= burn_in)
    used = np.where(after.any(1, keepdims=True), after, real)
    sizes = np.where(used, np.abs(values, dtype=np.float64), 0.0)
    count = np.maximum(used.sum(1), 1)
    mixed: NDArray[np.float64] = eta * sizes.max(1, initial=0.0) + (1 - eta) * sizes.sum(1) / count
    return mixed
