"""Learner and Batch: what a batch is, why one does not come, what is refused."""

from __future__ import annotations

import _thread
import logging
import pickle
import threading
import time

import numpy as np
import pytest
from memsvc_client import ConfigError, NotReady, PriorityError, SchemaError, Unreachable
from memsvc_client.batch import Batch, Keys
from memsvc_client.waiting import Waiting
from serving import CACHES, KINDS, UNION, background, serve, until


def numbered(i):
    return {"obs": np.array([i, i + 0.25, -i], np.float32), "action": i, "reward": i / 2}


def fill(actor, n, start=0):
    for i in range(start, start + n):
        actor.add(**numbered(i), priority=1.0)
    actor.end_episode(terminated=True)
    actor.flush(10)


@pytest.fixture(params=KINDS)
def served(request, tmp_path):
    with serve(request.param, tmp_path) as made:
        yield made


def test_a_batch_is_a_mapping(served):
    with served.actor() as actor, served.learner(batch_size=8) as learner:
        fill(actor, 20)
        batch = learner.sample()
        assert list(batch) == ["obs", "action", "reward"]
        assert len(batch) == 3
        assert "obs" in batch
        assert batch.get("nothing") is None
        assert dict(batch).keys() == {"obs", "action", "reward"} == {*batch.keys()}
        assert {**batch}["obs"] is batch["obs"]
        assert [name for name, _ in batch.items()] == list(batch)
        assert batch["obs"].shape == (8, 3)
        assert batch.keys.dtype == np.uint64
        assert batch.keys.shape == batch.probabilities.shape == batch.weights.shape == batch.versions.shape == (8,)
        assert (batch.probabilities.dtype, batch.weights.dtype, batch.versions.dtype) == (np.float64, np.float32, np.int64)
        assert batch.population == 20
        assert batch.total == 20.0
        assert np.allclose(batch.probabilities, 1 / 20)
        assert [(name, dtype, shape) for name, dtype, shape in learner.columns][:2] == [("obs", np.float32, (8, 3)), ("action", np.int32, (8,))]
        with pytest.raises(KeyError):
            batch["next_obs"]
        with pytest.raises(TypeError, match="names columns"):
            batch.keys[:3]()


def test_arrays_are_aligned_and_the_caller_s_own(served):
    with served.actor() as actor, served.learner(batch_size=2) as learner:
        fill(actor, 20)
        first = learner.sample()
        kept = {name: array.copy() for name, array in first.items()}
        for array in (*first.values(), first.keys, first.weights):
            assert array.flags.aligned
            assert array.flags.writeable
        others = [learner.sample() for _ in range(20)]
        for name, array in kept.items():
            assert np.array_equal(first[name], array)
        first["obs"][:] = 7
        assert all((other["obs"] != 7).any() for other in others)


def test_a_batch_pickles():
    columns = {"x": np.arange(4.0)}
    service = (np.arange(4, dtype=np.uint64), np.ones(4), np.ones(4, np.float32), np.zeros(4, np.int64))
    copy = pickle.loads(pickle.dumps(Batch(columns, service, 9, 2.5)))
    assert isinstance(copy.keys, Keys)
    assert list(copy.keys()) == ["x"]
    assert np.array_equal(copy["x"], columns["x"])
    assert (copy.population, copy.total) == (9, 2.5)


@pytest.mark.parametrize("kind", KINDS)
def test_why_no_batch_comes(kind, tmp_path):
    table = UNION | {"limits": {"min_items": 1000}}
    with serve(kind, tmp_path, table) as made, made.learner(batch_size=4) as learner, made.actor() as actor:
        fill(actor, 37)
        began = time.monotonic()
        with pytest.raises(NotReady, match=r"'union' has 37 of the 1,000 items") as caught:
            learner.sample(timeout=0.3)
        assert 0.25 < time.monotonic() - began < 2
        assert (caught.value.reason, caught.value.have, caught.value.need) == ("min_items", 37, 1000)
        assert isinstance(caught.value, TimeoutError)
        fill(actor, 963, start=37)
        assert learner.sample(timeout=10).population == 1000


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_table(kind, tmp_path):
    with serve(kind, tmp_path, CACHES) as made, made.learner(batch_size=4) as learner:
        with pytest.raises(NotReady, match="table 'replay'"):
            learner.sample(timeout=0.2)
        with pytest.raises(NotReady):
            learner.sample(timeout=0)
        with made.actor() as actor:
            for i in range(30):
                actor.add(**numbered(i))
            actor.end_episode(terminated=True)
            assert len(learner.sample(timeout=10)["obs"]) == 4


def test_iteration(served):
    with served.actor() as actor, served.learner(batch_size=4) as learner:
        fill(actor, 10)
        for n, batch in enumerate(learner):
            assert batch["obs"].shape == (4, 3)
            if n == 20:
                break
        assert learner.stats()["sampled"] == 21


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_bad_priorities_are_named_and_the_rest_applied(served, bad):
    with served.actor() as actor, served.learner(batch_size=4) as learner:
        fill(actor, 4)
        batches = [learner.sample() for _ in range(30)]
        keys = np.unique(np.concatenate([np.asarray(batch.keys) for batch in batches]))
        assert len(keys) == 4
        with pytest.raises(PriorityError, match=f"{keys[1]}") as caught:
            learner.update_priorities(keys, [0.0, bad, 3.0, 1.0])
        assert caught.value.keys.tolist() == [keys[1]]
        until(lambda: learner.stats()["applied"] == 3)
        batch = [learner.sample() for _ in range(5)][-1]
        assert batch.population == 3
        assert batch.total == 1.0 + 3.0 + 1.0


def test_what_are_no_priorities(served):
    with served.actor() as actor, served.learner(batch_size=2) as learner:
        fill(actor, 4)
        batch = learner.sample()
        for keys, values in (
            (batch.keys, [1.0]),
            (batch.keys, 1.0),
            (batch.keys, np.ones((2, 1))),
            (batch.keys.astype(np.float64), [1.0, 1.0]),
            (batch.keys, ["a", "b"]),
            (batch.keys, [1j, 1j]),
            (batch.keys.reshape(2, 1), np.ones((2, 1))),
        ):
            with pytest.raises(SchemaError):
                learner.update_priorities(keys, values)
        learner.update_priorities([], [])
        learner.update_priorities(batch.keys.view(np.int64), np.ones(2, np.float16))
        learner.update_priorities(np.array([batch.keys[0], 12345], np.uint64), [2, 2])
        until(lambda: learner.stats()["applied"] == 3 and learner.stats()["stale"] == 1)


def test_settings_that_are_none(served):
    for settings in ({"batch_size": 0}, {"batch_size": 7.5}, {"batch_size": "8"}, {"prefetch": -1}, {"prefetch": 99}):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            served.learner(**settings)


def test_a_batch_that_no_message_can_hold(served):
    with served.actor() as actor, served.learner(batch_size=1 << 40) as learner:
        fill(actor, 4)
        with pytest.raises(Exception, match="batch"):
            learner.sample(timeout=5)
        with served.learner(batch_size=2) as other:
            other.sample()


def test_a_waiting_sample_holds_up_nobody(served):
    with served.learner(batch_size=4) as learner:
        waiting = background(lambda: learner.sample(30))
        until(lambda: served.server.stats()["tables"][0]["waiting"])
        began = time.monotonic()
        for _ in range(5):
            learner.update_priorities(np.zeros(1, np.uint64), [1.0])
            learner.publish({"w": np.zeros(1)})
        assert time.monotonic() - began < 1.0
        with served.actor() as actor:
            fill(actor, 4)
            assert waiting()["obs"].shape == (4, 3)


def test_ctrl_c(served):
    with served.learner() as learner:
        timer = threading.Timer(0.2, _thread.interrupt_main)
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            learner.sample(timeout=30)
        assert time.monotonic() - began < 1.3
        with pytest.raises(NotReady):
            learner.sample(timeout=0.1)


def test_the_reason_is_logged(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("memsvc_client.waiting.time.monotonic", lambda: now[0])
    waiting = Waiting("sample()", 25.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(26):
            waiting.slice(lambda: "37 of 1,000 items")
            now[0] += 1.0
    assert [record.message for record in caplog.records] == [
        "sample() has waited 10 s: 37 of 1,000 items",
        "sample() has waited 20 s: 37 of 1,000 items",
    ]
    assert waiting.slice(str) == 0.0


def test_a_server_that_is_gone(tmp_path):
    with serve("tcp", tmp_path) as made:
        learner = made.learner(batch_size=4)
        with pytest.raises(NotReady):
            learner.sample(timeout=0.2)
    with pytest.raises(Unreachable, match="last heard"):
        learner.sample(timeout=4.5)
    with pytest.raises(Unreachable):
        learner.publish({"w": np.zeros(1)}, timeout=0.2)
    began = time.monotonic()
    learner.close()
    assert time.monotonic() - began < 2.5


def test_server_stats(served):
    with served.learner() as learner:
        assert learner.server_stats()["tables"][0]["name"] == "union"


def test_a_batch_of_sequences_says_how_long_they_burn_in(tmp_path):
    import pickle

    from serving import CACHES, serve

    table = CACHES | {"item": {"kind": "sequence", "length": 4, "burn_in": 2, "tail": "pad"}}
    with serve("local", tmp_path, table) as made, made.actor() as actor, made.learner(batch_size=2) as learner:
        for i in range(8):
            actor.add(obs=np.zeros(3, np.float32), action=i, reward=0.0)
        actor.end_episode(terminated=True)
        batch = learner.sample()
        assert (batch.burn_in, pickle.loads(pickle.dumps(batch)).burn_in) == (2, 2)
