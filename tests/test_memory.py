"""An actor's local memory: bounds, wrapping, streams, feedback, payloads, refusals (DEFINITIONS 1, 6 and 7 stage one; memsvc_core.pyi)."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from memsvc_core import Memory, Schema, TableSpec
from memsvc_proto.errors import PriorityError, SchemaError, WindowFull
from play import Player, check
from rig import Rig, table
from scipy.stats import chisquare

FIELDS = [("id", "<i8", ()), ("obs", "<f4", (2,)), ("reward", "<f4", ()), ("value", "<f4", ())]
ID = [("id", "<i8", ())]
MADE = {"kind": "transition", "n_step": 3, "gamma": 0.9, "frame_stack": 3, "stack": ["obs"], "next": ["obs"]}


@pytest.mark.parametrize("max_steps", [60, 97, 128, 501])
@pytest.mark.parametrize("envs", [1, 3])
def test_a_wrapping_memory_stays_right_and_within_its_steps(max_steps, envs, rng):
    lengths = (1, max(2, min(50, max_steps // envs // 2)))
    settings = table(item=MADE, returns={"gamma": 0.9, "lambda": 0.8}, actor={"max_steps": max_steps})
    rig = Rig(FIELDS, settings)
    player = Player(rig.join(envs=envs), FIELDS, rng, envs, lengths)
    for _ in range(12):
        player.play(max_steps // 4)
        stats = player.peer.memory.stats()
        assert stats["steps"] <= max_steps
        assert stats["added"] == len(player.by_id)
        population = stats["tables"][0]["population"]
        batch = rig.snapshot(player.peer, 16 * population, 16 * population)
        ids = set(check(settings, batch, player.by_id))
        assert len(ids) == population == batch.population
        live = [e for e in player.finished if int(e.steps["id"][0]) in ids]
        assert live == player.finished[len(player.finished) - len(live) :]  # the newest episodes, without a gap
        assert ids == {int(i) for e in live + player.open for i in e.steps["id"][: e.drawable]}
        kept = sum(len(e.steps["id"]) for e in live + player.open)
        if len(live) < len(player.finished):
            assert kept >= max_steps - 2 * envs * (lengths[1] + 1)  # the room is used


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("select", ["prioritized", "all"])
def test_every_small_capacity(select, envs, rng):
    """Any capacity, down to two steps a stream, which is the least that makes an item."""
    made = {"kind": "transition", "n_step": 2, "gamma": 0.5, "frame_stack": 2, "stack": ["obs"], "next": ["obs"]}
    for max_steps in range(1, 71):
        settings = table(item=made, actor={"max_steps": max_steps, "select": select})
        rig = Rig(FIELDS, settings, memory_bytes=1 << 18)
        # What must be sent whole, once, has to fit: see the next test for what happens otherwise.
        longest = 30 if select == "prioritized" else max(1, max_steps // envs - 3)
        player = Player(rig.join(envs=envs), FIELDS, rng, envs, (1, longest), integer=True)
        for _ in range(20):
            for _ in range(4):
                player.play(1)
                assert player.peer.memory.stats()["steps"] <= max(max_steps, 2 * envs)
                if select == "all":
                    rig.push_all(player.peer)
            if select == "prioritized" and player.peer.memory.stats()["tables"][0]["population"]:
                check(settings, rig.snapshot(player.peer, 60, 60), player.by_id, exact=True)
        if select == "all":
            check(settings, rig.draw(100), player.by_id, exact=True)


def test_a_memory_full_of_unsent_items_says_so_and_goes_on_after_a_push():
    """select = "all": nothing is dropped unsent. The refused step changes nothing and is welcome once the items have gone."""
    rig = Rig(ID, table(actor={"max_steps": 20, "select": "all"}))
    peer = rig.join()
    for added in range(1, 21):
        peer.memory.add(0, {"id": added - 1}, None, -1)
        if added % 7 == 0:
            peer.memory.end(0, True, None)
    with pytest.raises(WindowFull, match="max_steps"):
        peer.memory.add(0, {"id": 20}, None, -1)
    assert peer.memory.stats()["added"] == 20
    rig.push_all(peer)
    for i in range(20, 200):
        peer.memory.add(0, {"id": i}, None, -1)
        if i % 7 == 6:
            peer.memory.end(0, True, None)
        rig.push_all(peer)
    peer.memory.end(0, True, None)
    rig.push_all(peer)
    assert set(rig.draw(1000)["id"].tolist()) == set(range(200))


def test_at_most_max_episodes_finished_episodes(rng):
    settings = table(item=MADE, actor={"max_episodes": 5, "select": "uniform"})
    rig = Rig(FIELDS, settings)
    player = Player(rig.join(envs=2), FIELDS, rng, 2, (1, 9))
    for _ in range(20):
        player.play(10)
        expected = {int(i) for e in player.finished[-5:] + player.open for i in e.steps["id"][: e.drawable]}
        assert player.peer.memory.stats()["episodes"] <= 5 + 2
        assert player.peer.memory.stats()["tables"][0]["population"] == len(expected)
        payload = player.peer.memory.draw(0, 20 * len(expected), 1 << 24, 0)
        assert len(np.unique(rig.read(payload).keys)) == len(expected)
        assert (rig.read(payload).weights == 1).all()


def test_an_episode_longer_than_the_memory_keeps_its_newest_part(rng):
    settings = table(item=MADE | {"frame_stack": 2}, returns={"gamma": 0.9, "lambda": 0.8}, actor={"max_steps": 70})
    rig = Rig(FIELDS, settings)
    player = Player(rig.join(), FIELDS, rng, lengths=(400, 400))
    for step in range(1, 401):
        player.add()
        assert player.peer.memory.stats()["steps"] <= 70
        if step % 57 and step != 400:
            continue
        batch = rig.snapshot(player.peer, 900, 900)
        episode = player.episodes[0]
        if step > 70:  # a stack whose older frames are gone cannot be rebuilt: such items are not drawn
            ids = set(check(settings, batch, player.by_id))
            assert max(ids) == int(episode.steps["id"][episode.drawable - 1])
            assert ids == set(range(min(ids), max(ids) + 1))
            assert 50 <= len(ids) <= 70


def test_add_and_add_batch_make_the_same_memory():
    settings = table(item=MADE, returns={"gamma": 0.9, "lambda": 0.8})
    payloads = []
    for batched in (False, True):
        rng = np.random.default_rng(3)
        rig = Rig(FIELDS, settings)
        memory = rig.join(envs=3, seed=7).memory
        for step in range(40):
            columns = {
                "id": np.arange(3) + 3 * step,
                "obs": rng.normal(size=(3, 2)).astype(np.float32),
                "reward": rng.normal(size=3).astype(np.float32),
                "value": rng.normal(size=3).astype(np.float32),
            }
            terminated, truncated = rng.random(3) < 0.1, rng.random(3) < 0.1
            final = {"obs": rng.normal(size=(3, 2)).astype(np.float32), "value": rng.normal(size=3).astype(np.float32)}
            if batched:
                memory.add_batch(None, None, columns, None, step, terminated, truncated, final)
                continue
            for env in range(3):
                memory.add(env, {name: column[env] for name, column in columns.items()}, None, step)
                if terminated[env] or truncated[env]:
                    memory.end(env, bool(terminated[env]), {name: column[env] for name, column in final.items()})
        payloads.append(memory.draw(0, 500, 1 << 22, 0).tobytes())
    assert payloads[0] == payloads[1]


def test_draws_are_by_weight_and_independent(rng):
    rig = Rig(ID, table(priority={"source": "given", "exponent": 0.6}))
    peer = rig.join()
    priorities = rng.uniform(0.01, 2, 200)
    priorities[::9] = 0
    for i, p in enumerate(priorities):
        peer.memory.add(0, {"id": i}, float(p), -1)
    peer.memory.end(0, True, None)
    w = np.where(priorities > 0, priorities**0.6, 0)
    found = rig.read(peer.memory.draw(0, 200_000, 1 << 26, 0))
    assert found.total == pytest.approx(w.sum(), rel=1e-12)
    assert found.population == (w > 0).sum()
    assert found.min_weight == pytest.approx(w[w > 0].min(), rel=1e-12)
    order = np.unique(found.keys)
    counts = np.bincount(np.searchsorted(order, found.keys), minlength=len(order))
    assert len(order) == (w > 0).sum()
    assert chisquare(counts, 200_000 * w[w > 0] / w.sum()).pvalue > 1e-3
    np.testing.assert_allclose(found.weights, w[w > 0][np.searchsorted(order, found.keys)], rtol=1e-12)
    halves = found.keys.reshape(-1, 2)
    same = (halves[:, 0] == halves[:, 1]).mean()
    assert same == pytest.approx(((w / w.sum()) ** 2).sum(), abs=0.001)  # a stratified cache would pair otherwise


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_zero_priorities_and_extreme_ones(exponent):
    rig = Rig(ID, table(priority={"source": "given", "exponent": exponent}))
    peer = rig.join()
    for i, p in enumerate([0.0, 1e-30, 1e30, 0.0, 1.0]):
        peer.memory.add(0, {"id": i}, p, -1)
    peer.memory.end(0, True, None)
    found = rig.read(peer.memory.draw(0, 1_000_000, 1 << 25, 0))
    first = int(found.keys.min()) - 1
    assert not set((found.keys - np.uint64(first)).tolist()) & {0, 3}
    assert found.population == 3
    assert found.total == pytest.approx(sum(p**exponent for p in (1e-30, 1e30, 1.0)))
    assert len(np.unique(found.keys)) == (3 if exponent == 0 else 1)


def test_seeds_decide_the_draws():
    def payload(seed: int) -> bytes:
        rig = Rig(ID, table())
        peer = rig.join(seed=seed)
        for i in range(3000):
            peer.memory.add(0, {"id": i}, None, -1)
        return rig.read(peer.memory.draw(0, 64, 1 << 20, 0)).keys.tobytes()

    assert payload(5) == payload(5)
    assert len({payload(seed) for seed in range(20)}) == 20


def test_feedback_reaches_the_memory_and_is_numbered():
    rig = Rig(ID, table(priority={"source": "given", "exponent": 0.5}))
    peer = rig.join()
    for i in range(11):
        peer.memory.add(0, {"id": i}, 1.0, -1)
    keys = np.unique(rig.read(peer.memory.draw(0, 400, 1 << 20, 0)).keys)
    assert len(keys) == 10
    assert peer.memory.feedback(0, 1, keys[:2], np.array([4.0, 0.0])) == 2
    found = rig.read(peer.memory.draw(0, 0, 1 << 20, 0))
    assert (found.applied, found.population) == (1, 9)
    assert found.total == pytest.approx(8 + 2)
    unknown = np.array([int(keys[0]), int(keys[-1]) + 1000], np.uint64)
    assert peer.memory.feedback(0, 2, unknown, np.array([9.0, 9.0])) == 1
    assert peer.memory.feedback(0, 3, np.array([keys[3], keys[3]], np.uint64), np.array([25.0, 16.0])) >= 1
    found = rig.read(peer.memory.draw(0, 0, 1 << 20, 0))
    assert found.applied == 3
    assert found.total == pytest.approx(7 + 3 + 4)
    assert peer.memory.stats()["tables"][0]["total"] == pytest.approx(14)


def test_refusals_change_nothing():
    settings = table(item=MADE, returns={"gamma": 0.9, "lambda": 0.8}, priority={"source": "given"})
    rig = Rig(FIELDS, settings)
    memory = rig.join(envs=2).memory
    good = {"id": 0, "obs": np.zeros(2, np.float32), "reward": 1.0, "value": 0.5}
    bad = [
        ({**good, "obs": np.zeros(3, np.float32)}, SchemaError, "obs"),
        ({**good, "obs": np.zeros(2, np.float64)}, SchemaError, "obs"),
        ({**good, "obs": np.zeros(2, ">f4")}, SchemaError, "obs"),
        ({**good, "obs": np.array([object(), object()])}, SchemaError, "obs"),
        ({**good, "more": 1}, SchemaError, "more"),
        ({k: v for k, v in good.items() if k != "value"}, SchemaError, "value"),
        ({**good, "reward": np.zeros(1, np.float32)}, SchemaError, "reward"),
    ]
    for step, error, word in bad:
        with pytest.raises(error, match=word):
            memory.add(0, step, 1.0, -1)
    for p in (np.nan, np.inf, -np.inf, -1.0, None):
        with pytest.raises(PriorityError):
            memory.add(0, good, p, -1)
    with pytest.raises(SchemaError):
        memory.add(2, good, 1.0, -1)
    assert memory.stats()["added"] == 0
    columns = {"id": np.arange(2), "obs": np.zeros((2, 2), np.float32), "reward": np.zeros(2, np.float32), "value": np.zeros(2, np.float32)}
    with pytest.raises(PriorityError):
        memory.add_batch(None, None, columns, np.array([1.0, np.nan]), -1, None, None, None)
    with pytest.raises(SchemaError):
        memory.add_batch(None, None, {**columns, "reward": np.zeros(3, np.float32)}, np.ones(2), -1, None, None, None)
    with pytest.raises(SchemaError, match="final"):
        memory.add_batch(None, None, columns, np.ones(2), -1, None, np.array([False, True]), None)
    assert memory.stats()["added"] == 0
    memory.end(0, True, None)  # no step so far: nothing happens
    memory.add(0, good, 1.0, -1)
    with pytest.raises(SchemaError, match="final"):
        memory.end(0, False, None)
    memory.end(0, False, {"obs": np.zeros(2, np.float32), "value": 0.0})
    assert memory.stats()["added"] == 1
    assert memory.stats()["tables"][0]["population"] == 1


def test_the_callers_arrays_may_be_reused_and_have_any_strides():
    rig = Rig(FIELDS, table(actor={"select": "all"}))
    peer = rig.join()
    buffer = np.zeros((4, 2), np.float32)
    for i in range(20):
        buffer[:] = i
        buffer[::2] = -1
        obs = (buffer[1], buffer[::-1].T[:, 0], np.asfortranarray(buffer)[3])[i % 3]
        peer.memory.add(0, {"id": i, "obs": obs, "reward": np.float32(i), "value": np.array(i, np.float32)}, None, -1)
    buffer[:] = 99
    rig.push_all(peer)
    batch = rig.draw(40)
    np.testing.assert_array_equal(batch["obs"], np.repeat(batch["id"][:, None], 2, 1))
    np.testing.assert_array_equal(batch["reward"], batch["id"])


def test_overlapping_items_share_their_rows_in_a_payload():
    rig = Rig(FIELDS, table(item=MADE))
    peer = rig.join()
    for i in range(200):
        peer.memory.add(0, {"id": i, "obs": np.full(2, i, np.float32), "reward": 0.0, "value": 0.0}, None, -1)
    found = rig.read(peer.memory.draw(0, 3000, 1 << 22, 0))
    assert len(found.items) == 199 == len({key for key, *_ in found.items})
    assert len(found.rows) == 200 == len(np.unique(found.rows))


def test_head_leaves_room_and_max_bytes_bounds_a_payload():
    rig = Rig(FIELDS, table(item=MADE))
    peer = rig.join()
    for i in range(2000):
        peer.memory.add(0, {"id": i, "obs": np.zeros(2, np.float32), "reward": 0.0, "value": 0.0}, None, -1)
    payload = peer.memory.draw(0, 5000, 20_000, 64)
    found = rig.read(payload[64:])
    assert 0 < len(found.keys) < 5000
    assert payload.nbytes < 25_000
    assert len(rig.read(peer.memory.draw(0, 5, 1, 0)).keys) == 1
    assert len(rig.read(peer.memory.draw(0, 0, 1 << 20, 0)).keys) == 0


def test_after_reopen_everything_travels_again(rng):
    """A new server: a cache brings its payload along again, under keys of the new streams."""
    settings = table(item=MADE)
    rig = Rig(FIELDS, settings)
    player = Player(rig.join("a", envs=2), FIELDS, rng, 2, (4, 10))
    player.play(60)
    rig.push(player.peer, 2000)
    before = set(rig.draw(2000)["keys"].tolist())
    other = Rig(FIELDS, settings, seed=2, first_stream=1000)
    number, streams = other.replay.join("a", 2)
    player.peer.memory.reopen(streams)
    player.peer.number = number
    player.play(20)
    other.push(player.peer, 2000)
    batch = other.draw(2000)
    ids = set(check(settings, batch, player.by_id))
    assert ids == {int(i) for e in player.episodes for i in e.steps["id"][: e.drawable]}
    assert batch.population == len(ids)
    assert len(before) > 70


def test_after_reopen_unsent_items_go_to_the_new_server(rng):
    settings = table(item=MADE, actor={"select": "all"})
    rig = Rig(FIELDS, settings)
    player = Player(rig.join("a", envs=2), FIELDS, rng, 2, (4, 10))
    player.play(30)
    rig.push_all(player.peer)
    sent = set(rig.draw(2000)["id"].tolist())
    player.play(30)
    other = Rig(FIELDS, settings, seed=2, first_stream=1000)
    player.peer.number, streams = other.replay.join("a", 2)
    player.peer.memory.reopen(streams)
    player.play(20)
    other.push_all(player.peer)
    ids = set(check(settings, other.draw(2000), player.by_id))
    assert {int(i) for e in player.finished for i in e.steps["id"]} <= ids | sent


def test_threads_that_share_a_memory_do_not_mix_their_steps():
    """numpy lets go of the GIL while a strided array is copied."""
    side = 200
    rig = Rig([("id", "<i8", ()), ("obs", "<f4", (side, side))], table(actor={"max_steps": 400}), memory_bytes=1 << 26)
    peer = rig.join(envs=4)

    def play(env: int) -> None:
        for i in range(40):
            number = 100 * env + i
            peer.memory.add(env, {"id": number, "obs": np.full((side, side), number, np.float32).T[::-1]}, None, -1)

    threads = [threading.Thread(target=play, args=(env,)) for env in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for env in range(4):
        peer.memory.end(env, True, None)
    rig.push(peer, 600, max_bytes=1 << 28)
    batch = rig.draw(400)
    assert len(np.unique(batch["id"])) > 100
    assert (batch["obs"] == batch["id"][:, None, None]).all()


def test_a_priority_that_no_table_uses_is_refused_not_ignored():
    schema = Schema([("x", "<f4", ())])
    memory = Memory(schema, [TableSpec(schema, {"name": "t", "item": {"kind": "step"}})], [1], 0)
    with pytest.raises(PriorityError, match="no table has priority"):
        memory.add(0, {"x": 1.0}, 1.0, -1)
    with pytest.raises(PriorityError, match="no table has priority"):
        memory.add_batch(None, None, {"x": np.ones(1, np.float32)}, np.ones(1), -1, None, None, None)
    memory.add(0, {"x": 1.0}, None, -1)
    assert memory.added == 1
