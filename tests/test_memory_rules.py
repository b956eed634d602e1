"""What a table's settings do to an actor's memory, as its payloads tell: factors, no replacement, staleness, gates, changes while running."""

from __future__ import annotations

import numpy as np
import pytest
import reference as ref
from memsvc_core import TableSpec
from memsvc_proto.errors import SchemaError, WindowFull
from play import Player
from rig import Payload, Peer, Rig, table
from scipy.stats import chisquare

ID = [("id", "<i8", ())]
FIELDS = [("id", "<i8", ()), ("obs", "<f4", (2,)), ("reward", "<f4", ()), ("value", "<f4", ())]
MADE = {"kind": "transition", "n_step": 3, "gamma": 0.9, "next": ["obs"]}
GIVEN = {"source": "given", "exponent": 1.0}


def cache(rig: Rig, peer: Peer, draws: int = 0) -> Payload:
    """One payload, read."""
    payload = peer.memory.draw(0, draws, 1 << 26, 0)
    assert payload is not None
    return rig.read(payload)


def play(peer: Peer, priorities: list[float], version: int = 0, env: int = 0) -> None:
    """Steps with these priorities by parameters of this version."""
    for i, p in enumerate(priorities):
        peer.memory.add(env, {"id": i}, p, version)


@pytest.mark.parametrize("select", ["prioritized", "uniform"])
def test_weights_are_factor_times_power(select, rng):
    """w = g * kappa^t * decay^n * p^alpha, cache by cache, against a list."""
    kappa, decay, alpha = 0.9, 0.7, 0.6
    priority = {"source": "given", "exponent": alpha, "decay": decay}
    rig = Rig(ID, table(priority=priority, actor={"select": select, "episode_weights": True, "step_discount": kappa}))
    peer = rig.join()
    p, g, t = rng.uniform(0.1, 3, 60), [], []
    for first, length, weight in ((0, 25, 0.5), (25, 15, 0.0), (40, 20, 2.0)):
        play(peer, p[first : first + length].tolist())
        peer.memory.end(0, True, None, weight)
        g += [weight] * length
        t += range(length)
    base = np.array(g) * kappa ** np.array(t) * (p**alpha if select == "prioritized" else 1)
    drawn, keys = np.zeros(60), {}
    for draws in (0, 7, 1, 100, 400, 0):
        w = base * decay**drawn
        found = cache(rig, peer, draws)
        assert found.population == 45
        assert found.total == pytest.approx(w.sum(), rel=1e-12)
        assert found.min_weight == pytest.approx(w[w > 0].min(), rel=1e-12)
        for key, weight in zip(found.keys.tolist(), found.weights.tolist(), strict=True):
            step = (key & ((1 << 36) - 1)) - sum(key & ((1 << 36) - 1) > end for end in (25, 41))  # final rows have numbers too
            keys[key] = step
            assert weight == pytest.approx(w[step], rel=1e-12)
            drawn[step] += 1
        for (key, *_), factor in zip(found.items, found.factors.tolist(), strict=True):
            step = keys[key]
            before = drawn[step] - (found.keys == key).sum()
            assert factor == pytest.approx(g[step] * kappa ** t[step] * decay**before, rel=1e-12)
    assert drawn.sum() == 508


def test_an_open_episode_weighs_one_until_its_end():
    rig = Rig(ID, table(priority=GIVEN, actor={"episode_weights": True}))
    peer = rig.join(envs=2)
    play(peer, [1.0, 2.0, 4.0])
    play(peer, [1.0, 1.0], env=1)
    assert cache(rig, peer).total == 3 + 1
    peer.memory.end(0, True, None, weight=0.5)
    assert cache(rig, peer).total == 3.5 + 1
    peer.memory.end(1, True, None)
    assert cache(rig, peer).total == 3.5 + 2


def test_episode_weights_must_be_allowed_and_make_sense():
    plain, weighed = (Rig(ID, table(actor={"episode_weights": on})).join().memory for on in (False, True))
    for memory in (plain, weighed):
        memory.add(0, {"id": 0}, None, -1)
        for bad in (-0.5, float("nan"), float("inf")):
            with pytest.raises(SchemaError, match="finite number >= 0"):
                memory.end(0, True, None, bad)
    with pytest.raises(SchemaError, match=r"episode_weights = true"):
        plain.end(0, True, None, 2.0)
    assert plain.stats()["ended"] == weighed.stats()["ended"] == 0
    plain.end(0, True, None, 1.0)
    weighed.end(0, True, None, 1e300)
    assert weighed.stats()["tables"][0]["total"] <= 1e200


def test_with_episode_weights_all_items_wait_for_the_end():
    rig = Rig(FIELDS, table(item=MADE, actor={"select": "all", "episode_weights": True, "step_discount": 0.5}))
    peer = rig.join()
    for i in range(4):
        peer.memory.add(0, {"id": i, "obs": np.zeros(2, np.float32), "reward": 0.0, "value": 0.0}, None, -1)
    assert peer.memory.draw(0, 0, 1 << 20, 0) is None
    peer.memory.end(0, True, None, 3.0)
    np.testing.assert_allclose(cache(rig, peer).factors, [3, 1.5, 0.75, 0.375])
    peer.memory.add(0, {"id": 4, "obs": np.zeros(2, np.float32), "reward": 0.0, "value": 0.0}, None, -1)
    peer.memory.end(0, True, None, 0.0)  # sent, and never drawn there
    assert cache(rig, peer).factors.tolist() == [0]


def test_without_replacement_everything_comes_once(rng):
    rig = Rig(ID, table(priority=GIVEN, actor={"select": "without_replacement", "max_steps": 500}))
    peer = rig.join()
    p, seen, left = rng.uniform(0.1, 2, 300), [], []
    for i, x in enumerate(p.tolist()):
        peer.memory.add(0, {"id": i}, x, -1)
        if i % 50 == 49:
            peer.memory.end(0, True, None)
            found = cache(rig, peer, 30)
            seen += found.keys.tolist()
            left.append(found.population)
            peer.memory.feedback(0, 1, found.keys, np.full(len(found.keys), 9.0))  # no update revives an item
    assert left == [20, 40, 60, 80, 100, 120]
    while (found := cache(rig, peer, 50)).population:
        seen += found.keys.tolist()
    seen += found.keys.tolist()
    assert len(seen) == len(set(seen)) == 300
    assert peer.memory.draw(0, 50, 1 << 20, 0) is None
    peer.memory.reopen([7])
    assert cache(rig, peer, 400).population == 0
    assert len(np.unique(cache(rig, peer).keys)) == 0


def test_without_replacement_the_first_draw_is_by_weight():
    counts = np.zeros(4)
    for seed in range(3000):
        rig = Rig(ID, table(priority=GIVEN, actor={"select": "without_replacement"}), memory_bytes=1 << 17)
        peer = rig.join(seed=seed)
        play(peer, [1.0, 2.0, 3.0, 4.0, 1.0])
        counts[int(cache(rig, peer, 1).keys[0]) & 7] += 1
    assert chisquare(counts, 300 * np.array([1, 2, 3, 4])).pvalue > 1e-3


def test_stale_items_leave_and_fresh_ones_keep_their_shares(rng):
    staleness = 3
    rig = Rig(ID, table(priority=GIVEN, limits={"max_staleness": staleness}))
    peer = rig.join()
    p, versions = rng.uniform(0.1, 2, 100), rng.integers(-1, 12, 100)
    for i in range(100):
        peer.memory.add(0, {"id": i}, float(p[i]), int(versions[i]))
    peer.memory.end(0, True, None)
    newest = 0
    for version in (0, 4, 2, 9, 9, 15):
        peer.memory.newest(version)
        newest = max(newest, version)
        fresh = versions >= newest - staleness if newest else np.full(100, True)
        found = cache(rig, peer, 500 if fresh.any() else 0)
        assert (found.newest, found.stale, found.population) == (newest, (~fresh).sum(), fresh.sum())
        assert found.total == pytest.approx(p[fresh].sum(), abs=1e-9)
        assert found.min_weight == (pytest.approx(p[fresh].min()) if fresh.any() else 0)
        assert fresh[found.keys.astype(np.int64) & 127].all()
        stats = peer.memory.stats()["tables"][0]
        assert (stats["stale"], stats["population"]) == (found.stale, found.population)


def test_gates_refuse_and_say_why():
    rig = Rig(ID, table(name="games", actor={"select": "all"}), table(name="plain"))
    peer = rig.join(envs=2)
    peer.memory.gate(0, 2, False)
    columns = {"id": np.arange(2)}
    for _ in range(2):
        peer.memory.add_batch(None, None, columns, None, -1, None, None, None)
    with pytest.raises(WindowFull, match=r'table "games": .* 2 items and may make 2 .*limits.samples_per_insert'):
        peer.memory.add(0, {"id": 9}, None, -1)
    with pytest.raises(WindowFull, match="games"):
        peer.memory.add_batch(None, None, columns, None, -1, None, None, None)
    assert peer.memory.added == 4
    peer.memory.end(0, True, None)
    peer.memory.gate(0, None, True)
    with pytest.raises(WindowFull, match=r'table "games" is full .*when_full'):
        peer.memory.add(1, {"id": 9}, None, -1)
    peer.memory.gate(0, None, False)
    peer.memory.gate(1, 3, False)  # of another table that has made as many
    with pytest.raises(WindowFull, match="plain"):
        peer.memory.add(1, {"id": 9}, None, -1)
    peer.memory.gate(1, 5, False)
    peer.memory.add(1, {"id": 9}, None, -1)


@pytest.mark.parametrize("source", ["return", "td", "given"])
def test_changed_settings_are_as_if_from_the_start(source, rng):
    """Two memories that were played the same: one had the new settings always, the other was told later."""
    old = table(item=MADE, returns={"gamma": 0.9, "lambda": 0.8}, priority={"source": source, "exponent": 0.6})
    new = table(item=MADE | {"gamma": 0.5}, returns={"gamma": 0.7, "lambda": 0.3}, priority={"source": source, "exponent": 0.9})
    totals = []
    for settings in (old, new):
        rig = Rig(FIELDS, settings)
        player = Player(rig.join(envs=2), FIELDS, np.random.default_rng(8), 2, (1, 20), given=source == "given")
        player.play(60)
        if settings is old:
            before = player.peer.memory.stats()["tables"][0]
            player.peer.memory.configure(0, TableSpec(rig.schema, new))
        for _ in range(3):
            stats = player.peer.memory.stats()["tables"][0]
            totals.append((stats["total"], stats["min_weight"], stats["population"], stats["exponent"]))
            player.play(20)
    assert before["total"] != pytest.approx(totals[0][0], rel=1e-3)
    for told, always in zip(totals[:3], totals[3:], strict=True):
        assert told == pytest.approx(always, rel=1e-5)  # the normaliser has seen other numbers at first
    found = cache(rig, player.peer, 10)
    assert found.exponent == 0.9


def test_importance_of_weights_in_use_is_in_every_head():
    rig = Rig(ID, table(priority=GIVEN))
    peer = rig.join()
    play(peer, [1.0, 4.0, 9.0, 1.0])
    assert cache(rig, peer).total == 14
    peer.memory.configure(0, TableSpec(rig.schema, table(priority=GIVEN | {"exponent": 0.5})))
    found = cache(rig, peer)
    assert (found.exponent, found.total) == (0.5, ref.weight([1, 4, 9], 0.5).sum())
    peer.memory.configure(0, TableSpec(rig.schema, table(priority=GIVEN | {"exponent": 0.0})))
    assert cache(rig, peer).total == 3
