"""Items by key, and settings that are changed while everything runs."""

from __future__ import annotations

import numpy as np
import pytest
from memsvc_client import ConfigError, SchemaError
from memsvc_proto.wire import Kind, Message
from serving import CACHES, KINDS, UNION, serve, until


def numbered(i):
    return {"obs": np.array([i, i + 0.25, -i], np.float32), "action": i, "reward": i / 2}


def fill(actor, numbers):
    for i in numbers:
        actor.add(**numbered(i), priority=1.0 + i)
    actor.end_episode(terminated=True)
    actor.flush(10)


def all_keys(learner, n):
    """{number: key} of n items, from as many batches as it takes."""
    keys = {}
    while len(keys) < n:
        batch = learner.sample(timeout=10)
        keys.update(zip(batch["action"].tolist(), batch.keys.tolist(), strict=True))
    return keys


CASES = {"union": UNION, "caches": CACHES | {"priority": {"source": "given", "exponent": 1.0}}}


@pytest.fixture(params=[(kind, table) for kind in KINDS for table in CASES], ids="-".join)
def served(request, tmp_path):
    kind, table = request.param
    with serve(kind, tmp_path, CASES[table]) as made:
        yield made


def test_get_gives_what_is_there_in_the_order_asked(served):
    with served.actor() as actor, served.learner(batch_size=16) as learner:
        fill(actor, range(20))
        keys = all_keys(learner, 20)
        order = [7, 3, 3, 19, 0]
        asked = np.array([keys[i] for i in order[:2]] + [12345] + [keys[i] for i in order[2:]], np.uint64)
        found = learner.get(asked)
        assert found["action"].tolist() == order
        assert np.array_equal(found["obs"], np.stack([numbered(i)["obs"] for i in order]))
        assert found.keys.tolist() == [keys[i] for i in order]
        assert found.population == 20
        np.testing.assert_allclose(found.probabilities, [(1 + i) / 210 for i in order])
        assert learner.get(np.array([1, 2], np.uint64))["obs"].shape == (0, 3)
        assert learner.get([])["action"].shape == (0,)
        sampled = learner.stats()["sampled"]
        learner.get(asked)
        assert learner.stats()["sampled"] == sampled
        for wrong in (asked.astype(float), asked.reshape(2, 3), ["a"], np.zeros(65_537, np.uint64)):
            with pytest.raises(SchemaError, match="keys"):
                learner.get(wrong)
        assert len(learner.get(np.full(65_536, asked[0]))["action"]) == 65_536


def test_delete(served):
    with served.actor() as actor, served.learner(batch_size=16, prefetch=0) as learner:
        fill(actor, range(20))
        keys = all_keys(learner, 20)
        gone = np.array([keys[i] for i in range(15)], np.uint64)
        assert learner.delete(np.append(gone, np.uint64(9))) == (15, 1)
        for _ in range(10):
            batch = learner.sample(timeout=10)
            assert batch.population == 5
            assert batch["action"].min() >= 15
        if learner.table == "union":
            assert len(learner.get(gone)["action"]) == 0
            assert learner.delete(gone) == (0, 15)
            learner.update_priorities(gone, np.full(15, 1e6))
            until(lambda: learner.stats()["stale"] == 15)
        fill(actor, range(20, 30))
        until(lambda: served.table()["population"] == 15)
        until(lambda: actor.stats()["memory"]["tables"][0]["population"] in (0, 15))  # caches: they have left the actor's memory too
        assert learner.delete([]) == (0, 0)
        with pytest.raises(SchemaError, match="keys"):
            learner.delete([1.5])


def test_configure_holds_at_once_for_everybody(served):
    with served.actor() as actor, served.learner(batch_size=16, prefetch=0) as learner, served.learner(batch_size=4, prefetch=0) as other:
        fill(actor, range(20))
        learner.sample()
        settings = learner.configure({"priority.exponent": np.float64(2.0), "importance.beta": 1})
        assert (settings["priority"]["exponent"], settings["importance"]["beta"]) == (2.0, 1.0)
        assert settings["name"] == learner.table
        total = sum((1 + i) ** 2 for i in range(20))
        # Caches: from the actor's next report on, and what is queued by then has its old weight.
        until(lambda: np.allclose((b := learner.sample()).probabilities, (1.0 + b["action"]) ** 2 / total))
        if learner.table == "replay":
            for _ in range(100):  # more draws than are queued
                learner.sample()
        for one in 20 * (learner, other):
            batch = one.sample()
            np.testing.assert_allclose(batch.probabilities, (1.0 + batch["action"]) ** 2 / total)
            raw = 1 / (20 * batch.probabilities)
            np.testing.assert_allclose(batch.weights, raw / (total / 20), rtol=1e-5)
        with served.actor() as late, served.learner() as newcomer:
            assert late.stats()["memory"]["tables"][0]["exponent"] == 2.0
            assert newcomer._talk.settings["priority"]["exponent"] == 2.0
        assert served.server.stats()["counts"]["failures"] == 0


def test_a_gamma_that_changes_holds_for_what_is_made_from_then_on(tmp_path):
    table = CASES["caches"] | {"item": {"kind": "transition", "n_step": 3, "gamma": 0.5, "next": ["obs"]}, "priority": {"source": "max"}}
    with serve("tcp", tmp_path, table) as made, made.actor() as actor, made.learner(batch_size=32, prefetch=0) as learner:

        def discounts(begin, end):
            for i in range(begin, end):
                actor.add(**numbered(i))
            actor.end_episode(terminated=True)
            actor.flush(10)
            seen = {}
            while not set(range(begin, end)) <= seen.keys():
                batch = learner.sample(timeout=10)
                seen.update(zip(batch["action"].tolist(), batch["discount"].tolist(), strict=True))
            return [seen[i] for i in range(begin, end - 3)]

        assert discounts(0, 10) == [0.125] * 7
        learner.configure({"item.gamma": 1.0})
        until(lambda: actor._pusher._welcome.tables[0]["item"]["gamma"] == 1.0)
        assert discounts(10, 20) == [1.0] * 7


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"item.n_step": 3}, "item.n_step: cannot be changed"),
        ({"priority.exponnt": 1.0}, "did you mean"),
        ({"priority.exponent": -1.0}, "priority.exponent"),
        ({"priority.exponent": float("nan")}, "priority.exponent"),
        ({"priority.exponent": object()}, "priority.exponent"),
        ({"importance.beta": 1.0, "limits.min_items": 0}, "limits.min_items"),
        ({"item.gamma": [0.5, 0.5]}, "item.gamma"),
    ],
)
def test_what_cannot_be_configured_changes_nothing(tmp_path, settings, words):
    with serve("tcp", tmp_path) as made, made.learner() as learner:
        before = made.server.engine.tables[0].settings
        with pytest.raises(ConfigError, match=words):
            learner.configure(settings)
        assert made.server.engine.tables[0].settings == before
        assert learner.configure({}) == before


def test_settings_that_are_malformed_end_nothing(tmp_path, caplog):
    with serve("local", tmp_path) as made, made.actor() as actor, made.learner(batch_size=4) as learner:
        good = made.server.engine.tables[0].settings
        for table, settings in ((7, good), (0, {}), (0, good | {"priority": 3}), (0, good | {"item": {"kind": "none"}})):
            actor._pusher._configure(Message(Kind.SETTINGS, table=table, meta=settings))
        assert "cannot be used" in caplog.text
        fill(actor, range(4))
        assert learner.sample().population == 4


def test_an_episode_s_weight(tmp_path):
    table = UNION | {
        "actor": {"select": "all", "linger_ms": 5, "episode_weights": True, "step_discount": 0.5},
        "priority": {"source": "max", "decay": 0.9},
    }
    with serve("tcp", tmp_path, table) as made, made.actor(envs=2) as actor, made.learner(batch_size=1, prefetch=0) as learner:
        for env, weight in ((0, 1.0), (1, 4.0)):
            for i in range(3):
                actor.add(**numbered(10 * env + i), env=env)
            actor.end_episode(terminated=True, env=env, weight=weight)
        actor.flush(10)
        w = {10 * env + i: g * 0.5**i for env, g in ((0, 1.0), (1, 4.0)) for i in range(3)}
        for _ in range(30):
            batch = learner.sample()
            drawn = int(batch["action"][0])
            assert batch.probabilities[0] == pytest.approx(w[drawn] / sum(w.values()), rel=1e-6)
            w[drawn] *= 0.9
        with pytest.raises((SchemaError, ConfigError), match="weight"):
            actor.end_episode(terminated=True, weight=-1.0)


def test_a_weight_that_no_table_knows(served):
    with served.actor() as actor:
        actor.add(**numbered(0), priority=1.0)
        with pytest.raises(ConfigError, match=r"actor\.episode_weights"):
            actor.end_episode(terminated=True, weight=2.0)
        actor.end_episode(terminated=True, weight=1.0)
