"""Hostile peers of a server that works: a short form of tests/fuzz/live.py (`make fuzz-live` is the long one), and what fuzzers found in the service.
What fuzzers of the core know is replayed by test_cpp.py.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zmq
from memsvc_proto.errors import ProtocolError
from memsvc_proto.wire import Kind
from serving import Inbox, serve, until

from memsvc.draws import MOST_TOPICS
from memsvc.hello import read_hello
from memsvc.parameters import Parameters, checked_topic

LIVE = Path(__file__).resolve().parent / "fuzz" / "live.py"
HALF = "\ud800"  # JSON can say it, UTF-8 cannot


def test_a_server_under_attack_serves_on_and_accounts_for_every_message() -> None:
    done = subprocess.run([sys.executable, str(LIVE), "--messages", "20000", "--calm", "1"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]


def test_a_peer_that_subscribes_to_everything_is_cut_off_and_followers_come_back(tmp_path: Path) -> None:
    with serve("tcp", tmp_path) as served, served.actor() as actor, served.learner() as learner:
        learner.publish({"w": np.zeros(4)})
        assert until(lambda: actor.params(timeout=10)).version == 1
        with zmq.Context() as context, contextlib.closing(context.socket(zmq.XSUB)) as greedy:
            greedy.setsockopt(zmq.LINGER, 0)
            greedy.setsockopt(zmq.SNDHWM, 0)
            greedy.connect(served.server.stats()["params"])
            for i in range(3 * MOST_TOPICS):
                greedy.send(b"\1" + i.to_bytes(4, "little"))
            until(lambda: served.server.stats()["counts"]["malformed"] > 0)
        learner.publish({"w": np.ones(4)})
        assert until(lambda: actor.params(), timeout=20).version == 2


def test_half_a_character_is_no_topic_and_no_name(tmp_path: Path) -> None:
    for wrong in ({"name": HALF}, {"host": HALF}, {"topic": HALF}, {"versions": {HALF: 1}}):
        with pytest.raises(ProtocolError):
            read_hello({"role": "actor", "name": "a", **wrong})
    with pytest.raises(ProtocolError):
        checked_topic(HALF)
    with serve("tcp", tmp_path) as served:
        peer = Inbox(served.server.engine)
        peer.hello("learner", "l")
        assert peer.ask(Kind.PUBLISH, meta={"topic": HALF}, body=b"").kind is Kind.ERROR
        assert served.server.stats()["counts"]["failures"] == 0


def test_a_version_that_no_server_reached_leaves_room_for_the_next_ones() -> None:
    parameters = Parameters()
    parameters.reported({"default": (1 << 62) - 1})
    version = parameters.publish("default", b"")
    read_hello({"role": "actor", "name": "a", "versions": {"default": version + (1 << 40)}})
