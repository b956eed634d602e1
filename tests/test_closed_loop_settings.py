"""Stage two with what bends it: a new exponent, staleness, deletion, decay, draws without replacement, and how old draws are."""

from __future__ import annotations

import numpy as np
import pytest
from memsvc_core import TableSpec
from rig import Peer, Rig, table
from scipy.stats import chisquare

FIELDS = [("id", "<i8", ())]
GIVEN = {"source": "given", "exponent": 1.0}
STEP = (1 << 36) - 1


def fill(peer: Peer, priorities, first: int = 0, version: int = -1, end: bool = True) -> None:
    """One step item for each priority, ids from `first`, in one episode."""
    for i, p in enumerate(priorities):
        peer.memory.add(0, {"id": first + i}, float(p), version)
    if end:
        peer.memory.end(0, True, None)


def reconfigure(rig: Rig, **changes) -> TableSpec:
    rig.settings[0] = table(**changes)
    rig.specs[0] = TableSpec(rig.schema, rig.settings[0])
    return rig.specs[0]


def test_a_new_exponent_holds_from_each_actors_next_report_on(rng):
    """Two actors learn of it one after the other: W, P and shares follow report by report, whatever was queued and pending."""
    rig = Rig(FIELDS, table(priority=GIVEN))
    p = rng.uniform(0.2, 4, (2, 50))
    for k in range(2):
        fill(rig.join(), p[k], 50 * k)
    exponents = [1.0, 1.0]
    keys = np.zeros(100, np.uint64)
    counts, expected = np.zeros(100), np.zeros(100)
    for round_ in range(900):
        rig.serve()
        if round_ == 300:
            spec = reconfigure(rig, priority=GIVEN | {"exponent": 0.5})
            rig.replay.configure(0, spec)
        for k, at in ((0, 310), (1, 450)):
            if round_ == at:
                rig.peers[k].memory.configure(0, rig.specs[0])
                rig.push(rig.peers[k], 200)
                exponents[k] = 0.5
        w = np.concatenate([p[k] ** exponents[k] for k in range(2)])
        batch = rig.draw(32)
        if round_ not in (310, 450):  # pending priorities count from the next report on
            assert batch.total == pytest.approx(w.sum(), rel=1e-9)
            np.testing.assert_allclose(batch.w, w[batch["id"]], rtol=1e-9)
        counts += np.bincount(batch["id"], minlength=100)
        expected += 32 * w / w.sum()
        keys[batch["id"]] = batch["keys"]
        ids = np.unique(batch["id"])[:6]
        p.ravel()[ids] = np.clip(p.ravel()[ids] * rng.choice([0.5, 2.0], len(ids)), 0.05, 8)
        assert rig.replay.update(0, keys[ids], p.ravel()[ids])[0] == len(ids)
        rig.feedback()
    # The places of an actor are nearly certain, those of its items are not.
    assert chisquare(counts, expected).pvalue > 1e-3
    assert abs(counts[:50].sum() / counts.sum() - expected[:50].sum() / expected.sum()) < 0.003


def test_w_and_n_are_exact_whatever_is_deleted_or_grows_stale(rng):
    """W is what the newest reports say, plus what they do not contain yet: learners' changes, deletions, and what the server, which hears of versions
    first, holds and knows to be too stale. Actors hear of versions late, and of learners' priorities."""
    bound = 3
    rig = Rig(FIELDS, table(priority=GIVEN, limits={"max_staleness": bound}))
    peers = [rig.join() for _ in range(2)]
    base = {peer.streams[0] << 36: k for k, peer in enumerate(peers)}
    w: list[list[float]] = [[], []]  # present weights, by actor
    version: list[list[int]] = [[], []]
    held: list[set[int]] = [set(), set()]
    reported, judged = [0, 0], [0, 0]
    newest, told, flight, keys = 0, [0, 0], [], {}

    def fresh(k: int, i: int, by: int) -> bool:
        return by <= 0 or version[k][i] >= by - bound

    def push(k: int, draws: int) -> None:
        peer = peers[k]
        rig.notices(peer)
        payload = peer.memory.draw(0, draws, 1 << 22, 0)
        if payload is None:
            return
        found = rig.read(payload)
        held[k] |= {item[0] & STEP for item in found.items}
        reported[k], judged[k] = max(0, len(w[k]) - 1), told[k]
        assert found.newest == judged[k]
        rig.replay.push(peer.number, payload)

    for _ in range(5000):
        event, k = rng.integers(9), int(rng.integers(2))
        peer = peers[k]
        if event == 0:
            for _ in range(int(rng.integers(1, 6))):
                p = float(rng.choice([0, 0.5, 1, 2, rng.uniform()]))
                peer.memory.add(0, {"id": k * 100_000 + len(w[k])}, p, newest)
                w[k].append(p)
                version[k].append(newest)
        elif event in (1, 2):
            push(k, int(rng.integers(0, 30)))
        elif event == 3 and (batch := rig.draw(8)) is not None:
            keys.update(zip(batch["id"].tolist(), batch["keys"].tolist(), strict=True))
            for number, weight in zip(batch["id"].tolist(), batch.w.tolist(), strict=True):
                j, i = divmod(number, 100_000)
                assert weight == pytest.approx(w[j][i])
                assert fresh(j, i, newest)
        elif event in (4, 5) and keys:
            ids = np.unique(rng.choice(list(keys), int(rng.integers(1, 12))))
            p = rng.choice([0.0, 0.3, 1.7], len(ids))
            sent = np.array([keys[i] for i in ids.tolist()], np.uint64)
            gone = sum(not fresh(*divmod(i, 100_000), newest) for i in ids.tolist())
            if event == 4:
                assert rig.replay.update(0, sent, p)[:2] == (len(ids) - gone, gone)
            else:
                p = np.zeros(len(ids))
                assert rig.replay.delete(0, sent) == (len(ids) - gone, gone)
            for number, value in zip(ids.tolist(), p.tolist(), strict=True):
                j, i = divmod(number, 100_000)
                if fresh(j, i, newest):
                    w[j][i] = value
        elif event == 6:  # feedback leaves the server, and arrives some time later
            found = rig.replay.take_feedback(peer.number, 0)
            if found is not None:
                flight.append((peer, found))
            if len(flight) > 3:
                late, found = flight.pop(0)
                late.memory.feedback(0, *found)
        elif event == 7 and rng.integers(4) == 0:
            newest += 1
            rig.replay.publish("default", newest)
        elif event == 8 and newest:
            told[k] = newest
            peer.memory.newest(newest)
        total, population = 0.0, 0
        for j in range(2):
            for i in range(reported[j]):
                if w[j][i] > 0 and fresh(j, i, judged[j]) and (i not in held[j] or fresh(j, i, newest)):
                    total += w[j][i]
                    population += 1
        stats = rig.stats()
        assert stats["total"] == pytest.approx(total, rel=1e-9, abs=1e-9)
        assert stats["population"] == population
    assert newest > 50
    assert len(keys) > 200
    assert set(base.values()) == {0, 1}
    assert stats["aged"] > 20
    assert stats["deleted"] > 200


def test_stale_items_are_not_drawn_and_fresh_ones_keep_their_shares(rng):
    """Versions turn while caches are queued: never a stale item, and of the fresh ones every one by its weight."""
    rig = Rig(FIELDS, table(priority=GIVEN, limits={"max_staleness": 1}))
    counts, expected = np.zeros(8), np.zeros(8)
    peers = [rig.join() for _ in range(2)]
    w = rng.uniform(0.5, 2, (2, 4))
    for newest in range(1, 200):
        for k, peer in enumerate(peers):
            fill(peer, w[k], 1000 * newest + 4 * k, newest)  # of the items before, those of the last version stay fresh
        rig.replay.publish("default", newest)
        for peer in peers:
            if rng.integers(2):  # may not have heard of it
                peer.memory.newest(newest)
            rig.push(peer, 80)
        rig.replay.publish("default", newest)
        batch = rig.draw(32)
        made = batch["id"] // 1000
        assert (made >= newest - 1).all()
        assert batch.population >= 8
        counts += np.bincount(batch["id"] % 1000, minlength=8)
        expected += 32 * w.ravel() / w.sum()
        for peer in peers:
            peer.memory.newest(newest)
            rig.push(peer, 0)
    assert chisquare(counts, expected).pvalue > 1e-3


def test_a_learners_priority_is_multiplied_by_the_items_factor():
    """w_now = g * kappa^t * decay^n * p^alpha, with n the draws that the server has seen."""
    rig = Rig(FIELDS, table(priority=GIVEN | {"decay": 0.5}, actor={"step_discount": 0.5, "episode_weights": True}))
    peer = rig.join()
    for p in (1.0, 3.0):
        peer.memory.add(0, {"id": 0 if p == 1 else 1}, p, -1)
    peer.memory.end(0, True, None, 4.0)
    payload = peer.memory.draw(0, 6, 1 << 20, 0)
    found = rig.read(payload)
    rig.replay.push(peer.number, payload)
    drawn = {key & STEP: int((found.keys == key).sum()) for key in found.keys}
    batch = rig.draw(6)
    assert batch.total == pytest.approx(4 * 1 + 4 * 0.5 * 3)
    for number, weight in zip(batch["id"].tolist(), batch.w.tolist(), strict=True):
        assert weight == pytest.approx([4.0, 6.0][number])
    n = drawn[1]
    key = np.array([peer.streams[0] << 36 | 1], np.uint64)
    assert rig.replay.update(0, key, np.array([10.0]))[0] == 1
    assert rig.stats()["total"] == pytest.approx(4 + 4 * 0.5 * 0.5**n * 10)
    rig.feedback()
    rig.push(peer, 0)
    assert rig.stats()["total"] == pytest.approx(4 * 0.5 ** drawn[0] + 4 * 0.5 * 0.5**n * 10)


def test_without_replacement_every_item_is_delivered_once_and_actors_by_what_they_have_queued(rng):
    rig = Rig(FIELDS, table(priority=GIVEN, actor={"select": "without_replacement"}))
    rig.replay.expect(0, 400)
    sizes = (300, 900)
    for k, size in enumerate(sizes):
        fill(rig.join(), rng.uniform(0.1, 5, size), 1000 * k)
    counts: dict[int, int] = {}
    ahead = 0.0
    while True:
        rig.serve()
        queues = np.array([a["queue"] for a in rig.stats()["actors"]], float)
        size = int(min(32, queues.sum()))
        if size == 0:
            break
        batch = rig.draw(size)
        assert batch.population == queues.sum() == batch.total
        np.testing.assert_allclose(batch["probabilities"], 1 / queues.sum())
        np.testing.assert_array_equal(batch["weights"], 1)
        ahead += (batch["id"] < 1000).sum() - size * queues[0] / queues.sum()
        for number in batch["id"].tolist():
            counts[number] = counts.get(number, 0) + 1
        # What learners say changes nothing.
        rig.replay.update(0, batch["keys"], rng.uniform(0, 9, size))
        rig.feedback()
    assert sorted(counts) == [*range(300), *range(1000, 1900)]
    assert set(counts.values()) == {1}
    assert abs(ahead) < 30


def test_a_deleted_item_is_not_delivered_without_replacement(rng):
    rig = Rig(FIELDS, table(priority=GIVEN, actor={"select": "without_replacement"}))
    peer = rig.join()
    fill(peer, rng.uniform(0.1, 5, 60))
    rig.push(peer, 60)
    keys = np.array([peer.streams[0] << 36 | i for i in range(0, 60, 3)], np.uint64)
    assert rig.replay.delete(0, keys) == (20, 0)
    assert rig.stats()["population"] == 40
    assert rig.draw(41) is None
    assert sorted(rig.draw(40)["id"].tolist()) == [i for i in range(60) if i % 3]


def test_the_age_of_caches_is_measured_in_the_actors_steps():
    rig = Rig(FIELDS, table(priority=GIVEN))
    peer = rig.join()
    fill(peer, np.ones(100))
    rig.push(peer, 10)
    fill(peer, np.ones(50), 100)
    rig.push(peer, 30)
    fill(peer, np.ones(25), 150)
    rig.push(peer, 0)
    rig.draw(20)
    actor = rig.stats()["actors"][0]
    assert actor["age_steps"] == pytest.approx((10 * 75 + 10 * 25) / 20)
    assert rig.stats()["age_steps"] == actor["age_steps"]
    assert (actor["steps"], actor["episodes"]) == (175, 3)
