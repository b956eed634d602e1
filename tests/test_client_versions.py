"""Versions and topics (DEFINITIONS 10): several policies at once, what is too stale, min_version."""

from __future__ import annotations

import numpy as np
import pytest
from memsvc_client import Actor, ConfigError, NotReady
from serving import CACHES, KINDS, UNION, background, serve, until

W = {"w": np.zeros(1)}


def numbered(i):
    return {"obs": np.array([i, i + 0.25, -i], np.float32), "action": i, "reward": i / 2}


def fill(actor, numbers, **more):
    for i in numbers:
        actor.add(**numbered(i), priority=1.0, **more)
    actor.end_episode(terminated=True)
    actor.flush(10)


@pytest.fixture(params=KINDS)
def served(request, tmp_path):
    with serve(request.param, tmp_path) as made:
        yield made


def test_several_policies(served):
    with served.actor() as actor, served.learner(batch_size=64) as learner:
        assert learner.publish({"mine": np.zeros(1)}) == 1
        for _ in range(3):
            theirs = learner.publish({"theirs": np.zeros(1)}, topic="opponent")
        opponent = actor.params(topic="opponent")
        assert (opponent.version, list(opponent.arrays)) == (theirs, ["theirs"])
        assert actor.params(topic="opponent") is None
        fill(actor, range(5))  # the own policy's parameters were not asked for yet
        own = actor.params()
        assert (own.version, list(own.arrays)) == (1, ["mine"])
        assert actor.params() is None
        fill(actor, range(5, 10))
        newer = learner.publish({"theirs": np.ones(1)}, topic="opponent")
        assert until(lambda: actor.params(topic="opponent")).version == newer
        fill(actor, range(10, 15))
        fill(actor, range(15, 20), version=newer)
        seen = {}
        for _ in range(20):
            batch = learner.sample()
            seen.update(zip(batch["action"].tolist(), batch.versions.tolist(), strict=True))
        assert seen == {i: -1 if i < 5 else 1 if i < 15 else newer for i in range(20)}
        assert actor.stats()["topics"]["opponent"]["version"] == newer
        with pytest.raises(NotReady, match="topic 'third'"):
            actor.params(timeout=0.05, topic="third")
        waiting = background(lambda: actor.params(topic="third"))
        learner.publish(W, topic="third")
        assert waiting().version == 1
        for topic in (7, "x" * 300):
            with pytest.raises(ConfigError, match="topic"):
                actor.params(topic=topic)


def test_what_is_no_topic_of_an_actor(served):
    with pytest.raises(ConfigError, match="topic"):
        Actor(served.where, topic="x" * 300)


CASES = {"union": UNION, "caches": CACHES | {"priority": {"source": "given", "exponent": 1.0}}}


@pytest.mark.parametrize("kind", ["local", "tcp"])
@pytest.mark.parametrize("table", CASES)
def test_an_actor_that_never_asks_for_parameters_grows_stale_all_the_same(kind, table, tmp_path):
    with (
        serve(kind, tmp_path, CASES[table] | {"limits": {"max_staleness": 2}}) as made,
        made.actor() as actor,
        made.learner(batch_size=8, prefetch=0) as learner,
    ):
        fill(actor, range(10))  # version -1; before the first publication everything is fresh
        assert learner.sample().population == 10
        learner.publish(W, topic="another")
        assert learner.sample().population == 10
        first = learner.publish(W)
        until(lambda: made.table()["population"] == 10)
        fill(actor, range(10, 20), version=first)
        learner.publish(W)
        # newest - d = 0: what has version -1 is too old now, what has version 1 is not.
        batch = until(lambda: (b := learner.sample()) and b.population == 10 and b)
        for _ in range(20):
            batch = learner.sample()
            assert set(batch["action"].tolist()) <= set(range(10, 20))
            assert batch.versions.tolist() == [first] * 8
        until(lambda: actor.stats()["memory"]["tables"][0]["stale"] == 10 or table == "union")
        for _ in range(2):
            newest = learner.publish(W)
        with pytest.raises(NotReady, match=r"staler than 2 versions") as late:
            until(lambda: learner.sample(timeout=0.3) and False)
        assert (late.value.reason, late.value.have, late.value.need) == ("stale", first, newest - 2)
        waiting = background(lambda: learner.sample(timeout=20))
        actor.params()
        fill(actor, range(20, 40))
        batch = waiting()
        assert batch.population <= 20
        assert set(batch.versions.tolist()) == {newest}


@pytest.mark.parametrize("kind", ["local", "tcp"])
@pytest.mark.parametrize("table", CASES)
def test_episodes_that_are_all_too_short_are_the_reason(kind, table, tmp_path):
    sequence = {"item": {"kind": "sequence", "length": 8, "stride": 4, "tail": "drop"}, "priority": {"source": "max"}}
    with serve(kind, tmp_path, CASES[table] | sequence) as made, made.actor() as actor, made.learner(batch_size=2, prefetch=0) as learner:
        for episode in range(3):
            for i in range(5):
                actor.add(**numbered(10 * episode + i))
            actor.end_episode(terminated=True)
        actor.flush(10)
        until(lambda: made.table()["actors"][0]["short_episodes"] == 3)
        with pytest.raises(NotReady, match="too short for an item") as late:
            learner.sample(timeout=0.4)
        assert (late.value.reason, late.value.have, late.value.need) == ("short", 3, 8)
        for i in range(12):
            actor.add(**numbered(i))
        actor.end_episode(terminated=True)
        assert learner.sample(timeout=10).population == 2


def test_min_version(served):
    with served.actor() as actor, served.learner(batch_size=8) as learner:
        versions = []
        for k in range(3):
            versions.append(learner.publish(W))
            fill(actor, range(10 * k, 10 * k + 10), version=versions[-1])
        plain = learner.sample()  # and others are prefetched
        assert plain.population == 30
        for k, version in enumerate(versions):
            for _ in range(3):
                batch = learner.sample(min_version=version)
                assert batch.population == 30 - 10 * k
                assert batch["action"].min() >= 10 * k
                np.testing.assert_allclose(batch.probabilities, 1 / batch.population)
        assert learner.sample().population == 30
        stats = learner.stats()
        assert stats["ready"] + stats["asked"] == learner._prefetch
        with pytest.raises(NotReady, match=rf"newest item of table 'union' has version {versions[-1]}, and min_version asks for {versions[-1] + 1}"):
            learner.sample(timeout=0.3, min_version=versions[-1] + 1)
        assert learner.sample().population == 30
        stats = learner.stats()
        assert stats["ready"] + stats["asked"] <= learner._prefetch + 1
        waiting = background(lambda: learner.sample(timeout=20, min_version=versions[-1] + 1))
        until(lambda: served.table()["waiting"])
        assert learner.sample().population == 30  # one that waits holds up nobody
        fill(actor, range(30, 40), version=learner.publish(W))
        assert waiting().population == 10
        for wrong in (1.5, "7", True, -2):
            with pytest.raises(ConfigError, match="min_version"):
                learner.sample(min_version=wrong)


@pytest.mark.parametrize("prefetch", [0, 8])
def test_min_version_where_actors_hold_the_items(tmp_path, prefetch):
    with serve("tcp", tmp_path, CACHES) as made, made.learner(batch_size=8, prefetch=prefetch) as learner:
        with pytest.raises(NotReady):
            learner.sample(timeout=0.1)
        with pytest.raises(ConfigError, match=r'actor.select.*"all"'):
            learner.sample(min_version=3, timeout=5)


@pytest.mark.parametrize("kind", ["local", "tcp"])
def test_an_idle_actor_serves_again_when_max_staleness_is_raised(kind, tmp_path):
    with (
        serve(kind, tmp_path, CASES["caches"] | {"limits": {"max_staleness": 0}}) as made,
        made.actor() as actor,
        made.learner(batch_size=8, prefetch=0) as learner,
    ):
        first = learner.publish(W)
        fill(actor, range(20), version=first)
        assert learner.sample().population == 20
        learner.publish(W)
        with pytest.raises(NotReady):
            until(lambda: learner.sample(timeout=0.3) and False)
        learner.configure({"limits.max_staleness": 5})
        assert learner.sample(timeout=5).population == 20


def test_a_prefetched_batch_that_a_publication_has_made_too_stale_is_let_go(tmp_path):
    table = UNION | {"limits": {"max_staleness": 0, "max_times_sampled": 100}}
    with serve("tcp", tmp_path, table) as made, made.actor() as actor, made.learner(batch_size=8, prefetch=4) as learner:
        for _ in range(5):
            newest = learner.publish(W)
            fill(actor, range(20), version=newest)
            for _ in range(6):
                assert learner.sample().versions.tolist() == [newest] * 8
        # What was let go counts as not sampled, once the server has heard of it.
        until(lambda: (now := made.table())["drawn"] - now["in_flight"] == 8 * 30)
        assert made.table()["put_back"] > 0
