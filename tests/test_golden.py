"""The golden numbers of DEFINITIONS 2, 4, 5, 6 and 7, through the product (Memory and Replay), its pure functions, and the references."""

from __future__ import annotations

import memsvc_core as core
import numpy as np
import pytest
import reference as ref
from rig import Rig, table

REWARD, VALUE = [1.0, 0.0, 2.0, -1.0, 3.0], [0.5, 0.4, 0.3, 0.2, 0.1]
FIELDS = [("obs", "<f8", ()), ("reward", "<f8", ()), ("value", "<f8", ())]
SUMS = [2.62, 0.99, 3.53, 1.7, 3.0]
DISCOUNTS = {True: [0.729, 0.729, 0, 0, 0], False: [0.729, 0.729, 0.729, 0.81, 0.9]}
RETURNS = {True: [2.606029, 2.130595, 2.884160, 1.178, 3.0], False: [2.775334, 2.365741, 3.210752, 1.6316, 3.63]}
ADVANTAGES = [2.106029, 1.730595, 2.584160, 0.978, 2.9]
WEIGHTS = [1.924809, 1.710907, 2.176209, 1.214821, 2.332103]


def episode(settings: dict, terminated: bool, last_value: float = 0.7) -> dict[str, np.ndarray]:
    """All items of episode T, in order, through a memory and a server, with their weights as `w`."""
    rig = Rig(FIELDS, settings)
    peer = rig.join()
    for t in range(5):
        peer.memory.add(0, {"obs": float(t), "reward": REWARD[t], "value": VALUE[t]}, None, -1)
    peer.memory.end(0, terminated, {"obs": 5.0, "value": last_value})
    if settings["actor"]["select"] == "all":
        rig.push_all(peer)
    else:
        rig.push(peer, 400)
    batch = rig.draw(200)
    _, at = np.unique(batch["obs"], return_index=True)
    assert len(at) == 5
    return {**{name: batch[name][at] for name in batch.columns}, "w": batch.w[at]}


@pytest.mark.parametrize("select", ["all", "prioritized"])
@pytest.mark.parametrize("terminated", [True, False])
def test_n_step(terminated, select):
    items = episode(table(item={"kind": "transition", "n_step": 3, "gamma": 0.9, "next": ["obs"]}, actor={"select": select}), terminated)
    np.testing.assert_allclose(items["reward"], SUMS, atol=1e-6)
    np.testing.assert_allclose(items["discount"], DISCOUNTS[terminated], atol=1e-6)
    np.testing.assert_array_equal(items["next_obs"], [3, 4, 5, 5, 5])
    reward, gamma = np.array(REWARD)[:, None], np.full((5, 1), 0.9)
    for sums, discounts, following in (core.n_step(reward, terminated, 3, gamma), ref.n_step(reward, terminated, 3, gamma)):
        np.testing.assert_allclose(sums[:, 0], SUMS, atol=1e-6)
        np.testing.assert_allclose(discounts[:, 0], DISCOUNTS[terminated], atol=1e-6)
        np.testing.assert_array_equal(following, [3, 4, 5, 5, 5])


@pytest.mark.parametrize("select", ["all", "prioritized"])
@pytest.mark.parametrize("terminated", [True, False])
def test_returns(terminated, select):
    items = episode(table(returns={"gamma": 0.9, "lambda": 0.8}, actor={"select": select}), terminated)
    np.testing.assert_allclose(items["return"], RETURNS[terminated], atol=1e-6)
    np.testing.assert_allclose(items["advantage"], np.array(RETURNS[terminated]) - VALUE, atol=1e-6)
    if terminated:
        np.testing.assert_allclose(items["advantage"], ADVANTAGES, atol=1e-6)
    reward, value, gamma = np.array(REWARD)[:, None], np.array(VALUE)[:, None], np.full((5, 1), 0.9)
    for found in (core.lambda_return, ref.lambda_return):
        np.testing.assert_allclose(found(reward, value, np.array([0.7]), terminated, gamma, 0.8)[:, 0], RETURNS[terminated], atol=1e-6)


@pytest.mark.parametrize("select", ["all", "prioritized"])
def test_return_priorities(select):
    settings = table(returns={"gamma": 0.9, "lambda": 0.8}, priority={"source": "return"}, actor={"select": select})
    items = episode(settings, True)
    np.testing.assert_allclose(items["w"], WEIGHTS, atol=1e-6)
    np.testing.assert_allclose(items["probabilities"], np.array(WEIGHTS) / sum(WEIGHTS), atol=1e-6)


def given(alpha: float, importance: dict, *actors: list[float], select: str = "prioritized") -> tuple[Rig, dict[str, np.ndarray], int]:
    """One step item for each priority of each actor; every item once, in order of id, and N."""
    fields = [("id", "<i8", ())]
    rig = Rig(fields, table(priority={"source": "given", "exponent": alpha}, importance=importance, actor={"select": select}))
    made = 0
    for priorities in actors:
        peer = rig.join()
        for p in priorities:
            peer.memory.add(0, {"id": made}, p, -1)
            made += 1
        peer.memory.end(0, False, None)
        if select == "all":
            rig.push_all(peer)
        else:
            rig.push(peer, 300)
    batch = rig.draw(256)
    _, at = np.unique(batch["id"], return_index=True)
    assert len(at) == made
    return rig, {name: batch[name][at] for name in batch.columns}, batch.population


@pytest.mark.parametrize("select", ["all", "prioritized"])
def test_importance_weights(select):
    raw = np.array([1.232543, 1.043650, 0.946876, 0.883706])
    for normalize, scale in (("none", 1.0), ("table", 1 / raw[0]), ("batch", 1 / raw[0])):
        _, items, population = given(0.6, {"beta": 0.4, "normalize": normalize}, [1.0, 2, 3, 4], select=select)
        assert population == 4
        np.testing.assert_allclose(items["probabilities"], [0.148230, 0.224674, 0.286555, 0.340542], atol=1e-6)
        np.testing.assert_allclose(items["weights"], raw * scale, atol=1e-6)


@pytest.mark.parametrize("select", ["all", "prioritized"])
def test_two_stages(select):
    rig, items, population = given(1.0, {"beta": 1.0, "normalize": "none"}, [1.0, 3], [2.0, 2, 4], select=select)
    assert population == 5
    np.testing.assert_allclose(items["probabilities"], [0.083333, 0.25, 0.166667, 0.166667, 0.333333], atol=1e-6)
    np.testing.assert_allclose(items["weights"], [2.4, 0.8, 1.2, 1.2, 0.6], atol=1e-6)
    probabilities, shares = ref.two_stage({"a": [1, 3], "b": [2, 2, 4]})
    np.testing.assert_allclose(items["probabilities"], probabilities, atol=1e-12)
    np.testing.assert_allclose(list(shares.values()), [1 / 3, 2 / 3])
    if select == "prioritized":
        assert [a["total"] for a in rig.stats()["actors"]] == pytest.approx([4, 8])


@pytest.mark.parametrize("select", ["all", "prioritized"])
def test_sequence_priority(select):
    settings = table(
        item={"kind": "sequence", "length": 5, "burn_in": 2, "tail": "drop", "gamma": 0.9},
        priority={"source": "given", "exponent": 1.0, "eta": 0.9},
        actor={"select": select},
    )
    rig = Rig([("id", "<i8", ()), ("reward", "<f4", ())], settings)
    peer = rig.join()
    for t, p in enumerate([7.0, 9.0, 0.1, 0.5, 0.2]):
        peer.memory.add(0, {"id": t, "reward": 0.0}, p, -1)
    peer.memory.end(0, False, None)
    rig.push(peer, 0 if select == "all" else 8)
    batch = rig.draw(1)
    assert batch.w[0] == pytest.approx(0.476667, abs=1e-6)
    assert ref.mixed([0.1, 0.5, 0.2], 0.9) == pytest.approx(0.476667, abs=1e-6)
