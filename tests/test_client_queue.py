"""A table that blocks when it is full (capacity.when_full = "block"), and items that are delivered so many times: IMPALA's queue."""

from __future__ import annotations

import numpy as np
import pytest
from memsvc_client import NotReady, WindowFull
from serving import KINDS, UNION, background, serve, until

ROOM = 32
QUEUE = UNION | {
    "name": "queue",
    "sampler": "fifo",
    "priority": {"source": "max"},
    "capacity": {"items": ROOM, "when_full": "block"},
    "limits": {"max_times_sampled": 1},
}


def numbered(i):
    return {"obs": np.array([i, i + 0.25, -i], np.float32), "action": i, "reward": i / 2}


def fill_up(actor, start=0):
    for i in range(start, start + 10_000):
        try:
            actor.add(**numbered(i))
        except WindowFull as full:
            return i, full
    raise AssertionError("nothing stopped it")


@pytest.fixture(params=KINDS)
def served(request, tmp_path):
    with serve(request.param, tmp_path, QUEUE) as made:
        yield made


def test_add_waits_while_the_table_is_full(served):
    with served.actor() as actor, served.learner(batch_size=8, prefetch=0) as learner:
        actor._timeout = 0.8
        added, full = fill_up(actor)
        assert added == ROOM + 2  # one item that has no room, and the newest step, which is none yet
        assert isinstance(full, TimeoutError)
        assert "table 'queue' is full (capacity.items = 32)" in str(full)
        assert (full.table, full.setting) == ("queue", "capacity.when_full")
        assert full.ahead == actor.stats()["memory"]["tables"][0]["unsent"] == 1
        assert served.table()["items"] == ROOM
        with pytest.raises(WindowFull, match=r"flush\(\) waited"):
            actor.flush(0.3)
        actor._timeout = 20
        waiting = background(lambda: actor.add(**numbered(added)))
        seen = []
        while len(seen) < added - 8:
            seen += learner.sample(timeout=10)["action"].tolist()
        assert waiting() is None
        assert seen == list(range(len(seen)))


def test_every_unroll_reaches_one_learner_in_order(served):
    actors, each = 4, 200
    with served.learner(batch_size=10) as first, served.learner(batch_size=10) as second:

        def play(k):
            with served.actor(name=f"actor-{k}", timeout=30) as actor:
                for i in range(each):
                    actor.add(**numbered(1000 * k + i))
                actor.end_episode(terminated=True)
                actor.flush(30)

        def learn(learner):
            got = []
            while True:
                try:
                    got.append(learner.sample(timeout=2)["action"])
                except NotReady:
                    return got

        playing = [background(lambda k=k: play(k)) for k in range(actors)]
        learning = [background(lambda learner=learner: learn(learner)) for learner in (first, second)]
        for one in playing:
            assert one(60) is None
        batches = [one(60) for one in learning]
        delivered = np.concatenate([batch for got in batches for batch in got])
        assert sorted(delivered) == [1000 * k + i for k in range(actors) for i in range(each)]
        for got in batches:
            for k in range(actors):
                of_one = [i for batch in got for i in batch if i // 1000 == k]
                assert of_one == sorted(of_one)
        until(lambda: served.table()["items"] == 0)


def test_what_was_prefetched_and_never_returned_is_delivered_to_another(served):
    with served.actor(timeout=20) as actor:
        for i in range(ROOM):
            actor.add(**numbered(i))
        actor.end_episode(terminated=True)
        actor.flush(10)
        with served.learner(batch_size=4, prefetch=4) as leaving:
            kept = leaving.sample()["action"].tolist()
            assert kept == [0, 1, 2, 3]
            if leaving._prefetch:
                until(lambda: served.table()["in_flight"] == 16)
        with served.learner(batch_size=4, prefetch=0) as other:
            rest = [i for _ in range(7) for i in other.sample(timeout=10)["action"].tolist()]
            assert rest == list(range(4, ROOM))
            with pytest.raises(NotReady):
                other.sample(timeout=0.2)
        assert served.table()["items"] == 0


@pytest.mark.parametrize("kind", ["local", "tcp"])
def test_times_sampled_counts_what_was_returned(kind, tmp_path):
    table = UNION | {"limits": {"max_times_sampled": 3}, "priority": {"source": "max"}}
    with serve(kind, tmp_path, table) as made, made.actor() as actor:
        for i in range(20):
            actor.add(**numbered(i))
        actor.end_episode(terminated=True)
        actor.flush(10)
        counts = np.zeros(20, int)
        for _ in range(6):  # six learners that leave after two batches each
            with made.learner(batch_size=5, prefetch=2) as learner:
                for _ in range(2):
                    try:
                        np.add.at(counts, learner.sample(timeout=0.5)["action"], 1)
                    except NotReady:
                        break
        assert counts.max() <= 3
        assert counts.sum() > 50


@pytest.mark.parametrize("kind", ["local", "tcp"])
def test_a_queue_of_unrolls_with_a_next_observation_keeps_the_order(kind, tmp_path):
    # The first row of an unroll is the last of the one before it, which is gone once a learner has it.
    item = {"kind": "sequence", "length": 4, "stride": 4, "next": ["obs"]}
    with serve(kind, tmp_path, QUEUE | {"item": item, "capacity": {"items": 8, "when_full": "block"}}) as made:
        with made.actor() as actor, made.learner(batch_size=1, prefetch=0) as learner:

            def play():
                for i in range(4 * 200 + 1):
                    actor.add(**numbered(i))

            playing = background(play)
            seen = [int(learner.sample(timeout=10)["action"][0, 0]) for _ in range(200)]
            playing()
        assert seen == list(range(0, 800, 4))


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_a_small_queue_waits_for_nothing_but_its_learner(capacity, tmp_path):
    with serve("tcp", tmp_path, QUEUE | {"capacity": {"items": capacity, "when_full": "block"}}) as made:
        with made.actor() as actor, made.learner(batch_size=1, prefetch=0) as learner:

            def play():
                for i in range(62):
                    actor.add(**numbered(i))

            playing = background(play)
            # Room was asked for once a second: 60 items took a minute.
            seen = [int(learner.sample(timeout=0.9)["action"][0]) for _ in range(60)]
            playing()
        assert seen == list(range(60))
