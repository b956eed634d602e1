"""Parts of the server that need no socket: time, demand, versions, and the frames of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from memsvc_proto.wire import Kind, Message

import memsvc
from memsvc.demand import Demand
from memsvc.engine import Engine
from memsvc.parameters import Parameters
from memsvc.peer import Peer
from memsvc.pool import Pool

SETTINGS = {"server": {"memory": "1MiB"}, "step": {"obs": {"dtype": "float32"}}, "table": [{"name": "replay"}]}


class Recorder(Peer):
    """A peer that keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__("draw")
        self.got: list[Message] = []

    def send(self, message: Message, frame: Any = None) -> None:
        self.got.append(message)

    def in_flight(self) -> int:
        return 0


def test_time_is_a_parameter_of_the_engine() -> None:
    now = [100.0]
    engine = Engine(memsvc.Config.from_dict(SETTINGS), clock=lambda: now[0])
    peer = Recorder()
    engine.handle(peer, Message(Kind.SAMPLE, 1, a=8, f=0.5))
    engine.tick()
    now[0] = 100.49
    engine.tick()
    assert peer.got == []
    now[0] = 100.5
    engine.tick()
    assert [(m.kind, m.seq) for m in peer.got] == [(Kind.WAIT, 1)]


def test_demand_follows_what_is_taken() -> None:
    demand = Demand()
    assert demand.level(0.0) == 1024
    demand.asked(512)
    demand.asked(8)
    assert demand.level(0.0) == 2048
    for i in range(100):
        demand.took(256, 1.0 + i * 0.001)
    assert demand.level(1.1) == 25_600
    assert demand.level(1.2) == 25_600
    assert demand.level(2.0) == 2048


def test_versions_start_above_whatever_was_reported() -> None:
    parameters = Parameters()
    parameters.reported({"": 7, "b": 2})
    parameters.reported({"": 3})
    assert parameters.newest("") == (0, b"")
    assert [parameters.publish("", b"x"), parameters.publish("", b"yy"), parameters.publish("b", b"z"), parameters.publish("c", b"")] == [8, 9, 3, 1]
    assert parameters.newest("") == (9, b"yy")
    assert parameters.versions() == {"": 9, "b": 3, "c": 1}


@pytest.mark.parametrize(
    "look",
    [
        lambda frame: frame,
        lambda frame: frame[64:].view(np.float32),
        lambda frame: frame.data[8:],
        lambda frame: np.frombuffer(frame.data, np.uint8)[4:9],
        lambda frame: memoryview(frame),
    ],
    ids=["frame", "view of an array", "memoryview", "array of a memoryview", "whole memoryview"],
)
def test_frames_are_reused_only_when_nobody_looks(look: Callable[[Any], Any]) -> None:
    pool = Pool(1 << 20)

    def place() -> int:
        frame = pool.take(1000)
        assert len(frame) == 1000
        assert frame.ctypes.data % 64 == 0
        return int(frame.ctypes.data)

    first = place()
    assert place() == first
    seen = look(pool.take(1000))
    assert place() != first
    assert pool.bytes == 2000
    del seen
    assert place() == first
    assert pool.bytes == 2000


def test_the_pool_is_bounded() -> None:
    pool = Pool(10_000)
    held = [pool.take(3000) for _ in range(10)]
    assert pool.bytes == 9000
    assert len({frame.ctypes.data for frame in held}) == 10
    del held
    big = pool.take(9000)
    assert pool.bytes == 9000
    assert len(big) == 9000
