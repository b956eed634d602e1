"""Two stages and a learner that acts on what it is given (DEFINITIONS 7), against the full joint state of all actors, beside a naive simulation.

`STATISTICS=20 pytest -s -q tests/test_closed_loop.py` plays twenty times as much and prints every number (`make statistics`).
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace

import numpy as np
import pytest
from joint import CACHE, FIELDS, Actor, Game, Joint, Naive, Product, block_means, play
from rig import Rig, table
from scipy.stats import chi2

MORE = int(os.environ.get("STATISTICS", "1"))
THREE = Game((10_000,) * 3, rounds=250, batch=64)  # caches of 64, far smaller than the memories


def measure(label: str, game: Game, make, worlds: int, seed: int) -> dict[str, tuple[float, float]]:
    """name -> (mean of delivered minus exact, its standard error): over worlds that are independent, or over blocks of long ones."""
    runs = [play(game, make, seed + world) for world in range(worlds * MORE)]
    blocks = 1 if len(runs) >= 12 else 24
    found = {}
    for name in runs[0]:
        means = np.concatenate([block_means(run[name], blocks) for run in runs])
        found[name] = (float(means.mean()), float(means.std(ddof=1) / np.sqrt(len(means))))
    told = "  ".join(f"{name} {mean:+.5f} ({mean / se:+.1f} se)" for name, (mean, se) in found.items() if se > 0)
    print(f"{label}: {len(runs)} x {game.rounds} batches of {game.batch}: {told}")
    return found


def agrees(label: str, game: Game, make=Product, worlds: int = 1, seed: int = 1, mean: bool = True) -> dict[str, tuple[float, float]]:
    """Shares of actors and of updated items within 2 standard errors, the importance-weighted mean (where asked) within 3.

    Of exact numbers one in 20 misses 2 standard errors: what does is played again, with other random numbers, and must not miss on the same side.
    """
    first = measure(label, game, make, worlds, seed)
    names = [name for name in first if not name.startswith("now.") and (mean or name != "mean")]
    bounds = {name: 3 if name == "mean" else 2 for name in names}
    missed = [name for name in names if abs(first[name][0]) > bounds[name] * first[name][1]]
    if not missed:
        return first
    again = measure(label + ", again", game, make, worlds, seed + 10_000)
    for name in missed:
        difference, se = again[name]
        assert difference * np.sign(first[name][0]) <= bounds[name] * se, (name, first[name], again[name])
    return again


@pytest.mark.parametrize("learner", ["none", "cut", "raise", "both"])
def test_memories_of_200_1000_and_5000_pushing_1_1_8(learner):
    agrees(learner, Game(learner=learner), worlds=16)


@pytest.mark.parametrize("learner", ["cut", "raise", "both"])
def test_memories_of_10000_with_caches_of_64(learner):
    agrees(f"10,000, {learner}", replace(THREE, learner=learner))


@pytest.mark.parametrize("learner", ["cut", "raise", "both"])
def test_several_learners_with_several_batches_in_flight(learner):
    agrees(f"four learners, {learner}", replace(THREE, learner=learner, lags=(0, 3, 7, 2), delay=3))


@pytest.mark.parametrize("learner", ["cut", "raise", "both"])
def test_memories_that_are_smaller_than_the_stock(learner):
    """Where updated items come again and again, and every queue is as long as the memory: the old rule gave .601 where .669 is exact."""
    agrees(f"90 items, {learner}", Game((30, 30, 30), learner=learner, rounds=12, stock=256), worlds=24)


@pytest.mark.parametrize("learner", ["none", "cut", "both"])
def test_actors_that_leave_are_replaced_and_starve(learner):
    agrees(f"churn, {learner}", Game((300, 600, 2000), learner=learner, rounds=300, churn=15, lags=(0, 2)), worlds=2)


@pytest.mark.parametrize("learner", ["none", "cut", "both"])
def test_memories_that_turn_over(learner):
    agrees(f"turnover, {learner}", replace(THREE, learner=learner, turnover=20))


@pytest.mark.parametrize("learner", ["cut", "raise"])
def test_a_turnover_shifts_shares_by_the_age_of_the_draws_alone(learner):
    """Memories that lose 4 % a round while draws wait up to 3 rounds: relative to the memories as they are, updated items come too often, because the
    newest items are not in queued draws yet; relative to the memories that the draws were drawn from, exactly as often as they should. (The mean is
    off by as much as W has moved meanwhile: P(i) = w / W with the newest W.)"""
    found = agrees(f"fast turnover, {learner}", Game((500,) * 3, learner=learner, turnover=20, batch=64, rounds=100), worlds=24, mean=False)
    difference, se = found["now.updated"]
    assert 4 * se < difference < 0.03


@pytest.mark.parametrize("learner", ["cut", "raise", "both"])
def test_the_naive_simulation_agrees_with_the_joint_state_too(learner):
    agrees(f"naive, {learner}", Game(learner=learner, rounds=24), Naive, worlds=12)


def test_the_rule_that_was_replaced_is_found_out():
    """Copies of raised draws at the end of the queue: what the tests above would say."""
    split = functools.partial(Naive, rule="split")
    found = measure("old rule", Game((30, 30, 30), learner="raise", rounds=12, stock=256), split, 16, 1)
    mean, se = found["updated"]
    assert mean < -4 * se
    assert found["mean"][0] > 4 * found["mean"][1]


@pytest.mark.parametrize("late", [False, True])
def test_frequencies_of_items_where_weights_stand_still(late, rng):
    """Every item's frequency, by chi-square: weights as they are; and weights that were changed once, up and down, while the actor's caches (`late`:
    for ever) are drawn by the old ones."""
    joint = Joint(3, 300, rng)
    service = Product(joint, 192, 300, 5)
    actors = [Actor(row, f"actor-{row}") for row in range(3)]
    for actor, size in zip(actors, (60, 300, 200), strict=True):
        service.join(actor)
        service.add(actor, size)
        joint.w[actor.row, size:] = 0
    changed = np.arange(900)[(np.arange(900) % 3 != 0) & (joint.w.ravel() > 0)] if late else np.zeros(0, int)
    seen = np.zeros(900, bool)
    counts = np.zeros(900)
    for round_ in range(1200 * MORE):
        for actor, rate in zip(actors, (1, 1, 8), strict=True):
            for _ in range(rate):
                service.push(actor, CACHE)
        ids, _, _ = service.draw(64)
        seen[ids] = True
        if round_ == 100 and late:
            assert seen[changed].mean() > 0.95
            changed = changed[seen[changed]]
            at = np.divmod(changed, 300)
            joint.w[at] = joint.p[at] * np.where(changed % 2 == 0, 0.3, 3.0)
            service.update(changed, joint.w[at])
        if round_ > 100:
            counts += np.bincount(ids, minlength=900)
    p = joint.w.ravel() / joint.w.sum()
    assert counts[p == 0].sum() == 0
    expected = counts.sum() * p[p > 0]
    statistic = float(((counts[p > 0] - expected) ** 2 / expected).sum())
    print(f"chi-square{' after changes' if late else ''}: {statistic:.1f} with {len(expected) - 1} degrees of freedom")
    # Strata of actors only make it smaller.
    assert chi2.sf(statistic, len(expected) - 1) > 1e-3


def test_bytes_per_draw_fall_to_a_key_and_a_weight():
    """Payload once: when the server holds the memories, a draw is 16 bytes and its share of the head."""
    rig = Rig([*FIELDS, ("obs", "<f4", (64,))], table(priority={"source": "given", "exponent": 1.0}))
    peer = rig.join()
    obs = np.zeros(64, np.float32)
    for i in range(1000):
        peer.memory.add(0, {"id": i, "p": 1.0, "x": 0.0, "obs": obs}, 1.0, -1)
    peer.memory.end(0, True, None)
    for _ in range(250):
        rig.push(peer, CACHE)
    per_draw = np.array(peer.sent) / CACHE
    assert per_draw[0] > 280
    assert per_draw[-20:].max() == 16 + 192 / CACHE
