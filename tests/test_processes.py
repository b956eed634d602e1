"""Processes and threads: forks, ends of programs, sixteen threads, peers that are dead or stopped, ports that are taken, restarts."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from daemon import daemon, numbered, play
from memsvc_client import Actor, Learner
from memsvc_proto.errors import Closed, ConfigError, MemsvcError, NotReady
from network import Proxies
from serving import background, config, serve, until

import memsvc

PROGRAM = Path(__file__).parent / "lifetimes.py"


def run(*arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """A program of lifetimes.py, and how long it took."""
    began = time.monotonic()
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", str(PROGRAM), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done, time.monotonic() - began


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
