"""One client that sends without a pause does not keep the others waiting: between two messages of anybody else at most one of it is handled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from memsvc_client import ZmqEndpoint
from memsvc_client.welcome import greet, hello_message
from memsvc_proto.errors import WindowFull
from memsvc_proto.wire import HEADER_BYTES, Kind, Message
from serving import UNION, config, until

import memsvc

HANDLING_S = 0.004
"""What a push takes at the server, so that the order of what is handled can be seen on any machine."""
LARGE, SMALL = 300_000, 2_000
ROUNDS = 15


class Handled:
    """The server's engine, with pushes that take their time and are counted by client, instead of being stored."""

    def __init__(self, server: Any) -> None:
        self.counts: dict[str, int] = {}
        self._handle = server.engine.handle
        server.engine.handle = self.handle

    def handle(self, peer: Any, message: Message) -> None:
        if message.kind is not Kind.PUSH:
            return self._handle(peer, message)
        name = peer.member.name
        time.sleep(HANDLING_S)
        self.counts[name] = self.counts.get(name, 0) + 1
        return None


@pytest.fixture
def server() -> Iterator[Any]:
    with memsvc.Server(config("tcp://127.0.0.1:0", UNION)) as one:
        yield one


def link(server: Any, name: str, shared: bool) -> Any:
    """A door link of an actor, over shared memory or by the socket alone."""
    made = ZmqEndpoint(server.address, shared=shared).connect("door")
    greet(made, hello_message(1, "actor", name, 1), 10, "here")
    if shared:
        made.share(1 << 22, 1 << 16)
        until(lambda: made.receive(0.01) is not None or made.transport == "shared")
    return made


def push(one: Any, size: int, seq: int) -> bool:
    """False where there is no room, in the ring where there is one: as an actor does it."""
    try:
        if one.transport == "shared" and one.reserve(HEADER_BYTES + size) is None:
            return False
        one.send(Message(Kind.PUSH, seq), np.zeros(HEADER_BYTES + size, np.uint8))
    except WindowFull:
        return False
    return True


@pytest.mark.parametrize("flood", ["shared", "socket"])
@pytest.mark.parametrize("quiet", ["shared", "socket"])
def test_a_flooding_actor_does_not_delay_another_ones_push(server: Any, quiet: str, flood: str) -> None:
    loud, still = link(server, "loud", flood == "shared"), link(server, "still", quiet == "shared")
    handled, stop = Handled(server), threading.Event()

    def flooding() -> None:
        seq = 1
        while not stop.is_set():
            seq += 1
            if not push(loud, LARGE, seq):
                stop.wait(0.001)

    thread = threading.Thread(target=flooding)
    thread.start()
    try:
        until(lambda: handled.counts.get("loud", 0) > 5)
        between = []
        for number in range(1, ROUNDS + 1):
            before = handled.counts["loud"]
            assert push(still, LARGE if number % 2 else SMALL, number + 1)
            until(lambda number=number: handled.counts.get("still", 0) >= number)
            between.append(handled.counts["loud"] - before)
            time.sleep(HANDLING_S * 1.5)
    finally:
        stop.set()
        thread.join()
        loud.close()
        still.close()
    # The one that is being handled, the next, and, by the socket, what comes while the message is on its way; 48 where zmq is not asked.
    assert np.median(between) <= 3
    assert np.quantile(between, 0.9) <= 8, between
