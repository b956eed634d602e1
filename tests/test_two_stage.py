"""Two-stage sampling, DEFINITIONS 7: the union of all actors' memories is sampled exactly, whatever the actors push (and, in test_closed_loop.py,
whatever the learner does)."""

from __future__ import annotations

import time

import numpy as np
import pytest
from memsvc_proto.errors import MemsvcError
from rig import Rig, table
from scipy.stats import chisquare

FIELDS = [("id", "<i8", ()), ("p", "<f8", ()), ("x", "<f8", ())]
GIVEN = {"source": "given", "exponent": 1.0}


def fill(peer, priorities, first: int = 0, x=None, end: bool = True) -> None:
    """One step item for each priority, with ids from `first`; 100 steps an episode."""
    for i, p in enumerate(priorities):
        number = 0.0 if x is None else float(x[i])
        peer.memory.add(0, {"id": first + i, "p": float(p), "x": number}, float(p), -1)
        if end and (i % 100 == 99 or i == len(priorities) - 1):
            peer.memory.end(0, True, None)


def keys_of(rig: Rig, *draws: int) -> dict[int, int]:
    """id -> key, from batches of these sizes."""
    found: dict[int, int] = {}
    for n in draws:
        batch = rig.draw(n)
        found.update(zip(batch["id"].tolist(), batch["keys"].tolist(), strict=True))
    return found


def test_shares_and_frequencies_at_any_push_rate(rng):
    rig = Rig(FIELDS, table(priority=GIVEN | {"exponent": 0.6}))
    rig.replay.expect(0, 3000)
    sizes, w = (300, 100, 600), []
    for k, size in enumerate(sizes):
        p = rng.uniform(0.1, 1, size)
        p *= (100 / (p**0.6).sum()) ** (1 / 0.6)  # equal weights of the actors, whatever they hold
        w.append(p**0.6)
        fill(rig.join(), p, sum(sizes[:k]))
    expected = np.concatenate(w) / 300
    for peer in rig.peers:
        rig.push(peer, 400)
    counts = np.zeros(1000)
    for _ in range(400):
        for peer, rate in zip(rig.peers, (100, 100, 800), strict=True):
            rig.push(peer, rate)
        batch = rig.draw(256)
        assert batch.total == pytest.approx(300)
        assert batch.population == 1000
        np.testing.assert_allclose(batch["probabilities"], expected[batch["id"]], rtol=1e-9)
        counts += np.bincount(batch["id"], minlength=1000)
    shares = np.add.reduceat(counts, [0, 300, 400]) / counts.sum()
    np.testing.assert_allclose(shares, 1 / 3, atol=0.01)
    assert chisquare(counts, counts.sum() * expected).pvalue > 1e-3
    assert rig.stats()["starved"] == 0
    drawn = np.array([a["drawn"] for a in rig.stats()["actors"]])
    np.testing.assert_array_equal(drawn, shares * counts.sum())


def test_unequal_actors_supply_by_weight(rng):
    rig = Rig(FIELDS, table(priority=GIVEN))
    w = [rng.uniform(0, 1, n) ** 2 for n in (5, 500, 50, 1)]
    for k, p in enumerate(w):
        fill(rig.join(), p, sum(map(len, w[:k])))
    rig.replay.expect(0, 2000)
    expected = np.concatenate(w) / sum(p.sum() for p in w)
    counts = np.zeros(556)
    for _ in range(800):
        rig.serve()  # what is wanted, and no more
        counts += np.bincount(rig.draw(100)["id"], minlength=556)
    assert counts[expected * 80_000 < 1].sum() < 60
    alive = expected * 80_000 >= 5
    assert chisquare(counts[alive], counts[alive].sum() * expected[alive] / expected[alive].sum()).pvalue > 1e-3


def test_batches_are_shuffled(rng):
    rig = Rig(FIELDS, table(priority=GIVEN))
    for k in range(2):
        fill(rig.join(), np.ones(50), 50 * k)
    places = np.zeros(64)
    for _ in range(400):
        rig.serve()
        places += rig.draw(64)["id"] >= 50
    assert chisquare(places).pvalue > 1e-3


def test_a_zero_priority_item_is_never_drawn_in_a_million(rng):
    rig = Rig(FIELDS, table(priority=GIVEN | {"exponent": 0.0}))
    p = np.where(np.arange(200) % 3 == 0, 0, rng.uniform(0.1, 1, 200))
    fill(rig.join(), p[:100])
    fill(rig.join(), p[100:], 100)
    rig.replay.expect(0, 6000)
    assert rig.draw(1) is None
    rig.serve()  # a first report, so that the stock can be shared out by weight
    seen, zeroed = np.zeros(200), False
    for round_ in range(500):
        rig.serve()
        batch = rig.draw(2000)
        seen += np.bincount(batch["id"], minlength=200)
        assert batch.population == (133 - zeroed)
        if round_ == 240:  # by a learner, while draws of it wait in the queue
            key = batch["keys"][batch["id"] == 1][:1]
            assert rig.replay.update(0, key, np.zeros(1))[0] == 1
            zeroed, frozen = True, seen[1]
        if round_ == 300:
            rig.feedback()
    assert seen.sum() == 1_000_000
    assert seen[p == 0].sum() == 0
    assert seen[1] == frozen


def test_cut_items_keep_their_exact_frequency(rng):
    """Small memories, where the updated items come again and again, against an exact process that knows no caches."""
    rig = Rig(FIELDS, table(priority=GIVEN))
    p = rng.uniform(0.2, 1, 90)
    for k in range(3):
        fill(rig.join(), p[30 * k : 30 * k + 30], 30 * k)
    w, expected, counts = p.copy(), np.zeros(90), np.zeros(90)
    for _ in range(3000):
        rig.serve()
        batch = rig.draw(32)
        counts += np.bincount(batch["id"], minlength=90)
        expected += 32 * w / w.sum()
        ids = np.unique(batch["id"])[:5]
        keys = np.array([batch["keys"][batch["id"] == i][0] for i in ids], np.uint64)
        w[ids] *= 0.97
        rig.replay.update(0, keys, w[ids])
        rig.feedback()
    assert counts.sum() == pytest.approx(expected.sum())
    assert np.abs(counts - expected).max() < 5.5 * np.sqrt(expected.max())


def test_every_draw_is_used_once_and_thinned(rng):
    rig = Rig(FIELDS, table(priority=GIVEN))
    peer = rig.join()
    fill(peer, np.ones(10))
    rig.replay.expect(0, 40_000)
    rig.notices(peer)
    payload = peer.memory.draw(0, 8000, 1 << 22, 0)
    rig.replay.push(peer.number, payload)
    cached = dict(zip(*map(np.ndarray.tolist, np.unique(rig.read(payload).keys, return_counts=True)), strict=True))
    keys = sorted(cached)
    ratios = [0.75, 1.0, 0.0, 0.25, 0.1, 1.0, 1.0, 1.0, 0.9, 0.5]
    applied, stale, refused = rig.replay.update(0, np.array(keys, np.uint64), np.array(ratios))
    assert (applied, stale, len(refused)) == (10, 0, 0)
    counts = dict.fromkeys(keys, 0)
    while (batch := rig.draw(1)) is not None:
        key = int(batch["keys"][0])
        counts[key] += 1
        assert batch.w[0] == pytest.approx(ratios[keys.index(key)])
        assert batch.total == pytest.approx(sum(ratios))
        assert batch.population == 9
    for key, r in zip(keys, ratios, strict=True):
        assert counts[key] == pytest.approx(r * cached[key], abs=4.5 * np.sqrt(cached[key] * r * (1 - r)))
    assert rig.replay.why_not(0, 1)[0] == "stock"


def test_a_batch_that_cannot_be_filled_uses_nothing_up():
    rig = Rig(FIELDS, table(priority=GIVEN))
    peer = rig.join()
    fill(peer, np.ones(1000))
    rig.push(peer, 10)
    for _ in range(20):
        assert rig.draw(16) is None
        assert rig.replay.why_not(0, 16)[0] == "stock"
    assert rig.stats()["actors"][0]["queue"] == 10
    assert rig.stats()["drawn"] == 0
    rig.push(peer, 6)
    assert rig.draw(16) is not None
    assert rig.draw(1) is None


def test_w_and_n_are_exact_after_every_event(rng):
    """W = what the newest reports say, plus learners' changes that they do not contain: nothing is lost and nothing counted twice."""
    rig = Rig(FIELDS, table(priority=GIVEN | {"exponent": 0.5}))
    w: dict[int, float] = {}  # newest weight of every item, by id
    reported: list[int] = [0, 0, 0]  # items of each actor as of its last report
    added, keys, flight = [0, 0, 0], {}, []
    for _ in range(3):
        rig.join()
    for _ in range(4000):
        event, k = rng.integers(6), int(rng.integers(3))
        peer = rig.peers[k]
        if event == 0:
            for _ in range(int(rng.integers(1, 6))):
                p = float(rng.choice([0, 0.5, 1, 2, rng.uniform()]))
                number = k * 100_000 + added[k]
                peer.memory.add(0, {"id": number, "p": p, "x": 0.0}, p, -1)
                w[number], added[k] = p**0.5 if p else 0.0, added[k] + 1
        elif event == 1 and rig.push(peer, int(rng.integers(0, 30))):
            reported[k] = max(0, added[k] - 1)
        elif event == 2 and (batch := rig.draw(8)) is not None:
            keys.update(zip(batch["id"].tolist(), batch["keys"].tolist(), strict=True))
            np.testing.assert_allclose(batch.w, [w[i] for i in batch["id"].tolist()], rtol=1e-9)
        elif event == 3 and keys:
            ids = rng.choice(list(keys), int(rng.integers(1, 12)))
            p = rng.choice([0, 0.3, 1.7, np.nan, -1, np.inf], len(ids), p=[0.1, 0.4, 0.3, 0.1, 0.05, 0.05])
            _, stale, refused = rig.replay.update(0, np.array([keys[i] for i in ids], np.uint64), p)
            bad = ~np.isfinite(p) | (p < 0)
            assert stale == 0
            assert sorted(refused.tolist()) == sorted(keys[i] for i in ids[bad]) or set(refused.tolist()) == {keys[i] for i in ids[bad]}
            for i, value in zip(ids[~bad].tolist(), p[~bad].tolist(), strict=True):
                w[i] = value**0.5
        elif event == 4:  # the feedback leaves the server ...
            found = rig.replay.take_feedback(peer.number, 0)
            if found is not None:
                flight.append((peer, found))
        elif event == 5 and flight:  # ... and arrives some time later, in order
            peer, found = flight.pop(0)
            assert peer.memory.feedback(0, *found) == len(found[1])
        known = [w[j * 100_000 + i] for j in range(3) for i in range(reported[j])]
        stats = rig.stats()
        assert stats["total"] == pytest.approx(sum(known), rel=1e-9, abs=1e-9)
        assert stats["population"] == sum(v > 0 for v in known)
    assert sum(added) > 1000
    assert len(keys) > 200


def test_updates_refuse_by_key_and_count_stale_ones():
    rig = Rig(FIELDS, table(priority=GIVEN))
    peer = rig.join()
    fill(peer, np.ones(20))
    rig.push(peer, 400)
    keys = np.array(sorted(keys_of(rig, 200).values()), np.uint64)
    sent = np.array([keys[0], keys[1], 12345, keys[2], keys[3], keys[4], keys[4]], np.uint64)
    applied, stale, refused = rig.replay.update(0, sent, np.array([np.nan, np.inf, 1.0, -1.0, 2.0, 9.0, 3.0]))
    assert stale == 1
    assert applied in (2, 3)  # of the doubled key the last counts
    assert sorted(refused.tolist()) == sorted(keys[:3].tolist())
    stats = rig.stats()
    assert (stats["stale_updates"], stats["refused_updates"]) == (1, 3)
    assert stats["total"] == pytest.approx(18 + 2 + 3)
    rig.feedback()
    rig.push(peer, 0)
    assert peer.memory.stats()["tables"][0]["total"] == pytest.approx(23)
    assert rig.stats()["total"] == pytest.approx(23)


def test_an_actor_that_left_is_used_up_and_then_gone():
    rig = Rig(FIELDS, table(priority=GIVEN))
    one, two = rig.join(), rig.join()
    fill(one, np.ones(10))
    fill(two, np.ones(30), 1000)
    rig.push(one, 50)
    rig.push(two, 400)
    rig.replay.leave(one.number)
    from_one = 0
    while rig.stats()["total"] == pytest.approx(40):
        batch = rig.draw(1)
        assert batch.population == 40
        from_one += batch["id"][0] < 1000
    assert from_one == 50
    assert rig.stats()["population"] == 30
    assert rig.stats()["total"] == pytest.approx(30)
    batch = rig.draw(20)
    assert (batch["id"] >= 1000).all()
    assert batch.population == 30


def test_an_actor_of_the_same_name_replaces_its_predecessor():
    rig = Rig(FIELDS, table(priority=GIVEN))
    old, other = rig.join("a"), rig.join("b")
    fill(old, np.ones(10))
    fill(other, np.ones(30), 1000)
    rig.push(old, 50)
    rig.push(other, 50)
    new = rig.join("a")
    assert not set(new.streams) & set(old.streams)
    assert rig.stats()["total"] == pytest.approx(30)
    with pytest.raises(MemsvcError):
        rig.replay.push(old.number, old.memory.draw(0, 5, 1 << 20, 0))
    fill(new, np.full(5, 2.0), 500)
    rig.push(new, 50)
    assert rig.stats()["total"] == pytest.approx(40)
    assert rig.stats()["population"] == 35
    ids = np.concatenate([rig.draw(1)["id"] for _ in range(40)])
    assert (ids >= 500).all()


def test_a_draw_that_waited_for_its_payload_is_thinned_by_what_was_learned_meanwhile():
    rig = Rig(FIELDS, table(priority=GIVEN))
    peer = rig.join()
    fill(peer, np.ones(2))
    peer.memory.draw(0, 64, 1 << 20, 0)  # lost on its way: the actor takes its items for held from now on
    rig.replay.expect(0, 2000)
    rig.push(peer, 2000)
    first = np.uint64(peer.streams[0] << 36)
    rig.replay.update(0, np.array([first], np.uint64), np.array([0.25]))
    rig.feedback()
    rig.push(peer, 0)
    counts = np.zeros(2)
    while (batch := rig.draw(1)) is not None:
        counts[batch["id"]] += 1
        assert batch.w[0] == pytest.approx([0.25, 1][batch["id"][0]])
    assert counts[1] == pytest.approx(1000, abs=110)
    assert counts[0] == pytest.approx(250, abs=90)


def test_many_draws_whose_payload_is_missing_are_taken_in_quickly():
    rig = Rig(FIELDS, table(priority=GIVEN))
    peer = rig.join()
    fill(peer, np.ones(60_000), end=False)
    for _ in range(60):
        peer.memory.draw(0, 4096, 1 << 26, 0)  # lost on their way
    begun = time.monotonic()
    rig.push(peer, 1 << 18, max_bytes=1 << 30)
    assert time.monotonic() - begun < 1
    assert rig.notices(peer) >= 0
    assert peer.asked > 50_000


def test_a_raised_item_comes_beside_the_queue_and_goes_at_once():
    rig = Rig(FIELDS, table(priority=GIVEN))
    peer = rig.join()
    fill(peer, np.ones(10))
    rig.push(peer, 200)
    key = rig.draw(8)["keys"][:1]
    queue = rig.stats()["actors"][0]["queue"]
    rig.replay.update(0, key, np.array([1e12]))
    for _ in range(20):
        batch = rig.draw(500)
        assert (batch["keys"] == key).all()
        assert batch["probabilities"][0] == pytest.approx(1)
    assert rig.stats()["actors"][0]["queue"] == queue
    rig.replay.update(0, key, np.array([0.0]))
    assert rig.draw(queue) is None
    while (batch := rig.draw(1)) is not None:
        assert batch["keys"] != key


def test_shares_are_exact_whatever_sits_in_the_queue(rng):
    """One actor, two items, one long cache: raised far, raised a little, cut, one after the other."""
    rig = Rig(FIELDS, table(priority=GIVEN))
    peer = rig.join()
    fill(peer, np.ones(2))
    rig.replay.expect(0, 16_000)
    rig.push(peer, 1)
    rig.push(peer, 16_000)
    keys = np.array(sorted(keys_of(rig, 64).values()), np.uint64)
    for p in (50.0, 1.5, 0.25, 4.0, 1.0):
        rig.replay.update(0, keys[:1], np.array([p]))
        got = (rig.draw(2000)["keys"] == keys[0]).mean()
        assert got == pytest.approx(p / (p + 1), abs=4.5 * np.sqrt(p / (p + 1) ** 2 / 2000))


def test_a_starved_actor_is_left_out_and_counted():
    rig = Rig(FIELDS, table(priority=GIVEN))
    one, two = rig.join(), rig.join()
    fill(one, np.ones(10))
    fill(two, np.ones(10), 1000)
    rig.push(one, 4)
    rig.push(two, 400)
    ids = np.concatenate([rig.draw(10)["id"] for _ in range(20)])
    assert (ids < 1000).sum() == 4
    actors = {a["name"]: a for a in rig.stats()["actors"]}
    assert actors["actor-0"]["starved"] >= 15  # by batch, not by place
    assert actors["actor-1"]["starved"] == 0
    assert rig.stats()["starved"] == actors["actor-0"]["starved"]
    assert one.number in rig.replay.hungry(0)


def test_demand_shares_the_stock_by_weight():
    rig = Rig(FIELDS, table(priority=GIVEN))
    for k, w in enumerate((1.0, 3.0)):
        fill(rig.join(), np.full(100, w), 1000 * k)
        rig.push(rig.peers[k], 1)
    rig.replay.expect(0, 800)
    for _ in range(3):
        rig.serve()
    queues = [a["queue"] for a in rig.stats()["actors"]]
    np.testing.assert_allclose(queues, [200, 600], rtol=0.1)
    assert all(rig.notices(peer) < 30 for peer in rig.peers)
    for _ in range(20):  # what exceeds twice the stock gives way
        rig.push(rig.peers[0], 100)
    assert rig.stats()["actors"][0]["queue"] <= 2 * 220
    while rig.draw(100) is not None:
        pass
    assert rig.replay.hungry(0)


def test_min_items_and_reasons():
    rig = Rig(FIELDS, table(priority=GIVEN, limits={"min_items": 30}))
    assert rig.draw(4) is None
    assert rig.replay.why_not(0, 4)[0] in ("empty", "min_items")
    peer = rig.join()
    fill(peer, np.ones(20))
    rig.push(peer, 100)
    assert rig.draw(4) is None
    assert rig.replay.why_not(0, 4) == ("min_items", 20, 30)
    fill(peer, np.ones(10), 20)
    rig.push(peer, 100)
    assert rig.draw(4) is not None
    assert rig.replay.why_not(0, 4)[0] == "ready"


@pytest.mark.parametrize("normalize", ["table", "batch", "none"])
@pytest.mark.parametrize("select", ["prioritized", "all"])
def test_weights_of_the_three_normalisations(normalize, select, rng):
    rig = Rig(FIELDS, table(priority=GIVEN | {"exponent": 0.6}, importance={"beta": 0.7, "normalize": normalize}, actor={"select": select}))
    w = rng.uniform(0.3, 2, (2, 40)) ** 0.6
    for k in range(2):
        peer = rig.join()
        fill(peer, w[k] ** (1 / 0.6), 40 * k)
        if select == "all":
            rig.push_all(peer)
        else:
            rig.push(peer, 300)
    flat = w.ravel()
    for size in (1, 7, 64):
        batch = rig.draw(size)
        raw = (batch.population * batch["probabilities"]) ** -0.7
        np.testing.assert_allclose(batch["probabilities"], flat[batch["id"]] / flat.sum(), rtol=1e-9)
        scale = {"none": 1, "batch": raw.max(), "table": (80 * flat.min() / flat.sum()) ** -0.7}[normalize]
        np.testing.assert_allclose(batch["weights"], raw / scale, rtol=1e-6)


def test_seeds_decide_everything():
    def run(server: int, actor: int) -> list[bytes]:
        rig = Rig(FIELDS, table(priority=GIVEN), seed=server)
        for k in range(2):
            fill(rig.join(seed=actor + k), np.linspace(0.1, 1, 2000), 10_000 * k)
        out = []
        for _ in range(10):
            rig.serve()
            batch = rig.draw(64)
            out += [batch.columns[name].tobytes() for name in sorted(batch.columns)]
            rig.replay.update(0, batch["keys"], batch["p"] * 0.3)
            rig.feedback()
        return out

    first = run(1, 50)
    assert first == run(1, 50)
    assert first[0] != run(2, 50)[0]
    assert first[0] != run(1, 60)[0]


@pytest.mark.parametrize("select", ["prioritized", "all"])
def test_priorities_from_1e_minus_30_to_1e30(select):
    rig = Rig(FIELDS, table(priority=GIVEN, actor={"select": select}, importance={"beta": 1.0, "normalize": "none"}))
    p = 10.0 ** np.array([-30, -3, 0, 29, 30])
    keys: dict[int, int] = {}
    for k in range(5):
        fill(rig.join(), p[k : k + 1], k)
        rig.push(rig.peers[k], 0 if select == "all" else 50)
    for _ in range(3):
        rig.serve()
        batch = rig.draw(40)
        np.testing.assert_allclose(batch["probabilities"], p[batch["id"]] / p.sum(), rtol=1e-12)
        np.testing.assert_allclose(batch["weights"], p.sum() / (5 * p[batch["id"]]), rtol=1e-6)
        keys.update(zip(batch["id"].tolist(), batch["keys"].tolist(), strict=True))
    assert set(keys) == {3, 4}
    rig.replay.update(0, np.array([keys[3], keys[4]], np.uint64), np.array([0.0, 1e-30]))
    if select == "all":
        batch = rig.draw(4000)
        assert set(batch["id"].tolist()) == {1, 2}
        assert batch.total == pytest.approx(1.001, rel=1e-12)
    assert rig.stats()["total"] == pytest.approx(1.001, rel=1e-12)
    assert rig.stats()["population"] == 4


def test_a_learner_goes_on_when_the_actor_with_most_of_the_weight_has_left():
    rig = Rig(FIELDS, table(priority=GIVEN, actor={"cache": 64}))
    heavy, light = rig.join(), rig.join()
    for peer, weight in ((heavy, 1000.0), (light, 1.0)):
        for i in range(200):
            peer.memory.add(0, {"id": i, "p": weight, "x": 0.0}, weight, -1)
        peer.memory.end(0, True, None)
    rig.replay.expect(0, 1024)
    rig.push(heavy, 700)
    rig.push(light, 64)
    rig.replay.leave(heavy.number)
    for _ in range(10):
        rig.push(light, rig.replay.notices(light.number, 0)[0])
        assert rig.draw(256) is not None
