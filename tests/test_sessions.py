"""Numbered pushes in the core: sessions that come and go, duplicates, gaps, and what a server without its state adopts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from memsvc_core import Memory, Replay, Schema, TableSpec
from memsvc_proto.errors import Gap, ProtocolError, ServerError
from rig import table

FIELDS = [("id", "<i8", ())]
SEEDS = range(6)


class Pushing:
    """A memory of one stream, and its payloads of one step each."""

    def __init__(self, replay: Replay, session: int = 1, **settings: Any) -> None:
        self.schema = Schema(FIELDS)
        self.spec = TableSpec(self.schema, table(item={"kind": "step"}, actor={"select": "all"}, **settings))
        self.replay, self.session, self.steps = replay, session, 0
        self.actor, self.streams, self.stored, self.resumed = replay.resume("a", 1, "default", session, [], 1)
        self.memory = Memory(self.schema, [self.spec], self.streams, 1)

    def payload(self) -> np.ndarray:
        self.memory.add(0, {"id": self.steps}, None, -1)
        self.memory.end(0, True, None)
        self.steps += 1
        made = self.memory.draw(0, 1, 1 << 20, 0)
        assert made is not None
        return made

    def again(self, first: int, replay: Replay | None = None) -> tuple[int, list[int], int, bool]:
        self.replay = replay or self.replay
        found = self.replay.resume("a", 1, "default", self.session, self.streams, first)
        self.actor = found[0]
        return found


def core(first_stream: int = 5) -> Replay:
    schema = Schema(FIELDS)
    spec = TableSpec(schema, table(item={"kind": "step"}, actor={"select": "all"}))
    return Replay(schema, [spec], 1 << 20, 1, first_stream)


def adds_up(counts: dict[str, int]) -> bool:
    return counts["received"] == sum(counts[name] for name in ("stored", "duplicate", "gap", "malformed", "unknown", "failed"))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_numbers_give_what_a_naive_model_says(seed):
    rng = random.Random(seed)
    replay = core()
    actor = Pushing(replay)
    made: list[np.ndarray] = []
    stored, said = 0, {"stored": 0, "duplicate": 0, "gap": 0, "malformed": 0, "unknown": 0, "failed": 0}
    items = 0
    gone = False
    for _ in range(400):
        act = rng.random()
        if act < 0.05:
            replay.leave(actor.actor)
            gone = True
            continue
        if act < 0.12:
            first = rng.randint(max(1, stored - 2), stored + 2)
            number, streams, known, resumed = actor.again(first)
            assert (streams, known, resumed) == (actor.streams, stored, True)
            stored, gone = max(stored, first - 1), False
            continue
        number = max(1, stored + rng.choice([-3, -1, 0, 1, 1, 1, 1, 2, 5]))
        while len(made) < number:
            made.append(actor.payload())
        damaged = rng.random() < 0.1
        body = made[number - 1][:-1] if damaged else made[number - 1]
        if gone:
            with pytest.raises(ServerError) as unknown:
                replay.push(actor.actor, body, number)
            assert unknown.value.hello
            said["unknown"] += 1
        elif number <= stored:
            assert replay.push(actor.actor, body, number) is None
            said["duplicate"] += 1
        elif number > stored + 1:
            with pytest.raises(Gap) as gap:
                replay.push(actor.actor, body, number)
            assert gap.value.expected == stored + 1
            said["gap"] += 1
        elif damaged:
            with pytest.raises(ProtocolError):
                replay.push(actor.actor, body, number)
            said["malformed"] += 1
            stored += 1
        else:
            assert replay.push(actor.actor, body, number) == (1, 0)
            said["stored"] += 1
            stored, items = stored + 1, items + 1
        stats = replay.stats()
        assert {name: stats["pushes"][name] for name in said} == said
        assert adds_up(stats["pushes"])
        assert all(adds_up(one) for one in stats["actors"])
        assert stats["tables"][0]["items"] == items


def test_a_session_is_known_after_its_actor_has_gone():
    replay = core()
    actor = Pushing(replay)
    replay.push(actor.actor, actor.payload(), 1)
    replay.leave(actor.actor)
    replay.resume("b", 1, "default", 2, [], 1)  # whoever joins clears away what has gone
    assert replay.stats()["sessions"] == 1
    before = actor.actor
    found = actor.again(2)
    assert found[1:] == (actor.streams, 1, True)
    assert found[0] != before
    assert replay.push(actor.actor, actor.payload(), 2) == (1, 0)
    table_of = replay.stats()["tables"][0]
    assert (table_of["items"], table_of["inserted"]) == (2, 2)


def test_a_server_without_its_state_adopts_streams_that_nobody_has():
    actor = Pushing(core(5))
    payloads = [actor.payload() for _ in range(4)]
    for number in (1, 2):
        actor.replay.push(actor.actor, payloads[number - 1], number)
    fresh = core(100)
    assert actor.again(3, fresh)[1:] == (actor.streams, 0, False)
    assert fresh.push(actor.actor, payloads[2], 3) == (1, 0)
    assert fresh.push(actor.actor, payloads[3], 4) == (1, 0)
    assert fresh.stats()["tables"][0]["inserted"] == 2, "what another server was told of is not told anew"
    other = core(actor.streams[0])
    other.join("somebody", 1)
    assert actor.again(3, other)[1] != actor.streams
    with pytest.raises(ProtocolError, match="not one of this actor's"):
        other.push(actor.actor, payloads[2], 3)


def test_another_session_of_the_same_name_replaces_its_predecessor():
    replay = core()
    old, new = Pushing(replay, 1), Pushing(replay, 2)
    assert new.streams != old.streams
    with pytest.raises(ServerError, match="replaced"):
        replay.push(old.actor, old.payload(), 1)
    assert replay.push(new.actor, new.payload(), 1) == (1, 0)


def test_a_memory_that_is_forgotten_keeps_its_keys_and_what_was_asked_for():
    actor = Pushing(core())
    before = actor.payload()
    actor.memory.forget()
    assert actor.memory.draw(0, 1, 1 << 20, 0) is None, "it was sent, and its owner sends it again"
    actor.memory.missing(0, np.array([actor.streams[0] << 36], np.uint64))
    actor.memory.forget()
    again = actor.memory.draw(0, 1, 1 << 20, 0)
    assert again is not None
    assert again[192 : 192 + 8].tobytes() == before[192 : 192 + 8].tobytes()
