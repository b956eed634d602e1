"""Rules of tables one by one: the limiter's band and its beginning, allowances handed back, steps of sequences, tickets, items that are lost."""

from __future__ import annotations

import numpy as np
import pytest
from memsvc_core import TableSpec
from memsvc_proto.errors import WindowFull
from rig import Rig, table

FIELDS = [("obs", "<f4", ())]
LIMITS = {"samples_per_insert": 1.0, "tolerance": 40.0, "min_items": 100}


def union(**changes):
    return table(actor={"select": "all"}, **changes)


def add(peer, n, version=0):
    """Steps until the gate closes; returns how many."""
    for i in range(n):
        try:
            peer.memory.add(0, {"obs": np.float32(1)}, None, version)
        except WindowFull:
            return i
    return n


def told(rig, peer, draws=0):
    """A push, and the allowance that answers it."""
    rig.push(peer, draws)
    allowed, _ = rig.replay.allowance(peer.number, 0)
    peer.memory.gate(0, allowed, False)


def take(rig, batch, ticket=0):
    out = np.zeros(rig.specs[0].layout(batch)[0], np.uint8)
    return rig.replay.draw(0, batch, out, 0, None, ticket)


def filled():
    """An actor that has inserted all it may."""
    rig = Rig(FIELDS, union(limits=LIMITS))
    peer = rig.join()
    for _ in range(60):
        told(rig, peer)
        add(peer, 50)
    told(rig, peer)
    return rig, peer


def test_actors_are_ahead_by_half_the_tolerance_at_most_counted_from_min_items_on():
    rig, _ = filled()
    limiter = rig.stats()["limiter"]
    assert limiter["ahead"] == pytest.approx(20)
    assert 100 <= limiter["inserted"] - 20 <= 100 + 16  # min_items were there between two pushes
    drawn = 0
    while take(rig, 1):
        drawn += 1
    assert drawn == 40


def test_a_batch_that_is_put_back_was_not_sampled_unless_the_limiter_began_anew():
    rig, _ = filled()
    assert take(rig, 16, 1)
    assert rig.stats()["limiter"]["ahead"] == pytest.approx(4)
    rig.replay.put_back(0, 1)
    assert rig.stats()["limiter"]["ahead"] == pytest.approx(20)
    assert take(rig, 16, 2)
    rig.replay.configure(0, TableSpec(rig.schema, union(limits=LIMITS | {"tolerance": 50.0})))
    assert rig.stats()["limiter"]["ahead"] == 0
    rig.replay.put_back(0, 2)
    assert rig.stats()["limiter"]["ahead"] == 0


def test_what_one_actor_hands_back_another_may_use():
    rig = Rig(FIELDS, union(limits=LIMITS | {"min_items": 1}))
    first, second = rig.join(), rig.join()
    for peer in (first, second):
        told(rig, peer)
        add(peer, 1)
    told(rig, first)
    told(rig, second)
    stats = first.memory.stats()["tables"][0]
    first.memory.gate(0, stats["inserted"], False)  # handed back
    rig.push(first, 0)
    for _ in range(20):
        add(second, 50)
        told(rig, second)
    assert rig.stats()["limiter"]["ahead"] == pytest.approx(20)


def test_an_item_of_a_sequence_counts_for_the_steps_it_begins_with():
    rig = Rig(FIELDS, union(item={"kind": "sequence", "length": 6, "stride": 2, "tail": "drop"}, capacity={"per_actor_steps": 20}))
    peer = rig.join()
    for _ in range(20):
        add(peer, 10)
        rig.push_all(peer)
    assert rig.stats()["items"] == 10


def test_what_comes_too_late_for_its_version_is_not_drawn():
    rig = Rig(FIELDS, union(limits={"max_staleness": 2}))
    peer = rig.join()
    add(peer, 11, version=1)
    rig.replay.publish("default", 4)  # the actor has not heard of it
    rig.push_all(peer)
    stats = rig.stats()
    assert (stats["items"], stats["population"], stats["aged"]) == (0, 0, 10)


def test_an_update_of_an_item_that_the_memory_has_lost_since_does_not_stay_in_the_weight():
    rig = Rig(FIELDS, table(priority={"exponent": 1.0}, actor={"max_steps": 40}))
    peer = rig.join()
    add(peer, 30)
    rig.push(peer, 64)
    keys = np.unique(rig.draw(32)["keys"])
    rig.replay.update(0, keys, np.full(len(keys), 50.0))
    assert rig.replay.take_feedback(peer.number, 0) is not None  # on its way: the next report does not contain it
    peer.memory.end(0, True, None)
    add(peer, 35)  # all that was updated is gone
    rig.push(peer, 64)
    assert rig.stats()["total"] == pytest.approx(peer.memory.stats()["tables"][0]["total"])


def test_a_limiter_does_not_stop_both_sides_when_items_go():
    rig, peer = filled()
    rig.replay.configure(0, TableSpec(rig.schema, union(limits=LIMITS | {"min_items": 300})))
    drawn = 0
    for _ in range(200):
        told(rig, peer)
        add(peer, 50)
        drawn += bool(take(rig, 8))
    assert drawn > 0
    assert rig.stats()["population"] >= 300


def test_an_open_ticket_is_not_given_twice():
    rig = Rig(FIELDS, union(limits={"max_times_sampled": 1}))
    peer = rig.join()
    add(peer, 20)
    rig.push_all(peer)
    assert take(rig, 4, 7)
    assert take(rig, 4, 7) is None
    rig.replay.taken(0, 7)
    assert take(rig, 4, 7)


def test_a_namesake_goes_on_where_its_predecessor_stopped():
    rig = Rig(FIELDS, union(capacity={"per_actor_steps": 30}))
    for _ in range(3):
        peer = rig.join("one")
        add(peer, 26)
        rig.push_all(peer)
    assert rig.stats()["items"] == 30
