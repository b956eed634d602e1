"""The server, met as its clients meet it: raw peers that speak the wire over tcp, ipc and plain calls. (The real clients have tests of their own.)"""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from memsvc_core import Memory, Schema, TableSpec
from memsvc_proto import wire
from memsvc_proto.errors import Closed, ConfigError, UsedAfterFork
from memsvc_proto.wire import Kind, Message

import memsvc

STEP = {"obs": {"dtype": "float32", "shape": [3]}, "reward": {"dtype": "float32"}}
TABLE = {"name": "replay", "priority": {"source": "given", "exponent": 1.0}, "limits": {"min_items": 10}}
UNION = {"name": "union", "priority": {"source": "given", "exponent": 1.0}, "actor": {"select": "all"}}
QUEUE = {**UNION, "name": "queue", "sampler": "fifo", "limits": {"max_times_sampled": 1}}


def settings(address: str = "tcp://127.0.0.1:0", *, control: str = "", **server: Any) -> dict[str, Any]:
    return {"server": {"address": address, "control": control, "memory": "4MiB", "seed": 7, **server}, "step": STEP, "table": [TABLE, UNION, QUEUE]}


class Wire:
    """A DEALER that speaks frames."""

    def __init__(self, address: str, identity: bytes = b"") -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if identity:
            self.socket.setsockopt(zmq.ROUTING_ID, identity)
        if "[" in address:
            self.socket.setsockopt(zmq.IPV6, 1)
        self.socket.connect(address)

    def send(self, message: Message) -> None:
        self.socket.send(wire.pack(message))

    def raw(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def receive(self, timeout_s: float = 10.0) -> Message | None:
        return wire.unpack(self.socket.recv()) if self.socket.poll(int(timeout_s * 1e3)) else None

    def close(self) -> None:
        self.socket.close(0)


class Client:
    """Any link, with the waiting that tests need."""

    def __init__(self, link: Any) -> None:
        self.link = link
        self.seq = 0
        self.other: list[Message] = []

    def send(self, kind: Kind, **parts: Any) -> int:
        self.seq += 1
        self.link.send(Message(kind, self.seq, **parts))
        return self.seq

    def wait(self, *kinds: Kind, timeout_s: float = 10.0) -> Message:
        """The next message of these kinds; others are kept in `other`."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            message = self.link.receive(left)
            if message is not None:
                if message.kind in kinds:
                    return message
                self.other.append(message)
        raise AssertionError(f"no {kinds} within {timeout_s} s, but {[m.kind.name for m in self.other]}")

    def ask(self, kind: Kind, *answers: Kind, **parts: Any) -> Message:
        seq = self.send(kind, **parts)
        while (message := self.wait(*answers)).seq != seq:
            self.other.append(message)
        return message

    def hello(self, role: str, name: str = "x", **more: Any) -> Message:
        return self.ask(
            Kind.HELLO, Kind.WELCOME, meta={"role": role, "name": name, "pid": 1, "host": "h", "envs": 1, "versions": {}, "epoch": "", **more}
        )


class Player(Client):
    """An actor: the core's local memory behind a raw link."""

    def __init__(self, link: Any, name: str, **more: Any) -> None:
        super().__init__(link)
        self.welcome = self.hello("actor", name, **more).meta
        schema = Schema([(n, d, tuple(s)) for n, d, s in self.welcome["schema"]])
        self.specs = [TableSpec(schema, one) for one in self.welcome["tables"]]
        self.memory = Memory(schema, self.specs, self.welcome["streams"], 3)
        self.steps = 0

    def play(self, steps: int, priority: float = 1.0) -> None:
        """One finished episode whose obs count its steps."""
        for _ in range(steps):
            self.memory.add(0, {"obs": np.full(3, self.steps, np.float32), "reward": float(self.steps)}, priority, -1)
            self.steps += 1
        self.memory.end(0, True, None)

    def push(self, table: int = 0, draws: int = 0) -> Message:
        """One payload; its ACK's notices are applied."""
        payload = self.memory.draw(table, draws, 1 << 20, 64)
        assert payload is not None
        ack = self.ask(Kind.PUSH, Kind.ACK, table=table, a=self.steps, body=payload[64:].tobytes())
        words = np.frombuffer(bytes(ack.body), np.uint64)
        self.memory.missing(table, words[: ack.b])
        self.memory.evicted(table, words[ack.b :])
        return ack


def columns(spec: TableSpec, batch: Message) -> dict[str, np.ndarray]:
    """A BATCH's columns."""
    size, layout = spec.layout(batch.a)
    body = np.frombuffer(batch.body, np.uint8)
    assert body.nbytes == size
    return {n: body[at : at + np.dtype(d).itemsize * int(np.prod(s))].view(d).reshape(s) for n, d, s, at in layout}


@pytest.fixture(params=["tcp", "ipc", "local"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(transport: str, tmp_path: Path) -> Iterator[memsvc.Server]:
    address = f"ipc://{tmp_path}/door" if transport == "ipc" else "tcp://127.0.0.1:0"
    with memsvc.Server(settings(address)) as server:
        yield server


@pytest.fixture
def links(server: memsvc.Server, transport: str) -> Iterator[Any]:
    """links("door") or links("draw"): a new link of the transport."""
    made: list[Any] = []

    def link(role: str) -> Any:
        if transport == "local":
            made.append(server.endpoint.connect(role))
        else:
            made.append(Wire(server.address if role == "door" else server.engine.addresses["draw"]))
        return made[-1]

    yield link
    for one in made:
        one.close()


@pytest.fixture
def tcp() -> Iterator[memsvc.Server]:
    with memsvc.Server(settings()) as server:
        yield server


# What it is asked and what it answers.


def test_welcome_tells_everything(links: Any, server: memsvc.Server) -> None:
    actor, learner = Client(links("door")), Client(links("door"))
    welcome = actor.hello("actor", "a", envs=3).meta
    assert welcome["wire"] == wire.VERSION
    assert welcome["schema"] == [["obs", "<f4", [3]], ["reward", "<f4", []]]
    assert welcome["tables"] == server.config.tables
    assert len(set(welcome["streams"])) == 3
    assert welcome["epoch"] == server.engine.epoch
    assert welcome["versions"] == {}
    assert {name: welcome[name] for name in ("draw", "params", "beside")} == server.engine.addresses
    other = learner.hello("learner").meta
    assert other["streams"] == []
    assert actor.ask(Kind.PING, Kind.PONG).meta == {"member": True, "stored": 0}
    assert Client(links("door")).ask(Kind.PING, Kind.PONG).meta == {"member": False}


def test_pushed_steps_come_out_as_batches(links: Any) -> None:
    player, learner = Player(links("door"), "a"), Client(links("draw"))
    player.play(40)
    first = player.push()
    assert first.a > 0, "an actor with items is asked for draws"
    player.push(draws=512)
    batch = learner.ask(Kind.SAMPLE, Kind.BATCH, a=32, f=5)
    made = columns(player.specs[0], batch)
    assert (batch.a, batch.b, batch.f) == (32, 40, 40.0)
    assert np.array_equal(made["obs"], np.repeat(made["reward"][:, None], 3, axis=1))
    assert np.allclose(made["probabilities"], 1 / 40)
    assert len(set(made["reward"].tolist())) > 10


def test_the_union_table_is_served_too(links: Any) -> None:
    player, learner = Player(links("door"), "a"), Client(links("draw"))
    player.play(20)
    player.push(table=1)
    batch = learner.ask(Kind.SAMPLE, Kind.BATCH, table=1, a=64, f=5)
    assert batch.b == 20
    assert set(columns(player.specs[1], batch)["reward"].tolist()) <= set(range(20))


def test_a_queue_gives_each_item_to_one_learner_in_order(links: Any) -> None:
    player, one, two = Player(links("door"), "a"), Client(links("draw")), Client(links("draw"))
    player.play(20)
    player.push(table=2)
    seen = []
    for learner in (one, two, one, two):
        batch = learner.ask(Kind.SAMPLE, Kind.BATCH, table=2, a=5, f=5)
        seen += columns(player.specs[2], batch)["reward"].tolist()
        learner.send(Kind.TAKEN, table=2, a=batch.seq)
    assert seen == list(range(20))
    assert one.ask(Kind.SAMPLE, Kind.WAIT, table=2, a=5, f=0).meta["reason"] in ("few", "empty", "min_items")


def test_what_a_killed_learner_had_not_confirmed_comes_again(links: Any) -> None:
    player, killed, other = Player(links("door"), "a"), Client(links("draw")), Client(links("draw"))
    player.play(20)
    player.push(table=2)
    killed.ask(Kind.SAMPLE, Kind.BATCH, table=2, a=15, f=5)
    killed.link.close()
    batch = other.ask(Kind.SAMPLE, Kind.BATCH, Kind.WAIT, table=2, a=20, f=20)
    assert batch.kind is Kind.BATCH
    assert columns(player.specs[2], batch)["reward"].tolist() == list(range(20))


def test_items_are_got_and_deleted_by_key_and_settings_changed(links: Any) -> None:
    player, learner = Player(links("door"), "a"), Client(links("draw"))
    player.play(20)
    player.push(table=1)
    batch = columns(player.specs[1], learner.ask(Kind.SAMPLE, Kind.BATCH, table=1, a=64, f=5))
    keys = np.unique(batch["keys"])
    asked = np.append(keys[::-1], np.uint64(5))
    items = learner.ask(Kind.GET, Kind.ITEMS, table=1, b=len(asked), body=asked.tobytes())
    assert columns(player.specs[1], items)["keys"].tolist() == keys[::-1].tolist()
    assert learner.ask(Kind.DELETE, Kind.UPDATED, table=1, b=len(asked), body=asked.tobytes()).a == len(keys)
    assert learner.ask(Kind.GET, Kind.ITEMS, table=1, b=len(asked), body=asked.tobytes()).a == 0
    changed = learner.ask(Kind.CONFIGURE, Kind.CONFIGURED, table=1, meta={"priority.exponent": 0.25}).meta
    assert changed["priority"]["exponent"] == 0.25
    assert player.wait(Kind.SETTINGS).meta == changed


def test_a_request_waits_for_stock_and_is_served_by_the_push_that_brings_it(links: Any) -> None:
    player, learner = Player(links("door"), "a"), Client(links("draw"))
    seq = learner.send(Kind.SAMPLE, a=16, f=30)
    player.play(40)
    player.push()
    player.push(draws=64)
    assert learner.wait(Kind.BATCH).seq == seq


def test_waiting_requests_are_served_in_order_of_arrival(links: Any) -> None:
    player, learner = Player(links("door"), "a"), Client(links("draw"))
    asked = [learner.send(Kind.SAMPLE, a=8, f=30) for _ in range(5)]
    learner.ask(Kind.PING, Kind.PONG)
    player.play(40)
    player.push(draws=256)
    assert [learner.wait(Kind.BATCH).seq for _ in asked] == asked


def test_a_batch_that_cannot_be_filled_does_not_hold_up_a_smaller_one(links: Any) -> None:
    player, big, small = Player(links("door"), "a"), Client(links("draw")), Client(links("draw"))
    big.send(Kind.SAMPLE, a=100_000, f=30)
    big.ask(Kind.PING, Kind.PONG)
    player.play(40)
    player.push(draws=64)
    assert small.ask(Kind.SAMPLE, Kind.BATCH, Kind.WAIT, a=8, f=20).kind is Kind.BATCH


def test_a_request_whose_time_is_over_says_why(links: Any) -> None:
    player, learner = Player(links("door"), "a"), Client(links("draw"))
    player.play(4)
    player.push()
    began = time.monotonic()
    wait = learner.ask(Kind.SAMPLE, Kind.WAIT, a=16, f=0.2)
    assert 0.15 < time.monotonic() - began < 5
    assert wait.meta == {"reason": "min_items", "have": 4, "need": 10}
    player.play(40)
    player.push()
    assert learner.ask(Kind.SAMPLE, Kind.WAIT, a=16, f=0.05).meta["reason"] == "stock"


def test_too_many_waiting_requests_are_an_error_to_that_learner_alone(links: Any) -> None:
    greedy, modest = Client(links("draw")), Client(links("draw"))
    waiting = [greedy.send(Kind.SAMPLE, a=8, f=1) for _ in range(8)]
    error = greedy.ask(Kind.SAMPLE, Kind.ERROR, a=8, f=1)
    assert "8 requests of this client wait already" in error.meta["message"]
    assert modest.ask(Kind.SAMPLE, Kind.WAIT, a=8, f=0.01).meta["reason"]
    assert sorted(greedy.wait(Kind.WAIT).seq for _ in waiting) == waiting


def test_priorities_are_applied_and_reach_the_actor(links: Any, server: memsvc.Server) -> None:
    player, learner = Player(links("door"), "a"), Client(links("draw"))
    player.play(40)
    player.push(draws=256)
    made = columns(player.specs[0], learner.ask(Kind.SAMPLE, Kind.BATCH, a=32, f=5))
    keys = np.unique(made["keys"])
    priorities = np.full(len(keys), 0.25)
    priorities[-1] = np.nan
    updated = learner.ask(Kind.UPDATE, Kind.UPDATED, b=len(keys), body=keys.tobytes() + priorities.tobytes())
    assert np.frombuffer(bytes(updated.body), np.uint64).tolist() == [keys[-1]]
    assert updated.a == len(keys) - 1
    began = time.monotonic()
    feedback = player.wait(Kind.FEEDBACK)
    assert time.monotonic() - began < 1.0
    sent = np.frombuffer(bytes(feedback.body[: 8 * feedback.b]), np.uint64)
    assert sorted(sent.tolist()) == sorted(keys[:-1].tolist())
    assert player.memory.feedback(0, feedback.a, sent, np.frombuffer(bytes(feedback.body[8 * feedback.b :]), np.float64)) == len(sent)
    stale = learner.ask(Kind.UPDATE, Kind.UPDATED, b=1, body=np.array([1 << 62], np.uint64).tobytes() + np.ones(1).tobytes())
    assert (stale.a, stale.b) == (0, 1)
    assert server.stats()["tables"][0]["refused_updates"] == 1


def test_feedback_comes_along_with_the_next_push(links: Any) -> None:
    player, learner = Player(links("door"), "a"), Client(links("draw"))
    player.play(40)
    player.push(draws=256)
    made = columns(player.specs[0], learner.ask(Kind.SAMPLE, Kind.BATCH, a=8, f=5))
    key = made["keys"][:1]
    learner.ask(Kind.UPDATE, Kind.UPDATED, b=1, body=key.tobytes() + np.ones(1).tobytes())
    player.push(draws=8)
    numbers = [m.a for m in player.other if m.kind is Kind.FEEDBACK] or [player.wait(Kind.FEEDBACK).a]
    assert numbers == [1]


def test_draws_that_were_used_are_asked_for_anew_without_a_push(links: Any) -> None:
    player, learner = Player(links("door"), "a"), Client(links("draw"))
    player.play(40)
    player.push(draws=0)
    player.push(draws=2048)
    for _ in range(6):
        learner.ask(Kind.SAMPLE, Kind.BATCH, a=256, f=5)
    assert player.wait(Kind.ACK).a > 0


def test_parameters_are_numbered_announced_and_kept(links: Any, server: memsvc.Server, transport: str) -> None:
    actor, learner = Client(links("door")), Client(links("draw"))
    actor.hello("actor", "a", versions={"": 41})
    learner.hello("learner", "l")
    assert actor.ask(Kind.FETCH, Kind.PARAMS, meta={"topic": ""}).a == 0
    listener = None
    if transport != "local":
        listener = zmq.Context.instance().socket(zmq.SUB)
        listener.setsockopt(zmq.LINGER, 0)
        listener.subscribe(b"")
        listener.connect(server.engine.addresses["params"])
        listener.poll(300)
    assert learner.ask(Kind.PUBLISH, Kind.PUBLISHED, meta={"topic": ""}, body=b"first").a == 42
    assert learner.ask(Kind.PUBLISH, Kind.PUBLISHED, meta={"topic": ""}, body=b"second" * 20_000).a == 43
    assert learner.ask(Kind.PUBLISH, Kind.PUBLISHED, meta={"topic": "other"}, body=b"x").a == 1
    if listener is None:
        seen = [actor.wait(Kind.NOTICE) for _ in range(2)]
        assert {(m.meta["topic"], m.a) for m in seen} >= {("other", 1)}
    else:
        notices = [wire.unpack(listener.recv_multipart()[1]) for _ in range(3) if listener.poll(5000)]
        assert [(m.meta["topic"], m.a, m.b) for m in notices] == [("", 42, 5), ("", 43, 120_000), ("other", 1, 1)]
        listener.close(0)
    late = Client(links("door"))
    assert late.hello("actor", "late").meta["versions"] == {"": 43, "other": 1}
    params = late.ask(Kind.FETCH, Kind.PARAMS, meta={"topic": ""})
    assert (params.a, params.meta, bytes(params.body)) == (43, {"topic": ""}, b"second" * 20_000)


def test_statistics_are_json_with_everything(links: Any, server: memsvc.Server) -> None:
    player = Player(links("door"), "a")
    player.play(12)
    player.push(draws=16)
    stats = player.ask(Kind.STATS, Kind.STATS).meta
    assert stats["address"] == server.address
    assert stats["seed"] == 7
    assert 0 <= stats["first_stream"] < 1 << 28
    assert stats["tables"][0]["name"] == "replay"
    assert stats["tables"][0]["settings"] == server.config.tables[0]
    assert {"limiter", "aged", "deleted", "put_back", "in_flight", "exhausted", "age_steps", "deliveries"} <= set(stats["tables"][0])
    actor = stats["tables"][0]["actors"][0]
    assert (actor["name"], actor["steps"], actor["episodes"]) == ("a", 12, 1)
    assert [(one["role"], one["name"]) for one in stats["peers"]] == [("actor", "a")]
    assert server.stats()["steps"] == stats["steps"] > 0


# What goes wrong.


def test_wrong_requests_are_refused_and_serving_goes_on(links: Any) -> None:
    client = Client(links("draw"))
    wrong: list[tuple[str, Kind, dict[str, Any]]] = [
        ("unknown_table", Kind.SAMPLE, {"table": 9, "a": 1}),
        ("protocol", Kind.SAMPLE, {"a": 0}),
        ("protocol", Kind.SAMPLE, {"a": 1 << 60}),
        ("protocol", Kind.SAMPLE, {"a": 1, "f": float("nan")}),
        ("protocol", Kind.UPDATE, {"b": 3, "body": b"12345678"}),
        ("protocol", Kind.UPDATE, {"b": (1 << 64) - 1}),
        ("protocol", Kind.PUSH, {"body": b""}),
        ("protocol", Kind.WELCOME, {}),
        ("protocol", Kind.PUBLISH, {"meta": {"topic": 7}}),
        ("protocol", Kind.FETCH, {"meta": {"topic": "x" * 1000}}),
        *[("protocol", Kind.HELLO, {"meta": meta}) for meta in ({}, {"role": "king"}, {"role": "actor"}, {"role": "actor", "name": 3})],
        *[("protocol", Kind.HELLO, {"meta": {"role": "actor", "name": "a", "envs": envs}}) for envs in (0, 1 << 40, "two", True)],
        ("protocol", Kind.HELLO, {"meta": {"role": "actor", "name": "a", "versions": {"": "x"}}}),
        ("protocol", Kind.HELLO, {"meta": {"role": "actor", "name": "a", "topic": 7}}),
        ("protocol", Kind.HELLO, {"meta": {"role": "learner", "name": "a", "table": "x", "batch": 1}}),
        *[("protocol", Kind.HELLO, {"meta": {"role": "learner", "name": "a", "table": 0, "batch": batch}}) for batch in (None, 0, True, 1 << 63)],
        ("unknown_table", Kind.HELLO, {"meta": {"role": "learner", "name": "a", "table": 7, "batch": 1}}),
        ("protocol", Kind.SAMPLE, {"a": 1, "meta": {"min_version": "new"}}),
        ("unknown_table", Kind.TAKEN, {"table": 9, "a": 1}),
        ("unknown_table", Kind.CONFIGURE, {"table": 9, "meta": {}}),
        ("config", Kind.CONFIGURE, {"meta": {"item.kind": "step"}}),
        ("protocol", Kind.GET, {"b": 3, "body": b"12345678"}),
        ("protocol", Kind.DELETE, {"b": (1 << 64) - 1}),
        ("protocol", Kind.SETTINGS, {}),
    ]
    for code, kind, parts in wrong:
        error = client.ask(kind, Kind.ERROR, **parts)
        assert error.meta["code"] == code, (kind, parts, error.meta)
    unknown = client.ask(Kind.SAMPLE, Kind.ERROR, table=9, a=1)
    assert unknown.meta["message"] == "table 9 does not exist; there are 3: replay, union, queue"
    assert unknown.meta["details"] == {"tables": ["replay", "union", "queue"]}
    assert client.ask(Kind.PUSH, Kind.ERROR).meta["details"] == {"hello": True}
    assert client.ask(Kind.PING, Kind.PONG)


def test_damaged_payloads_change_nothing(links: Any, server: memsvc.Server, rng: np.random.Generator) -> None:
    player, learner = Player(links("door"), "a"), Client(links("draw"))
    player.play(40)
    payload = player.memory.draw(0, 64, 1 << 20, 0)
    assert payload is not None
    good = payload.tobytes()
    for cut in (0, 1, 64, 127, 128, 200, len(good) - 1):
        assert player.ask(Kind.PUSH, Kind.ERROR, body=good[:cut]).meta["code"] == "protocol"
    for _ in range(300):
        damaged = bytearray(good)
        damaged[int(rng.integers(0, 72))] ^= 1 << int(rng.integers(0, 8))
        player.ask(Kind.PUSH, Kind.ERROR, Kind.ACK, body=bytes(damaged))
    assert player.ask(Kind.PING, Kind.PONG)
    fresh = Player(links("door"), "b")
    fresh.play(40)
    fresh.push(draws=64)
    assert learner.ask(Kind.SAMPLE, Kind.BATCH, a=8, f=5)
    assert server.stats()["counts"]["malformed"] > 0


def test_a_failure_inside_the_server_is_answered_and_logged(
    tcp: memsvc.Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(Wire(tcp.address))
    monkeypatch.setattr(tcp.engine, "stats", lambda: 1 / 0)
    error = client.ask(Kind.STATS, Kind.ERROR)
    assert error.meta["code"] == "server"
    assert "ZeroDivisionError" in error.meta["message"]
    assert "STATS of an unnamed client (door) failed" in caplog.text
    assert client.ask(Kind.PING, Kind.PONG)
    client.link.close()


def test_garbage_is_dropped_counted_and_logged_once(tcp: memsvc.Server, caplog: pytest.LogCaptureFixture, rng: np.random.Generator) -> None:
    client = Client(Wire(tcp.address))
    with caplog.at_level(logging.WARNING, "memsvc"):
        client.link.raw(b"hello?")
        client.link.raw(wire.pack(Message(Kind.PING, 1)), b"second frame")
        for _ in range(500):
            client.link.raw(rng.bytes(int(rng.integers(0, 500))))
        assert client.ask(Kind.PING, Kind.PONG)
    assert tcp.stats()["counts"]["malformed"] == 502
    assert sum("dropped a message" in record.message for record in caplog.records) == 1
    assert not [m for m in client.other if m.kind is Kind.ERROR]
    client.link.close()


def test_another_wire_version_is_told_so(tcp: memsvc.Server) -> None:
    import struct
    import zlib

    client = Client(Wire(tcp.address))
    head = struct.pack("<4sHHQQQQdIII", b"MSV1", 9, 1, 77, 0, 0, 0, 0.0, 0, 0, 0)
    client.link.raw(head + struct.pack("<I", zlib.crc32(head)))
    error = client.wait(Kind.ERROR)
    assert error.seq == 77
    assert error.meta["code"] == "protocol"
    assert f"wire version 9, this side {wire.VERSION}" in error.meta["message"]
    client.link.close()


def test_a_learner_that_does_not_read_costs_bounded_memory(tcp: memsvc.Server) -> None:
    player = Player(Wire(tcp.address), "a")
    stuck = Client(Wire(tcp.engine.addresses["draw"]))
    stuck.link.socket.setsockopt(zmq.RCVHWM, 1)
    player.play(100)
    player.push(table=1)
    batch = 40_000  # 2 MB
    for _ in range(200):
        stuck.send(Kind.SAMPLE, table=1, a=batch, f=0.05)
    busy = Client(Wire(tcp.engine.addresses["draw"]))
    for _ in range(20):
        busy.ask(Kind.SAMPLE, Kind.BATCH, table=1, a=64, f=5)
    size = tcp.engine.tables[1].size_of(batch)
    assert tcp.stats()["queues"]["batches_bytes"] < 60 * size
    for one in (player, stuck, busy):
        one.link.close()


# Who comes and goes.


def test_a_namesake_replaces_its_predecessor(links: Any) -> None:
    old = Player(links("door"), "a")
    old.play(40)
    old.push(draws=64)
    new = Player(links("door"), "a")
    told = old.wait(Kind.ERROR)
    assert (told.seq, told.meta["code"]) == (0, "closed")
    payload = old.memory.draw(0, 8, 1 << 20, 0)
    assert payload is not None
    assert old.ask(Kind.PUSH, Kind.ERROR, body=payload.tobytes()).meta["code"] == "closed"
    again = old.ask(Kind.HELLO, Kind.ERROR, Kind.WELCOME, meta={"role": "actor", "name": "a", "envs": 1})
    assert again.kind is Kind.ERROR
    assert not set(old.welcome["streams"]) & set(new.welcome["streams"])
    new.play(40)
    assert new.push(draws=64).kind is Kind.ACK


def test_an_actor_that_left_is_used_up_and_then_forgotten(links: Any, server: memsvc.Server) -> None:
    player, learner = Player(links("door"), "a"), Client(links("draw"))
    player.play(40)
    player.push(draws=64)
    assert player.ask(Kind.BYE, Kind.BYE)
    assert learner.ask(Kind.SAMPLE, Kind.BATCH, a=32, f=5).b == 40
    assert server.stats()["peers"] == []


def test_a_connection_that_broke_is_noticed(tcp: memsvc.Server) -> None:
    player = Player(Wire(tcp.address), "a")
    player.play(40)
    player.push(draws=64)
    player.link.close()
    deadline = time.monotonic() + 10
    while tcp.stats()["peers"] and time.monotonic() < deadline:
        time.sleep(0.02)
    stats = tcp.stats()
    assert stats["peers"] == []
    assert stats["counts"]["lost"] == 1


def test_a_learner_that_was_killed_is_noticed_and_stands_in_nobody_s_way(tcp: memsvc.Server) -> None:
    learner, viewer = Client(Wire(tcp.engine.addresses["draw"])), Client(Wire(tcp.address))
    learner.hello("learner", "l", table=1, batch=64)
    changes = {"limits.samples_per_insert": 1.0, "limits.tolerance": 32.0}
    assert "a batch of 64 needs" in viewer.ask(Kind.CONFIGURE, Kind.ERROR, table=1, meta=changes).meta["message"]
    learner.link.close()
    deadline = time.monotonic() + 10
    while tcp.stats()["peers"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert viewer.ask(Kind.CONFIGURE, Kind.CONFIGURED, table=1, meta=changes).meta["limits"]["tolerance"] == 32.0
    viewer.link.close()


def test_a_client_that_comes_back_under_its_routing_id_is_heard(tcp: memsvc.Server) -> None:
    first = Client(Wire(tcp.address, b"mine"))
    first.hello("actor", "a")
    first.link.close()
    second = Client(Wire(tcp.address, b"mine"))
    assert second.ask(Kind.PING, Kind.PONG).kind is Kind.PONG
    assert second.hello("actor", "a").meta["streams"]
    second.link.close()


def test_requests_of_a_learner_that_left_are_forgotten(links: Any, server: memsvc.Server) -> None:
    learner = Client(links("draw"))
    learner.send(Kind.SAMPLE, a=8, f=30)
    learner.ask(Kind.BYE, Kind.BYE)
    assert server.stats()["tables"][0]["waiting"] == 0


def test_many_threads_at_once(tcp: memsvc.Server) -> None:
    """Players that push, leave and come back, learners that draw and update, over sockets and calls, all at the same time."""
    stop = threading.Event()
    errors: list[BaseException] = []
    batches = [0]

    def link(role: str, local: bool) -> Any:
        return tcp.endpoint.connect(role) if local else Wire(tcp.address if role == "door" else tcp.engine.addresses["draw"])

    def guarded(run: Callable[[bool, str], None], local: bool, name: str) -> None:
        try:
            run(local, name)
        except BaseException as error:
            errors.append(error)

    def play(local: bool, name: str) -> None:
        while not stop.is_set():
            player = Player(link("door", local), name)
            for _ in range(20):
                player.play(10)
                player.push(draws=256)
                player.push(table=1)
                player.push(table=2)
            player.ask(Kind.BYE, Kind.BYE)
            player.link.close()

    def learn(local: bool, name: str) -> None:
        learner, spec = Client(link("draw", local)), tcp.engine.tables[0].spec
        while not stop.is_set():
            batch = learner.ask(Kind.SAMPLE, Kind.BATCH, Kind.WAIT, a=32, f=0.1)
            if batch.kind is Kind.BATCH:
                batches[0] += 1
                made = columns(spec, batch)
                assert np.array_equal(made["obs"], np.repeat(made["reward"][:, None], 3, axis=1))
                learner.ask(Kind.UPDATE, Kind.UPDATED, b=32, body=made["keys"].tobytes() + np.full(32, 0.5).tobytes())
            queued = learner.ask(Kind.SAMPLE, Kind.BATCH, Kind.WAIT, table=2, a=8, f=0)
            if queued.kind is Kind.BATCH and queued.seq % 3:
                learner.send(Kind.TAKEN, table=2, a=queued.seq)
        learner.link.close()

    jobs = [(play, True, "a"), (play, False, "b"), (learn, True, "c"), (learn, True, "d"), (learn, False, "e")]
    threads = [threading.Thread(target=guarded, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while batches[0] < 1000 and time.monotonic() < deadline and not errors:
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert not errors
    assert batches[0] >= 1000
    counts = tcp.stats()["counts"]
    assert (counts["failures"], counts["malformed"], counts["unsent"]) == (0, 0, 0)
    queue = tcp.stats()["tables"][2]
    assert queue["exhausted"] > 0
    assert queue["put_back"] + queue["in_flight"] > 0


# Starting and ending.


def test_close_is_quick_idempotent_and_frees_the_port() -> None:
    server = memsvc.Server(settings())
    address = server.address
    client = Client(Wire(address))
    client.hello("learner")
    began = time.monotonic()
    server.close()
    server.close()
    assert time.monotonic() - began < 2.5
    with memsvc.Server(settings(address)) as again:
        assert again.address == address
        assert again.engine.epoch != server.engine.epoch
        assert client.ask(Kind.PING, Kind.PONG).meta == {"member": False}, "a client that reconnects by itself learns that it is new here"
    client.link.close()


def test_close_wakes_blocked_clients_in_the_process() -> None:
    server = memsvc.Server(settings())
    link = server.endpoint.connect("draw")
    seen: list[BaseException] = []

    def blocked() -> None:
        try:
            link.receive(30)
        except Closed as error:
            seen.append(error)

    thread = threading.Thread(target=blocked)
    thread.start()
    server.close()
    thread.join(2)
    assert not thread.is_alive()
    assert len(seen) == 1
    with pytest.raises(Closed):
        link.send(Message(Kind.PING, 1))
    with pytest.raises(Closed):
        server.endpoint.connect("door")


def test_wake_makes_a_local_receive_return(tcp: memsvc.Server) -> None:
    link = tcp.endpoint.connect("door")
    link.wake()
    began = time.monotonic()
    assert link.receive(30) is None
    assert time.monotonic() - began < 5
    assert link.receive(0.01) is None
    link.close()
    link.close()


def test_a_taken_port_is_named_with_the_way_out() -> None:
    with memsvc.Server(settings()) as server, pytest.raises(ConfigError) as caught:
        memsvc.Server(settings(server.address))
    assert str(caught.value).startswith(f"server.address: {server.address} cannot be bound: it is in use by another process")
    assert "(0 picks a free one)" in str(caught.value)
    with pytest.raises(ConfigError, match=r"server\.address: .* no interface with the address '192\.0\.2\.1'"):
        memsvc.Server(settings("tcp://192.0.2.1:0", insecure=True))


def test_ipc_files_are_guarded_and_removed(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/door"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(f"{tmp_path}/door")
    stale.close()
    with memsvc.Server(settings(address)) as server:
        assert sorted(os.listdir(tmp_path)) == ["door", "door.draw", "door.params"]
        with pytest.raises(ConfigError, match="in use by another process"):
            memsvc.Server(settings(address))
        client = Client(Wire(server.address))
        assert client.ask(Kind.PING, Kind.PONG)
        client.link.close()
    assert os.listdir(tmp_path) == []
    with pytest.raises(ConfigError, match="there is no directory"):
        memsvc.Server(settings(f"ipc://{tmp_path}/absent/door"))


def test_ipv6_and_names() -> None:
    for host in ("localhost", "[::1]"):
        try:
            server = memsvc.Server(settings(f"tcp://{host}:0"))
        except ConfigError as error:
            if ("::1" in str(error) and not socket.has_ipv6) or errno.errorcode[errno.EADDRNOTAVAIL] in str(error) or "no interface" in str(error):
                pytest.skip("this machine has no IPv6")
            raise
        with server:
            client = Client(Wire(server.address))
            assert client.hello("learner").meta["draw"].startswith(f"tcp://{host}:")
            client.link.close()


def test_advertised_addresses_are_announced_instead_of_the_bound_ones() -> None:
    with memsvc.Server(settings(advertise="tcp://replay.example")) as server:
        bound = server.engine.addresses["draw"]
        assert server.address.startswith("tcp://replay.example:")
        assert bound.startswith("tcp://replay.example:")
        assert bound != server.address
    with memsvc.Server(settings(advertise="tcp://replay.example:70")) as server:
        assert server.address == "tcp://replay.example:70"


def test_memory_that_the_machine_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"server\.memory: .* exceeds"):
        memsvc.Server(settings(memory="900TiB"))


def test_two_servers_do_not_share_streams_or_seeds() -> None:
    plain = settings(seed=0)
    with memsvc.Server(plain) as one, memsvc.Server(plain) as two:
        a, b = one.stats(), two.stats()
        assert a["first_stream"] != b["first_stream"]
        assert a["seed"] != b["seed"]


def test_a_forked_child_has_no_server_and_does_not_crash():
    with memsvc.Server(memsvc.Config.from_dict(settings())) as server:
        server.stats()
        child = os.fork()
        if child == 0:
            try:
                server.stats()
            except UsedAfterFork:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert server.stats()["capacity_steps"] > 0
