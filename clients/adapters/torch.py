"""PyTorch: batches as tensors without a copy, parameters from a module or `state_dict` and back, bit for bit (bfloat16 too)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from memsvc_proto.errors import SchemaError
from numpy.typing import NDArray

from ..batch import Batch
from ..learner import Learner
from ..params import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, Params

# torch's types that numpy lacks: how they look as integers here, and in params.py.
_NAMED: dict[torch.dtype, tuple[torch.dtype, np.dtype[Any]]] = {
    torch.bfloat16: (torch.int16, BFLOAT16),
    torch.float8_e4m3fn: (torch.uint8, FLOAT8_E4M3),
    torch.float8_e5m2: (torch.uint8, FLOAT8_E5M2),
}
_BACK = {dtype: (integers, real) for real, (integers, dtype) in _NAMED.items()}


def as_tensors(batch: Batch, device: torch.device | str | None = None) -> dict[str, torch.Tensor]:
    """The batch's columns as tensors [B, ...], and "keys" (int64 with the bits of the u64 keys), "probabilities" f64, "weights" f32, "versions" i64.

    The tensors share the batch's memory, which is theirs: they may be written to. With `device` they are copied there (asynchronously where torch
    can). `learner.update_priorities(tensors["keys"], p)` takes the keys back as they are. Raises SchemaError for a column type that torch lacks.
    """
    tensors = {name: _tensor(name, array) for name, array in batch.items()}
    # Few of torch's operations know uint64; the same bits as int64 can be indexed, gathered and sorted.
    tensors["keys"] = torch.from_numpy(np.asarray(batch.keys).view(np.int64))
    tensors["probabilities"] = torch.from_numpy(batch.probabilities)
    tensors["weights"] = torch.from_numpy(batch.weights)
    tensors["versions"] = torch.from_numpy(batch.versions)
    if device is not None:
        return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
    return tensors


def publish(learner: Learner, source: torch.nn.Module | Mapping[str, torch.Tensor], topic: str | None = None, timeout: float = 30.0) -> int:
    """Publishes a module's `state_dict`, or one, from any device; returns the version. Raises SchemaError for entries that are no tensors, and as
    Learner.publish.
    """
    state: Mapping[str, Any] = source.state_dict() if isinstance(source, torch.nn.Module) else source
    return learner.publish({name: _array(name, value) for name, value in state.items()}, topic, timeout)


def tensors(params: Params) -> dict[str, torch.Tensor]:
    """The published arrays as tensors of the types they were published with, sharing the parameters' memory."""
    return {name: _tensor(name, array) for name, array in params.arrays.items()}


def load(params: Params, module: torch.nn.Module, strict: bool = True) -> None:
    """Copies published parameters into `module` (load_state_dict; with `strict` its names must be the published ones, or RuntimeError)."""
    module.load_state_dict(tensors(params), strict=strict)


def _array(name: str, value: Any) -> NDArray[Any]:
    if not isinstance(value, torch.Tensor):
        raise SchemaError(f"parameter {name!r} is {type(value).__name__}, not a tensor; publish tensors only", name=name)
    value = value.detach().cpu().contiguous()
    array: NDArray[Any]
    if value.dtype in _NAMED:
        integers, dtype = _NAMED[value.dtype]
        array = value.view(integers).numpy().view(dtype)
        return array
    try:
        array = value.numpy()
        return array
    except TypeError as error:
        raise SchemaError(f"parameter {name!r} has dtype {value.dtype}, which cannot be published: {error}", name=name) from None


def _tensor(name: str, array: NDArray[Any]) -> torch.Tensor:
    if array.dtype in _BACK:
        integers, real = _BACK[array.dtype]
        return torch.from_numpy(array.view(np.int16 if integers is torch.int16 else np.uint8)).view(real)
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise SchemaError(f"column {name!r} has dtype {array.dtype}, which torch lacks: choose another in the step's schema", field=name) from None
