"""select = "all": the whole union in one tree (DEFINITIONS 7), against a naive list."""

from __future__ import annotations

import numpy as np
import pytest
from play import Player, check
from rig import Rig, table
from scipy.stats import chisquare

FIELDS = [("id", "<i8", ()), ("obs", "<f4", (2,)), ("reward", "<f4", ()), ("value", "<f4", ())]
ID = [("id", "<i8", ())]


def union(**changes) -> dict:
    return table(**{"priority": {"source": "given", "exponent": 0.6}, "actor": {"select": "all"}, **changes})


@pytest.mark.parametrize("returns", [None, {"gamma": 0.9, "lambda": 0.8}])
@pytest.mark.parametrize("n", [1, 4])
def test_each_item_is_sent_once_when_it_is_final(returns, n, rng):
    settings = union(item={"kind": "transition", "n_step": n, "gamma": 0.9, "next": ["obs"]}, returns=returns)
    rig = Rig(FIELDS, settings)
    player = Player(rig.join(envs=3), FIELDS, rng, 3, given=True)
    sent: list[int] = []
    for _ in range(60):
        player.play(3)
        while (payload := player.peer.memory.draw(0, 0, 3000, 0)) is not None:
            found = rig.read(payload)
            assert not len(found.keys)
            sent += [key for key, *_ in found.items]
            rig.replay.push(player.peer.number, payload)
        final = sum(len(e.steps["id"]) for e in player.finished)
        if not returns:
            final += sum(max(0, e.drawable - n + 1) for e in player.open)
        assert len(sent) == len(set(sent)) == final == rig.stats()["items"]
        assert player.peer.memory.unsent(0) == (0, 0)
        assert rig.stats()["inserted"] >= final
    check(settings, rig.draw(400), player.by_id)


def test_unsent_counts_what_is_still_to_go():
    rig = Rig(ID, union())
    peer = rig.join()
    for i in range(51):
        peer.memory.add(0, {"id": i}, 1.0, -1)
    items, size = peer.memory.unsent(0)
    assert items == 50
    assert size >= 50 * 8
    rig.push_all(peer)
    assert peer.memory.unsent(0) == (0, 0)


@pytest.mark.parametrize("sampler", ["prioritized", "uniform"])
@pytest.mark.parametrize("capacity", [0, 1, 7, 64, 100])
def test_the_tree_equals_a_naive_list(capacity, sampler, rng):
    rig = Rig(ID, union(sampler=sampler, capacity={"items": capacity}))
    for _ in range(3):
        rig.join()
    live: list[list] = []  # [id, w], oldest first
    keys: dict[int, int] = {}
    made = 0
    for _ in range(400):
        event = rng.integers(4)
        if event == 0:
            peer = rig.peers[rng.integers(3)]
            for _ in range(int(rng.integers(1, 12))):
                p = float(rng.choice([0, 1e-3, 1, 2, rng.uniform()]))
                peer.memory.add(0, {"id": made}, p, -1)
                live.append([made, p**0.6 if p else 0.0])
                made += 1
            peer.memory.end(0, True, None)
            rig.push_all(peer, max_bytes=int(rng.integers(1, 2000)))
            live = live[-capacity:] if capacity else live
        elif event == 1 and keys:
            ids = rng.choice(list(keys), int(rng.integers(1, 10)))
            p = rng.choice([0, 0.5, 3, np.nan], len(ids), p=[0.1, 0.5, 0.3, 0.1])
            _, stale, refused = rig.replay.update(0, np.array([keys[i] for i in ids], np.uint64), p)
            alive: dict[int, float] = dict(live)
            dead = {int(i) for i, v in zip(ids, p, strict=True) if i not in alive and not np.isnan(v)}
            assert (stale > 0) == bool(dead)
            assert len(refused) >= len({int(i) for i, v in zip(ids, p, strict=True) if np.isnan(v)})
            for i, value in zip(ids.tolist(), p.tolist(), strict=True):
                if i in alive and not np.isnan(value):
                    alive[i] = value**0.6
            live = [[i, alive[i]] for i, _ in live]
        else:
            positive = {i: w for i, w in live if w > 0}
            batch = rig.draw(int(rng.integers(1, 40)))
            if not positive:
                assert batch is None
                continue
            assert set(batch["id"].tolist()) <= set(positive)
            assert batch.population == len(positive)
            shares = np.array([positive[i] if sampler == "prioritized" else 1.0 for i in batch["id"].tolist()])
            total = sum(positive.values()) if sampler == "prioritized" else len(positive)
            np.testing.assert_allclose(batch["probabilities"], shares / total, rtol=1e-9)
            keys.update(zip(batch["id"].tolist(), batch["keys"].tolist(), strict=True))
        stats = rig.stats()
        assert stats["items"] == len(live)
        assert stats["population"] == sum(w > 0 for _, w in live)
        if sampler == "prioritized":
            assert stats["total"] == pytest.approx(sum(w for _, w in live), rel=1e-9, abs=1e-12)
    assert made > 300


@pytest.mark.parametrize("sampler", ["prioritized", "uniform"])
def test_frequencies_over_the_union(sampler, rng):
    rig = Rig(ID, union(sampler=sampler))
    p = rng.uniform(0, 1, 500)
    p[::10] = 0
    for k in range(3):
        peer = rig.join()
        for i in range(k, 500, 3):
            peer.memory.add(0, {"id": i}, float(p[i]), -1)
        peer.memory.end(0, True, None)
        rig.push_all(peer)
    counts = np.zeros(500)
    for _ in range(1000):
        counts += np.bincount(rig.draw(200)["id"], minlength=500)
    w = np.where(p > 0, p**0.6 if sampler == "prioritized" else 1.0, 0)
    alive = w > 0
    assert counts[~alive].sum() == 0
    assert chisquare(counts[alive], counts.sum() * w[alive] / w.sum()).pvalue > 1e-3


def test_a_zero_priority_item_is_never_drawn_in_a_million(rng):
    rig = Rig(ID, union())
    peer = rig.join()
    p = np.where(np.arange(301) % 2, rng.uniform(0, 1, 301), 0)
    for i in range(301):
        peer.memory.add(0, {"id": i}, float(p[i]), -1)
    peer.memory.end(0, True, None)
    rig.push_all(peer)
    for _ in range(50):
        assert (p[rig.draw(20_000)["id"]] > 0).all()


def test_the_root_stays_true_over_a_million_updates(rng):
    rig = Rig(ID, union(priority={"source": "given", "exponent": 1.0}))
    peer = rig.join()
    for i in range(1000):
        peer.memory.add(0, {"id": i}, 1.0, -1)
    peer.memory.end(0, True, None)
    rig.push_all(peer)
    keys: dict[int, int] = {}
    while len(keys) < 1000:
        batch = rig.draw(4000)
        keys.update(zip(batch["id"].tolist(), batch["keys"].tolist(), strict=True))
    order = np.array([keys[i] for i in range(1000)], np.uint64)
    w = np.ones(1000)
    for _ in range(200):
        at = rng.integers(0, 1000, 5000)
        p = 10.0 ** rng.uniform(-20, 20, 5000)
        rig.replay.update(0, order[at], p)
        w[at] = p
    assert rig.stats()["total"] == pytest.approx(w.sum(), rel=1e-9)
    rig.replay.update(0, order, np.full(1000, 0.1))
    assert rig.stats()["total"] == pytest.approx(100, rel=1e-12)


def test_a_full_store_evicts_the_oldest_of_all_actors(rng):
    fields = [*ID, ("obs", "<f4", (32,))]
    rig = Rig(fields, union(), memory_bytes=1 << 17)
    peers = [rig.join() for _ in range(2)]
    made = 0
    for _ in range(400):
        peer = peers[rng.integers(2)]
        for _ in range(10):
            peer.memory.add(0, {"id": made, "obs": np.full(32, made, np.float32)}, 1.0, -1)
            made += 1
        peer.memory.end(0, True, None)
        rig.push_all(peer)
    stats = rig.stats()
    batch = rig.draw(4 * stats["items"])
    ids = set(batch["id"].tolist())
    assert len(ids) == stats["items"] < made
    assert ids == set(range(made - len(ids), made))
    np.testing.assert_array_equal(batch["obs"], np.repeat(batch["id"][:, None], 32, 1))
    assert rig.replay.stats()["steps"] <= rig.replay.stats()["capacity_steps"]
    assert stats["evicted"] == made - len(ids)


@pytest.mark.parametrize("before", [0, 300])
@pytest.mark.parametrize(
    "item",
    [
        {"kind": "step"},
        {"kind": "transition", "n_step": 3, "gamma": 0.9, "next": ["obs"]},
        {"kind": "sequence", "length": 8, "stride": 4, "gamma": 0.9},
    ],
    ids=["step", "transition", "sequence"],
)
def test_a_push_with_more_rows_than_the_whole_store_stores_its_newest_items(item, before, rng):
    settings = union(item=item, sampler="fifo")
    rig = Rig(FIELDS, settings, memory_bytes=1 << 16)
    capacity = rig.replay.stats()["capacity_steps"]
    player = Player(rig.join(envs=2), FIELDS, rng, 2, (20, 40), given=True)
    player.play(before)
    rig.push_all(player.peer)
    player.play(4 * capacity)
    payload = player.peer.memory.draw(0, 0, 1 << 24, 0)
    sent = [key for key, *_ in rig.read(payload).items]
    assert len(rig.read(payload).rows) > 2 * capacity
    gone = sum(rig.stats()[name] for name in ("items", "evicted"))
    rig.replay.push(player.peer.number, payload)
    stats = rig.stats()
    batch = rig.draw(stats["items"])
    assert batch["keys"].tolist() == sent[-stats["items"] :]
    assert stats["evicted"] == gone + len(sent) - stats["items"]
    check(settings, batch, player.by_id)
    # Full but for what one more item might need.
    assert rig.replay.stats()["steps"] > capacity - 16


def test_two_tables_over_the_same_steps(rng):
    first = union(name="a", item={"kind": "transition", "n_step": 3, "gamma": 0.9, "next": ["obs"]})
    second = table(name="b", item={"kind": "sequence", "length": 5, "stride": 2, "tail": "pad", "gamma": 0.9})
    rig = Rig(FIELDS, first, second)
    player = Player(rig.join(envs=2), FIELDS, rng, 2, (1, 20), given=True)
    player.play(80)
    rig.push_all(player.peer, 0)
    held = rig.replay.stats()["steps"]
    rig.push(player.peer, 500, 1)
    check(first, rig.draw(300, 0), player.by_id)
    check(second, rig.draw(300, 1), player.by_id)
    assert rig.replay.stats()["steps"] <= held + 60  # rows of what is not final in the first table
