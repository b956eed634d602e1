"""Learning proofs: the examples' algorithms learn CartPole through the service, and their own terms are what the papers say.

The runs use fixed seeds, an embedded server and one thread of PyTorch. The actor's thread still sends when it sees fit, so the learner may draw from
a little more or less, or in another order: runs of one seed are alike, not the same, and the bounds leave room for that.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from memsvc_client import mixed_priorities

import memsvc

LEARNING = Path(__file__).resolve().parent.parent / "clients" / "examples" / "learning"
BENCHMARK = Path(__file__).resolve().parent.parent / "benchmarks" / "learning.py"
PROOFS = ["dqn", "r2d2", "impala", "dapo"]
SOLVED = 195.0


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The examples' folder on the path, as when they are run as scripts; one thread, as they set it."""
    monkeypatch.syspath_prepend(str(LEARNING))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def proof(name: str) -> ModuleType:
    return importlib.import_module(name)


# The four runs.


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["dqn", "impala", "dapo"])
def test_it_learns_to_balance(name: str) -> None:
    curve = proof(name).train(seed=0)
    assert curve.solved_at is not None, curve
    assert curve.solved_at <= {"dqn": 30_000, "impala": 120_000, "dapo": 40_000}[name]
    assert max(curve.returns) >= 400, curve


@pytest.mark.timeout(280)
def test_memory_makes_up_for_hidden_velocities_and_nothing_else_does() -> None:
    recurrent = proof("r2d2").train(seed=0, aim=SOLVED)
    assert recurrent.solved_at is not None, recurrent
    blind = proof("r2d2").train(seed=0, steps=max(16_384, recurrent.solved_at), recurrent=False)
    assert max(blind.returns) < 100, blind


@pytest.mark.parametrize("name", PROOFS)
def test_the_same_over_a_socket(name: str) -> None:
    module = proof(name)
    with memsvc.Server(memsvc.Config.parse(module.CONFIG)) as server:
        curve = module.train(seed=1, steps=4_096 if name != "impala" else 10_240, address=server.address)
        assert curve.steps, "it came to an evaluation"
        assert server.stats()["tables"][0]["drawn"] > 0


def test_a_script_prints_what_a_daemon_must_serve() -> None:
    command = [sys.executable, str(LEARNING / "impala.py"), "--config"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert memsvc.Config.parse(printed).tables == memsvc.Config.parse(proof("impala").CONFIG).tables


def test_the_plot(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "--quick", "--only", "dapo", "--seeds", "0", "--out", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = [json.loads(line) for line in (tmp_path / "learning.jsonl").read_text().splitlines()]
    assert [row["proof"] for row in rows] == ["dapo"]
    assert len(rows[0]["steps"]) == len(rows[0]["returns"]) > 0
    assert all(rows[0][key] for key in ("machine", "commit", "date"))
    assert rows[0]["command"].startswith("python benchmarks/learning.py")
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")


# The learners' own terms, against loops written from the papers.


def unrolls(rng: np.random.Generator, gamma: float = 0.9) -> dict[str, np.ndarray]:
    """Eight unrolls of up to 7 steps; half of the short ones end terminated (discount 0), the rest truncated."""
    length = np.array([7, 7, 7, 6, 4, 3, 2, 1])
    mask = np.arange(7) < length[:, None]
    discount = np.where(mask, gamma, 0.0)
    discount[[3, 5, 7], length[[3, 5, 7]] - 1] = 0.0
    values = np.where(np.arange(8) <= length[:, None], rng.normal(size=(8, 8)), 0.0)
    return {"length": length, "mask": mask, "discount": discount, "reward": rng.normal(size=(8, 7)) * mask, "values": values}


def naive_v_trace(u: dict[str, np.ndarray], ratio: np.ndarray, row: int, t: int) -> float:
    """Espeholt et al. 2018, equation 1: V(x_t) + sum_k (prod_{i<k} discount_i c_i) rho_k (r_k + discount_k V(x_{k+1}) - V(x_k))."""
    values, total, factor = u["values"][row], u["values"][row, t], 1.0
    for k in range(t, u["length"][row]):
        rho = min(1.0, ratio[row, k])
        total += factor * rho * (u["reward"][row, k] + u["discount"][row, k] * values[k + 1] - values[k])
        factor *= u["discount"][row, k] * rho
    return float(total)


@pytest.mark.parametrize("off_policy", [False, True])
def test_v_trace(rng: np.random.Generator, off_policy: bool) -> None:
    u = unrolls(rng)
    ratio = np.exp(rng.normal(size=(8, 7))) if off_policy else np.ones((8, 7))
    given = [torch.from_numpy(x) for x in (u["reward"], u["discount"], u["values"], np.log(ratio), u["mask"])]
    targets, advantage = (x.numpy() for x in proof("impala").v_trace(*given))
    for row, length in enumerate(u["length"]):
        for t in range(7):
            if t >= length:
                assert targets[row, t] == advantage[row, t] == 0
                continue
            following = naive_v_trace(u, ratio, row, t + 1) if t + 1 < length else u["values"][row, length]
            assert targets[row, t] == pytest.approx(naive_v_trace(u, ratio, row, t))
            wanted = min(1.0, ratio[row, t]) * (u["reward"][row, t] + u["discount"][row, t] * following - u["values"][row, t])
            assert advantage[row, t] == pytest.approx(wanted)


def test_v_trace_on_policy_is_the_n_step_return(rng: np.random.Generator) -> None:
    u = unrolls(rng)
    given = [torch.from_numpy(x) for x in (u["reward"], u["discount"], u["values"], np.zeros((8, 7)), u["mask"])]
    targets = proof("impala").v_trace(*given)[0].numpy()
    for row, length in enumerate(u["length"]):
        wanted = u["values"][row, length]
        for t in reversed(range(length)):
            wanted = u["reward"][row, t] + u["discount"][row, t] * wanted
            assert targets[row, t] == pytest.approx(wanted)


def test_the_divergence_adds_up_along_the_episode(rng: np.random.Generator) -> None:
    u = unrolls(rng)
    log_ratio = rng.normal(size=(8, 7)).astype(np.float32)
    given = [torch.from_numpy(x) for x in (log_ratio, u["discount"].astype(np.float32), u["mask"])]
    found = proof("dapo").divergence(*given).numpy()
    for row, length in enumerate(u["length"]):
        for t in range(7):
            wanted, factor = 0.0, 1.0
            for k in range(t, length):
                wanted += factor * log_ratio[row, k]
                if k + 1 < length:
                    factor *= u["discount"][row, k] * min(1.0, float(np.exp(log_ratio[row, k + 1])))
            assert found[row, t] == pytest.approx(wanted, abs=1e-6)


def test_the_divergence_vanishes_where_the_policies_agree() -> None:
    mask = torch.ones(2, 5, dtype=torch.bool)
    assert not proof("dapo").divergence(torch.zeros(2, 5), torch.full((2, 5), 0.9), mask).any()


def test_targets_within_a_sequence(rng: np.random.Generator) -> None:
    u, n = unrolls(rng), proof("r2d2").N_STEP
    bootstrap = u["values"][:, 1:]
    given = [torch.from_numpy(x) for x in (u["reward"], u["discount"], bootstrap, u["mask"])]
    found = proof("r2d2").n_step(*given).numpy()
    for row, length in enumerate(u["length"]):
        for t in range(length):
            wanted, factor = 0.0, 1.0
            end = min(t + n, length)
            for k in range(t, end):
                wanted += factor * u["reward"][row, k]
                factor *= u["discount"][row, k]
            assert found[row, t] == pytest.approx(wanted + factor * bootstrap[row, end - 1])


def test_the_recurrent_learner_sends_mixed_priorities_of_real_errors(rng: np.random.Generator) -> None:
    """update() on a hand-made batch: its priorities are those of the errors that a step-by-step unroll of the network gives."""
    r2d2 = proof("r2d2")
    torch.manual_seed(3)
    net, length = r2d2.Network(True), np.array([r2d2.LENGTH, r2d2.LENGTH - 3, r2d2.BURN_IN + 1])
    rows, mask = len(length), np.arange(r2d2.LENGTH) < length[:, None]
    stream = rng.normal(size=(rows, r2d2.LENGTH + 1, 3)).astype(np.float32)  # observations 0 .. T
    action, state = rng.integers(2, size=mask.shape) * mask, rng.normal(size=(rows, r2d2.STATE)).astype(np.float32)
    batch = {
        "obs": stream[:, :-1] * mask[:, :, None],
        "next_obs": stream[np.arange(rows), length],
        "initial_state": state,
        "action": action,
        "reward": rng.normal(size=mask.shape).astype(np.float32) * mask,
        "discount": (0.9 * mask).astype(np.float32),
        "mask": mask,
        "length": length.astype(np.int32),
        "weights": np.ones(rows, np.float32),
    }
    wanted = np.zeros(mask.shape)
    with torch.no_grad():
        for row in range(rows):
            q, memory = [], torch.from_numpy(state[row : row + 1])
            for t in range(length[row] + 1):
                values, memory = net(torch.from_numpy(stream[row : row + 1, t : t + 1]), memory)
                q.append(values[0, 0].numpy())
            for t in range(length[row]):
                target, factor, end = 0.0, 1.0, min(t + r2d2.N_STEP, int(length[row]))
                for k in range(t, end):
                    target += factor * batch["reward"][row, k]
                    factor *= 0.9
                wanted[row, t] = target + factor * q[end].max() - q[t][action[row, t]]
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    found = r2d2.update(net, net, torch.optim.SGD(net.parameters(), lr=0.0), tensors)
    assert found == pytest.approx(mixed_priorities(wanted, r2d2.ETA, r2d2.BURN_IN, mask), rel=1e-4)
