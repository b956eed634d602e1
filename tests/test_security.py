"""Who is let in, and what each may do: a server with keys, met by those who have the right one, the wrong one, or none. (Key files: test_keys.py.)"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from keyed import Asking, play, settings
from memsvc_client import Actor, Forbidden, Learner, Unreachable, ZmqEndpoint
from memsvc_proto.wire import Kind, Message
from serving import until

import memsvc
from memsvc.keys import add, make
from memsvc.roles import HELLOS, MESSAGES, ROLES

SERVER_KINDS = [kind for kind in Kind if kind in MESSAGES and kind not in (Kind.SHARED, Kind.BYE)]


@pytest.fixture(scope="module")
def server(keys: Path) -> Iterator[memsvc.Server]:
    """With keys, for tests that leave nothing in it."""
    with memsvc.Server(settings("tcp://127.0.0.1:0", keys)) as served:
        yield served


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ["tcp", "ipc"])
def test_everything_works_with_keys_over_tcp_ipc_and_shared_memory(kind: str, shared: bool, keys: Path, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s" if kind == "ipc" else "tcp://127.0.0.1:0"
    with memsvc.Server(settings(address, keys)) as served:
        with Actor(ZmqEndpoint(served.address, shared, keys / "actor.key"), timeout=10) as actor:
            play(actor)
            with Learner(ZmqEndpoint(served.address, shared, keys / "learner.key"), batch_size=8, timeout=10) as learner:
                batch = learner.sample(10)
                assert (batch["action"] == batch["reward"]).all()
                learner.update_priorities(batch.keys, np.ones(8))
                assert learner.publish({"w": np.zeros(1 << 16, np.float32)}) == 1
                params = actor.params(10)
                assert params is not None
                assert params.version == 1
                until(lambda: learner.stats()["applied"] == 8)
                for client in (actor, learner):
                    assert client.stats()["transport"] == ("shared" if shared else "socket")
        counts = served.stats()["counts"]
        assert (counts["forbidden"], counts["unknown_keys"], counts["broken_handshakes"], counts["malformed"]) == (0, 0, 0, 0)


@pytest.mark.parametrize("shared", [True, False])
def test_clients_with_keys_go_on_with_a_server_that_comes_back_from_its_journal(shared: bool, keys: Path, tmp_path: Path) -> None:
    def server(address: str) -> memsvc.Server:
        given = settings(address, keys)
        return memsvc.Server({**given, "server": {**given["server"], "durability": "journal", "data": str(tmp_path / "data")}})

    first = server("tcp://127.0.0.1:0")
    with (
        Actor(ZmqEndpoint(first.address, shared, keys / "actor.key"), timeout=20) as actor,
        Learner(ZmqEndpoint(first.address, shared, keys / "learner.key"), batch_size=8, timeout=20) as learner,
    ):
        play(actor)
        learner.sample()
        first.close()
        with server(first.address) as second:
            play(actor)
            batch = learner.sample()
            assert (batch["action"] == batch["reward"]).all()
            assert second.stats()["tables"][0]["items"] == 64
            box = actor.stats()["outbox"]
            assert box["acknowledged"]["items"] == box["sent"]["items"] == 64, box


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", SERVER_KINDS)
def test_a_role_may_say_what_the_table_allows_and_nothing_else(kind: Kind, role: str, server: memsvc.Server, keys: Path) -> None:
    with Asking(server.address, keys / f"{role}.key") as client:
        before = server.stats()["counts"]
        allowed = role in MESSAGES[kind]
        if kind in (Kind.TAKEN, Kind.SAMPLE) and allowed:
            client.link.send(Message(kind, 99, b=1))  # these are not always answered: what follows them is
            answer = client.ask(Kind.PING)
            assert answer.kind is Kind.PONG
        else:
            answer = client.ask(kind, meta={"topic": "default"} if kind in (Kind.PUBLISH, Kind.FETCH) else {})
            refused = answer.kind is Kind.ERROR and answer.meta["code"] == "forbidden"
            assert refused is not allowed
            if refused:
                details = answer.meta["details"]
                assert (details["key"], details["role"], details["asked"]) == (role, role, kind.name)
                assert set(details["allowed"]) == MESSAGES[kind]
                for told in (repr(role), f"role {role}", kind.name, *details["allowed"]):
                    assert told in answer.meta["message"]
        after = server.stats()["counts"]
        assert after["forbidden"] == before["forbidden"] + (not allowed)
    assert server.stats()["tables"][0]["items"] == 0


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("hello", HELLOS)
def test_a_key_comes_as_what_it_is(hello: str, role: str, server: memsvc.Server, keys: Path) -> None:
    with Asking(server.address, keys / f"{role}.key") as client:
        answer = client.hello(hello)
        if role in HELLOS[hello]:
            assert answer.kind is Kind.WELCOME
            assert answer.meta["token"]
            client.ask(Kind.BYE)
        else:
            assert (answer.kind, answer.meta["code"]) == (Kind.ERROR, "forbidden")
            assert answer.meta["details"]["asked"] == f"HELLO as {hello}"


def test_the_wrong_role_is_a_typed_error_of_actor_and_learner(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "memsvc"), memsvc.Server(settings("tcp://127.0.0.1:0", keys)) as server:
        with pytest.raises(Forbidden, match="HELLO as actor is not for key 'learner'") as caught:
            Actor(server.address, keys=keys / "learner.key", timeout=10)
        assert (caught.value.key, caught.value.role, caught.value.allowed) == ("learner", "learner", ["actor", "admin"])
        for _ in range(2):
            with pytest.raises(Forbidden, match="HELLO as learner is not for key 'viewer'"):
                Learner(server.address, keys=keys / "viewer.key", timeout=10)
        with Learner(server.address, keys=keys / "learner.key", timeout=10) as learner, pytest.raises(Forbidden, match=r"CONFIGURE.*but for admin"):
            learner.configure({"priority.exponent": 0.5})
        with Learner(server.address, keys=keys / "admin.key", timeout=10) as learner:
            learner.configure({"priority.exponent": 0.5})
        assert server.stats()["tables"][0]["settings"]["priority"]["exponent"] == 0.5
    told = [one.getMessage() for one in caplog.records if "HELLO as learner" in one.getMessage()]
    assert len(told) == 1


def test_a_key_that_is_not_listed_is_refused_at_once_counted_and_logged(
    server: memsvc.Server, keys: Path, other: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "stranger.key"
    told = json.loads((other / "actor.key").read_text())
    told["server"] = json.loads((keys / "actor.key").read_text())["server"]
    file.touch(0o600)
    file.write_text(json.dumps(told))
    before = server.stats()["counts"]["unknown_keys"]
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "memsvc"), pytest.raises(Forbidden, match=r"refuses key 'actor' .*stranger\.key.*--add"):
        Actor(server.address, keys=file, timeout=30)
    assert time.monotonic() - began < 10
    assert server.stats()["counts"]["unknown_keys"] > before
    assert any("its key is not among the allowed ones" in one.getMessage() for one in caplog.records)


@pytest.mark.parametrize(
    ("file", "says"),
    [("none", "as a server that expects keys does"), ("other", "as a server of another key does")],
)
def test_no_key_or_that_of_another_server_is_refused_with_its_reason(file: str, says: str, server: memsvc.Server, other: Path) -> None:
    before = server.stats()["counts"]["broken_handshakes"]
    with pytest.raises(Unreachable, match=says):
        Actor(server.address, keys="" if file == "none" else other / "actor.key", timeout=1.5)
    until(lambda: server.stats()["counts"]["broken_handshakes"] > before)


def test_a_client_with_keys_is_told_that_the_server_has_none(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "memsvc"), memsvc.Server(settings("tcp://127.0.0.1:0", None)) as served:
        with pytest.raises(Unreachable, match=r"it has no keys, and this client uses key 'actor'|or one without keys"):
            Actor(served.address, keys=keys / "actor.key", timeout=1.5)
        until(lambda: served.stats()["counts"]["broken_handshakes"] > 0)
        with Actor(served.address, keys="", timeout=10) as actor:
            play(actor)
    assert any("expects keys" in one.getMessage() for one in caplog.records)


def test_a_key_that_is_added_or_changed_or_taken_away_counts_without_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    make(folder)
    with memsvc.Server(settings("tcp://127.0.0.1:0", folder)) as served:
        late = add(folder, "late", "viewer")
        with pytest.raises(Forbidden, match="HELLO as actor is not for key 'late'"):
            Actor(served.address, keys=late, timeout=10)
        allowed = folder / "allowed"
        allowed.write_text(allowed.read_text().replace("late viewer", "late actor"))
        with Actor(served.address, keys=late, timeout=10) as actor:
            play(actor)
            allowed.write_text("".join(line for line in allowed.read_text().splitlines(True) if not line.startswith("late ")))
            until(lambda: "viewer" in served.stats()["keys"]["allowed"] and served.stats()["keys"]["allowed"].get("actor") == 1)
            with pytest.raises(Forbidden, match="not among the server's allowed ones any more"):
                play(actor)
        with pytest.raises(Forbidden, match="refuses key 'late'"):
            Actor(served.address, keys=late, timeout=10)
        good = allowed.read_text()
        allowed.write_text("nonsense\n")  # what cannot be used changes nothing
        with Actor(served.address, keys=folder / "actor.key", timeout=10) as actor:
            play(actor)
        allowed.write_text(good)


def test_a_refused_client_comes_in_once_its_key_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    make(folder)
    allowed = folder / "allowed"
    good = allowed.read_text()
    with memsvc.Server(settings("tcp://127.0.0.1:0", folder)) as served:
        allowed.write_text("".join(line for line in good.splitlines(True) if not line.startswith("viewer ")))
        with Asking(served.address, folder / "viewer.key") as client:
            until(lambda: client.link.receive(0.1) is not None or client.link.refused)
            allowed.write_text(good)
            until(lambda: client.link.receive(0.1) is not None or client.link.renewed)
            assert client.hello("viewer").kind is Kind.WELCOME


def relay(target: int, log: list[bytes]) -> tuple[socket.socket, int]:
    """A listener that hands one connection on to a port of this host and writes down what the client says."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket, kept: list[bytes] | None) -> None:
        try:
            while data := source.recv(1 << 16):
                if kept is not None:
                    kept.append(data)
                sink.sendall(data)
        except OSError:
            pass

    def run() -> None:
        ours, _ = listener.accept()
        theirs = socket.create_connection(("127.0.0.1", target))
        back = threading.Thread(target=pump, args=(theirs, ours, None), daemon=True)
        back.start()
        pump(ours, theirs, log)
        for one in (theirs, ours, listener):
            one.close()

    threading.Thread(target=run, daemon=True).start()
    return listener, int(listener.getsockname()[1])


def test_what_was_recorded_of_a_real_session_stores_nothing_when_it_is_played_again(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "memsvc"), memsvc.Server(settings("tcp://127.0.0.1:0", keys)) as served:
        port = int(served.address.rsplit(":", 1)[1])
        recorded: list[bytes] = []
        _, through = relay(port, recorded)
        with Actor(ZmqEndpoint(f"tcp://127.0.0.1:{through}", False, keys / "actor.key"), timeout=10) as actor:
            play(actor)
        stored, before = served.stats()["tables"][0]["inserted"], served.stats()["counts"]
        assert stored == 32
        assert len(b"".join(recorded)) > 32 * 20
        with socket.create_connection(("127.0.0.1", port)) as again:
            again.settimeout(10)
            again.sendall(b"".join(recorded))
            try:
                while again.recv(1 << 16):  # the server answers its half of a handshake, and then ends it
                    pass
            except ConnectionResetError:
                pass
        until(lambda: served.stats()["counts"]["broken_handshakes"] > before["broken_handshakes"])
        after = served.stats()
        assert (after["tables"][0]["inserted"], after["counts"]["messages"]) == (stored, before["messages"])
    assert any("recorded and is played again" in one.getMessage() for one in caplog.records)
