"""Servers that die, sleep, move and cannot be reached: everything goes on by itself, and within a time that is told (-s prints it)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
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
from memsvc_client.endpoint import ZmqEndpoint
from memsvc_proto.errors import MemsvcError, NotReady, ProtocolError, Unreachable, WindowFull
from network import Proxies
from serving import STEP, UNION, background, serve, until

pytestmark = pytest.mark.timeout(200)


def settings(address: str, **server: Any) -> dict[str, Any]:
    return {"server": {"address": address, "memory": "16MiB", "control": "", "http": "", **server}, "step": STEP, "table": [UNION]}


@contextlib.contextmanager
def daemon(address: str = "tcp://127.0.0.1:0", **server: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    code = f"import sys, memsvc; s = memsvc.Server({settings(address, **server)!r}); print(s.address, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


class Crew:
    """An actor that plays and a learner that samples, updates, publishes and follows, each call in its own thread: when each last succeeded, and what
    it waited for. None of the objects is ever made anew.
    """

    def __init__(self, where: Any, other: Any = None) -> None:
        self.actor = Actor(where, name="player", timeout=5.0, window_bytes=200_000, message_bytes=20_000)
        self.learner = Learner(other or where, batch_size=8, timeout=5.0)
        self.done: dict[str, float] = {}
        self.errors: dict[str, list[MemsvcError]] = {}
        self.count = 0
        self._stop = threading.Event()
        calls = {"add": self._add, "sample": self._sample, "publish": self._publish, "params": self._params, "follow": self._follow}
        self.names = list(calls)
        self._threads = [background(lambda name=name, call=call: self._go_on(name, call)) for name, call in calls.items()]

    def _go_on(self, name: str, call: Callable[[], Any]) -> None:
        while not self._stop.is_set():
            try:
                if call() is not False:
                    self.done[name] = time.monotonic()
            except (Unreachable, NotReady, WindowFull) as error:
                self.errors.setdefault(name, []).append(error)

    def _add(self) -> None:
        for _ in range(20):
            i = self.count
            self.actor.add(obs=np.full(3, i, np.float32), action=i, reward=0.0, priority=1.0)
            self.count += 1
        time.sleep(0.01)

    def _sample(self) -> None:
        batch = self.learner.sample()
        assert (batch["obs"] == batch["action"][:, None].astype(np.float32)).all()
        self.learner.update_priorities(batch.keys, np.full(8, 2.0))

    def _publish(self) -> None:
        self.learner.publish({"w": np.full(100_000, time.monotonic())}, timeout=2)
        time.sleep(0.05)

    def _params(self) -> bool:
        found = self.actor.params(timeout=2)
        assert found is None or len(set(found.arrays["w"].tolist())) == 1
        time.sleep(0.01)
        return found is not None

    def _follow(self) -> bool:
        found = self.learner.params(timeout=2)
        time.sleep(0.01)
        return found is not None

    def settle(self, since: float, timeout: float) -> dict[str, float]:
        """Waits until everything has succeeded after `since`; seconds that it took, by call."""

        def all_done() -> bool:
            assert not any(isinstance(one, Exception) for one in self._ended()), self._ended()
            return all(self.done.get(name, 0.0) > since for name in self.names)

        try:
            until(all_done, timeout)
        except AssertionError:
            late = [name for name in self.names if self.done.get(name, 0.0) <= since]
            raise AssertionError(f"after {timeout} s these did not go on: {late}; {self.learner.stats()}; {self.actor.stats()}") from None
        return {name: round(self.done[name] - since, 2) for name in self.names}

    def _ended(self) -> list[Any]:
        out = []
        for result in self._threads:
            with contextlib.suppress(AssertionError):
                out.append(result(0.0))
        return out

    def stop(self) -> None:
        """Nothing is called any more."""
        self._stop.set()
        for result in self._threads:
            ended = result(20)
            assert ended is None, ended

    def close(self) -> None:
        self.stop()
        self.actor.close()
        self.learner.close()


@contextlib.contextmanager
def crew(where: Any) -> Iterator[Crew]:
    made = Crew(where)
    try:
        made.settle(0.0, 20)
        yield made
    finally:
        made.close()


def report(what: str, took: dict[str, float]) -> None:
    print(f"\n{what}: everything went on after {max(took.values())} s: {took}")


KINDS = ["tcp", "shared"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MEMSVC_SHARED", "1" if request.param == "shared" else "0")
    return str(request.param)


@pytest.mark.parametrize("away", [0.0, 5.0])
def test_a_server_that_is_killed_and_comes_back(kind, away):
    with daemon() as (first, address), crew(address) as playing:
        for _ in range(1 if away else 2):
            first.kill()
            first.wait()
            before = playing.count
            time.sleep(away)
            if away:
                assert before < playing.count  # it plays on, within its bounds
                reason = until(lambda: playing.errors.get("sample"))[-1]
                assert isinstance(reason, Unreachable)
                assert "last heard" in reason.message
            with daemon(address) as (_, _):
                report(f"killed, {away:g} s, {kind}", playing.settle(time.monotonic(), 20))
            with daemon(address) as (first, _):
                report(f"killed at once, {kind}", playing.settle(time.monotonic(), 20))
                first.kill()


def sleep_through(kind: str, seconds: float) -> None:
    with daemon() as (process, address), crew(address) as playing:
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        since = time.monotonic()
        report(f"stopped for {seconds:g} s, {kind}", playing.settle(since, 40))
        assert isinstance(playing.errors["sample"][-1], Unreachable)
        counts = playing.learner.stats()
        until(lambda: playing.learner.stats()["applied"] > counts["applied"])


def test_a_server_that_sleeps_for_eight_seconds(kind):
    sleep_through(kind, 8)


@pytest.mark.slow
def test_a_server_that_sleeps_for_a_minute(kind):
    sleep_through(kind, 60)


@pytest.mark.parametrize("how", ["cut", "reset", "refused", "frozen", "lost", "deaf", "mute", "lost then cut"])
def test_a_network_that_fails(how):
    with daemon() as (_, address), Proxies(address) as network, crew(network.endpoint()) as playing:
        for _ in range(2 if how in ("cut", "reset", "refused", "frozen") else 1):
            if how in ("cut", "reset"):
                network.cut(reset=how == "reset")
            elif how == "refused":
                network.cut(refuse=True)
                time.sleep(3)
            elif how == "frozen":
                network.freeze()
                time.sleep(8)
            else:
                network.drop(*{"deaf": ("up",), "mute": ("down",)}.get(how, ()))
                time.sleep(8)
                if how == "lost then cut":
                    network.cut(refuse=True)
                    time.sleep(2)
            since = time.monotonic()
            network.resume()
            report(how, playing.settle(since, 40))
        # Everything that was sent has been answered at the end.
        playing.stop()
        until(lambda: playing.learner.stats()["pending"] == 0)
        stats = playing.learner.stats()
        assert stats["updates"] == stats["applied"] + stats["stale"] + stats["refused"] + stats["forgotten"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["frozen", "lost"])
def test_a_network_that_is_away_for_a_minute(how):
    with daemon() as (_, address), Proxies(address) as network, crew(network.endpoint()) as playing:
        network.freeze() if how == "frozen" else network.drop()
        time.sleep(60)
        since = time.monotonic()
        network.resume()
        report(f"{how} for a minute", playing.settle(since, 60))


def test_the_words_of_an_error_touch_no_socket_of_another_thread():
    def touched(now: float) -> None:
        raise AssertionError("asked for words, it reads the monitor and makes sockets anew, which another thread may be using")

    with daemon() as (_, address):
        link = ZmqEndpoint(address).connect("door")
        link._handshakes.look = touched
        assert link.trouble == ""
        link.close()


def test_a_publication_whose_answer_is_lost_is_one_publication(monkeypatch):
    monkeypatch.setenv("MEMSVC_SHARED", "0")
    with daemon() as (_, address), Proxies(address) as network, Learner(network.endpoint(), batch_size=8, timeout=10) as learner:
        assert learner.publish({"w": np.zeros(10)}) == 1
        network.drop("down")
        waiting = background(lambda: learner.publish({"w": np.ones(10)}, timeout=20))
        time.sleep(1)
        network.resume()
        assert waiting(20) == 2
        assert learner.publish({"w": np.zeros(10)}) == 3


def test_parameters_that_a_cut_has_torn_are_fetched_again():
    with daemon() as (_, address), Proxies(address) as network, Learner(address, batch_size=8, timeout=10) as learner:
        actor = Actor(network.endpoint(), timeout=10)
        learner.publish({"w": np.zeros(10)})
        assert actor.params(10).version == 1
        network.throttle(4e6)
        learner.publish({"w": np.arange(2e6)})
        time.sleep(1)  # some of it has come
        network.cut()
        network.resume()
        found: list[Any] = []
        until(lambda: found.extend(filter(None, [actor.params()])) or found, 20)
        assert found[0].version == 2
        assert (found[0].arrays["w"] == np.arange(2e6)).all()
        actor.close()


STEP_KB = {"obs": {"dtype": "uint8", "shape": [100_000]}, "action": {"dtype": "int32"}}


def test_parameters_that_are_too_large_are_refused_by_a_typed_error(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMSVC_SHARED", "0")
    with daemon(max_message="10MB") as (_, address), Learner(address, batch_size=8, timeout=10) as learner:
        assert learner.publish({"w": np.zeros(9_000_000, np.uint8)}) == 1
        with pytest.raises(ProtocolError, match=r"64,000,\d+ bytes; the most is 10,000,000; server.max_message"):
            learner.publish({"w": np.zeros(64_000_000, np.uint8)}, timeout=20)
        assert learner.publish({"w": np.zeros(9_000_000, np.uint8)}) == 2


def test_what_takes_longer_than_a_heartbeat_arrives(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMSVC_SHARED", "0")
    with serve("tcp", tmp_path, step=STEP_KB, memory="32MiB") as served, Proxies(served.where) as network:
        with served.actor() as player:
            for i in range(100):
                player.add(obs=np.full(100_000, i, np.uint8), action=i, priority=1.0)
            player.flush()
        learner = Learner(network.endpoint(), batch_size=200, prefetch=0, timeout=10)
        near, actor = served.learner(batch_size=4), Actor(network.endpoint(), timeout=10)
        network.throttle(2e6)
        began = time.monotonic()
        waiting = [background(lambda: learner.sample(60)), background(lambda: learner.publish({"w": np.arange(3_000_000)}, "sent", timeout=60))]
        near.publish({"w": np.arange(3_000_000)})
        waiting.append(background(lambda: actor.params(60)))
        while time.monotonic() - began < 8:  # others notice nothing of it
            start = time.monotonic()
            near.sample()
            near.update_priorities(np.zeros(1, np.uint64), np.ones(1))
            assert time.monotonic() - start < 3.0
        batch, version, params = (result(60) for result in waiting)
        assert (batch["obs"] == batch["action"][:, None].astype(np.uint8)).all()
        assert version == 1
        assert (params.arrays["w"] == np.arange(3_000_000)).all()
        print(f"\n68 MB at 2 MB/s each way took {time.monotonic() - began:.1f} s")
        for client in (learner, near, actor):
            client.close()


def hosts(address: str) -> None:
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n{address} replay.example {socket.gethostname()}\n")


def move() -> None:
    """In a mount namespace of its own, where /etc/hosts is this process's: the server's name comes to mean another address."""
    file = Path(sys.argv[1])
    file.write_text("")
    subprocess.run(["mount", "--bind", str(file), "/etc/hosts"], check=True)
    hosts("127.0.0.2")
    with daemon("tcp://127.0.0.2:0") as (first, address):
        port = re.search(r"\d+$", address)[0]
        with crew(f"tcp://replay.example:{port}") as playing:
            first.kill()
            first.wait()
            with daemon(f"tcp://127.0.0.3:{port}"):
                time.sleep(3)
                assert playing.done["sample"] < time.monotonic() - 1
                since = time.monotonic()
                hosts("127.0.0.3")
                report("moved behind its name", playing.settle(since, 40))


def test_an_address_that_changes_behind_its_name(kind, tmp_path):
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace of its own takes root")
    code = "import sys; import test_reconnect; test_reconnect.move()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = ["unshare", "-m", sys.executable, "-c", code, str(tmp_path / "hosts")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
