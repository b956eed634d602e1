"""Batches on their way are bounded in bytes over all learners: one that asks and does not read takes memory from nobody for good."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from memsvc_proto.wire import Kind, Message
from serving import Inbox, Playing, config

from memsvc.engine import Engine
from memsvc.local import LocalPeer
from memsvc.underway import COUNTED_BYTES, UnderWay

PLAIN = {"name": "plain", "actor": {"select": "all"}, "priority": {"source": "given", "exponent": 1.0}}
STEP = {"id": {"dtype": "int64"}}
BATCH = 1 << 15


class Unread(Inbox):
    """What it is sent stays in its memory until `read`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.held: list[Any] = []

    def send(self, message: Message, frame: Any = None) -> None:
        super().send(Message(message.kind, message.seq, message.table, message.a, meta=message.meta))
        if frame is not None:
            self.held.append(frame)

    def read(self) -> None:
        """All of it."""
        self.held.clear()


@pytest.fixture
def engine() -> Engine:
    engine = Engine(config("tcp://127.0.0.1:0", PLAIN, step=STEP))
    player = Playing(engine, "a")
    player.play(8)
    player.push()
    size = engine.tables[0].frame_bytes(BATCH)
    assert size >= COUNTED_BYTES
    engine.underway.most = 8 * size
    return engine


def batches(peer: Inbox) -> int:
    return len(peer.of(Kind.BATCH))


def test_learners_that_never_read_leave_room_for_one_that_does(engine: Engine) -> None:
    idle = [Unread(engine), Unread(engine)]
    for peer in idle:
        for _ in range(6):
            peer.sample(BATCH)
    assert [batches(peer) for peer in idle] == [4, 2], "each as much as is free"
    assert engine.stats()["queues"]["underway_bytes"] == 6 * engine.tables[0].frame_bytes(BATCH)
    reader = Unread(engine)
    for done in range(1, 20):
        reader.sample(BATCH)
        assert batches(reader) == done
        reader.read()


def test_who_waits_for_others_is_told_so_and_served_when_they_have_read(engine: Engine) -> None:
    idle, late, small = Unread(engine), Unread(engine), Unread(engine)
    for _ in range(4):
        idle.sample(BATCH)
    late.sample(5 * BATCH, timeout=0.0)
    late.sample(5 * BATCH)
    small.sample(4)
    assert (batches(late), batches(small)) == (0, 1), "what is small is not held up"
    engine.tick()
    (wait,) = late.of(Kind.WAIT)
    assert wait.meta == {"reason": "sending", "have": engine.underway.bytes, "need": engine.underway.most}
    idle.read()
    engine.tick()
    assert batches(late) == 1


def test_a_get_that_has_no_room_is_refused_with_the_reason(engine: Engine) -> None:
    engine.underway.most = COUNTED_BYTES
    peer = Unread(engine)
    keys = np.arange(BATCH, dtype=np.uint64)
    error = peer.ask(Kind.GET, b=len(keys), body=keys.tobytes())
    assert (error.kind, error.meta["code"], error.meta["details"]["reason"]) == (Kind.ERROR, "not_ready", "sending")


def test_a_frame_that_was_not_used_and_one_of_the_same_process_do_not_count(engine: Engine) -> None:
    underway: UnderWay = engine.underway
    frame = underway.frame(Unread(engine), COUNTED_BYTES)
    assert underway.bytes == COUNTED_BYTES
    del frame
    assert underway.bytes == 0
    kept = [underway.frame(LocalPeer("draw", engine), COUNTED_BYTES) for _ in range(40)]
    assert underway.bytes == 0
    assert all(one is not None for one in kept)
