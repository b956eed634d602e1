"""Ctrl-C in each call that waits: it ends within a second, and the client goes on."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from daemon import daemon, numbered, play
from memsvc_client import Actor, Learner
from memsvc_proto.errors import Closed
from network import Proxies
from serving import UNION, config

import memsvc


@contextlib.contextmanager
def interrupted(after: float = 0.3) -> Iterator[None]:
    """A SIGINT comes while the block waits: KeyboardInterrupt within a second. A second one, where pyzmq has swallowed the first: it tells stderr
    (_check_rc) that it ignores an exception which its own send has met, once in some hundred times.
    """
    sent: list[float] = []
    over = threading.Event()

    def press() -> None:
        wait = after
        while len(sent) < 2 and not over.wait(wait):
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
            wait = 1.5

    pressing = threading.Thread(target=press)
    pressing.start()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
            raise AssertionError("the call did not wait")
        assert time.monotonic() - sent[-1] < 1.0
    finally:
        over.set()
        pressing.join()


LEARNER_CALLS: dict[str, Callable[[Learner], Any]] = {
    "sample": lambda learner: learner.sample(30),
    "iteration": lambda learner: list(learner),
    "update": lambda learner: [learner.update_priorities(np.ones(2000, np.uint64), np.ones(2000)) for _ in range(1_000_000)],
    "publish": lambda learner: learner.publish({"w": np.zeros(100_000)}),
    "params": lambda learner: learner.params(30),
    "get": lambda learner: learner.get(np.ones(1, np.uint64), 30),
    "delete": lambda learner: learner.delete(np.ones(1, np.uint64), 30),
    "configure": lambda learner: learner.configure({"priority.exponent": 0.5}, 30),
    "server_stats": lambda learner: learner.server_stats(30),
    "close": lambda learner: learner.close(20),
}


@pytest.mark.parametrize("call", LEARNER_CALLS)
@pytest.mark.parametrize("kind", ["tcp", "shared"])
def test_ctrl_c_in_a_learner_that_waits(kind, call, monkeypatch):
    monkeypatch.setenv("MEMSVC_SHARED", "1" if kind == "shared" else "0")
    with daemon() as (process, address), Learner(address, batch_size=4, timeout=20) as learner, Actor(address, timeout=10) as actor:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # it may answer until it has stopped
        with interrupted():
            LEARNER_CALLS[call](learner)
        process.send_signal(signal.SIGCONT)
        play(actor)
        if call == "close":
            learner.close()
            with pytest.raises(Closed):
                learner.sample()
        else:
            learner.sample(20)
            assert learner.publish({"w": np.zeros(100_000)}) >= 1
            assert learner.params(20) is not None
            learner.update_priorities(np.ones(1, np.uint64), np.ones(1))


ACTOR_CALLS: dict[str, Callable[[Actor], Any]] = {
    "add": lambda actor: [actor.add(**numbered(i)) for i in range(10_000_000)],
    "flush": lambda actor: actor.flush(30),
    "params": lambda actor: actor.params(30),
    "close": lambda actor: actor.close(20),
}


@pytest.mark.parametrize("call", ACTOR_CALLS)
@pytest.mark.parametrize("kind", ["tcp", "shared"])
def test_ctrl_c_in_an_actor_that_waits(kind, call, monkeypatch):
    monkeypatch.setenv("MEMSVC_SHARED", "1" if kind == "shared" else "0")
    table = UNION | {"actor": {**UNION["actor"], "max_steps": 500}}
    with daemon("tcp://127.0.0.1:0", table) as (process, address), Actor(address, timeout=30, window_bytes=10_000, message_bytes=1024) as actor:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # it may answer until it has stopped
        play(actor)
        with interrupted():
            ACTOR_CALLS[call](actor)
        process.send_signal(signal.SIGCONT)
        if call == "close":
            actor.close()
            with pytest.raises(Closed):
                actor.add(**numbered(1))
        else:
            play(actor)
            actor.flush(20)
            with Learner(address, batch_size=4, timeout=10) as learner:
                learner.publish({"w": np.zeros(1)})
                assert actor.params(10).version == 1


@pytest.mark.parametrize("client", [Actor, Learner])
def test_ctrl_c_while_a_client_looks_for_its_server(client):
    with daemon() as (_, address), Proxies(address) as network:
        network.freeze()
        with interrupted():
            client(network.endpoint(), timeout=30)
        network.resume()
        client(network.endpoint(), timeout=30).close()


def test_ctrl_c_while_a_server_takes_its_memory():
    settings = config("tcp://127.0.0.1:0", memory="256MiB")
    with interrupted(0.1):
        memsvc.Server(settings).close()
        time.sleep(1)  # where it took less than that
    gc.collect()
    memsvc.Server(config("tcp://127.0.0.1:0")).close()
