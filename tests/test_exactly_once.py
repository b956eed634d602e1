"""Pushes over connections that lose, repeat and reorder messages, to servers that go and come: every item is stored once, and the counters add up."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

import numpy as np
import pytest
from durable import House
from memsvc_client import Actor, pulse, recovery
from memsvc_client.endpoint import ZmqEndpoint
from memsvc_proto.errors import ServerError
from memsvc_proto.wire import Kind
from network import Proxies
from serving import CACHES, UNION, Inbox, Playing, config, serve, until
from wild import STEP, World, balanced, record

import memsvc
from memsvc.engine import Engine

SEEDS = range(6)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(recovery, "ASK_S", 0.03)
    monkeypatch.setattr(pulse, "GREET_S", 0.03)
    monkeypatch.setattr(recovery, "_AGAIN_S", 0.001)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("journal", [False, True])
def test_every_item_is_stored_once_whatever_the_link_does(seed, journal, quick, tmp_path):
    table = {**UNION, "actor": {"select": "all", "linger_ms": 1}, "priority": {"source": "max"}}
    with House(tmp_path / "data", table, step=STEP) if journal else contextlib.nullcontext() as house:
        stored_once(World(seed, table, engine=house and house.engine))


def test_what_is_acknowledged_while_a_hello_is_on_its_way_is_not_gone(tmp_path):
    """With a journal WELCOME tells no more as stored than the HELLO knew of, since the rest may not be on disk."""
    with House(tmp_path / "data", UNION, step=STEP) as house:
        world = World(0, engine=house.engine)
        world.calm = True
        with Actor(world, name="a", timeout=20) as actor:
            link = world.links[-1]
            world.held = True
            for i in range(10):
                actor.add(**record(i), priority=1.0)
            actor.end_episode(terminated=True)
            until(lambda: any(one.kind is Kind.ACK and one.f for one in link.peer.got))
            link.breaks += 1  # it greets the server again
            until(lambda: any(one.kind is Kind.WELCOME for one in link.peer.got))
            world.held = False
            actor.flush(timeout=20)
            box = actor.stats()["outbox"]
    assert (box["acknowledged"]["items"], box["gone"]["items"]) == (10, 0)


def test_a_welcome_that_is_lost_hides_nothing_that_is_gone(quick, caplog):
    """A new server knows the session from the HELLO whose answer was lost: what the one before had is gone all the same."""
    world = World(0, UNION)
    world.calm = True
    with Actor(world, name="a", timeout=20) as actor:
        link = world.links[-1]
        for i in range(10):
            actor.add(**record(i), priority=1.0)
        actor.end_episode(terminated=True)
        actor.flush(timeout=20)
        world.held = True
        world.restart()
        link.peer = Inbox(world.engine, "door")
        link.breaks += 1  # it greets the new one
        until(lambda: any(one.kind is Kind.WELCOME for one in link.peer.got))
        link.peer.got.clear()
        world.held = False
        until(lambda: actor.stats()["outbox"]["gone"]["items"] == 10)
        for i in range(10, 20):
            actor.add(**record(i), priority=1.0)
        actor.end_episode(terminated=True)
        actor.flush(timeout=20)
        box = actor.stats()["outbox"]
    assert (box["acknowledged"]["items"], box["gone"]["items"]) == (20, 10)
    assert world.engine.stats()["tables"][0]["items"] == 10


def stored_once(world):
    steps = 3000
    with Actor(world, name="a", message_bytes=4096, window_bytes=1 << 16) as actor:
        streams = actor.stats()["memory"]["streams"]
        for i in range(steps):
            actor.add(**record(i))
            if i % 500 == 0:
                world.loses = 1
                assert balanced(actor.stats())
        world.calm = True
        actor.end_episode(terminated=True)
        actor.flush(timeout=20)
        stats, counted = actor.stats(), world.engine.stats()
    held = world.ids(streams, steps)
    assert sorted(held.values()) == list(range(steps))
    assert all(key & ((1 << 36) - 1) == value for key, value in held.items())
    assert counted["tables"][0]["items"] == counted["tables"][0]["inserted"] == steps
    assert balanced(stats)
    box = stats["outbox"]
    assert (box["acknowledged"]["items"], box["pending"]["pushes"], box["gone"]["pushes"], box["lost"]["pushes"]) == (steps, 0, 0, 0)
    pushes = counted["pushes"]
    assert pushes["received"] == pushes["stored"] + sum(pushes["refused"].values())
    assert pushes["stored"] == box["acknowledged"]["pushes"]
    assert box["resent"] > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_not_acknowledged_outlives_servers_without_their_state(seed, quick, caplog):
    world = World(seed, {**UNION, "actor": {"select": "all", "linger_ms": 1}, "priority": {"source": "max"}}, restarts=0.002)
    steps = 3000
    with caplog.at_level(logging.WARNING, "memsvc_client"), Actor(world, name="a", message_bytes=4096, window_bytes=1 << 16) as actor:
        streams = actor.stats()["memory"]["streams"]
        for i in range(steps):
            actor.add(**record(i))
        world.calm = True
        actor.end_episode(terminated=True)
        actor.flush(timeout=20)
        stats, counted = actor.stats(), world.engine.stats()
    assert stats["memory"]["streams"] == streams, "streams are adopted: keys go on"
    held = world.ids(streams, steps)
    assert all(key & ((1 << 36) - 1) == value for key, value in held.items())
    box = stats["outbox"]
    assert balanced(stats)
    assert (box["acknowledged"]["items"], box["pending"]["pushes"], box["lost"]["pushes"]) == (steps, 0, 0)
    # Each item is here, or was acknowledged by a server that is gone, and is counted so. A server may have kept one without its word arriving.
    assert len(held) + box["gone"]["items"] >= steps
    assert counted["tables"][0]["items"] == len(held)
    if box["gone"]["pushes"]:
        assert "are gone with the server's state" in caplog.text


# Real sockets, and memory of one host.


@pytest.mark.parametrize("shared", [False, True], ids=["tcp", "shared"])
@pytest.mark.parametrize("kind", ["union", "caches"])
def test_a_restarted_server_gets_what_it_had_not_acknowledged(shared, kind, tmp_path, caplog):
    made = UNION if kind == "union" else CACHES
    address = "tcp://127.0.0.1:0"
    server = memsvc.Server(config(address, made))
    address = server.address
    try:
        actor = Actor(ZmqEndpoint(address, shared=shared), name="a", timeout=20)
        step = {"obs": np.zeros(3, np.float32), "action": 0, "reward": 0.0}
        given = {"priority": 1.0} if kind == "union" else {}
        for _ in range(100):
            actor.add(**step, **given)
        actor.flush(timeout=20)
        streams = actor.stats()["memory"]["streams"]
        until(lambda: actor.stats()["transport"] == ("shared" if shared else "socket"))
        server.close()
        for _ in range(100):
            actor.add(**step, **given)
        server = memsvc.Server(config(address, made))
        until(lambda: actor.stats()["outbox"]["gone"]["pushes"] > 0, 30)
        actor.end_episode(terminated=True)
        actor.flush(timeout=20)
        stats = actor.stats()
        assert stats["memory"]["streams"] == streams
        assert balanced(stats)
        assert stats["outbox"]["lost"]["pushes"] == 0
        assert "are gone with the server's state" in caplog.text
        if kind == "union":
            assert stats["outbox"]["acknowledged"]["items"] == 200
            assert server.stats()["tables"][0]["items"] + stats["outbox"]["gone"]["items"] == 200
        actor.close()
    finally:
        server.close()


def test_a_cut_connection_loses_nothing_and_doubles_nothing(tmp_path):
    made = {**UNION, "priority": {"source": "max"}}
    steps = 4000
    with serve("tcp", tmp_path, made, step=STEP) as served, Proxies(served.server.address) as network:
        actor = Actor(network.endpoint(), name="a", timeout=30, message_bytes=8192, window_bytes=1 << 18)
        streams = actor.stats()["memory"]["streams"]
        ended = threading.Event()

        def cut() -> None:
            while not ended.wait(0.15):
                network.cut()

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            for i in range(steps):
                actor.add(**record(i))
                if i % 100 == 0:
                    time.sleep(0.02)  # so that it lasts for several cuts
        finally:
            ended.set()
            cutter.join()
        actor.end_episode(terminated=True)
        actor.flush(timeout=30)
        stats, counted = actor.stats(), served.server.stats()
        keys = np.array([(streams[0] << 36) + step for step in range(steps)], np.uint64)
        with contextlib.closing(served.learner(batch_size=1)) as learner:
            held = learner.get(keys)
            assert np.array_equal(np.sort(held["id"]), np.arange(steps))
            assert np.array_equal(held.keys & np.uint64((1 << 36) - 1), held["id"].astype(np.uint64))
            assert (held["pad"][:, 7] == held["id"] % 251).all()
        actor.close()
    assert counted["tables"][0]["items"] == counted["tables"][0]["inserted"] == steps
    assert balanced(stats)
    assert stats["outbox"]["acknowledged"]["items"] == steps
    pushes = counted["pushes"]
    assert pushes["received"] == pushes["stored"] + sum(pushes["refused"].values())
    assert pushes["stored"] == stats["outbox"]["acknowledged"]["pushes"]


# Single messages.


def engine(*tables: dict[str, Any]) -> Engine:
    return Engine(config("tcp://127.0.0.1:0", *(tables or ({**UNION, "priority": {"source": "max"}},)), step={"id": {"dtype": "int64"}}))


def test_a_push_that_the_server_fails_over_is_tried_again(quick):
    world = World(1, {**UNION, "priority": {"source": "max"}})
    world.calm = True
    with Actor(world, name="a") as actor:
        replay, fails = world.engine.replay, [ServerError("no memory")] * 2

        class Failing:
            def __getattr__(self, name: str) -> Any:
                return getattr(replay, name)

            def push(self, *arguments: Any) -> Any:
                if fails:
                    raise fails.pop()
                return replay.push(*arguments)

        def play(i: int) -> None:
            actor.add(**record(i))
            actor.end_episode(terminated=True)
            actor.flush(timeout=10)

        world.engine.replay = Failing()
        play(0)
        assert world.engine.stats()["tables"][0]["items"] == 1
        fails += [ServerError("no memory")] * recovery.TRIES
        play(1)
        play(2)
        stats = actor.stats()
    assert stats["outbox"]["refused"]["items"] == 1
    assert balanced(stats)
    world.engine.replay = replay
    assert sorted(world.ids(stats["memory"]["streams"], 6).values()) == [0, 2]


def test_publish_before_hello_is_refused():
    served = engine()
    stranger = Inbox(served)
    refused = stranger.ask(Kind.PUBLISH, meta={"topic": "default"}, body=b"blob")
    assert (refused.kind, refused.meta["details"]) == (Kind.ERROR, {"hello": True})
    assert served.parameters.newest("default")[0] == 0


def test_counters_of_pushes_that_never_reach_the_core():
    served = engine()
    actor = Playing(served, "a", session=f"{7:016x}", streams=[], first=1, fed=0)
    Inbox(served, "door").ask(Kind.PUSH, b=1)
    actor.say(Kind.PUSH, table=9, b=1)
    Playing(served, "a", session=f"{8:016x}", streams=[], first=1, fed=0)
    actor.say(Kind.PUSH, b=1)
    pushes = served.stats()["pushes"]
    assert (pushes["received"], pushes["stored"]) == (3, 0)
    assert {name: n for name, n in pushes["refused"].items() if n} == {"greeting": 1, "table": 1, "replaced": 1}


def test_a_session_goes_on_over_another_connection():
    served = engine()
    session = {"session": f"{7:016x}", "fed": 0}
    actor = Playing(served, "a", **session, streams=[], first=1)
    actor.play(1, None)
    payload = actor.memory.draw(0, 1, 1 << 20, 0)
    assert actor.ask(Kind.PUSH, b=1, body=payload).f == 1.0
    streams = actor.welcome["streams"]
    again = Inbox(served, "door")
    welcome = again.hello("actor", "a", envs=1, **session, streams=streams, first=2).meta
    assert (welcome["resumed"], welcome["stored"], welcome["streams"]) == (True, 1, streams)
    served.lost(actor)  # noticed later: the session is the other connection's by now
    ack = again.ask(Kind.PUSH, b=1, body=payload)
    assert (ack.kind, ack.f) == (Kind.ACK, 1.0), "a duplicate is acknowledged again"
    assert served.stats()["tables"][0]["items"] == 1
    assert not served.stats()["tables"][0]["actors"][0]["left"]
