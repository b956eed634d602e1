"""What stands beside the messages of a server with keys: the side socket and its tokens, identities, secrets in what is told, two servers."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from keyed import Asking, play, settings
from memsvc_client import Actor, Forbidden, ZmqEndpoint
from memsvc_client.beside import Side
from memsvc_client.segments import Segments
from memsvc_proto.wire import Kind
from serving import until

import memsvc
from memsvc import beside as beside_module


@pytest.fixture(scope="module")
def server(keys: Path) -> Iterator[memsvc.Server]:
    """With keys, for tests that leave nothing in it."""
    with memsvc.Server(settings("tcp://127.0.0.1:0", keys)) as served:
        yield served


def test_the_side_socket_hears_only_who_tells_a_token_that_allows_it(server: memsvc.Server, keys: Path) -> None:
    with Asking(server.address, keys / "actor.key") as actor, Asking(server.address, keys / "learner.key") as learner:
        tokens = {role: one.hello(role).meta["token"] for role, one in (("actor", actor), ("learner", learner))}
        side = Side.connect(server.engine.addresses["beside"])
        assert side is not None
        segments = Segments()
        before = server.stats()["counts"]["forbidden"]
        with segments.lend("default", 1 << 16) as segment:
            for token in (None, "", "0" * 32, 7, tokens["actor"]):
                with pytest.raises(Forbidden):
                    side.ask({"ask": "publish", "topic": "default", "size": 1 << 16, "token": token}, [segment.fd])
            for token in (None, "0" * 32):
                with pytest.raises(Forbidden):
                    side.ask({"ask": "fetch", "topic": "default", "newer_than": 0, "token": token})
                with pytest.raises(Forbidden):
                    side.ask({"ask": "channel", "link": "door", "identity": "00" * 16, "token": token}, [segment.fd])
        assert server.stats()["counts"]["forbidden"] == before + 9
        answer, _ = side.ask({"ask": "fetch", "topic": "nothing", "newer_than": 0, "token": tokens["actor"]})
        assert answer == {"version": 0}
        side.close()
        segments.close()


def test_who_takes_another_s_routing_id_over_gets_nothing_of_it(server: memsvc.Server, keys: Path) -> None:
    with Asking(server.address, keys / "admin.key") as first, Asking(server.address, keys / "viewer.key") as second:
        assert first.hello("actor").kind is Kind.WELCOME
        found = [peer for peer in server._door._peers.values() if peer.member is not None and peer.member.name == "t-actor"]
        second.link._dealer.disconnect(server.address)
        second.link._dealer.setsockopt(zmq.ROUTING_ID, found[0].identity)
        second.link._dealer.connect(server.address)
        assert second.ask(Kind.PUSH).meta["code"] == "forbidden"
        assert second.ask(Kind.PING).meta == {"member": False}
        until(lambda: found[0].gone)


def test_connections_that_were_handed_over_count_to_the_limit(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_module, "MOST_CALLERS", 2)
    with memsvc.Server(settings("tcp://127.0.0.1:0", keys)) as served:
        actors = [Actor(served.address, name=f"a{i}", keys=keys / "actor.key", timeout=10) for i in range(4)]
        for actor in actors:
            play(actor, 4)
        assert [one.stats()["transport"] for one in actors] == ["shared", "shared", "socket", "socket"]
        for actor in actors[:2]:
            actor.close()
        until(lambda: not served._beside._handed)
        with Actor(served.address, keys=keys / "actor.key", timeout=10) as actor:
            play(actor, 4)
            assert actor.stats()["transport"] == "shared"
        for actor in actors[2:]:
            actor.close()


def test_secrets_stand_in_no_log_no_statistics_and_no_representation(keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), memsvc.Server(settings("tcp://127.0.0.1:0", keys)) as served:
        endpoint = ZmqEndpoint(served.address, keys=keys / "actor.key")
        with Actor(endpoint, timeout=10) as actor:
            play(actor)
            told = [json.dumps(served.stats()), json.dumps(actor.stats(), default=str), repr(actor.__dict__), repr(endpoint.__dict__)]
        told += [repr(served.__dict__), repr(endpoint.credentials()), repr(served._guard.__dict__), pickle.dumps(endpoint).decode("latin1")]
        with pytest.raises(Forbidden):
            Actor(served.address, keys=keys / "viewer.key", timeout=10)
        with pytest.raises(TypeError, match="is not pickled"):
            pickle.dumps(endpoint.credentials())
    told += [one.getMessage() for one in caplog.records]
    for file in (*keys.glob("*.key"),):
        held = json.loads(file.read_text())
        for name in ("secret", "private"):
            lines = [line for line in held.get(name, "").splitlines() if "-----" not in line]
            assert lines or name == "secret"
            for secret in lines:
                assert not [one for one in told if secret in one], (file.name, name)
    again = pickle.loads(pickle.dumps(endpoint))
    assert again.credentials().name == "actor"


def test_two_servers_with_keys_live_in_one_process(keys: Path, other: Path) -> None:
    before = threading.active_count()
    with memsvc.Server(settings("tcp://127.0.0.1:0", keys)) as one, memsvc.Server(settings("tcp://127.0.0.1:0", other)) as two:
        for served, folder in ((one, keys), (two, other)):
            with Actor(served.address, keys=folder / "actor.key", timeout=10) as actor:
                play(actor)
        one.close()
        with Actor(two.address, keys=other / "actor.key", timeout=10) as actor:
            play(actor)
    until(lambda: threading.active_count() <= before)
