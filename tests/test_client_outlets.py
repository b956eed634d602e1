"""What an actor sends, and when: outlets and gates, without threads and without a core."""

from __future__ import annotations

import math

import numpy as np
import pytest
from memsvc_client.caches import CacheOutlet
from memsvc_client.gate import ASK_AGAIN_S, HAND_BACK_S, KEPT_ALL, Gate
from memsvc_client.outlet import HEAD, Head, head_of
from memsvc_client.union import AllOutlet
from memsvc_proto.wire import HEADER_BYTES

INF = float("inf")
LIMITED = {"name": "replay", "limits": {"samples_per_insert": 2.0, "tolerance": 40.0}, "actor": {"linger_ms": 20}}


class FakeMemory:
    """Payloads with the head that is asked for, and a record of what was asked."""

    def __init__(self, *, caches=True):
        self.caches, self.population, self.waiting, self.inserted = caches, 0, (0, 0), 0
        self.asked, self.gates, self.allowed, self.lowered, self.silent = [], [], None, False, False

    def draw(self, table, draws, max_bytes, head, out):
        self.asked.append(draws)
        if self.silent:
            return None
        frame = np.zeros(head + 192, np.uint8)
        items = 0 if self.caches else min(draws, self.waiting[0])
        self.waiting = (self.waiting[0] - items, 0)
        fields = Head._make([0] * len(Head._fields))._replace(
            items=items,
            draws=draws if self.caches and self.population else 0,
            population=self.population,
            inserted=self.inserted,
            unsent=self.waiting[0],
            allowed=self.allowed if self.lowered else KEPT_ALL,
        )
        self.lowered = False
        HEAD.pack_into(frame.data, head, *fields)
        return frame

    def unsent(self, table):
        return self.waiting

    def gate(self, table, allowed, blocked):
        self.lowered = allowed is not None and (self.allowed is None or allowed < self.allowed)
        self.allowed = allowed
        self.gates.append((allowed, blocked))

    def stats(self):
        return {"tables": [{"inserted": self.inserted}]}


def push(outlet, seq, now, added):
    """One push, as the pusher makes it; returns its head, None where there was nothing to say."""
    frame = outlet.payload(now, added)
    if frame is None:
        return None
    outlet.sent(seq, frame, now)
    return head_of(frame)


def test_the_head_is_that_of_the_core():
    assert HEAD.size + 5 * 8 == 192  # cpp/core/cache.h: five numbers are reserved
    frame = np.zeros(HEADER_BYTES + 192, np.uint8)
    HEAD.pack_into(frame.data, HEADER_BYTES, *range(len(Head._fields)))
    assert head_of(frame) == Head(*range(len(Head._fields)))


# Caches.

SETTINGS = {"actor": {"select": "prioritized", "cache": 10, "every": 50, "linger_ms": 20}}


def test_a_cache_at_least_every_so_many_steps():
    memory = FakeMemory()
    outlet = CacheOutlet(0, SETTINGS, memory, 1 << 20)
    assert outlet.due(0.0, 0) == INF
    memory.population = outlet.mark = 40
    assert outlet.due(0.0, 40) == 0.0  # the first report
    push(outlet, 1, 0.0, 40)
    assert memory.asked == [0]
    assert outlet.due(0.0, 40) == INF
    outlet.mark = 41
    assert outlet.due(0.0, 41) == pytest.approx(1.0)
    assert outlet.steps_left(41) == 9
    outlet.mark = 50
    assert outlet.due(0.1, 50) == 0.0
    push(outlet, 2, 0.1, 50)
    assert memory.asked == [0, 10]
    assert outlet.due(0.1, 50) == INF


def test_without_replacement_only_what_is_asked_for():
    memory = FakeMemory()
    outlet = CacheOutlet(0, {"actor": SETTINGS["actor"] | {"select": "without_replacement"}}, memory, 1 << 20)
    memory.population = outlet.mark = 40
    push(outlet, 1, 0.0, 40)
    outlet.mark = 500
    assert outlet.due(0.1, 500) == pytest.approx(0.9)  # the totals, after a second
    assert push(outlet, 2, 1.0, 500).draws == 0
    outlet.acknowledged(2, 25, 1.0)
    assert outlet.due(1.0, 500) == 0.0
    assert push(outlet, 3, 1.0, 500).draws == 25
    outlet.flushing = True
    assert push(outlet, 4, 1.0, 500).draws == 0


def test_demand_is_a_level():
    memory = FakeMemory()
    memory.population = 100
    outlet = CacheOutlet(0, SETTINGS, memory, 1 << 20)
    push(outlet, 1, 0.0, 0)
    outlet.acknowledged(1, 25, 1.0)
    assert outlet.due(1.0, 0) == 0.0
    push(outlet, 2, 1.0, 0)
    assert memory.asked[-1] == 25
    assert outlet.wanted == 0
    outlet.acknowledged(1, 30, 1.0)  # 25 of these are on their way
    assert outlet.wanted == 5
    assert outlet.due(1.0, 0) == pytest.approx(0.02)  # fewer than a cache: a little later, with others
    assert outlet.due(1.02, 0) == 0.0
    outlet.acknowledged(2, 0, 1.1)
    assert outlet.wanted == 0


def test_nothing_drawable_is_not_asked_again_and_again():
    memory = FakeMemory()
    outlet = CacheOutlet(0, SETTINGS, memory, 1 << 20)
    push(outlet, 1, 0.0, 5)
    outlet.acknowledged(1, 100, 0.0)
    outlet.mark = 5
    push(outlet, 2, 0.0, 5)
    assert outlet.due(0.0, 5) == INF
    memory.population, outlet.mark = 1, 6
    assert outlet.due(0.0, 6) == 0.0


@pytest.mark.parametrize(("limit", "due"), [(0, 0.0), (5, 0.0), (-1, INF)])
def test_what_grows_stale_leaves_the_table_at_once(limit, due):
    outlet = CacheOutlet(0, SETTINGS | {"limits": {"max_staleness": limit}}, FakeMemory(), 1 << 20)
    outlet.aged()
    assert outlet.due(0.0, 0) == due


def test_other_settings_are_reported_at_once():
    memory = FakeMemory()
    outlet = CacheOutlet(0, SETTINGS, memory, 1 << 20)
    outlet.configure(SETTINGS | {"priority": {"exponent": 0.1}})
    assert outlet.due(0.0, 0) == 0.0
    push(outlet, 1, 0.0, 0)
    assert outlet.due(0.0, 0) == INF
    assert memory.gates == []


# Everything once.


def test_everything_is_sent_in_full_messages_or_after_linger():
    memory = FakeMemory(caches=False)
    memory.inserted = 1
    outlet = AllOutlet(0, {"actor": {"linger_ms": 20}}, memory, 1000, 100)
    assert outlet.due(0.0, 0) == INF
    memory.waiting = (3, 300)
    assert outlet.due(1.0, 3) == pytest.approx(0.02)
    assert outlet.steps_left(3) == 7
    assert outlet.due(1.015, 3) == pytest.approx(0.005)
    assert outlet.due(1.02, 3) == 0.0
    memory.waiting = (12, 1200)
    assert outlet.due(1.0, 12) == 0.0
    memory.waiting = (1, 100)
    outlet.flushing = True
    assert outlet.due(1.0, 13) == 0.0


def test_the_memory_is_asked_for_short_episodes_while_no_item_was_made():
    memory = FakeMemory(caches=False)
    memory.silent = True
    outlet = AllOutlet(0, {"actor": {"linger_ms": 20}}, memory, 1000, 100)
    outlet.mark = 3
    assert outlet.due(1.0, 3) == pytest.approx(0.02)
    assert outlet.due(1.02, 3) == 0.0
    assert push(outlet, 1, 1.02, 3) is None
    assert outlet.due(1.02, 3) == INF
    outlet.mark, memory.silent, memory.inserted = 4, False, 1
    outlet.due(1.1, 3)
    push(outlet, 1, 1.2, 3)
    outlet.mark = 5
    assert outlet.due(2.0, 5) == INF  # from now on nothing but items is worth a message


BLOCKING = {"name": "queue", "actor": {"linger_ms": 20}, "capacity": {"items": 8, "when_full": "block"}}


def test_a_full_table_is_asked_for_room_and_gets_no_more_than_that():
    memory = FakeMemory(caches=False)
    outlet = AllOutlet(0, BLOCKING, memory, 1000, 100)
    memory.waiting = (5, 500)
    assert outlet.due(0.0, 5) == 0.0
    assert outlet.blocked
    head = push(outlet, 1, 0.0, 5)
    assert (head.items, head.unsent, memory.asked) == (0, 5, [0])
    assert outlet.due(0.0, 5) == pytest.approx(1.0)  # asked once, and again in a while
    assert outlet.blocked
    outlet.acknowledged(1, 3, 0.1)
    memory.waiting = (5, 500)
    assert outlet.due(0.1, 5) == pytest.approx(0.02)
    assert not outlet.blocked
    assert push(outlet, 2, 0.12, 5).items == 3
    assert memory.waiting[0] == 2
    assert outlet.due(0.12, 5) == 0.0  # there is no room left, so it is asked for again
    assert outlet.blocked
    outlet.acknowledged(1, 3, 0.13)  # sent before push 2 arrived: those three are used
    assert outlet.due(0.12, 5) == 0.0
    assert outlet.blocked
    push(outlet, 3, 0.13, 5)
    outlet.acknowledged(3, 2, 0.2)
    assert push(outlet, 4, 0.3, 5).items == 2
    assert outlet.due(0.3, 5) == INF
    assert not outlet.blocked


def test_a_new_server_has_given_no_room():
    memory = FakeMemory(caches=False)
    outlet = AllOutlet(0, BLOCKING, memory, 1000, 100)
    outlet.acknowledged(0, 8, 0.0)
    outlet.restart()
    memory.waiting = (1, 100)
    assert outlet.due(0.0, 1) == 0.0
    assert outlet.blocked


# The rate limiter's allowance.


def limited(memory, **settings):
    return CacheOutlet(0, LIMITED | settings, memory, 1 << 20)


def test_before_the_first_word_of_the_server_nothing_is_allowed():
    memory = FakeMemory()
    outlet = limited(memory)
    assert memory.gates == [(0, False)]
    assert outlet.due(0.0, 0) == 0.0  # it is asked for
    assert push(outlet, 2, 0.0, 0).allowed == 0
    assert outlet.due(0.0, 0) == INF
    outlet.gate.granted(2, 20, -3.5, 0.0)
    assert memory.gates[-1] == (20, False)
    assert outlet.gate.ahead == -3.5


def test_half_of_the_allowance_is_reported_at_once_and_the_rest_soon():
    memory = FakeMemory()
    outlet = limited(memory)
    push(outlet, 2, 0.0, 0)
    outlet.gate.granted(2, 20, 0.0, 0.0)
    assert outlet.steps_left(0) == 11
    memory.population, memory.inserted, outlet.mark = 100, 10, 10
    push(outlet, 3, 0.01, 10)
    outlet.gate.granted(3, 20, 0.0, 0.01)
    memory.inserted = outlet.mark = 12
    assert outlet.due(0.02, 12) == pytest.approx(0.01 + HAND_BACK_S - 0.02)
    memory.inserted = outlet.mark = 16
    assert outlet.due(0.02, 16) == 0.0


def test_an_allowance_that_crossed_another_push_counts():
    memory = FakeMemory()
    outlet = limited(memory)
    push(outlet, 2, 0.0, 0)
    outlet.gate.granted(2, 20, 0.0, 0.0)
    memory.inserted = outlet.mark = 5
    push(outlet, 3, 0.0, 5)
    outlet.gate.granted(2, 35, 0.0, 0.0)
    assert memory.allowed == 35


def test_what_cannot_be_drawn_is_tried_once_and_the_totals_go_all_the_same():
    memory = FakeMemory()
    outlet = CacheOutlet(0, SETTINGS, memory, 1 << 20)
    outlet.acknowledged(0, 64, 0.0)
    outlet.mark, outlet.flushing, memory.silent = 5, True, True
    assert push(outlet, 1, 0.0, 5) is None
    memory.silent = False
    assert outlet.due(0.0, 5) == 0.0
    push(outlet, 1, 0.0, 5)
    assert memory.asked == [64, 0]
    assert not outlet.flushing
    assert outlet.due(0.0, 5) == INF


def test_what_is_not_used_is_handed_back():
    memory = FakeMemory()
    outlet = limited(memory)
    push(outlet, 2, 0.0, 0)
    outlet.gate.granted(2, 20, 0.0, 0.0)
    memory.inserted = outlet.mark = 15
    push(outlet, 3, 0.05, 15)
    assert outlet.due(0.06, 15) == pytest.approx(0.05 + HAND_BACK_S - 0.06)
    assert outlet.due(0.05 + HAND_BACK_S, 15) == 0.0
    head = push(outlet, 4, 0.05 + HAND_BACK_S, 15)
    assert (head.inserted, head.allowed) == (15, 15)
    assert outlet.due(0.2, 15) == INF
    outlet.gate.granted(3, 40, 0.0, 0.2)  # was on its way
    assert memory.allowed == 15


def test_a_caller_that_waits_is_told_of_until_more_is_allowed():
    memory = FakeMemory()
    outlet = limited(memory)
    push(outlet, 2, 0.0, 0)
    assert outlet.due(0.1, 0) == INF
    outlet.gate.awaited = True
    assert outlet.due(0.1, 0) == 0.0
    push(outlet, 3, 0.1, 0)
    assert outlet.due(0.1, 0) == pytest.approx(ASK_AGAIN_S)
    outlet.gate.granted(3, 1, 0.0, 0.2)
    memory.inserted = outlet.mark = 1
    assert outlet.due(0.2, 1) == 0.0
    push(outlet, 4, 0.2, 1)  # says both: one more item, and that it waits again
    assert outlet.due(0.2, 1) == pytest.approx(ASK_AGAIN_S)


def test_a_memory_with_nothing_to_say_is_not_asked_in_a_circle():
    memory = FakeMemory(caches=False)
    memory.silent = True
    outlet = AllOutlet(0, LIMITED, memory, 1000, 100)
    outlet.gate.awaited = True
    for _ in range(3):
        if outlet.due(0.0, 0) == 0.0:
            push(outlet, 2, 0.0, 0)
    assert len(memory.asked) <= 2
    assert outlet.due(0.0, 0) > 0


def test_who_waits_says_so_although_the_server_wants_draws_that_are_not_there():
    memory = FakeMemory()
    outlet = limited(memory)
    push(outlet, 2, 0.0, 0)
    outlet.acknowledged(2, 16, 0.0)
    outlet.gate.awaited, memory.silent = True, True
    assert outlet.due(0.0, 0) == 0.0
    assert push(outlet, 3, 0.0, 0) is None
    memory.silent = False
    assert outlet.due(0.0, 0) == 0.0
    push(outlet, 3, 0.0, 0)
    assert memory.asked == [0, 16, 0]


def test_a_limiter_that_comes_and_goes():
    memory = FakeMemory()
    gate = Gate(0, {"name": "t"}, memory)
    assert memory.gates == []
    gate.configure(LIMITED)
    assert memory.gates == [(0, False)]
    gate.granted(1, 9, 0.0, 0.0)
    gate.configure(LIMITED | {"limits": {"samples_per_insert": 4.0, "tolerance": 40.0}})
    assert memory.allowed == 9
    gate.configure({"name": "t", "limits": {"samples_per_insert": 0.0}})
    assert memory.allowed is None
    assert gate.due(1.0) == math.inf


def test_why_add_waits():
    memory = FakeMemory()
    gate = Gate(0, LIMITED | {"capacity": {"items": 1000, "when_full": "block"}}, memory)
    text, details = gate.why()
    assert "allows this actor no more than 0 items of table 'replay'" in text
    gate.granted(1, 20, 17.0, 0.0)
    assert gate.why() is None
    memory.inserted = 20
    text, details = gate.why()
    assert "ahead of its learners by 17 items" in text
    assert "limits.samples_per_insert = 2 with limits.tolerance = 40" in text
    assert details == {"table": "replay", "ahead": 17.0, "setting": "limits.samples_per_insert"}
    memory.waiting = (12, 1200)
    assert not gate.block(True, None)
    text, details = gate.why()
    assert "table 'replay' is full (capacity.items = 1,000)" in text
    assert "by 12 items" in text
    assert details == {"table": "replay", "ahead": 12, "setting": "capacity.when_full"}
    assert gate.block(False, None)
    assert not gate.block(False, None)
    assert memory.gates[-2:] == [(20, True), (20, False)]


def test_a_full_table_stops_the_memory_exactly():
    memory = FakeMemory(caches=False)
    outlet = AllOutlet(0, BLOCKING, memory, 1000, 100)
    assert outlet.places == 1  # one item may be made, which asks for room
    memory.inserted, memory.waiting = 1, (1, 100)
    outlet.due(0.0, 2)
    push(outlet, 2, 0.0, 2)
    outlet.acknowledged(2, 4, 0.0)
    assert outlet.places == 5
    memory.inserted, memory.waiting = 3, (3, 300)
    push(outlet, 3, 0.1, 4)
    assert outlet.places == 5
    outlet.acknowledged(3, 3, 0.2)
    assert outlet.places == 7
    assert outlet.gate.block(outlet.blocked, outlet.places)
    assert memory.gates[-1] == (7, False)
    memory.inserted = 7  # all stale by now: none waits, none was sent
    outlet.acknowledged(3, 0, 0.2)
    outlet.gate.awaited = True
    assert outlet.due(0.2, 9) == 0.0
    push(outlet, 4, 0.2, 9)
    assert outlet.places == 8


def test_who_hands_back_says_by_itself_that_it_waits():
    memory = FakeMemory()
    outlet = limited(memory)
    outlet.gate.awaited = True
    assert push(outlet, 2, 0.0, 0).allowed == 0
    assert outlet.due(0.0, 0) == 0.0
    assert push(outlet, 3, 0.0, 0).allowed == KEPT_ALL
    assert outlet.due(0.0, 0) == pytest.approx(ASK_AGAIN_S)
