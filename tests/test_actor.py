"""Actor: steps in, messages out; the rules by which they go."""

from __future__ import annotations

import time

import numpy as np
import pytest
import zmq
from memsvc_client import Actor, PriorityError, SchemaError, WindowFull
from memsvc_client.outbox import MOST_MESSAGES, Outbox
from memsvc_client.pulse import Pulse
from serving import CACHES, KINDS, UNION, background, serve, until


def numbered(i):
    return {"obs": np.array([i, i + 0.25, -i], np.float32), "action": i, "reward": i / 2}


@pytest.fixture(params=KINDS)
def served(request, tmp_path):
    with serve(request.param, tmp_path) as made:
        yield made


def test_a_refused_step_changes_nothing(served):
    good = numbered(1)
    with served.actor() as actor, served.learner(batch_size=1) as learner:
        refused = [
            (SchemaError, good | {"obs": np.zeros(3, np.float64)}, "obs"),
            (SchemaError, good | {"obs": np.zeros(4, np.float32)}, "obs"),
            (SchemaError, good | {"obs": np.zeros(3, ">f4")}, "obs"),
            (SchemaError, good | {"obs": [None, None, None]}, "obs"),
            (SchemaError, good | {"action": 0.5}, "action"),
            (SchemaError, good | {"action": 1 << 40}, "action"),
            (SchemaError, good | {"acton": 1}, "acton"),
            (SchemaError, {"obs": good["obs"], "action": 1}, "reward"),
            (SchemaError, good | {"env": 1}, "1"),
            (PriorityError, good | {"priority": float("nan")}, "finite"),
            (PriorityError, good | {"priority": float("inf")}, "finite"),
            (PriorityError, good | {"priority": -1.0}, ">= 0"),
            (PriorityError, good | {"priority": None}, "priority"),
        ]
        for error, step, word in refused:
            with pytest.raises(error, match=word):
                actor.add(**{"priority": 1.0, **step})
        with pytest.raises(SchemaError):
            actor.add_batch(obs=np.zeros((2, 3)), action=[1, 2], reward=[0.0, 0.0], priority=[1, 1])
        assert actor.stats()["memory"]["steps"] == 0
        actor.add(**good, priority=1.0)
        actor.end_episode(terminated=True)
        actor.flush(10)
        assert learner.sample()["action"].tolist() == [1]
        assert served.table()["items"] == 1


def test_add_batch(served):
    with served.actor(envs=3) as actor, served.learner(batch_size=64) as learner:
        for i in range(4):
            obs = np.stack([numbered(10 * i + env)["obs"] for env in range(3)])
            action, reward = np.array([10 * i, 10 * i + 1, 10 * i + 2], np.int32), np.zeros(3, np.float32)
            done = np.array([i == 1, False, False])
            active = np.array([i != 2, True, True])
            actor.add_batch(obs=obs, action=action, reward=reward, priority=np.ones(3), terminated=done, active=active)
        some = {"obs": np.zeros((2, 3), np.float32), "action": np.array([91, 92], np.int32), "reward": np.zeros(2, np.float32), "priority": [1, 1]}
        actor.add_batch(**{**some, "env": [2, 0]})
        for env in range(3):
            actor.end_episode(terminated=True, env=env)
        actor.flush(10)
        seen = {i for _ in range(20) for i in learner.sample()["action"].tolist()}
        assert seen == {0, 1, 2, 10, 11, 12, 21, 22, 30, 31, 32, 91, 92}
        for wrong in ({"terminated": [0, 1]}, {"env": [0.5, 1.0]}, {"active": np.ones(2)}):
            with pytest.raises(SchemaError, match=next(iter(wrong))):
                actor.add_batch(**{**some, **wrong})


def test_caches_are_sent_without_being_asked(tmp_path):
    with serve("tcp", tmp_path, CACHES) as made, made.actor() as actor:
        for i in range(30):
            actor.add(**numbered(i))
        until(lambda: made.table()["population"] == 29)
        actor.end_episode(terminated=True)
        until(lambda: made.table()["population"] == 30)
        assert until(lambda: made.table()["actors"][0]["queue"]) > 0


def test_demand_is_met(tmp_path):
    with serve("ipc", tmp_path, CACHES) as made, made.actor() as actor, made.learner(batch_size=64) as learner:
        for i in range(50):
            actor.add(**numbered(i))
        actor.end_episode(terminated=True)
        for _ in range(200):
            batch = learner.sample(timeout=10)
            assert np.array_equal(batch["next_obs"][:, 0], np.minimum(batch["action"] + 1, 49))
        sent = actor.stats()["acknowledged_bytes"]
        assert sent < 200 * 64 * 28  # payload once: later draws travel as records


def test_an_unfinished_step_is_sent_after_linger(tmp_path):
    with serve("tcp", tmp_path) as made, made.actor() as actor:
        for i in range(3):
            actor.add(**numbered(i), priority=1.0)
            until(lambda n=i: made.table()["items"] == n)  # the newest step is not final yet


def test_truncation_without_the_final_observation(tmp_path):
    with serve("local", tmp_path, CACHES) as made, made.actor() as actor:
        actor.add(**numbered(0))
        with pytest.raises(SchemaError, match="obs"):
            actor.end_episode(terminated=False)
        actor.end_episode(terminated=False, final={"obs": np.ones(3, np.float32)})
        actor.flush(10)
        assert made.table()["population"] == 1


def test_many_items_through_a_small_window(served):
    with served.actor(window_bytes=20_000, message_bytes=5_000) as actor:
        for i in range(5_000):
            actor.add(**numbered(i), priority=1.0)
        actor.end_episode(terminated=True)
        actor.flush(20)
        assert served.table()["items"] == 5_000
        stats = actor.stats()
        assert stats["window"]["bytes"] == 0
        assert stats["pushes"][0] > 10


class Deaf:
    """An endpoint whose server says WELCOME, and afterwards nothing until `speak`."""

    ahead = True

    def __init__(self, made):
        self.inner = made.server.endpoint
        self.deaf = False
        self.waiting = []
        self.link = None

    def connect(self, role):
        self.link = self.inner.connect(role)
        link, send = self.link, self.link.send

        def deaf_send(message, frame=None):
            if self.deaf:
                self.waiting.append((message, frame))
            else:
                send(message, frame)

        self.speak = lambda: [send(*one) for one in self.waiting]
        link.send = deaf_send
        return link


def fill_up(actor):
    """Adds until the actor refuses, and returns why."""
    for i in range(1000):
        try:
            actor.add(**numbered(i), priority=1.0)
        except WindowFull as full:
            return full
    raise AssertionError("the memory never became full")


def test_window_full_says_so_and_the_actor_goes_on(tmp_path):
    table = UNION | {"actor": {"select": "all", "max_steps": 64, "linger_ms": 1}}
    with serve("local", tmp_path, table) as made:
        endpoint = Deaf(made)
        with Actor(endpoint, timeout=0.3, window_bytes=1, message_bytes=1024) as actor:
            endpoint.deaf = True
            full = fill_up(actor)
            assert "acknowledgement" in str(full)
            assert "0.3 s" in str(full)
            added = actor.stats()["memory"]["added"]
            endpoint.deaf = False
            endpoint.speak()
            for j in range(added, 200):
                actor.add(**numbered(j), priority=1.0)
            actor.end_episode(terminated=True)
            actor.flush(10)
            assert made.table()["inserted"] == 200


def test_close_reports_what_was_not_sent(tmp_path, caplog):
    with serve("local", tmp_path) as made:
        endpoint = Deaf(made)
        actor = Actor(endpoint, window_bytes=1, message_bytes=1024)
        endpoint.deaf = True
        for i in range(200):
            actor.add(**numbered(i), priority=1.0)
        began = time.monotonic()
        unsent = actor.close(timeout=0.5)
        assert time.monotonic() - began < 2
        assert unsent.items > 0
        assert unsent.bytes > 0
        assert "not sent" in caplog.text
        assert actor.close() == unsent


def test_flush_with_a_deaf_server(tmp_path):
    with serve("local", tmp_path) as made:
        endpoint = Deaf(made)
        with Actor(endpoint) as actor:
            endpoint.deaf = True
            actor.add(**numbered(0), priority=1.0)
            actor.end_episode(terminated=True)
            with pytest.raises(TimeoutError, match="last heard"):
                actor.flush(0.2)
            endpoint.deaf = False
            endpoint.speak()
            actor.flush(10)


def test_a_blocked_add_lets_others_in(tmp_path):
    table = UNION | {"actor": {"select": "all", "max_steps": 64, "linger_ms": 1}}
    with serve("local", tmp_path, table) as made:
        endpoint = Deaf(made)
        with Actor(endpoint, timeout=30, window_bytes=1, message_bytes=1024) as actor:
            endpoint.deaf = True
            done = background(lambda: [actor.add(**numbered(i), priority=1.0) for i in range(200)])
            until(lambda: actor.stats()["memory"]["tables"][0]["unsent"] >= 60)
            with pytest.raises(TimeoutError):
                actor.params(timeout=0.1)
            endpoint.deaf = False
            endpoint.speak()
            assert len(done()) == 200


# The rules, without threads.


def frame(size: int) -> np.ndarray:
    return np.zeros(size, np.uint8)


def test_outbox():
    outbox = Outbox(100)
    assert outbox.has_room(500)
    outbox.went(outbox.add(1, 0, 0, 1, frame(500)))
    assert not outbox.has_room(1)
    assert outbox.settle(1) == 1
    for seq, size in ((2, 60), (5, 40)):
        outbox.went(outbox.add(seq, 0, 0, 1, frame(size)))
    assert not outbox.has_room(1)
    assert not outbox.settled(2)
    assert outbox.settle(2) == 2
    assert outbox.settle(2) == 0
    assert outbox.settled(2)
    assert (outbox.bytes, outbox.joined.bytes, len(outbox), outbox.first) == (40, 560, 1, 3)


def test_many_small_pushes_without_an_acknowledgement_are_never_dropped_by_the_socket():
    outbox = Outbox(1 << 30)
    for seq in range(1, MOST_MESSAGES + 1):
        assert outbox.has_room(1000)
        outbox.add(seq, 0, 0, 1, frame(1000))
    assert not outbox.has_room(1000)
    outbox.settle(1)
    assert outbox.has_room(1000)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        assert socket.getsockopt(zmq.SNDHWM) >= 2 * MOST_MESSAGES


def test_pulse():
    pulse = Pulse(0.0)
    assert not pulse.ping_due(1.9)
    assert pulse.ping_due(2.0)
    assert not pulse.ping_due(3.0)
    assert pulse.ping_due(4.0)
    assert pulse.just_lost(6.0)
    assert not pulse.just_lost(7.0)
    assert not pulse.ping_due(10.0)
    assert pulse.ping_due(14.0)
    pulse.hear(15.0)
    assert not pulse.lost
    pulse.greet(15.0)
    assert not pulse.late_greeting(20.0)
    assert pulse.late_greeting(25.0)
