"""Items by key, and settings changed on the way, as the service's peers meet them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from memsvc_proto import wire
from memsvc_proto.wire import Kind, Message
from serving import Inbox, Playing, columns, config

from memsvc.engine import Engine

STEP = {"id": {"dtype": "int64"}}
GIVEN = {"source": "given", "exponent": 1.0}
UNION = {"name": "union", "actor": {"select": "all"}, "priority": GIVEN, "limits": {"min_items": 4}}
CACHES = {"name": "caches", "priority": GIVEN}


@pytest.fixture
def engine() -> Engine:
    return Engine(config("tcp://127.0.0.1:0", UNION, CACHES, step=STEP))


@pytest.fixture
def player(engine: Engine) -> Playing:
    player = Playing(engine, "a")
    player.play(8)
    player.push()
    return player


def keys_of(player: Playing, learner: Inbox) -> np.ndarray:
    """Keys of steps 0, 1, ... of the player."""
    learner.sample(256)
    made = columns(player.specs[0], learner.got[-1])
    keys, at = np.unique(made["keys"], return_index=True)
    return keys[np.argsort(made["id"][at])]


def get(learner: Inbox, keys: Any, table: int = 0) -> Message:
    return learner.ask(Kind.GET, table=table, b=len(keys), body=np.asarray(keys, np.uint64).tobytes())


# By key.


def test_items_come_in_the_order_of_their_keys(engine: Engine, player: Playing) -> None:
    learner = Inbox(engine)
    keys = keys_of(player, learner)
    assert len(keys) == 8
    asked = [keys[5], keys[1], 12345, keys[7], keys[1]]
    items = get(learner, asked)
    assert (items.kind, items.a, items.b, items.f) == (Kind.ITEMS, 4, 8, 8.0)
    made = columns(player.specs[0], items)
    assert made["id"].tolist() == [5, 1, 7, 1]
    assert made["keys"].tolist() == [keys[5], keys[1], keys[7], keys[1]]
    assert np.allclose(made["probabilities"], 1 / 8)


def test_nothing_found_is_an_empty_answer(engine: Engine, player: Playing) -> None:
    learner = Inbox(engine)
    for asked in ([], [1, 2, 3]):
        items = get(learner, asked)
        assert (items.kind, items.a, bytes(items.body)) == (Kind.ITEMS, 0, b"")


def test_what_caches_hold_can_be_got_too(engine: Engine, player: Playing) -> None:
    player.push(table=1)
    player.push(table=1)
    learner = Inbox(engine)
    items = get(learner, keys_of(player, learner), table=1)
    made = columns(player.specs[1], items)
    assert items.a == len(made["id"]) > 4
    assert set(made["id"].tolist()) <= set(range(8))


def test_frames_of_answers_are_of_the_size_of_what_was_found(engine: Engine, player: Playing) -> None:
    frames: list[Any] = []

    class Framed(Inbox):
        def send(self, message: Message, frame: Any = None) -> None:
            frames.append(frame)
            super().send(message, frame)

    learner = Framed(engine)
    keys = keys_of(player, learner)
    get(learner, [keys[0], 77, keys[3]])
    frame = frames[-1]
    wire.pack_into(learner.got[-1], frame)
    again = wire.unpack(bytes(frame))
    assert (again.kind, again.a) == (Kind.ITEMS, 2)
    assert columns(player.specs[0], again)["id"].tolist() == [0, 3]


def test_deleted_items_are_gone(engine: Engine, player: Playing) -> None:
    learner = Inbox(engine)
    keys = keys_of(player, learner)
    answer = learner.ask(Kind.DELETE, b=3, body=np.array([keys[2], keys[4], 99], np.uint64).tobytes())
    assert (answer.kind, answer.a, answer.b) == (Kind.UPDATED, 2, 1)
    assert get(learner, keys).a == 6
    assert len(keys_of(player, learner)) == 6
    stats = engine.stats()["tables"][0]
    assert (stats["items"], stats["deleted"]) == (6, 2)


@pytest.mark.parametrize("kind", [Kind.GET, Kind.DELETE])
def test_wrong_lengths_are_refused(engine: Engine, kind: Kind) -> None:
    learner = Inbox(engine)
    for parts in ({"b": 2, "body": b"12345678"}, {"b": wire.MAX_KEYS + 1, "body": bytes(8 * wire.MAX_KEYS + 8)}, {"b": (1 << 64) - 1}):
        assert learner.ask(kind, **parts).meta["code"] == "protocol", parts
    assert learner.ask(kind, table=9).meta["code"] == "unknown_table"
    assert engine.stats()["counts"]["failures"] == 0


def test_who_does_not_read_gets_no_more(engine: Engine, player: Playing) -> None:
    class Stuck(Inbox):
        def in_flight(self) -> int:
            return 8

    error = get(Stuck(engine), [1]).meta
    assert (error["code"], error["details"]) == ("not_ready", {"reason": "unread", "have": 8, "need": 8})


# Settings.


def test_a_change_reaches_everybody_and_whoever_comes_later(engine: Engine, player: Playing) -> None:
    learner, viewer = Inbox(engine), Inbox(engine, "door")
    learner.hello("learner", "l", table=0, batch=4)
    viewer.hello("viewer", "v")
    answer = viewer.ask(Kind.CONFIGURE, table=0, meta={"priority.exponent": 0.5, "importance.beta": 1})
    assert (answer.kind, answer.table) == (Kind.CONFIGURED, 0)
    assert (answer.meta["priority"]["exponent"], answer.meta["importance"]["beta"]) == (0.5, 1.0)
    for peer in (player, learner):
        (told,) = peer.of(Kind.SETTINGS)
        assert (told.table, told.meta) == (0, answer.meta)
    assert viewer.of(Kind.SETTINGS) == []
    assert player.got[-1].kind is Kind.ACK, "demand may be another one now"
    late = Playing(engine, "b")
    assert late.welcome["tables"][0] == answer.meta
    assert late.welcome["tables"][1] == player.welcome["tables"][1]
    assert engine.stats()["tables"][0]["settings"] == answer.meta
    assert engine.config.tables[0]["priority"]["exponent"] == 1.0, "the configuration stays what was read"


def test_a_new_exponent_holds_at_once_where_the_server_has_the_union(engine: Engine) -> None:
    player, learner = Playing(engine, "a"), Inbox(engine)
    for i in range(8):
        player.play(1, priority=float(i + 1))
    player.push()
    learner.say(Kind.CONFIGURE, meta={"priority.exponent": 2.0, "importance.beta": 1.0})
    learner.sample(64)
    made = columns(player.specs[0], learner.got[-1])
    w = (made["id"] + 1.0) ** 2
    assert np.allclose(made["probabilities"], w / np.sum(np.arange(1.0, 9) ** 2))
    assert np.allclose(made["weights"], 1 / w), "beta 1, divided by the largest of the table"


def test_a_change_that_lets_waiting_learners_go_on_does(engine: Engine) -> None:
    player, learner = Playing(engine, "a"), Inbox(engine)
    player.play(2)
    player.push()
    seq = learner.sample(2)
    assert learner.got == []
    Inbox(engine).say(Kind.CONFIGURE, meta={"limits.min_items": 2})
    assert [(m.kind, m.seq) for m in learner.got] == [(Kind.BATCH, seq)]


def test_a_refused_change_changes_nothing(engine: Engine, player: Playing) -> None:
    viewer, before = Inbox(engine), engine.tables[0].settings
    for changes, message in (
        ({"importance.beta": 1.0, "priority.exponent": -1}, "priority.exponent: expected a number >= 0, got -1"),
        ({"capacity.items": 4}, "capacity.items: cannot be changed while the server runs"),
    ):
        error = viewer.ask(Kind.CONFIGURE, meta=changes).meta
        assert error["code"] == "config"
        assert error["message"].startswith(message)
    assert viewer.ask(Kind.CONFIGURE, table=9, meta={}).meta["code"] == "unknown_table"
    assert engine.tables[0].settings is before
    assert player.of(Kind.SETTINGS) == []
    assert engine.stats()["counts"]["failures"] == 0


def test_a_limiter_that_would_stop_a_learner_that_is_here_is_refused(engine: Engine, player: Playing) -> None:
    learner, viewer = Inbox(engine), Inbox(engine)
    learner.hello("learner", "l", table=0, batch=32)
    error = viewer.ask(Kind.CONFIGURE, meta={"limits.samples_per_insert": 2, "limits.tolerance": 33}).meta["message"]
    assert error.startswith("limits.tolerance: table 'union' has 33, and a batch of 32 needs at least batch + samples_per_insert = 32 + 2 = 34")
    assert viewer.ask(Kind.CONFIGURE, table=1, meta={"limits.samples_per_insert": 2, "limits.tolerance": 33}).kind is Kind.CONFIGURED
    learner.say(Kind.BYE)
    assert viewer.ask(Kind.CONFIGURE, meta={"limits.samples_per_insert": 2, "limits.tolerance": 33}).kind is Kind.CONFIGURED
    ack = player.of(Kind.ACK)[-1]
    assert ack.table == 0
    assert ack.meta["allowed"] > 8, "the gate of a limiter switched on is told at once"
