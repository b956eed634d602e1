"""Delivered means acknowledged (DEFINITIONS 9): what a learner had not confirmed when it left is delivered again, and nothing else is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from memsvc_proto.wire import Kind, Message
from serving import Inbox, Playing, columns, config, until

import memsvc
from memsvc.deliveries import MAX_OPEN, Deliveries
from memsvc.engine import Engine
from memsvc.local import QUEUED_MESSAGES

QUEUE = {
    "name": "queue",
    "actor": {"select": "all"},
    "sampler": "fifo",
    "priority": {"source": "given", "exponent": 1.0},
    "limits": {"max_times_sampled": 1},
}
PLAIN = {"name": "plain", "actor": {"select": "all"}, "priority": {"source": "given", "exponent": 1.0}}
STEP = {"id": {"dtype": "int64"}}


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def engine_of(*tables: dict[str, Any], clock: Any = None) -> Engine:
    made = config("tcp://127.0.0.1:0", *tables, step=STEP)
    return Engine(made, clock) if clock else Engine(made)


def ids(player: Playing, message: Message) -> list[int]:
    assert message.kind is Kind.BATCH
    return list(columns(player.specs[message.table], message)["id"].tolist())


@pytest.fixture
def engine() -> Engine:
    return engine_of(QUEUE, PLAIN)


@pytest.fixture
def player(engine: Engine) -> Playing:
    player = Playing(engine, "a")
    player.play(8)
    player.push()
    player.push(table=1)
    return player


def test_confirmed_batches_are_gone(engine: Engine, player: Playing) -> None:
    one, two = Inbox(engine), Inbox(engine)
    seqs = [one.sample(4), two.sample(4)]
    assert [ids(player, peer.got[-1]) for peer in (one, two)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert engine.stats()["tables"][0]["deliveries"] == 2
    assert engine.stats()["tables"][0]["in_flight"] == 8
    for peer, seq in zip((one, two), seqs, strict=True):
        peer.say(Kind.TAKEN, a=seq)
        peer.say(Kind.BYE)
    stats = engine.stats()["tables"][0]
    assert (stats["items"], stats["deliveries"], stats["in_flight"], stats["put_back"], stats["exhausted"]) == (0, 0, 0, 0, 8)
    assert [message.kind for message in one.got] == [Kind.BATCH, Kind.BYE], "TAKEN is not answered"


def test_what_a_learner_that_left_had_not_confirmed_goes_to_the_one_that_waits(engine: Engine, player: Playing) -> None:
    leaving, waiting = Inbox(engine), Inbox(engine)
    first, second = leaving.sample(4), leaving.sample(4)
    assert first != second
    leaving.say(Kind.TAKEN, a=first)
    seq = waiting.sample(4)
    assert waiting.got == []
    leaving.say(Kind.BYE)
    assert [(m.seq, ids(player, m)) for m in waiting.of(Kind.BATCH)] == [(seq, [4, 5, 6, 7])]
    assert engine.stats()["tables"][0]["put_back"] == 4


def test_a_broken_connection_is_like_leaving(engine: Engine, player: Playing) -> None:
    broken, waiting = Inbox(engine), Inbox(engine)
    broken.sample(8)
    waiting.sample(8)
    engine.lost(broken)
    engine.tick()
    assert ids(player, waiting.got[-1]) == list(range(8))
    engine.lost(broken)
    assert engine.stats()["tables"][0]["put_back"] == 8


def test_a_batch_that_could_not_be_sent_is_put_back(engine: Engine, player: Playing) -> None:
    full, other = Inbox(engine), Inbox(engine)
    seq = full.sample(8)
    engine.unsent(full, full.got[-1])
    other.sample(8)
    assert ids(player, other.got[-1]) == list(range(8))
    full.say(Kind.TAKEN, a=seq)
    full.say(Kind.BYE)
    assert engine.stats()["tables"][0]["deliveries"] == 1


def test_an_inbox_that_is_full_loses_no_items() -> None:
    with memsvc.Server(config("tcp://127.0.0.1:0", QUEUE, step=STEP)) as server:
        player, deaf = Playing(server.engine, "a"), server.endpoint.connect("draw")
        player.play(8)
        player.push()
        for seq in range(QUEUED_MESSAGES):
            deaf.send(Message(Kind.PING, seq + 1))
        deaf.send(Message(Kind.SAMPLE, QUEUED_MESSAGES + 1, a=8, f=1))
        other = Inbox(server.engine)
        other.sample(8)
        until(lambda: other.got)
        assert ids(player, other.got[-1]) == list(range(8))
        assert server.stats()["counts"]["unsent"] == 1


def test_two_learners_that_count_alike_do_not_confirm_for_one_another(engine: Engine, player: Playing) -> None:
    one, two = Inbox(engine), Inbox(engine)
    assert one.sample(4) == two.sample(4)
    two.say(Kind.TAKEN, a=1)
    one.say(Kind.BYE)
    two.sample(4)
    assert ids(player, two.got[-1]) == [0, 1, 2, 3]


def test_nonsense_is_passed_over(engine: Engine, player: Playing) -> None:
    learner = Inbox(engine)
    learner.say(Kind.TAKEN, a=1 << 63)
    seq = learner.sample(4)
    learner.say(Kind.TAKEN, a=seq, table=1)
    for _ in range(3):
        learner.say(Kind.TAKEN, a=seq)
    assert learner.ask(Kind.TAKEN, a=1, table=7).meta["code"] == "unknown_table"
    assert engine.stats()["tables"][0]["exhausted"] == 4


def test_tables_without_a_limit_keep_no_deliveries(engine: Engine, player: Playing) -> None:
    learner = Inbox(engine)
    for _ in range(3):
        learner.sample(8, table=1)
    stats = engine.stats()["tables"][1]
    assert (stats["deliveries"], stats["in_flight"]) == (0, 0)


def test_a_new_link_of_the_same_learner_takes_the_place_of_its_broken_one(engine: Engine, player: Playing) -> None:
    old, new, other = Inbox(engine), Inbox(engine), Inbox(engine)
    old.hello("learner", "l", table=0, batch=4)
    other.hello("learner", "m", table=0, batch=4)
    old.sample(4)
    other.sample(4)
    new.hello("learner", "l", table=0, batch=4)
    new.sample(4)
    assert ids(player, new.got[-1]) == [0, 1, 2, 3], "what the broken link had not confirmed"
    assert engine.deliveries.holds(other)
    assert old.gone
    assert not other.gone


def test_links_at_the_door_replace_nothing(engine: Engine) -> None:
    doors = [Inbox(engine, "door"), Inbox(engine, "door")]
    for door in doors:
        door.hello("learner", "l")
    assert [door.gone for door in doors] == [False, False]


class Counted:
    """What a replay is told of tickets."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    def taken(self, table: int, ticket: int) -> None:
        self.told.append(("taken", table, ticket))

    def put_back(self, table: int, ticket: int) -> None:
        self.told.append(("put_back", table, ticket))


def test_a_learner_that_never_confirms_costs_bounded_memory(engine: Engine) -> None:
    replay, peer = Counted(), Inbox(engine)
    deliveries = Deliveries(replay)
    for seq in range(MAX_OPEN + 3):
        deliveries.sent(peer, 0, seq, deliveries.ticket())
    assert replay.told == [("taken", 0, 1), ("taken", 0, 2), ("taken", 0, 3)]
    assert deliveries.open(0) == MAX_OPEN
    assert deliveries.drop(peer) == {0}
    assert len(replay.told) == 3 + MAX_OPEN
    assert not deliveries.holds(peer)


def test_a_batch_drawn_for_a_peer_that_leaves_meanwhile_is_put_back(engine: Engine) -> None:
    replay, peer = Counted(), Inbox(engine)
    deliveries = Deliveries(replay)
    peer.gone = True
    deliveries.sent(peer, 1, 5, 9)
    assert replay.told == [("put_back", 1, 9)]
    assert not deliveries.holds(peer)


def test_silent_learners_are_probed_more_and_more_rarely() -> None:
    clock = Clock()
    engine = engine_of(QUEUE, clock=clock)
    player, learner, idle = Playing(engine, "a"), Inbox(engine), Inbox(engine)
    player.play(8)
    player.push()
    idle.say(Kind.TAKEN, a=idle.sample(4))
    learner.sample(4)
    began, probed = clock.now, list[float]()
    while clock.now < began + 3600:
        clock.now += 0.125
        engine.tick()
        if len(learner.of(Kind.PONG)) > len(probed):
            probed.append(clock.now - began)
    assert probed[0] < 2.5
    assert all(2 * a <= b < 2 * a + 1.25 for a, b in pairwise(probed))
    assert 2 * probed[-1] > 3600 - 1.25
    assert idle.of(Kind.PONG) == [], "it has not said who it is, and nothing would be lost with it"
    learner.say(Kind.TAKEN, a=1)
    clock.now += 1e6
    engine.tick()
    assert len(learner.of(Kind.PONG)) == len(probed)
