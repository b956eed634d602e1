"""Processes and threads: forks, ends of programs, sixteen threads, peers that are dead or stopped, Ctrl-C, ports that are taken, restarts."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memsvc_client import Actor, Learner
from memsvc_proto.errors import Closed, ConfigError, MemsvcError, NotReady
from proxy import Proxies
from serving import UNION, background, config, serve, until

import memsvc

PROGRAM = Path(__file__).parent / "lifetimes.py"


def run(*arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """A program of lifetimes.py, and how long it took."""
    began = time.monotonic()
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", str(PROGRAM), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done, time.monotonic() - began


def numbered(i: int) -> dict[str, Any]:
    return {"obs": np.full(3, i, np.float32), "action": i, "reward": 0.0, "priority": 1.0}


def play(actor: Actor, steps: int = 20) -> None:
    for i in range(steps):
        actor.add(**numbered(i))
    actor.end_episode(True)


@pytest.mark.parametrize("parent", ["unused", "used", "busy"])
@pytest.mark.parametrize("role", ["actor", "learner", "server"])
@pytest.mark.parametrize("method", ["fork", "bare", "spawn", "forkserver"])
def test_a_child_of_a_process_with_clients_works_and_so_does_its_parent(tmp_path, method, role, parent):
    if method in ("spawn", "forkserver") and parent == "unused":
        pytest.skip("nothing is inherited")
    with serve("tcp", tmp_path) as served, served.actor() as actor:
        play(actor)
        actor.flush()
        done, _ = run(method, role, parent, served.where)
        assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")
        added = {"actor": 10 * (1 + (parent != "unused") + 1), "learner": 0, "server": 0}[role]
        assert served.table()["inserted"] >= 20 + added


@pytest.mark.parametrize("role", ["actor", "learner", "server"])
@pytest.mark.parametrize("how", ["end", "error", "busy", "at-once"])
def test_a_program_that_ends_without_close(tmp_path, how, role):
    with serve("tcp", tmp_path) as served, served.actor() as actor:
        play(actor)
        actor.flush()
        done, took = run(how, role, "", served.where)
        assert took < 20, "it hung"
        if how == "error":
            assert done.returncode == 1
            assert done.stderr.count("Traceback") == 1
            assert done.stderr.rstrip().endswith("Dropped")
        else:
            assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")
        if role == "actor" and how != "busy":
            least = 30 if how == "at-once" else 40  # what had not left when the process vanished is gone
            until(lambda: served.table()["inserted"] >= least)
        until(lambda: served.server.stats()["connections"] <= 1, 40)


@pytest.mark.parametrize("kind", ["local", "tcp", "shared"])
def test_sixteen_threads_on_one_actor(tmp_path, kind, monkeypatch):
    monkeypatch.setenv("MEMSVC_SHARED", "1" if kind == "shared" else "0")
    with serve("local" if kind == "local" else "tcp", tmp_path, memory="32MiB") as served, served.actor(envs=16) as actor:

        def playing(env: int) -> None:
            for i in range(1000):
                actor.add(env=env, **numbered(env * 1000 + i))
                if i % 100 == 99:
                    actor.end_episode(True, env=env)
                if i % 250 == 0:
                    actor.flush(20)
                    actor.stats()

        for result in [background(lambda env=env: playing(env)) for env in range(16)]:
            assert result(60) is None
        actor.flush(20)
        assert served.table()["inserted"] == 16_000
        with served.learner(batch_size=512) as learner:
            seen = set()
            for _ in range(100):
                batch = learner.sample()
                assert (batch["obs"] == batch["action"][:, None]).all()
                seen |= set(batch["action"].tolist())
            assert len(seen) > 14_000


@pytest.mark.parametrize("kind", ["local", "tcp", "shared"])
def test_sixteen_threads_on_one_learner(tmp_path, kind, monkeypatch):
    monkeypatch.setenv("MEMSVC_SHARED", "1" if kind == "shared" else "0")
    with serve("local" if kind == "local" else "tcp", tmp_path) as served, served.actor() as actor, served.learner(batch_size=8) as learner:
        play(actor)
        actor.flush()
        rounds = 150

        def sampling(_: int) -> None:
            for _ in range(rounds):
                batch = learner.sample()
                assert (batch["obs"] == batch["action"][:, None]).all()

        def updating(k: int) -> None:
            for _ in range(rounds):
                learner.update_priorities(learner.sample().keys, np.full(8, 1.0 + k))

        def publishing(k: int) -> None:
            for i in range(rounds // 3):
                learner.publish({"w": np.full(50_000, k * rounds + i)})

        def fetching(_: int) -> None:
            for _ in range(rounds // 3):
                found = learner.params(timeout=20)
                assert found is None or len(set(found.arrays["w"].tolist())) == 1

        calls = [call for call in (sampling, updating, publishing, fetching) for _ in range(4)]
        for result in [background(lambda call=call, k=k: call(k)) for k, call in enumerate(calls)]:
            assert result(60) is None
        until(lambda: learner.stats()["applied"] == learner.stats()["updates"] == 4 * rounds * 8)
        assert learner.stats()["sampled"] == 2 * 4 * rounds
        assert learner.publish({"w": np.zeros(1)}) == 4 * (rounds // 3) + 1  # every version was given once


# Ends of peers.


@contextlib.contextmanager
def daemon(address: str = "tcp://127.0.0.1:0", *tables: dict[str, Any]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    code = f"import sys, memsvc; s = memsvc.Server({as_dict(address, *tables)!r}); print(s.address, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def as_dict(address: str, *tables: dict[str, Any]) -> dict[str, Any]:
    """A configuration that another process can read."""
    from serving import STEP

    return {"server": {"address": address, "memory": "8MiB", "control": "", "http": ""}, "step": STEP, "table": list(tables or (UNION,))}


@pytest.mark.parametrize("fate", ["killed", "stopped", "vanished"])
@pytest.mark.parametrize("kind", ["tcp", "shared"])
def test_close_does_not_wait_for_a_peer_that_says_nothing(kind, fate, monkeypatch):
    if kind == "shared" and fate == "vanished":
        pytest.skip("memory does not vanish")
    monkeypatch.setenv("MEMSVC_SHARED", "1" if kind == "shared" else "0")
    with daemon() as (process, address), Proxies(address) as network:
        where = network.endpoint() if fate == "vanished" else address
        actor, learner = Actor(where, timeout=10), Learner(where, batch_size=4, timeout=10)
        play(actor)
        actor.flush()
        learner.sample()
        waiting = [background(lambda: [learner.sample(30) for _ in range(1_000_000)])]
        waiting += [background(lambda: actor.params(30)), background(lambda: [learner.params(30) for _ in range(2)])]
        time.sleep(0.1)
        if fate == "killed":
            process.kill()
        elif fate == "stopped":
            process.send_signal(signal.SIGSTOP)
        else:
            network.drop()
        play(actor)
        waiting.append(background(lambda: actor.flush(30)))
        time.sleep(0.2)
        began = time.monotonic()
        unsent = actor.close()
        middle = time.monotonic()
        learner.close()
        took = middle - began, time.monotonic() - middle
        assert max(took) < 2.3, took
        assert unsent.items or unsent.bytes
        for result in waiting:
            assert isinstance(result(1.0), Closed)


# Ctrl-C.


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


# Starts.


def test_clients_that_are_started_before_their_server():
    with daemon() as (_, address):
        pass
    clients = [background(lambda: Actor(address, timeout=20)), background(lambda: Learner(address, batch_size=4, timeout=20))]
    time.sleep(0.5)
    with daemon(address):
        actor, learner = (client(20) for client in clients)
        play(actor)
        learner.sample(10)
        actor.close()
        learner.close()


def test_a_second_server_on_a_port_says_so_and_the_first_goes_on(tmp_path):
    with serve("tcp", tmp_path) as served, served.actor() as actor:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(ConfigError, match=f"{served.where}.*in use by another process") as caught:
                memsvc.Server(config(served.where))
            assert caught.value.details["path"] == "server.address"
        play(actor)
        actor.flush()
        caught = None
        gc.collect()
        until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def measured() -> tuple[int, int, int]:
    """(threads, descriptors, MB) of this process."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), resident


def test_twenty_restarts_in_one_process_on_one_port():
    with memsvc.Server(config("tcp://127.0.0.1:0", memory="16MiB")) as server:
        address = server.address
    actor, learner = Actor, Learner
    seen: list[tuple[int, int, int]] = []
    for _ in range(20):
        with memsvc.Server(config(address, memory="16MiB")) as server:
            with actor(address, timeout=10) as one, learner(address, batch_size=4, timeout=10) as other:
                play(one)
                other.sample(10)
            server.learner(batch_size=4).close()
        del server
        seen.append(measured())
    settled, last = seen[4], seen[-1]
    assert last[0] <= settled[0], seen
    assert last[1] <= settled[1], seen
    assert last[2] <= settled[2] + 16, seen


def test_a_call_that_waits_at_its_own_server_s_end(tmp_path):
    with serve("local", tmp_path) as served:
        actor, learner = served.actor(), served.learner(batch_size=4)
        waiting = [background(lambda: learner.sample(30)), background(lambda: actor.params(30))]
        with pytest.raises(NotReady):
            served.learner(batch_size=4).sample(0.1)
        served.server.close()
        for result in waiting:
            assert isinstance(result(2.0), MemsvcError)
        actor.close()
        learner.close()
