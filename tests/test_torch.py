"""adapters/torch.py: batches without a copy, modules out and in, bit for bit."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from memsvc_client import SchemaError
from serving import KINDS, serve, until

torch = pytest.importorskip("torch")
adapter = pytest.importorskip("memsvc_client.adapters.torch")


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_share_the_batch_s_memory(kind, tmp_path):
    with serve(kind, tmp_path) as made, made.actor() as actor, made.learner(batch_size=8) as learner, warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(20):
            actor.add(obs=np.full(3, i, np.float32), action=i, reward=float(i), priority=1.0)
        actor.end_episode(terminated=True)
        actor.flush(10)
        batch = learner.sample()
        tensors = adapter.as_tensors(batch)
        assert tensors.keys() == {"obs", "action", "reward", "keys", "probabilities", "weights", "versions"}
        assert tensors["obs"].dtype == torch.float32
        assert tensors["obs"].data_ptr() == batch["obs"].ctypes.data
        tensors["obs"][0] = 99
        assert batch["obs"][0].tolist() == [99] * 3
        assert tensors["keys"].dtype == torch.int64
        td = (tensors["reward"] - 1).abs().requires_grad_()
        with pytest.raises(SchemaError, match="detach"):
            learner.update_priorities(tensors["keys"], td)
        learner.update_priorities(tensors["keys"], td.detach())
        until(lambda: learner.stats()["applied"] == 8)
        assert adapter.as_tensors(batch, "cpu")["action"].tolist() == batch["action"].tolist()


@pytest.mark.parametrize("kind", ["local", "tcp"])
def test_a_module_out_and_in(kind, tmp_path):
    torch.manual_seed(3)
    made = [torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2, dtype=torch.bfloat16)) for _ in range(2)]
    with serve(kind, tmp_path) as served, served.actor() as actor, served.learner() as learner:
        version = adapter.publish(learner, made[0])
        params = actor.params()
        assert params.version == version
        adapter.load(params, made[1])
        for name, tensor in made[0].state_dict().items():
            other = made[1].state_dict()[name]
            assert other.dtype == tensor.dtype, name
            assert torch.equal(other, tensor), name
        with pytest.raises(RuntimeError):
            adapter.load(params, torch.nn.Linear(4, 8))


@pytest.mark.parametrize(
    "dtype",
    [
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "bool",
        "complex64",
    ],
)
def test_every_dtype_keeps_its_bits(dtype, tmp_path):
    kind = getattr(torch, dtype)
    raw = torch.arange(0, 16, dtype=torch.uint8) % 2 if dtype == "bool" else torch.arange(0, 16, dtype=torch.uint8) * 13
    tensor = raw.view(kind)
    state = {"plain": tensor, "strided": tensor[::2], "none": tensor[:0], "0d": tensor[0]}
    with serve("local", tmp_path) as served, served.learner() as learner:
        adapter.publish(learner, state)
        got = adapter.tensors(learner.params())
        for name, given in state.items():
            assert got[name].dtype == kind
            assert got[name].shape == given.shape
            assert bits(got[name]) == bits(given)


def bits(tensor):
    return tensor.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8).tolist()


def test_what_is_no_tensor(tmp_path):
    with serve("local", tmp_path) as served, served.learner() as learner:
        with pytest.raises(SchemaError, match="'extra'"):
            adapter.publish(learner, {"extra": {"a": 1}})
        with pytest.raises(SchemaError, match="'z'"):
            adapter.publish(learner, {"z": torch.zeros(2, dtype=torch.complex128)})
