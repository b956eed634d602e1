"""Rate limiter, full tables, staleness and min_version, as the service's peers meet them."""

from __future__ import annotations

from typing import Any

import pytest
from memsvc_proto.wire import Kind, Message
from serving import Inbox, Playing, columns, config

from memsvc.engine import Engine
from memsvc.telling import RETELL_S

GIVEN = {"source": "given", "exponent": 1.0}
STEP = {"id": {"dtype": "int64"}}


def limited(s: float, e: float, **more: Any) -> dict[str, Any]:
    return {
        "name": "limited",
        "actor": {"select": "all"},
        "priority": GIVEN,
        "limits": {"samples_per_insert": s, "tolerance": e, "min_items": 4, **more},
    }


BLOCKING = {
    "name": "queue",
    "actor": {"select": "all"},
    "sampler": "fifo",
    "priority": GIVEN,
    "capacity": {"items": 16, "when_full": "block"},
    "limits": {"max_times_sampled": 1},
}


def engine_of(*tables: dict[str, Any], clock: Any = None) -> Engine:
    made = config("tcp://127.0.0.1:0", *tables, step=STEP)
    return Engine(made, clock) if clock else Engine(made)


def wait_of(learner: Inbox, batch: int, **meta: Any) -> tuple[str, int, int]:
    """Why a batch cannot be had now."""
    learner.sample(batch, timeout=0, **meta)
    learner.engine.tick()
    answer = learner.of(Kind.WAIT)[-1]
    assert answer.seq == learner.seq
    return answer.meta["reason"], answer.meta["have"], answer.meta["need"]


# The limiter.


def test_a_batch_that_could_stop_both_sides_is_refused_at_hello_and_at_sample() -> None:
    learner = Inbox(engine_of(limited(2, 10)))
    sentence = "limits.tolerance: table 'limited' has 10, and a batch of 9 needs at least batch + samples_per_insert = 9 + 2 = 11, or learners"
    for answer in (learner.hello("learner", "l", table=0, batch=9), learner.ask(Kind.SAMPLE, a=9, f=1)):
        assert (answer.kind, answer.meta["code"]) == (Kind.ERROR, "config")
        assert answer.meta["message"].startswith(sentence)
        assert answer.meta["details"] == {"path": "limits.tolerance", "have": 10.0, "need": 11.0}
    assert learner.hello("learner", "l", table=0, batch=8).kind is Kind.WELCOME


def test_acknowledgements_carry_allowances_and_unasked_ones_raise_them() -> None:
    engine = engine_of(limited(1, 16))
    player, learner = Playing(engine, "a"), Inbox(engine)
    (first,) = player.acks()
    assert first.meta["allowed"] >= 4, "before the first item as many as learners wait for, told with WELCOME"
    player.play(4)
    ack = player.push()
    allowed = ack.meta["allowed"]
    assert 4 < allowed <= 4 + 8, "half of the tolerance beyond min_items"
    player.play(allowed - 4)
    full = player.push()
    assert full.meta["allowed"] == allowed
    assert full.meta["ahead"] == allowed - 4
    player.acks()
    learner.sample(4)
    assert learner.got[-1].kind is Kind.BATCH
    (more,) = player.acks()
    assert more.meta["allowed"] > allowed
    assert more.seq == player.seq, "the last push that was seen"


def test_sampled_stays_within_the_tolerance_of_what_was_inserted() -> None:
    s, e, batch = 1.5, 24.0, 5
    now = [0.0]
    engine = engine_of(limited(s, e), clock=lambda: now[0])
    players, learner = [Playing(engine, name) for name in "ab"], Inbox(engine)
    allowed = {player: max(ack.meta["allowed"] for ack in player.acks()) for player in players}
    asked: list[int] = []
    history = []
    for turn in range(3000):
        now[0] += 0.005
        player = players[0] if turn % 5 else players[1]
        if player.steps < allowed[player]:
            player.play(1)
            player.push()
        if len(asked) - len(learner.of(Kind.BATCH)) < 2 and turn % 3:
            asked.append(learner.sample(batch))
        engine.tick()
        for one in players:
            allowed[one] = max([allowed[one], *(ack.meta["allowed"] for ack in one.acks())])
        history.append((sum(one.steps for one in players), batch * len(learner.of(Kind.BATCH))))
    begun = [(i, n) for i, n in history if n]
    assert begun[-1][0] > 500, "neither side has stopped"
    ahead = [n - s * i for i, n in begun]
    assert max(ahead) - min(ahead) <= e + 1e-9


def test_a_learner_that_is_ahead_is_told_how_many_inserts_it_waits_for() -> None:
    engine = engine_of(limited(2, 16))
    player, learner = Playing(engine, "a"), Inbox(engine)
    player.play(1)
    player.push()
    assert wait_of(learner, 4) == ("min_items", 1, 4)
    player.play(3)
    player.push()
    learner.sample(8)
    assert learner.got[-1].kind is Kind.BATCH
    assert wait_of(learner, 4) == ("limiter", 4, 6), "8 sampled; 4 more are 12 = 8 + 2 * 2"
    seq = learner.sample(4)
    player.play(2)
    player.push()
    assert [m.seq for m in learner.of(Kind.BATCH)][-1] == seq


def test_what_was_put_back_does_not_count_as_sampled() -> None:
    engine = engine_of(limited(2, 16))
    player, leaving, waiting = Playing(engine, "a"), Inbox(engine), Inbox(engine)
    player.play(4)
    player.push()
    leaving.sample(8)
    waiting.sample(8)
    assert waiting.got == []
    leaving.say(Kind.BYE)
    assert waiting.got[-1].kind is Kind.BATCH
    limiter = engine.stats()["tables"][0]["limiter"]
    assert limiter["sampled"] == 8


# Tables that block.


def test_writers_wait_for_room_and_are_told_when_there_is_some() -> None:
    now = [0.0]
    engine = engine_of(BLOCKING, clock=lambda: now[0])
    player, learner = Playing(engine, "a"), Inbox(engine)
    room = player.acks()[-1].a
    assert 0 < room <= 16
    player.play(40)
    while room:
        room = player.push(draws=room).a
    assert engine.stats()["tables"][0]["items"] == 16
    player.acks()
    now[0] += RETELL_S
    learner.sample(8)
    engine.tick()
    assert all(ack.a == 0 for ack in player.acks()), "what is on its way still takes its place"
    now[0] += RETELL_S
    learner.say(Kind.TAKEN, a=1)
    assert player.acks()[-1].a == 8
    assert engine.stats()["tables"][0]["evicted"] == 0


def test_what_is_deleted_makes_room() -> None:
    engine = engine_of(BLOCKING)
    player, learner = Playing(engine, "a"), Inbox(engine)
    room = player.acks()[-1].a
    player.play(40)
    while room:
        room = player.push(draws=room).a
    player.acks()
    seq = learner.sample(8)
    keys = columns(player.specs[0], next(m for m in learner.got if m.seq == seq))["keys"]
    learner.say(Kind.TAKEN, a=seq)
    learner.sample(8)
    later = columns(player.specs[0], learner.got[-1])["keys"]
    player.acks()
    answer = learner.ask(Kind.DELETE, b=16, body=keys.tobytes() + later.tobytes())
    assert (answer.kind, answer.a, answer.b) == (Kind.UPDATED, 8, 8), "the first eight are gone already"


def test_a_batch_that_an_order_can_never_fill_is_refused() -> None:
    answer = Inbox(engine_of(BLOCKING)).hello("learner", "l", table=0, batch=17)
    assert answer.meta["code"] == "config"
    assert answer.meta["message"].startswith("a batch of 17 is never there: table 'queue' holds 16 items (capacity.items), and sampler = 'fifo'")


# Versions.


def union(**limits: Any) -> dict[str, Any]:
    return {"name": "union", "actor": {"select": "all"}, "priority": GIVEN, "limits": limits}


def versions(player: Playing, message: Message) -> set[int]:
    assert message.kind is Kind.BATCH
    return set(columns(player.specs[0], message)["versions"].tolist())


def publish(learner: Inbox, topic: str = "default") -> int:
    if learner.member is None:
        learner.hello("learner", "l")
    return learner.ask(Kind.PUBLISH, meta={"topic": topic}, body=b"w").a


def test_what_is_too_stale_leaves_at_the_publication_and_says_so() -> None:
    engine = engine_of(union(max_staleness=1))
    player, learner = Playing(engine, "a", topic="default"), Inbox(engine)
    assert publish(learner) == 1
    player.play(8, version=1)
    player.push()
    learner.sample(4)
    assert versions(player, learner.got[-1]) == {1}
    publish(learner, "other")
    publish(learner, "other")
    publish(learner)
    learner.sample(4)
    assert versions(player, learner.got[-1]) == {1}
    assert publish(learner) == 3
    assert wait_of(learner, 4) == ("stale", 1, 2)
    assert engine.stats()["tables"][0]["aged"] == 8
    seq = learner.sample(4)
    player.memory.newest(3)
    player.play(4, version=3)
    player.push()
    assert [m.seq for m in learner.of(Kind.BATCH)][-1] == seq


def test_an_actor_that_joins_late_is_judged_by_what_was_published_before() -> None:
    engine = engine_of(union(max_staleness=0))
    learner = Inbox(engine)
    assert [publish(learner, "pi"), publish(learner, "pi")] == [1, 2]
    player, other = Playing(engine, "a", topic="pi"), Playing(engine, "b")
    player.play(4, version=1)
    player.push()
    assert wait_of(learner, 2)[0] == "stale"
    other.play(4, version=1)
    other.push()
    learner.sample(2)
    assert learner.got[-1].kind is Kind.BATCH, "nothing was published on its topic"


def test_min_version_waits_alone() -> None:
    engine = engine_of(union())
    player, picky, plain = Playing(engine, "a"), Inbox(engine), Inbox(engine)
    player.play(8, version=1)
    player.push()
    seq = picky.sample(4, min_version=2)
    plain.sample(4)
    plain.sample(64)
    assert [m.kind for m in plain.got] == [Kind.BATCH, Kind.BATCH], "who waits for newer items holds up nobody"
    assert wait_of(plain, 4, min_version=2) == ("version", 1, 2)
    player.play(4, version=2)
    player.push()
    (batch,) = picky.of(Kind.BATCH)
    assert (batch.seq, batch.b, versions(player, batch)) == (seq, 4, {2})


@pytest.mark.parametrize("value", ["2", 1.5, True, 1 << 80])
def test_a_min_version_is_an_integer(value: Any) -> None:
    learner = Inbox(engine_of(union()))
    assert learner.ask(Kind.SAMPLE, a=4, f=1, meta={"min_version": value}).meta["code"] == "protocol"


def test_min_version_is_for_unions() -> None:
    learner = Inbox(engine_of({"name": "caches"}))
    error = learner.ask(Kind.SAMPLE, a=4, f=1, meta={"min_version": 2}).meta
    assert error["code"] == "config"
    assert error["message"].startswith("min_version: table 'caches' has actor.select = 'prioritized'")


def test_fewer_items_than_an_ordered_batch_are_told() -> None:
    engine = engine_of({**union(), "sampler": "fifo"})
    player, learner = Playing(engine, "a"), Inbox(engine)
    player.play(4)
    player.push()
    assert wait_of(learner, 8) == ("few", 4, 8)


def test_episodes_that_are_all_too_short_are_told() -> None:
    engine = engine_of({**union(), "item": {"kind": "sequence", "length": 8, "tail": "drop"}})
    player, learner = Playing(engine, "a"), Inbox(engine)
    for _ in range(3):
        player.play(5)
    player.push()
    assert wait_of(learner, 1) == ("short", 3, 8)
