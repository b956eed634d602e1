"""What the server tells an actor arrives in the order in which it became true, whichever threads tell it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from memsvc_client.endpoint import ZmqEndpoint
from memsvc_core import Memory, Schema, TableSpec
from memsvc_proto.wire import Kind, Message
from serving import Inbox, Playing, config, until

import memsvc
from memsvc.engine import Engine
from memsvc.peer import Peer

GIVEN = {"name": "replay", "priority": {"source": "given", "exponent": 1.0}}
HELLO = {"role": "actor", "name": "a", "pid": 1, "host": "h", "envs": 1, "versions": {}, "epoch": ""}


class Slow(Peer):
    """Keeps what it is sent; the first FEEDBACK takes until a second one comes, or half a second."""

    def __init__(self) -> None:
        super().__init__("door")
        self.got: list[Message] = []
        self.begun, self.overtaken = threading.Event(), threading.Event()

    def send(self, message: Message, frame: Any = None) -> None:
        if message.kind is Kind.FEEDBACK:
            if self.begun.is_set():
                self.overtaken.set()
            else:
                self.begun.set()
                self.overtaken.wait(0.5)
        self.got.append(message)

    def in_flight(self) -> int:
        return 0


def test_feedback_of_two_threads_arrives_in_the_order_of_its_numbers() -> None:
    engine, actor, learner = Engine(config("tcp://127.0.0.1:0", GIVEN, step={"id": {"dtype": "int64"}})), Slow(), Slow()
    engine.handle(actor, Message(Kind.HELLO, 1, meta=HELLO))
    welcome = actor.got[-1].meta
    schema = Schema([(n, d, tuple(s)) for n, d, s in welcome["schema"]])
    memory = Memory(schema, [TableSpec(schema, one) for one in welcome["tables"]], welcome["streams"], 1)
    for i in range(3):
        memory.add(0, {"id": i}, 1.0, -1)
    push = Message(Kind.PUSH, 2, body=memory.draw(0, 64, 1 << 20, 0))
    engine.handle(actor, push)
    key = np.array([welcome["streams"][0] << 36], np.uint64)

    def update(p: float) -> None:
        engine.handle(learner, Message(Kind.UPDATE, 1, b=1, body=key.tobytes() + np.array([p]).tobytes()))

    update(0.5)
    ticking = threading.Thread(target=engine.tick)
    ticking.start()
    assert actor.begun.wait(10)
    update(0.25)
    engine.handle(actor, push)
    ticking.join(10)
    engine.tick()
    told = [(m.a, np.frombuffer(m.body, np.float64)[1]) for m in actor.got if m.kind is Kind.FEEDBACK]
    assert told == [(1, 0.5), (2, 0.25)]


def test_an_acknowledgement_does_not_claim_a_push_that_came_after_what_it_tells() -> None:
    limits = {"limits": {"samples_per_insert": 1, "tolerance": 8}}
    engine = Engine(config("tcp://127.0.0.1:0", GIVEN | limits, step={"id": {"dtype": "int64"}}))
    player, pushing = Playing(engine, "a"), []

    class Late:
        """Another thread's push overtakes the allowance that was just asked for."""

        def __getattr__(self, name: str) -> Any:
            return getattr(engine.replay, name)

        def allowance(self, actor: int, table: int) -> Any:
            told = engine.replay.allowance(actor, table)
            if not pushing:
                player.play(1)
                pushing.append(threading.Thread(target=player.push))
                pushing[0].start()
                until(lambda: player.last_push == player.seq)
            return told

    player.acks()
    engine.telling._replay = Late()
    before = player.last_push
    engine.telling.acknowledge(player, 0)
    pushing[0].join(10)
    assert [ack.seq for ack in player.acks()] == [before, player.last_push]


def test_the_last_settings_that_an_actor_is_told_are_those_that_hold() -> None:
    """Actors come, under their own names and each other's, while two threads change settings."""
    engine = Engine(config("tcp://127.0.0.1:0", GIVEN, step={"id": {"dtype": "int64"}}))
    peers: list[Inbox] = []

    def change(first: int) -> None:
        for i in range(first, 200, 2):
            Inbox(engine).say(Kind.CONFIGURE, meta={"priority.exponent": float(i), "importance.beta": float(i)})

    def join(first: int) -> None:
        for i in range(60):
            peers.append(Inbox(engine, "door"))
            peers[-1].hello("actor", f"{first}-{i}", envs=1)

    threads = [threading.Thread(target=run, args=(first,)) for run in (change, join) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    now = engine.tables[0].settings
    assert now["priority"]["exponent"] == now["importance"]["beta"]
    for peer in peers:
        told = [m.meta["tables"][0] if m.kind is Kind.WELCOME else m.meta for m in peer.of(Kind.WELCOME, Kind.SETTINGS)]
        assert told[-1] == now
    assert engine.stats()["counts"]["failures"] == 0


def test_a_routers_own_answer_does_not_overtake_what_others_have_queued() -> None:
    with memsvc.Server(config("tcp://127.0.0.1:0", GIVEN)) as server:

        def ping(peer: Peer, message: Message, now: float) -> None:
            other = threading.Thread(target=peer.send, args=(Message(Kind.FEEDBACK, a=1),))
            other.start()
            other.join(10)
            peer.send(Message(Kind.FEEDBACK, a=2))

        server.engine._handlers[Kind.PING] = ping
        link = ZmqEndpoint(server.address).connect("door")
        try:
            link.send(Message(Kind.PING, 1))
            assert [until(lambda: link.receive(1)).a for _ in range(2)] == [1, 2]
        finally:
            link.close()


def test_an_actor_that_says_hello_as_a_learner_is_told_nothing_more() -> None:
    engine, peer = Engine(config("tcp://127.0.0.1:0", GIVEN, step={"id": {"dtype": "int64"}})), Slow()
    engine.handle(peer, Message(Kind.HELLO, 1, meta=HELLO))
    engine.handle(peer, Message(Kind.HELLO, 2, meta=HELLO | {"role": "learner"}))
    engine.telling.acknowledge(peer, 0)  # of a tick that had found the actor just before
    engine.tick()
    assert [m.kind for m in peer.got] == [Kind.WELCOME, Kind.WELCOME]
    assert engine.stats()["counts"]["failures"] == 0
