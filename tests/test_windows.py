"""Frame stacks and sequences of random episodes: DEFINITIONS 3 and 4 against the naive references."""

from __future__ import annotations

import numpy as np
import pytest
import reference as ref
from play import Player, check
from rig import Rig, table

FIELDS = [("id", "<i8", ()), ("obs", "|u1", (2, 2)), ("state", "<f4", (3,)), ("reward", "<f4", ()), ("done", "|b1", ())]


def drawn(rig: Rig, player: Player, draws: int = 0) -> list[int]:
    """All items (select = "all"), or `draws` of a cache, each compared with the truth; their first steps' ids."""
    if draws:
        rig.replay.expect(0, 2 * draws)
        rig.push(player.peer, draws)
        batch = rig.draw(draws)
    else:
        rig.push_all(player.peer)
        batch = rig.draw(4 * rig.stats()["items"])
    return check(rig.settings[0], batch, player.by_id, player.integer)


@pytest.mark.parametrize("pad", ["repeat", "zero"])
@pytest.mark.parametrize("frames", [2, 4, 7])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("select", ["all", "prioritized"])
def test_stacks_and_next_stacks(pad, frames, n, select, rng):
    made = {"kind": "transition", "n_step": n, "gamma": 0.5, "frame_stack": frames, "stack": ["obs"], "pad": pad, "next": ["obs", "state"]}
    rig = Rig(FIELDS, table(item=made, actor={"select": select}))
    player = Player(rig.join(envs=3), FIELDS, rng, 3, lengths=(1, 12), integer=True)
    player.play(60)
    ids = set(drawn(rig, player, 0 if select == "all" else 3000))
    for episode in player.finished:
        assert {int(i) for i in episode.steps["id"]} <= ids
    if select == "prioritized":
        assert ids == {int(i) for e in player.episodes for i in e.steps["id"][: e.drawable]}


def test_a_stack_of_several_fields_without_a_next(rng):
    made = {"kind": "transition", "n_step": 2, "gamma": 0.5, "frame_stack": 3, "stack": ["obs", "done"]}
    rig = Rig(FIELDS, table(item=made, actor={"select": "all"}))
    player = Player(rig.join(), FIELDS, rng, lengths=(1, 9), integer=True)
    player.play(80)
    assert drawn(rig, player)


@pytest.mark.parametrize("tail", ["shift", "pad", "drop"])
@pytest.mark.parametrize(("length", "stride"), [(1, 1), (4, 1), (4, 3), (5, 5), (3, 7), (8, 2)])
def test_the_number_of_windows_of_every_episode_length(tail, length, stride, rng):
    made = {"kind": "sequence", "length": length, "stride": stride, "tail": tail, "gamma": 0.5, "initial": ["state"], "next": ["obs"]}
    for steps in range(1, 3 * length + 1):
        rig = Rig(FIELDS, table(item=made, actor={"select": "all"}), memory_bytes=1 << 18)
        player = Player(rig.join(), FIELDS, rng, lengths=(steps, steps), integer=True)
        for _ in range(2 * steps):
            player.add()
        assert len(player.finished) == 2
        truth = ref.windows(steps, length, stride, tail)
        rig.push_all(player.peer)
        assert rig.stats()["items"] == 2 * len(truth), f"{steps} steps"
        if truth:
            ids = set(drawn(rig, player))
            assert ids == {int(e.steps["id"][start]) for e in player.finished for start, _ in truth}


@pytest.mark.parametrize("tail", ["shift", "pad", "drop"])
@pytest.mark.parametrize("select", ["all", "prioritized"])
def test_sequences_of_interleaved_streams(tail, select, rng):
    made = {"kind": "sequence", "length": 6, "stride": 2, "tail": tail, "gamma": 0.9, "burn_in": 2, "initial": ["state"], "next": ["obs"]}
    rig = Rig(FIELDS, table(item=made, actor={"select": select}))
    player = Player(rig.join(envs=4), FIELDS, rng, 4, lengths=(1, 25))
    player.play(120)
    ids = drawn(rig, player, 0 if select == "all" else 2000)
    known = {int(e.steps["id"][s]) for e in player.finished for s, _ in ref.windows(len(e.steps["id"]), 6, 2, tail)}
    begun = {int(e.steps["id"][s]) for e in player.open for s in range(0, max(0, e.drawable - 5), 2)}
    assert known <= set(ids)
    assert begun <= set(ids)
    assert set(ids) - known <= {int(i) for e in player.open for i in e.steps["id"]}
    if tail == "drop":
        assert set(ids) == known | begun


def test_mask_length_and_initial_state(rng):
    made = {"kind": "sequence", "length": 4, "stride": 4, "tail": "pad", "gamma": 0.5, "initial": ["state"]}
    rig = Rig(FIELDS, table(item=made, actor={"select": "all"}))
    peer = rig.join()
    for t in range(6):
        step = {"id": t, "obs": np.full((2, 2), t + 1, np.uint8), "state": np.full(3, t, np.float32), "reward": 1.0, "done": t == 5}
        peer.memory.add(0, step, None, -1)
    peer.memory.end(0, True, None)
    rig.push_all(peer)
    batch = rig.draw(2)
    order = np.argsort(batch["id"][:, 0])
    np.testing.assert_array_equal(batch["length"][order], [4, 2])
    assert batch["length"].dtype == np.int32
    np.testing.assert_array_equal(batch["mask"][order], [[True] * 4, [True, True, False, False]])
    np.testing.assert_array_equal(batch["initial_state"][order], [[0, 0, 0], [4, 4, 4]])
    np.testing.assert_array_equal(batch["obs"][order][:, :, 0, 0], [[1, 2, 3, 4], [5, 6, 0, 0]])
    np.testing.assert_array_equal(batch["reward"][order], [[1, 1, 1, 1], [1, 1, 0, 0]])
    np.testing.assert_array_equal(batch["discount"][order], [[0.5] * 4, [0.5, 0, 0, 0]])
    assert "state" not in batch.columns


@pytest.mark.parametrize("select", ["all", "prioritized", "without_replacement"])
@pytest.mark.parametrize("tail", ["shift", "pad", "drop"])
@pytest.mark.parametrize(("length", "stride", "burn_in"), [(1, 1, 0), (4, 1, 2), (5, 3, 4), (6, 6, 0), (3, 8, 1)])
def test_windows_start_exactly_where_they_may(tail, length, stride, burn_in, select):
    """Every episode length from 1 to 3L, two streams at once; the recurrent state that a step was given is its own number."""
    made = {"kind": "sequence", "length": length, "stride": stride, "burn_in": burn_in, "tail": tail, "gamma": 0.5, "initial": ["state"]}
    rig = Rig(FIELDS, table(item=made, actor={"select": select}))
    peer, expected = rig.join(envs=2), set()
    for steps in range(1, 3 * length + 1):
        lengths = (steps, 3 * length + 1 - steps)  # long ones beside short ones
        for t in range(3 * length):
            for env in (0, 1):
                if t < lengths[env]:
                    number = 1000 * (2 * steps + env) + t
                    step = {"id": number, "obs": np.full((2, 2), t, np.uint8), "state": np.full(3, t, np.float32), "reward": 1.0, "done": False}
                    peer.memory.add(env, step, None, -1)
                    if t + 1 == lengths[env]:
                        peer.memory.end(env, bool(steps % 2), None)
        for env in (0, 1):
            expected |= {(1000 * (2 * steps + env) + start, real) for start, real in ref.windows(lengths[env], length, stride, tail)}
    short = sum(not ref.windows(steps, length, stride, tail) for steps in range(1, 3 * length + 1))
    head = rig.read(peer.memory.draw(0, 0, 1 << 24, 0)) if select != "all" else None
    if head is not None:
        assert (head.population, head.episodes, head.short_episodes) == (len(expected), 6 * length, 2 * short)
    stats = peer.memory.stats()
    assert (stats["ended"], stats["tables"][0]["inserted"], stats["tables"][0]["short_episodes"]) == (6 * length, len(expected), 2 * short)
    rig.replay.expect(0, 8000)
    rig.push(peer, 0 if select == "all" else 4000)
    batch = rig.draw(len(expected) if select == "without_replacement" else 3000)
    starts = batch["id"][:, 0]
    assert set(zip(starts.tolist(), batch["length"].tolist(), strict=True)) == expected
    np.testing.assert_array_equal(batch["initial_state"], np.repeat((starts % 1000)[:, None], 3, 1))
    offsets = np.arange(length)
    np.testing.assert_array_equal(batch["mask"], offsets < batch["length"][:, None])
    np.testing.assert_array_equal(batch["id"], np.where(batch["mask"], starts[:, None] + offsets, 0))  # one episode, in order, zeros beyond


@pytest.mark.parametrize("tail", ["shift", "pad", "drop"])
def test_windows_in_a_small_memory_of_long_episodes(tail, rng):
    """Steps are trimmed, rings turn over: what can be drawn are still whole windows at legal starts, none over an end or the write position."""
    made = {"kind": "sequence", "length": 5, "stride": 3, "tail": tail, "gamma": 0.9, "burn_in": 1, "initial": ["state"], "next": ["obs"]}
    settings = table(item=made, actor={"max_steps": 60})
    rig = Rig(FIELDS, settings)
    player = Player(rig.join(envs=3), FIELDS, rng, 3, lengths=(1, 70))
    seen = 0
    for _ in range(30):
        player.play(11)
        population = player.peer.memory.stats()["tables"][0]["population"]
        if not population:
            continue
        batch = rig.snapshot(player.peer, 20 * population, 16 * population)
        ids = set(check(settings, batch, player.by_id))
        assert batch.population == population == len(ids)
        for i, real in zip(batch["id"][:, 0].tolist(), batch["length"].tolist(), strict=True):
            episode, start = player.by_id[i]
            total = episode.drawable
            legal = dict(ref.windows(total, 5, 3, tail)) if episode.ended else dict.fromkeys(range(0, total - 4, 3), 5)
            assert legal.get(start) == real
            seen += start > 20
    assert seen  # of episodes that had lost their beginning
