"""Priorities from 1e-30 to 1e30 in one table, and every capacity from 1 to 70 with one positive item, through the whole product (DEMANDS 3).

The tree itself, and its 1e8 updates: cpp/tree_test.cc.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference as ref
from memsvc_core import use_simd
from rig import Rig, read, table

ID = [("id", "<i8", ())]
WIDE = 10.0 ** np.arange(-30, 31)
KINDS = ("all", "all by uniform", "prioritized", "uniform")


@pytest.fixture(params=[True, False], ids=["simd", "scalar"])
def code(request):
    """Runs a test on either code of the trees."""
    use_simd(request.param)
    yield request.param
    use_simd(True)


def settings(kind: str, exponent: float, **changes) -> dict:
    """A table of single steps with given priorities."""
    select, _, sampler = kind.partition(" by ")
    made = {"priority": {"source": "given", "exponent": exponent}, "actor": {"select": select}, "sampler": sampler or "prioritized"}
    return table(**made, **changes)


def weights_of(kind: str, p, exponent: float) -> np.ndarray:
    """The weights these priorities stand for."""
    return ref.weight(p, 0.0 if "uniform" in kind else exponent)


def play(peer, priorities, first: int = 0) -> np.ndarray:
    """One episode with these priorities, ids from `first`. Returns the items' keys; the actor has one environment, and plays nothing else."""
    for i, p in enumerate(priorities):
        peer.memory.add(0, {"id": first + i}, float(p), -1)
    peer.memory.end(0, True, None)
    return (np.uint64(peer.streams[0]) << np.uint64(36)) + np.arange(len(priorities), dtype=np.uint64)


def agrees(batch, w: np.ndarray, beta: float = 0.4) -> None:
    """Every drawn item is live, P is w / W, N counts the positive ones, and the importance weights are those of DEFINITIONS 6."""
    alive, drawn = w[w > 0], w[batch["id"]]
    assert (drawn > 0).all()
    assert batch.population == len(alive)
    assert batch.total == pytest.approx(math.fsum(alive), rel=1e-9)
    np.testing.assert_allclose(batch["probabilities"], drawn / math.fsum(alive), rtol=1e-9)
    np.testing.assert_allclose(batch["weights"], ((alive.min() / drawn) ** beta).astype(np.float32), rtol=1e-6, atol=1e-44)


def test_one_positive_item_at_every_place_of_every_table(code):
    for capacity in range(1, 71):
        rig = Rig(ID, settings("all", 0.6, capacity={"items": capacity}), memory_bytes=1 << 18)
        peer, before = rig.join(), capacity // 3  # items that are gone again: the oldest is not at the first place
        keys = play(peer, np.zeros(before + capacity))
        rig.push_all(peer)
        assert rig.stats()["items"] == capacity
        assert rig.draw(1) is None
        last = before
        for place in range(before, before + capacity):
            rig.replay.update(0, keys[[last, place]], np.array([0, 0.7]))
            batch = rig.draw(3)
            assert (batch["id"] == place).all()
            assert (batch.population, batch.total) == (1, 0.7**0.6)
            assert (batch["probabilities"] == 1).all()
            assert (batch["weights"] == 1).all()
            last = place


def test_one_positive_item_at_every_place_of_every_memory(code):
    for size in range(1, 71):
        rig = Rig(ID, settings("prioritized", 0.6), memory_bytes=1 << 18)
        peer, last = rig.join(), 0
        keys = play(peer, np.zeros(size))
        for place in range(size):
            peer.memory.feedback(0, place + 1, keys[[last, place]], np.array([0, 0.7]))
            payload = peer.memory.draw(0, 3, 1 << 20, 0)
            found = read(payload, 0)
            assert (found.keys == keys[place]).all()
            assert (found.weights == 0.7**0.6).all()
            assert (found.population, found.total, found.min_weight) == (1, 0.7**0.6, 0.7**0.6)
            rig.replay.push(peer.number, payload)
            assert (rig.draw(3)["id"] == place).all()
            last = place


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("kind", ["prioritized", "uniform"])
def test_sixty_decades_in_one_memory(kind, exponent, rng):
    peer = Rig(ID, settings(kind, exponent)).join()
    p = rng.permutation(np.concatenate([np.tile(WIDE, 5), np.zeros(60)]))
    keys = play(peer, p)
    if kind == "uniform":
        p = np.ones(len(p))  # which the actor's numbers do not change, and a learner's 0 does
        assert peer.memory.feedback(0, 1, keys[:7], np.zeros(7)) == 7
        p[:7] = 0
    w = weights_of(kind, p, exponent)
    found = read(peer.memory.draw(0, 5000, 1 << 24, 0), 0)
    assert found.population == (w > 0).sum()
    assert found.total == pytest.approx(math.fsum(w), rel=1e-12)
    assert found.min_weight == pytest.approx(w[w > 0].min(), rel=1e-12)
    np.testing.assert_allclose(found.weights, w[np.searchsorted(keys, found.keys)], rtol=1e-12)
    assert (found.weights > 0).all()
    assert all(priority > 0 for _, _, priority, _, _ in found.items)


def test_what_every_item_brings_is_sent_to_the_bit():
    rig = Rig(ID, settings("all", 0.6))
    peer, p = rig.join(), np.concatenate([WIDE, [0.0, 5e-324, 1.7e308]])
    play(peer, p)
    found = read(peer.memory.draw(0, 0, 1 << 24, 0), 0)
    assert [priority for _, _, priority, _, _ in found.items] == p.tolist()


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_sixty_decades_from_the_largest_down(kind, exponent, rng):
    """What one item covers up is there, exact, when it goes: each priority in turn is the table's largest and is set to 0 by a learner."""
    rig = Rig(ID, settings(kind, exponent))
    p = rng.permutation(np.concatenate([WIDE, np.zeros(10)]))
    half, whole = len(p) // 2, kind.startswith("all")
    keys = np.concatenate([play(rig.join(), p[:half]), play(rig.join(), p[half:], half)])
    if kind == "uniform":
        p = 1 + 1e-9 * p  # which the actors do not look at; only the order of what follows
    for largest in np.argsort(-p)[:60].tolist():
        for peer in rig.peers:
            rig.push_all(peer) if whole else rig.push(peer, 64)
        agrees(rig.draw(48), weights_of(kind, p, exponent))
        p[largest] = 0
        assert rig.replay.update(0, keys[[largest]], np.zeros(1))[0] <= 1
        stats, w = rig.stats(), weights_of(kind, p, exponent)
        assert math.isfinite(stats["total"])
        if whole:
            assert stats["population"] == (w > 0).sum()
            assert stats["total"] == pytest.approx(math.fsum(w), rel=1e-12)
            assert stats["min_weight"] == pytest.approx(w[w > 0].min(), rel=1e-12)
        rig.feedback()


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_sixty_decades_by_learners(kind, exponent, rng):
    """Priorities go up and down by any number of decades; between an actor's reports the batch stays sane, at each report it is exact."""
    rig = Rig(ID, settings(kind, exponent))
    p, whole = np.ones(80), kind.startswith("all")
    keys = np.concatenate([play(rig.join(), p[:30]), play(rig.join(), p[30:], 30)])
    for _ in range(150):
        for peer in rig.peers:
            rig.push_all(peer) if whole else rig.push(peer, 256)
        agrees(rig.draw(100), weights_of(kind, p, exponent))
        for _ in range(int(rng.integers(1, 4))):
            at = rng.integers(0, 80, 30)
            new = rng.choice(np.concatenate([WIDE, [0.0]]), 30)
            rig.replay.update(0, keys[at], new)
            for i, value in zip(at, new, strict=True):
                p[i] = value
            batch, w = rig.draw(40), weights_of(kind, p, exponent)
            if batch is not None:
                assert (w[batch["id"]] > 0).all()
                assert np.isfinite(batch["weights"]).all()
                assert (batch["probabilities"] > 0).all()
                assert (batch["probabilities"] <= 1 + 1e-9).all()
        rig.feedback()
