"""Memory shared with clients of the same host: what is the same as over sockets, what must never happen, and what is left when somebody dies."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memsvc_client import Actor, Learner, UsedAfterFork, ZmqEndpoint
from memsvc_client.beside import Side, close_all, read_packet
from memsvc_client.channel import Channel, Plan
from memsvc_client.memory_file import MemoryFile
from memsvc_client.slots import SPARE
from memsvc_client.welcome import greet
from memsvc_core import Ring
from memsvc_proto.errors import MemsvcError, ProtocolError
from memsvc_proto.wire import Kind, Message
from serving import Served, serve, until

import memsvc
from memsvc.channels import Channel as ServerChannel
from memsvc.channels import Channels

TABLE = {"name": "all", "item": {"kind": "step"}, "actor": {"select": "all", "linger_ms": 5}, "priority": {"source": "given", "exponent": 1.0}}
ONCE = TABLE | {"name": "once", "sampler": "fifo", "limits": {"max_times_sampled": 1}}
STEP = {"id": {"dtype": "int64"}, "wide": {"dtype": "int64", "shape": [500]}}


def step(i: int) -> dict[str, Any]:
    return {"id": i, "wide": np.full(500, i), "priority": 1.0}


def play(served: Served, n: int = 64, first: int = 0) -> None:
    with served.actor() as actor:
        for i in range(first, first + n):
            actor.add(**step(i))
        actor.end_episode(terminated=True)
        actor.flush(10)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def handed() -> int:
    """Descriptors of the kinds that are handed over, or come with a connection: zmq opens others as it likes."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += any(kind in os.readlink(f"/proc/self/fd/{fd}") for kind in ("memfd", "pidfd", "null"))
    return found


def names() -> set[str]:
    return set(os.listdir("/dev/shm"))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serve("tcp", tmp_path, TABLE, step=STEP, memory="16MiB") as made:
        yield made


def test_clients_of_one_host_share_memory_and_leave_no_name(served):
    before = names()
    with served.actor() as actor, served.learner(batch_size=8) as learner:
        actor.add(**step(1))
        actor.end_episode(terminated=True)
        actor.flush(10)
        until(lambda: actor.stats()["transport"] == "shared")
        assert learner.sample()["id"].tolist() == [1] * 8
        assert learner.stats()["transport"] == "shared"
        assert served.server.stats()["shared"] == 2
        assert names() == before
    until(lambda: served.server.stats()["shared"] == 0)


def test_in_process_nothing_is_shared(served):
    with served.server.learner() as learner:
        assert learner.stats()["transport"] == "process"


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_it_can_be_turned_off(served, monkeypatch, how):
    if how == "environment":
        monkeypatch.setenv("MEMSVC_SHARED", "0")
    play(served)
    with Learner(ZmqEndpoint(served.where, shared=how != "argument"), batch_size=8, timeout=10) as learner:
        assert (learner.sample()["wide"][:, 0] < 64).all()
        assert learner.stats()["transport"] == "socket"
        assert served.server.stats()["shared"] == 0


def test_who_cannot_reach_it_uses_sockets_and_says_so_once(served, monkeypatch, caplog):
    play(served)
    monkeypatch.setattr("memsvc_client.channel.Side.connect", lambda *_: None)  # another host, network namespace or user
    with caplog.at_level(logging.INFO, "memsvc_client"), served.learner(batch_size=8) as learner:
        for _ in range(5):
            assert (learner.sample()["wide"][:, 0] < 64).all()
        assert learner.stats()["transport"] == "socket"
    assert [record.message for record in caplog.records if "memory" in record.message] == [
        "no memory can be shared with this server, which is not of this host and user, or is elsewhere contained: sockets are used"
    ]


@pytest.mark.parametrize("prefetch", [0, 2, 8])
@pytest.mark.parametrize("copy", [False, True])
def test_no_batch_changes_under_its_owner(served, rng, prefetch, copy):
    play(served)
    with served.learner(batch_size=8, prefetch=prefetch, copy=copy) as learner:
        kept: list[tuple[Any, Any]] = []
        for most in rng.integers(0, 2 * SPARE + prefetch, 300):
            batch = learner.sample()
            # A view alone keeps the batch's memory.
            view = batch["wide"][rng.integers(8) :, 3:]
            assert (batch["wide"] == batch["id"][:, None]).all()
            kept.append((view, view.copy()))
            for one, same in kept:
                assert (one == same).all()
            while len(kept) > most:
                kept.pop(int(rng.integers(len(kept))))
        assert learner.stats()["transport"] == "shared"


def test_a_batch_outlives_learner_and_server(tmp_path):
    with serve("tcp", tmp_path, TABLE, step=STEP) as served:
        play(served)
        with served.learner(batch_size=8) as learner:
            batch = learner.sample()
    assert (batch["wide"] == batch["id"][:, None]).all()
    batch["wide"][:] = 0


def test_messages_keep_their_order_whichever_way_they_go(served, rng):
    # Rings that hold messages of 8 KB: what is larger goes by the socket, between what goes through memory.
    door = ZmqEndpoint(served.where).connect("door")
    door.share(1, 1)
    door.send(Message(Kind.HELLO, 1, meta={"role": "learner", "name": "l"}))
    until(lambda: (message := door.receive(1)) is not None and message.kind is Kind.WELCOME)
    served.server.engine.publish("big", bytes(rng.bytes(30_000)))
    sent, answered = 1, 1
    while answered < 3000:
        while sent < min(answered + 40, 3000):
            sent += 1
            big = bool(rng.integers(3) == 0)
            door.send(Message(Kind.FETCH, sent, meta={"topic": "big", "pad": "x" * 20_000}) if big else Message(Kind.PING, sent))
        message = door.receive(5)
        assert message is not None
        if message.seq:
            assert message.seq == answered + 1
            answered = message.seq
    assert door.transport == "shared"
    door.close()


def test_items_larger_than_the_rings_arrive(tmp_path):
    step_ = {"id": {"dtype": "int64"}, "wide": {"dtype": "int64", "shape": [20_000]}}
    with serve("tcp", tmp_path, TABLE, step=step_, memory="64MiB") as served, served.actor(message_bytes=4096) as actor:
        for i in range(60):
            actor.add(id=i, wide=np.full(20_000, i), priority=1.0)
        actor.end_episode(terminated=True)
        actor.flush(20)
        assert served.table()["items"] == 60
        assert actor.stats()["transport"] == "shared"


def test_a_push_is_made_in_the_ring_and_never_by_the_socket_while_the_server_is_late(served, monkeypatch):
    # The server answers nothing for a while: what there is no room for waits in the actor's memory.
    held, going_on = threading.Event(), threading.Event()
    engine, by_socket = served.server.engine, []
    replay = engine.replay

    class Late:
        def __getattr__(self, name):
            return getattr(replay, name)

        def push(self, *arguments):
            held.set()
            assert going_on.wait(20)
            return replay.push(*arguments)

    with served.actor(message_bytes=20_000) as actor:
        link = actor._pusher._link
        until(lambda: link.transport == "shared")
        send = link._send_raw
        monkeypatch.setattr(link, "_send_raw", lambda raw: (by_socket.append(raw), send(raw)))
        monkeypatch.setattr(engine, "replay", Late())
        for i in range(200):
            actor.add(**step(i))
        assert held.wait(10)
        until(lambda: len(actor._pusher._outbox) >= 4)
        going_on.set()
        actor.end_episode(terminated=True)
        actor.flush(20)
        assert served.table()["items"] == 200
        assert not by_socket
    with served.learner() as learner:
        batch = learner.sample(timeout=10)
        np.testing.assert_array_equal(batch["wide"], np.repeat(batch["id"][:, None], 500, 1))


def test_what_is_made_where_it_was_reserved_arrives_as_it_is():
    memory = np.zeros(64 + 256 + (1 << 15), np.uint8)
    memory = memory[-memory.ctypes.data % 64 :][: 256 + (1 << 15)]
    writer, reader = Ring(memory), Ring(memory)
    for size in (1, 64, 1000, writer.most):
        place = writer.reserve(writer.most)
        place[:size] = size % 251
        assert writer.push(place[:size])
        assert reader.front() == size
        assert np.shares_memory(reader.view(), place)
        assert (reader.view() == size % 251).all()
        reader.pop()
    writer.reserve(100)
    assert writer.push(b"another")
    assert reader.front() == 7
    assert bytes(reader.take()) == b"another"


def test_a_child_of_a_fork_cannot_use_it_and_the_parent_goes_on(served):
    play(served)
    with served.learner(batch_size=8) as learner:
        learner.sample()
        child = os.fork()
        if not child:
            try:
                learner.sample(1)
            except UsedAfterFork:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        for _ in range(20):
            batch = learner.sample()
            assert (batch["wide"] == batch["id"][:, None]).all()
        assert learner.stats()["transport"] == "shared"


CLIENT = """
    import os, sys, time
    import numpy as np
    from memsvc_client import Actor, Learner
    role, address, fork = sys.argv[1], sys.argv[2], sys.argv[3] == "fork"
    if role == "learner":
        client = Learner(address, batch_size=4, prefetch=8, timeout=20)
        client.sample()
        while client.stats()["ready"] < 6:  # drawn for it, and never returned
            time.sleep(0.001)
    else:
        client = Actor(address, timeout=20)
        for i in range(64):
            client.add(id=i, wide=np.full(500, i), priority=1.0)
        client.flush(20)
    if fork and not os.fork():
        time.sleep(60)  # keeps every descriptor of its parent open
        os._exit(0)
    print(client.stats()["transport"], flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("fork", ["alone", "fork"])
@pytest.mark.parametrize("role", ["learner", "actor"])
def test_what_a_killed_client_held_is_taken_back(tmp_path, role, fork):
    with serve("tcp", tmp_path, ONCE, step=STEP, memory="16MiB") as served:
        if role == "learner":
            play(served)
        served.learner(batch_size=4).close()  # what zmq opens once and keeps is open from here on
        until(lambda: served.server.stats()["connections"] == 0)
        gc.collect()
        before, shared = descriptors(), names()
        command = [sys.executable, "-c", textwrap.dedent(CLIENT), role, served.where, fork]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as client:
            assert client.stdout is not None
            try:
                assert client.stdout.readline() == "shared\n"
                os.kill(client.pid, signal.SIGKILL)
                until(lambda: served.server.stats()["shared"] == 0)
            finally:
                os.killpg(client.pid, signal.SIGKILL)  # its child too
        if role == "learner":
            with served.learner(batch_size=4) as learner:
                # Each once: but for the batch that the dead one's sample() may have confirmed, nothing is lost.
                again = np.concatenate([learner.sample(10)["id"] for _ in range(15)])
            assert len(set(again.tolist())) == 60
        gc.collect()
        until(lambda: descriptors() <= before and names() == shared)


def test_a_server_that_is_killed_and_comes_back_shares_again(tmp_path, monkeypatch):
    monkeypatch.setattr("memsvc_client.conversation.SILENT_S", 0.3)
    address = f"ipc://{tmp_path}/s"
    settings = {"server": {"address": address, "memory": "16MiB", "control": "", "http": ""}, "step": STEP, "table": [TABLE]}
    serving = f"import sys, memsvc; memsvc.Server({settings!r}); print('up', flush=True); sys.stdin.read()"

    def start() -> subprocess.Popen[str]:
        made = subprocess.Popen([sys.executable, "-c", serving], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert made.stdout is not None
        assert made.stdout.readline() == "up\n"
        return made

    first = start()
    try:
        with Actor(address, timeout=20) as actor, Learner(address, batch_size=8, timeout=20) as learner:
            for i in range(64):
                actor.add(**step(i))
            actor.flush(20)
            kept = learner.sample()
            until(lambda: learner.stats()["transport"] == actor.stats()["transport"] == "shared")
            first.kill()
            first.wait()
            until(lambda: actor.stats()["transport"] == "socket")
            second = start()
            try:

                def joined() -> bool:
                    actor.add(**step(64))
                    return actor.stats()["transport"] == "shared"

                until(joined, 20)
                until(lambda: learner.sample(20)["id"].tolist() == [64] * 8, 20)
                until(lambda: learner.sample(20)["id"].tolist() and learner.stats()["transport"] == "shared", 20)
                assert (kept["wide"] == kept["id"][:, None]).all()
            finally:
                second.kill()
                second.wait()
    finally:
        first.kill()
        first.wait()


def test_the_end_of_shared_memory_tells_a_learner_that_its_server_has_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("memsvc_client.conversation.SILENT_S", 60.0)  # it does not wait for that
    address = f"ipc://{tmp_path}/s"
    settings = {"server": {"address": address, "memory": "16MiB", "control": "", "http": ""}, "step": STEP, "table": [TABLE]}
    server = memsvc.Server(settings)
    try:
        with Learner(address, batch_size=8, timeout=20) as learner:
            for version in (1, 2, 3):
                assert learner.publish({"w": np.zeros(3)}, timeout=30) == version
                until(lambda: learner.stats()["transport"] == "shared")
                server.close()
                server = memsvc.Server(settings)
    finally:
        server.close()


def hostile(request: bytes, fds: list[int]) -> Any:
    def attack(name: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(10)
            connection.connect(f"\0{name}")
            socket.send_fds(connection, [request], fds)
            raw, got = read_packet(connection)
            close_all(got)
            assert not raw or "error" in json.loads(raw)

    return attack


def asking(**changes: Any) -> bytes:
    plan = Plan.of(1 << 16, 1 << 16, 2, 4096)
    return json.dumps({"ask": "channel", "link": "draw", "identity": "00" * 16, **plan._asdict(), **changes}).encode()


def test_hostile_requests_are_refused_and_nobody_else_notices(served):
    play(served)
    plan = Plan.of(1 << 16, 1 << 16, 2, 4096)
    sealed = MemoryFile.make(plan.bytes)
    open_ = os.memfd_create("open", os.MFD_CLOEXEC)
    os.ftruncate(open_, plan.bytes)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    with served.learner(batch_size=8) as learner:
        learner.sample()
        before = handed()
        for request, fds in (
            (b"no json", []),
            (b"[" * 9000, []),
            (b"[1]", []),
            (b'{"ask": ["channel"]}', []),
            (b'{"ask": "nothing"}', [null]),
            (asking(), []),
            (asking(), [null]),
            (asking(), [open_]),
            (asking(), [sealed.fd, sealed.fd]),
            (asking(up=1 << 60), [sealed.fd]),
            (asking(up=-64), [sealed.fd]),
            (asking(up=True), [sealed.fd]),
            (asking(slots=1 << 40), [sealed.fd]),
            (asking(slot_bytes="4096"), [sealed.fd]),
            (asking(slots=3), [sealed.fd]),
            (asking(link=["draw"]), [sealed.fd]),
            (asking(link="other"), [sealed.fd]),
            (asking(identity="zz" * 16), [sealed.fd]),
            (asking(identity=7), [sealed.fd]),
            (asking(), [sealed.fd] * 200),
            (b"x" * 100_000, []),
        ):
            hostile(request, fds)(served.server.engine.addresses["beside"])
            assert (learner.sample()["wide"][:, 0] < 64).all()
        counts = served.server.stats()["counts"]
        assert counts["malformed"] == 21
        assert counts["failures"] == 0
        until(lambda: handed() == before)
        assert learner.stats()["transport"] == "shared"
    sealed.close()
    close_all([open_, null])


def test_a_ring_that_cannot_be_costs_its_client_the_connection_and_no_other(served):
    play(served)
    endpoint = ZmqEndpoint(served.where)
    door = endpoint.connect("door")
    door.send(Message(Kind.HELLO, 1, meta={"role": "learner", "name": "bad"}))
    until(lambda: (message := door.receive(1)) is not None and message.kind is Kind.WELCOME)
    door.share(1, 1)
    until(lambda: door.receive(0.1) is None and door.transport == "shared")
    with served.learner(batch_size=8) as learner:
        channel: Any = door._channel
        channel._memory.bytes[:8] = 255  # the position up to which it has written
        channel._wake()
        until(lambda: door.receive(0.1) is None and door.transport == "socket")
        assert (learner.sample()["wide"][:, 0] < 64).all()
        assert learner.stats()["transport"] == "shared"
        assert served.server.stats()["shared"] == 1
    door.close()


def test_memory_that_could_be_taken_away_is_not_mapped():
    fd = os.memfd_create("open", os.MFD_CLOEXEC)
    os.ftruncate(fd, 4096)
    with pytest.raises(ProtocolError, match="not sealed"):
        MemoryFile.of(fd, 4096)
    os.close(fd)
    made = MemoryFile.make(8192)
    with pytest.raises(ProtocolError, match="8192 bytes, 4096 were announced"):
        MemoryFile.of(made.fd, 4096)
    with pytest.raises(OSError, match="permitted"):
        os.ftruncate(made.fd, 4096)
    made.bytes[7] = 9
    other = MemoryFile.of(made.fd, 8192)
    made.close()
    made.close()
    assert other.bytes[7] == 9
    other.close()


def test_all_that_was_written_before_a_message_by_the_socket_is_handled_before_it():
    plan = Plan.of(1 << 20, 1 << 15, 0, 0)
    memory = MemoryFile.make(plan.bytes)
    up, _ = plan.rings(memory)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    far.setblocking(False)
    seen: list[bytes] = []
    channels = Channels(lambda _, frame: seen.append(bytes(frame)), lambda *_: None, lambda: None)
    try:
        ours = ServerChannel(b"x" * 16, far, os.pidfd_open(os.getpid()), memory, plan)
        channels.offer(ours)
        channels.begin(b"x" * 16)
        wrote = [b"%064d" % i for i in range(3000)]
        assert all(up.push(one) for one in wrote)
        channels.before_socket(ours)
        assert seen == wrote
    finally:
        channels.close()
        near.close()


def test_a_client_that_breaks_its_ring_while_it_is_answered_stops_nobody_else(served, monkeypatch):
    broken: list[int] = []

    def mark(_: object) -> None:
        broken.append(1)
        raise ProtocolError("a ring cannot be")

    with served.learner(batch_size=8) as publisher:
        publisher.publish({"w": np.zeros(100_000)})
        link = ZmqEndpoint(served.where).connect("door")
        link.share(1, 1)
        greet(link, Message(Kind.HELLO, 1, meta={"role": "viewer", "name": "v"}), 10, "here")
        until(lambda: link.receive(0.01) is None and link.transport == "shared")
        monkeypatch.setattr(ServerChannel, "mark", mark)
        link.send(Message(Kind.FETCH, 2, meta={"topic": "default"}))
        until(lambda: broken)
        link.close()
        play(served)
        assert publisher.sample(10).population == 64


def test_a_server_that_never_says_shared_is_reached_by_sockets_and_nothing_is_lost(served, monkeypatch):
    monkeypatch.setattr("memsvc.router.Router._share", lambda *_: None)
    monkeypatch.setattr("memsvc_client.channel.ORDER_S", 0.2)
    with served.actor(name="a") as actor:
        for i in range(8):
            actor.add(**step(i))
        actor.flush(20)
        assert served.table()["items"] == 7  # the newest step may still be followed by another
        for i in range(8):
            actor.add(**step(i))
        actor.flush(20)
        assert served.table()["items"] == 15
        assert actor.stats()["transport"] == "socket"


def test_idle_channels_are_not_looked_at(served):
    # Counted, not timed: who has written nothing since the last sleep is not looked at.
    name = served.server.engine.addresses["beside"]
    held = [Channel.open(name, "door", os.urandom(16), Plan.of(1, 1, 0, 0)) for _ in range(100)]
    assert all(held)
    until(lambda: len(served.server._door.channels._waiting) == 100)
    assert not served.server._door.channels._hot
    for one in held:
        assert one is not None
        one.close()
    until(lambda: not served.server._door.channels._waiting)


def test_without_such_a_socket_the_server_serves_all_the_same(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("memsvc_client.memory_file.available", lambda: False)
    with caplog.at_level(logging.INFO, "memsvc"), serve("tcp", tmp_path, TABLE, step=STEP) as served:
        assert served.server.engine.addresses["beside"] == ""
        play(served)
        with served.learner(batch_size=8) as learner:
            assert (learner.sample()["wide"][:, 0] < 64).all()
            assert learner.stats()["transport"] == "socket"
    assert sum("no memory is shared" in record.message for record in caplog.records) == 1


def test_an_answer_that_does_not_come_is_an_error():
    assert Side.connect("") is None
    assert Side.connect("memsvc-nobody") is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("\0memsvc-test-silent")
        listener.listen()
        side = Side.connect("memsvc-test-silent", 0.05)
        assert side is not None
        with pytest.raises(MemsvcError, match="does not answer"):
            side.ask({"ask": "channel"})
        side.close()
