"""n-step sums, discounts, returns, advantages and priorities of random episodes: DEFINITIONS 2, 5 and 6 against the naive references."""

from __future__ import annotations

import memsvc_core as core
import numpy as np
import pytest
import reference as ref
from hypothesis import given, settings
from hypothesis import strategies as st
from memsvc_proto.errors import SchemaError
from play import Player, check, priorities
from rig import Rig, table

SCALAR = [("id", "<i8", ()), ("obs", "|u1", (3,)), ("reward", "<f4", ()), ("value", "<f4", ()), ("gamma", "<f4", ())]
VECTOR = [("id", "<i8", ()), ("obs", "<f4", (2,)), ("reward", "<f8", (3,)), ("value", "<f8", (3,)), ("gamma", "<f8", (3,)), ("q", "<f8", (3,))]


def test_pure_functions_over_random_episodes(rng):
    for _ in range(300):
        steps, dims, n = int(rng.integers(1, 51)), int(rng.integers(1, 4)), int(rng.integers(1, 8))
        reward, value, last = rng.normal(size=(steps, dims)), rng.normal(size=(steps, dims)), rng.normal(size=dims)
        narrow = bool(rng.integers(2))
        gamma, lam, terminated = rng.uniform(0, 1, (steps, 1 if narrow else dims)), float(rng.uniform()), bool(rng.integers(2))
        wide = np.array(np.broadcast_to(gamma, (steps, dims)))
        sums, discounts, following = core.n_step(reward, terminated, n, gamma)
        naive = ref.n_step(reward, terminated, n, wide)
        np.testing.assert_allclose(sums, naive[0], atol=1e-9)
        np.testing.assert_allclose(np.broadcast_to(discounts, (steps, dims)), naive[1], atol=1e-9)
        np.testing.assert_array_equal(following, naive[2])
        q = core.lambda_return(reward, value, last, terminated, gamma, lam)
        np.testing.assert_allclose(q, ref.lambda_return(reward, value, last, terminated, wide, lam), atol=1e-9)
        np.testing.assert_allclose(q - value, ref.advantage(reward, value, last, terminated, wide, lam), atol=1e-9)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.data())
def test_the_return_less_the_value_is_the_advantage(data):
    """DEFINITIONS 5's property, through a memory: any episode, any number of dimensions, gamma a number, one a dimension, or a field of the step."""
    number = st.floats(-1e3, 1e3, width=32)
    rate = st.floats(0, 1, width=32)
    dims, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    many = [(name, "<f8", (dims,)) for name in ("reward", "value", "gamma")]
    gamma = data.draw(st.one_of(rate, st.lists(rate, min_size=dims, max_size=dims), st.just("gamma")))
    lam, terminated = data.draw(rate), data.draw(st.booleans())
    made = table(returns={"gamma": gamma, "lambda": lam}, priority={"coefficients": [1.0] * dims}, actor={"select": "all"})
    rig = Rig([("t", "<i8", ()), *many], made)
    peer = rig.join()
    vectors = st.lists(number, min_size=dims, max_size=dims)
    rows = [
        [np.array(data.draw(vectors)), np.array(data.draw(vectors)), np.array(data.draw(st.lists(rate, min_size=dims, max_size=dims)))]
        for _ in range(steps)
    ]
    last = np.array(data.draw(vectors))
    for t, (reward, value, rates) in enumerate(rows):
        peer.memory.add(0, {"t": t, "reward": reward, "value": value, "gamma": rates}, None, -1)
    peer.memory.end(0, terminated, {"value": last})
    rig.push_all(peer)
    batch = rig.draw(8 * steps)
    _, first = np.unique(batch["t"], return_index=True)
    reward, value, rates = (np.stack(column) for column in zip(*rows, strict=True))
    per_step = rates if gamma == "gamma" else ref.per_step(gamma, steps, dims)
    scale = 1e-12 * (1 + np.abs(reward).sum() + np.abs(value).sum() + np.abs(last).sum())
    np.testing.assert_allclose(batch["return"][first] - value, batch["advantage"][first], atol=scale)
    np.testing.assert_allclose(batch["advantage"][first], ref.advantage(reward, value, last, terminated, per_step, lam), atol=scale)
    np.testing.assert_allclose(batch["return"][first], ref.lambda_return(reward, value, last, terminated, per_step, lam), atol=scale)


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"returns": {"gamma": 0.9, "lambda": 0.8}}, True),
        ({"returns": {"gamma": 0.9, "lambda": 0.8}, "priority": {"source": "return"}}, True),
        ({"item": {"kind": "transition"}, "priority": {"source": "td"}}, True),
        ({"returns": {"gamma": 0.9, "lambda": 0.8}, "actor": {"select": "uniform"}}, True),
        ({"item": {"kind": "transition"}, "priority": {"source": "td"}, "actor": {"select": "uniform"}}, False),
        ({"item": {"kind": "transition"}}, False),
    ],
)
def test_a_truncation_without_its_bootstrap_says_what_to_pass(changes, needed):
    rig = Rig(SCALAR[:4], table(**changes))
    memory = rig.join(envs=2).memory
    step = {"id": 0, "obs": np.zeros(3, np.uint8), "reward": 1.0, "value": 0.5}
    columns = {name: np.stack([np.asarray(value, dtype)] * 2) for (name, dtype, _), value in zip(SCALAR[:4], step.values(), strict=True)}
    memory.add(0, step, None, -1)
    if not needed:
        memory.end(0, False, None)
        return
    for final in (None, {"obs": np.zeros(3, np.uint8)}):
        with pytest.raises(SchemaError, match=r'needs "value" of the final observation; pass final=\{"value": ...\}, or terminated=True'):
            memory.end(0, False, final)
    with pytest.raises(SchemaError, match=r'row 1: final: .*pass final=\{"value": ...\}'):
        memory.add_batch(None, None, columns, None, -1, np.array([True, False]), np.array([True, True]), None)
    assert memory.stats()["added"] == 1
    memory.end(0, False, {"value": 0.25})
    memory.add(0, step, None, -1)
    memory.end(0, True, None)
    assert memory.stats()["episodes"] == 2


def everything(rig: Rig, player: Player) -> list[int]:
    """Sends all final items and checks each of them; their ids."""
    rig.push_all(player.peer)
    items = rig.stats()["items"]
    batch = rig.draw(4 * items)
    settings = rig.settings[0]
    ids = check(settings, batch, player.by_id, player.integer)
    if settings["priority"]["source"] == "max":
        assert len(set(ids)) == items
    return ids


@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("gamma", [0.5, "gamma"])
def test_integer_transitions_are_right_to_the_last_bit(n, gamma, rng):
    settings = table(item={"kind": "transition", "n_step": n, "gamma": gamma, "next": ["obs"]}, actor={"select": "all"})
    rig = Rig(SCALAR, settings)
    player = Player(rig.join(envs=3), SCALAR, rng, 3, integer=True)
    player.play(120)
    ids = set(everything(rig, player))
    for episode in player.finished:
        assert {int(i) for i in episode.steps["id"]} <= ids
    for episode in player.open:
        expected = {int(i) for i in episode.steps["id"][: max(0, episode.drawable - n + 1)]}
        assert expected == ids & {int(i) for i in episode.steps["id"]}


@pytest.mark.parametrize("gamma", [0.97, [0.5, 0.9, 1.0], "gamma"])
@pytest.mark.parametrize("kind", ["step", "transition", "sequence"])
def test_vector_rewards(kind, gamma, rng):
    made = {"kind": kind, "gamma": gamma}
    if kind == "transition":
        made |= {"n_step": 4, "next": ["obs", "value"]}
    if kind == "sequence":
        made |= {"length": 6, "stride": 3, "tail": "pad", "next": ["obs"]}
    settings = table(
        item=made, returns={"gamma": gamma, "lambda": 0.9}, priority={"source": "max", "coefficients": [1.0, -0.5, 2.0]}, actor={"select": "all"}
    )
    rig = Rig(VECTOR, settings)
    player = Player(rig.join(envs=2), VECTOR, rng, 2)
    player.play(100)
    ids = set(everything(rig, player))
    assert ids
    open_ids = {int(i) for e in player.open for i in e.steps["id"]}
    assert not ids & open_ids  # returns are final at the end only


@pytest.mark.parametrize("kind", ["transition", "sequence"])
def test_one_gamma_of_the_step_for_all_reward_dimensions(kind, rng):
    fields = [f for f in VECTOR if f[0] != "gamma"] + [("gamma", "<f4", ())]
    made = {"kind": kind, "gamma": "gamma", "n_step": 4, "length": 5, "stride": 2, "next": ["obs"]}
    rig = Rig(
        fields, table(item=made, returns={"gamma": "gamma", "lambda": 0.7}, priority={"coefficients": [1.0, 1.0, 1.0]}, actor={"select": "all"})
    )
    player = Player(rig.join(envs=2), fields, rng, 2)
    player.play(80)
    assert everything(rig, player)


@pytest.mark.parametrize("source", ["return", "td", "given"])
@pytest.mark.parametrize("kind", ["step", "transition", "sequence"])
@pytest.mark.parametrize("select", ["all", "prioritized"])
def test_weights_by_source(kind, source, select, rng):
    if kind == "step" and source == "td":
        pytest.skip("a step has no n-step quantities")
    made = {"kind": kind, "gamma": [0.9, 0.8, 0.7]}
    if kind == "transition":
        made |= {"n_step": 3, "next": ["obs"]}
    if kind == "sequence":
        made |= {"length": 7, "stride": 2, "burn_in": 2, "tail": "pad", "n_step": 3}
    settings = table(
        item=made,
        returns={"gamma": 0.95, "lambda": 0.9} if source == "return" else None,
        priority={"source": source, "exponent": 0.7, "coefficients": [1.0, -0.5, 2.0], "baseline": "q" if source == "td" else "value", "eta": 0.8},
        actor={"select": select},
    )
    rig = Rig(VECTOR, settings)
    player = Player(rig.join(envs=2), VECTOR, rng, 2, given=source == "given", lengths=(9, 30))
    player.play(60)
    if select == "all":
        rig.push_all(player.peer)
        while any(e.steps["id"] for e in player.open):
            player.play(1)
            for env in range(2):
                if player.open[env].steps["id"]:
                    player.finish(env)
        rig.push_all(player.peer)
    else:
        rig.replay.expect(0, 4000)
        rig.push(player.peer, 2000)
    batch = rig.draw(1500)
    ids = check(settings, batch, player.by_id)
    truth = {id(e): priorities(settings, e) for e in player.episodes if e.drawable}
    near = 5e-5 if source == "return" else 2e-6  # the running normaliser has moved a little since it was 1
    for i, key in enumerate(ids):
        episode, t = player.by_id[key]
        p = truth[id(episode)]
        if kind == "sequence":
            real = int(batch["length"][i])
            errors = p[t + 2 : t + real]
            if not len(errors):
                continue
            expected = ref.mixed(errors, 0.8)
        else:
            expected = p[t]
        assert batch.w[i] == pytest.approx(expected**0.7, rel=near, abs=1e-6)


@pytest.mark.parametrize("source", ["return", "td"])
@pytest.mark.parametrize("kind", ["transition", "sequence"])
def test_unfinished_episodes_are_recomputed_as_steps_arrive(kind, source, rng):
    fields = SCALAR[:4]
    made = {"kind": kind, "n_step": 3, "gamma": 0.9, "next": ["obs"]}
    settings = table(
        item=made | ({"length": 4, "stride": 2, "tail": "drop"} if kind == "sequence" else {}),
        returns={"gamma": 0.9, "lambda": 0.8},
        priority={"source": source, "exponent": 1.0, "eta": 0.8},
    )
    rig = Rig(fields, settings)
    player = Player(rig.join("a"), fields, rng, lengths=(12, 12))
    player.add()
    assert rig.push(player.peer, 16) == 0 or rig.stats()["population"] == 0
    for step in range(2, 25):
        player.add()
        w = []
        for episode in player.episodes:
            p = priorities(settings, episode) if episode.drawable else np.zeros(0)
            if kind == "sequence":
                p = np.array([ref.mixed(p[s : s + 4], 0.8) for s, _ in ref.windows(len(p), 4, 2, "drop")])
            w.append(p)
        w = np.concatenate(w)
        if not len(w):
            continue
        batch = rig.snapshot(player.peer, 600, 256)
        ids = set(check(settings, batch, player.by_id))
        assert ids <= {int(i) for e in player.episodes for i in e.steps["id"][: e.drawable]}
        assert batch.population == len(w)
        assert batch.total == pytest.approx(w.sum(), rel=2e-6)
        episode = player.open[0] if step % 12 else player.finished[-1]
        assert episode.drawable == len(episode.steps["id"]) - (not episode.ended)


@pytest.mark.parametrize("source", ["return", "td", "given"])
@pytest.mark.parametrize("tail", ["shift", "pad"])
def test_a_growing_episode_of_sequences_to_its_end(tail, source, rng):
    """After every step and after the end: the weights of all windows, the last one too, from the errors as they now stand; a learner's stay."""
    fields, length, stride, burn_in = SCALAR[:4], 4, 3, 1
    made = {"kind": "sequence", "n_step": 2, "gamma": 0.9, "length": length, "stride": stride, "burn_in": burn_in, "tail": tail}
    returns = {"gamma": 0.9, "lambda": 0.8}
    rig = Rig(fields, table(item=made, returns=returns, priority={"source": source, "exponent": 1.0, "eta": 0.8}))
    player = Player(rig.join(), fields, rng, lengths=(14, 14), given=source == "given")
    learned: dict[int, float] = {}
    for step in range(1, 29):
        player.add()
        truth = {}
        for episode in player.episodes:
            errors = priorities(rig.settings[0], episode) if episode.drawable else np.zeros(0)
            spans = ref.windows(len(errors), length, stride, tail) if episode.ended else [(s, 4) for s in range(0, len(errors) - 3, stride)]
            for start, real in spans:
                mixed = ref.mixed(errors[start + (burn_in if real > burn_in else 0) : start + real], 0.8)
                truth[int(episode.steps["id"][start])] = learned.get(int(episode.steps["id"][start]), mixed)
        table_now = player.peer.memory.stats()["tables"][0]
        assert table_now["population"] == len(truth)
        assert table_now["total"] == pytest.approx(sum(truth.values()), rel=2e-5)
        if step == 10:
            first, key = rig_keys(rig, player.peer)[0]
            player.peer.memory.feedback(0, 1, np.array([key], np.uint64), np.array([5.0]))
            learned[first] = 5.0 * (2**0.5 if source == "return" else 1)


def test_the_newest_priority_counts_for_max(rng):
    fields = [("id", "<i8", ())]
    rig = Rig(fields, table(priority={"source": "max", "exponent": 1.0}))
    peer = rig.join()

    def add(first: int, count: int) -> None:
        for i in range(first, first + count):
            peer.memory.add(0, {"id": i}, None, -1)

    def weights() -> dict[int, float]:
        rig.push(peer, 300)
        batch = rig.draw(200)
        return dict(zip(batch["id"].tolist(), batch.w.tolist(), strict=True))

    add(0, 5)
    assert weights() == pytest.approx({0: 1, 1: 1, 2: 1, 3: 1})
    batch = rig.draw(50)
    keys = dict(zip(batch["id"].tolist(), batch["keys"].tolist(), strict=True))
    rig.replay.update(0, np.array([keys[1]], np.uint64), np.array([4.0]))
    rig.feedback()
    add(5, 1)  # makes item 4
    assert weights() == pytest.approx({0: 1, 1: 4, 2: 1, 3: 1, 4: 4})
    everything = np.array([*keys.values(), rig_key(rig, peer, 4)], np.uint64)
    rig.replay.update(0, everything, np.full(len(everything), 0.25))
    rig.feedback()
    add(6, 1)  # the largest priority now is .25
    assert weights() == pytest.approx(dict.fromkeys(range(6), 0.25))


def test_max_forgets_what_the_memory_has_forgotten():
    rig = Rig([("id", "<i8", ())], table(priority={"source": "max", "exponent": 1.0}, actor={"max_episodes": 3}))
    peer = rig.join()

    def episode(first: int) -> None:
        for i in range(first, first + 2):
            peer.memory.add(0, {"id": i}, None, -1)
        peer.memory.end(0, True, None)

    episode(0)
    key = rig_key(rig, peer, 1)
    peer.memory.feedback(0, 1, np.array([key], np.uint64), np.array([8.0]))
    for first, total in ((2, 1 + 8 + 16), (4, 1 + 8 + 32), (6, 16 + 16 + 16)):
        episode(first)
        assert peer.memory.stats()["tables"][0]["total"] == pytest.approx(total)
    keys = np.unique(rig.read(peer.memory.draw(0, 300, 1 << 20, 0)).keys)
    peer.memory.feedback(0, 2, keys, np.full(len(keys), 0.25))
    episode(8)
    assert peer.memory.stats()["tables"][0]["total"] == pytest.approx(6 * 0.25)


@pytest.mark.parametrize("select", ["all", "prioritized"])
def test_a_learners_raw_priority_is_normalised_like_an_actors(select, rng):
    """Source "return": p in the unit of |c (q - v)|; the service divides by sqrt(ma / 2) and takes the exponent, at the server and in the memory."""
    fields = SCALAR[:4]
    settings = table(returns={"gamma": 0.9, "lambda": 0.8}, priority={"source": "return", "exponent": 0.6}, actor={"select": select})
    rig = Rig(fields, settings)
    player = Player(rig.join(), fields, rng, lengths=(10, 10))
    for _ in range(10):
        player.add()
    rig.push(player.peer, 400)
    batch = rig.draw(200)
    _, first = np.unique(batch["id"], return_index=True)
    p = rng.uniform(0.5, 3, 10)
    assert rig.replay.update(0, batch["keys"][first], p)[:2] == (10, 0)
    expected = (p / np.sqrt(0.5)) ** 0.6
    batch = rig.draw(100)
    np.testing.assert_allclose(batch.w, expected[batch["id"]], rtol=1e-5)
    assert rig.stats()["total"] == pytest.approx(expected.sum(), rel=1e-5)
    if select == "prioritized":
        rig.feedback()
        assert player.peer.memory.stats()["tables"][0]["total"] == pytest.approx(expected.sum(), rel=1e-5)
        rig.push(player.peer, 200)
        assert rig.stats()["total"] == pytest.approx(expected.sum(), rel=1e-5)
        batch = rig.draw(100)
        np.testing.assert_allclose(batch.w, expected[batch["id"]], rtol=1e-5)


def test_a_new_sequence_gets_the_largest_priority_of_all():
    rig = Rig([("id", "<i8", ()), ("reward", "<f4", ())], table(item={"kind": "sequence", "length": 3, "stride": 3}, priority={"exponent": 1.0}))
    peer = rig.join()

    def add(first: int, count: int) -> float:
        for i in range(first, first + count):
            peer.memory.add(0, {"id": i, "reward": 0.0}, None, -1)
        return peer.memory.stats()["tables"][0]["total"]

    assert add(0, 4) == 1
    peer.memory.feedback(0, 1, np.array([rig_keys(rig, peer)[0][1]], np.uint64), np.array([6.0]))
    assert add(4, 3) == 6 + 6
    peer.memory.end(0, True, None)  # the tail of one step is moved back: a third window
    assert peer.memory.stats()["tables"][0]["total"] == 6 + 6 + 6


def rig_keys(rig: Rig, peer) -> list[tuple[int, int]]:
    """(first id, key) of the sequences that can be drawn."""
    rig.push(peer, 300)
    batch = rig.draw(200)
    return sorted(set(zip(batch["id"][:, 0].tolist(), batch["keys"].tolist(), strict=True)))


def rig_key(rig: Rig, peer, wanted: int) -> int:
    """The key of the item whose id is `wanted`."""
    rig.push(peer, 300)
    batch = rig.draw(200)
    return int(batch["keys"][batch["id"].tolist().index(wanted)])
