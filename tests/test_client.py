"""Client and server together, in process and over tcp and ipc: what goes in comes out, what goes wrong says so, and both go on working."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import socket
import threading
import time

import numpy as np
import pytest
from memsvc_client import Actor, Closed, ConfigError, Learner, UnknownTable, Unreachable, UsedAfterFork, WindowFull, ZmqEndpoint
from memsvc_client.welcome import hello_message
from serving import CACHES, KINDS, UNION, background, config, serve, until

import memsvc

DTYPES = ("?", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16")


@pytest.fixture(params=KINDS)
def served(request, tmp_path):
    with serve(request.param, tmp_path) as made:
        yield made


def numbered(i):
    return {"obs": np.array([i, i + 0.25, -i], np.float32), "action": i, "reward": i / 2}


def fill(actor, n, start=0):
    for i in range(start, start + n):
        actor.add(**numbered(i), priority=1.0 + i)
    actor.end_episode(terminated=True)
    actor.flush(10)


def check(batch):
    i = batch["action"].astype(np.float32)
    assert np.array_equal(batch["obs"], np.stack([i, i + 0.25, -i], 1))
    assert np.array_equal(batch["reward"], i / 2)


def test_what_goes_in_comes_out(served):
    with served.actor() as actor, served.learner(table="union", batch_size=32) as learner:
        fill(actor, 100)
        seen = set()
        for _ in range(30):
            batch = learner.sample()
            check(batch)
            assert batch.population == 100
            assert np.allclose(batch.probabilities, (batch["action"] + 1) / 5050)
            seen |= set(batch["action"].tolist())
        assert len(seen) > 60
        assert served.table()["items"] == 100


def test_priorities_go_back(served):
    with served.actor() as actor, served.learner(batch_size=16) as learner:
        fill(actor, 50)
        batch = learner.sample()
        keep = batch["action"][0]
        keys = {}
        for _ in range(200):
            batch = learner.sample()
            keys.update(zip(batch["action"].tolist(), batch.keys.tolist(), strict=True))
            if len(keys) == 50:
                break
        assert len(keys) == 50
        learner.update_priorities(np.array([keys[i] for i in range(50)], np.uint64), [5.0 if i == keep else 0.0 for i in range(50)])
        until(lambda: learner.stats()["applied"] == 50)
        for _ in range(4):  # two batches were drawn ahead
            batch = learner.sample()
        assert set(batch["action"].tolist()) == {keep}
        assert batch.population == 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype_and_layout_arrives_bit_for_bit(kind, tmp_path, rng):
    step = {f"f{i}": {"dtype": np.dtype(dtype).name, "shape": [2, 3]} for i, dtype in enumerate(DTYPES)}
    step |= {"zero": {"dtype": "float64"}, "none": {"dtype": "int16", "shape": [0, 4]}, "reward": {"dtype": "float32"}}

    def array(dtype):
        if dtype == "?":
            return rng.integers(0, 2, (2, 3)).astype(bool)
        return np.frombuffer(rng.bytes(6 * np.dtype(dtype).itemsize), dtype).reshape(2, 3)

    def read_only(a):
        b = a.copy()
        b.setflags(write=False)
        return b

    layouts = (
        lambda a: a,
        np.asfortranarray,
        lambda a: np.repeat(a, 2, 1)[:, ::2],
        lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
        read_only,
    )
    table = UNION | {"priority": {"source": "max"}}
    with serve(kind, tmp_path, table, step=step) as made, made.actor() as actor, made.learner(batch_size=1) as learner:
        for layout in layouts:
            given = {f"f{i}": layout(array(dtype)) for i, dtype in enumerate(DTYPES)}
            given |= {"zero": np.array(rng.random()), "none": np.zeros((0, 4), np.int16), "reward": np.float32(rng.random())}
            actor.add(**given)
            actor.end_episode(terminated=True)
            actor.flush(10)
            key = until(lambda zero=given["zero"]: newest(learner, zero))
            for name, value in given.items():
                assert key[name].dtype == np.asarray(value).dtype, name
                assert key[name][0].tobytes() == np.asarray(value).tobytes(), name
                assert key[name].shape == (1, *np.shape(value)), name


def newest(learner, zero):
    batch = learner.sample()
    return batch if batch["zero"][0] == zero else None


def test_unknown_table(served):
    with pytest.raises(UnknownTable, match=r"'nothing'.*'union'") as caught:
        served.learner(table="nothing")
    assert caught.value.tables == ["union"]
    with served.learner() as learner:
        assert learner.table == "union"


def test_several_tables_need_a_name(tmp_path):
    with serve("local", tmp_path, UNION, CACHES | {"priority": {"source": "given"}}) as made:
        with pytest.raises(UnknownTable, match="no table was named"):
            made.learner()
        with made.actor() as actor, made.learner(table="replay", batch_size=4) as caches, made.learner(table="union", batch_size=4) as union:
            for i in range(40):
                actor.add(**numbered(i), priority=1.0)
            actor.end_episode(terminated=True)
            actor.flush(10)
            check(union.sample())
            check(caches.sample())


@pytest.mark.parametrize("make", [Actor, Learner])
def test_unreachable(make):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(Unreachable, match="memsvc serve") as caught:
            make(address, timeout=0.3)
        assert time.monotonic() - began < 2
        assert address in str(caught.value)
        assert isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize("address", ["", "localhost", "tcp://nowhere", "http://a:1", "tcp://127.0.0.1:99999999"])
def test_what_is_no_address(address):
    with pytest.raises(ConfigError, match="tcp://HOST:PORT"):
        Actor(address)


@pytest.mark.parametrize("settings", [{"envs": 0}, {"window_bytes": 0}, {"message_bytes": 100}])
def test_what_is_no_setting(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Actor("tcp://127.0.0.1:1", **settings)


def test_a_server_that_speaks_something_else():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        threading.Thread(target=lambda: server.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), daemon=True).start()
        with pytest.raises(Unreachable):
            Actor(f"tcp://127.0.0.1:{server.getsockname()[1]}", timeout=0.5)


def test_close_is_idempotent_and_wakes_callers(served):
    actor, learner = served.actor(), served.learner()
    blocked = [background(lambda: learner.sample(60)), background(lambda: actor.params(60))]
    until(lambda: served.server.stats()["tables"][0]["waiting"])
    began = time.monotonic()
    learner.close()
    actor.close()
    for result in blocked:
        assert isinstance(result(3), Closed)
    assert time.monotonic() - began < 3
    learner.close()
    assert actor.close() == (0, 0)
    for call in (lambda: actor.add(**numbered(0), priority=1.0), actor.flush, actor.params, actor.stats, learner.sample, learner.stats):
        with pytest.raises(Closed):
            call()
    with pytest.raises(Closed):
        learner.update_priorities([], [])
    assert list(learner) == []


def test_closing_the_server_ends_clients_in_process(tmp_path):
    with serve("local", tmp_path) as made:
        actor, learner = made.actor(), made.learner()
        blocked = background(lambda: learner.sample(60))
        made.server.close()
        assert isinstance(blocked(), Closed)

        def refused():
            try:
                actor.add(**numbered(0), priority=1.0)
            except Closed:
                return True
            return False

        until(refused)
        learner.close()
        actor.close()


def test_a_second_actor_of_a_name_replaces_the_first(served):
    with served.actor(name="one") as first:
        fill(first, 5)
        with served.actor(name="one") as second:
            fill(second, 5, start=100)

            def ended():
                try:
                    first.add(**numbered(0), priority=1.0)
                except Closed as error:
                    return "name" in str(error)
                return False

            until(ended)
            fill(second, 5, start=200)


def in_child(call):
    """Runs `call` in a forked child, and returns the name of the exception it ends with."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            name = b"nothing"
        except BaseException as error:
            name = type(error).__name__.encode()
        os.write(writable, name)
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        name = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return name


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_after_a_fork(served):
    with served.actor() as actor, served.learner(batch_size=4) as learner:
        fill(actor, 20)
        check(learner.sample())
        calls = (
            lambda: actor.add(**numbered(1), priority=1.0),
            lambda: actor.add_batch(obs=np.zeros((1, 3), np.float32), action=[1], reward=[1.0]),
            lambda: actor.end_episode(True),
            actor.flush,
            actor.params,
            actor.stats,
            learner.sample,
            lambda: next(learner),
            lambda: learner.update_priorities(np.zeros(1, np.uint64), [1.0]),
            lambda: learner.publish({}),
            learner.params,
            learner.stats,
        )
        for call in calls:
            assert in_child(call) == UsedAfterFork.__name__
        assert in_child(actor.close) == "nothing"
        assert in_child(learner.close) == "nothing"
        fill(actor, 20, start=20)
        check(learner.sample())


def play(actor, start):
    fill(actor, 10, start)
    actor.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_pickled_clients_are_new_ones(method, tmp_path):
    with serve("tcp", tmp_path) as made, made.actor(name="parent") as actor, made.learner(batch_size=64) as learner:
        child = multiprocessing.get_context(method).Process(target=play, args=(actor, 50))
        child.start()
        fill(actor, 10)
        child.join(30)
        assert child.exitcode == 0
        with pickle.loads(pickle.dumps(learner)) as copy:
            seen = {i for _ in range(20) for i in copy.sample()["action"].tolist()}
        assert seen == set(range(10)) | set(range(50, 60))
        names = [peer["name"] for peer in made.table()["actors"]]
        assert len(names) == len(set(names))


def test_in_process_clients_do_not_pickle(tmp_path):
    with serve("local", tmp_path) as made, made.actor() as actor, pytest.raises(TypeError, match="address"):
        pickle.dumps(actor)


@pytest.mark.parametrize("table", [UNION, CACHES], ids=["all", "caches"])
def test_a_server_that_restarts(table, tmp_path, caplog):
    address = f"ipc://{tmp_path}/s"
    table = table | {"priority": {"source": "max"}}
    with memsvc.Server(config(address, table)):
        actor, learner = Actor(address, timeout=10), Learner(address, timeout=10, batch_size=8)
        for i in range(40):
            actor.add(**numbered(i))
        actor.end_episode(terminated=True)
        actor.flush(10)
        check(learner.sample())
        version = learner.publish({"w": np.zeros(1)})
        assert actor.params().version == version
    with caplog.at_level(logging.WARNING), memsvc.Server(config(address, table)) as server:

        def items():
            for i in range(40, 60):
                actor.add(**numbered(i))
            actor.end_episode(terminated=True)
            return server.stats()["tables"][0]["population"] > 40

        until(items, 15)
        for _ in range(5):  # what was asked for ahead came from the old server
            batch = learner.sample(20)
            check(batch)
        assert batch.population > 40
        newer = learner.publish({"w": np.ones(1)}, timeout=20)
        assert newer > version
        assert until(lambda: actor.params()).version == newer
        assert any("anew" in record.message for record in caplog.records)
        actor.close()
        learner.close()


def test_publish_goes_on_over_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr("memsvc_client.conversation.SILENT_S", 0.3)
    address = f"ipc://{tmp_path}/s"
    with memsvc.Server(config(address)):
        learner = Learner(address, timeout=10)
    published = background(lambda: learner.publish({"w": np.zeros(1)}, timeout=20))
    until(lambda: learner._talk._answers)  # it is on its way to nobody
    with memsvc.Server(config(address)) as server:
        assert published(15) == 1
        assert server.stats()["parameters"]["default"]["version"] == 1
        learner.close()


def test_sample_goes_on_after_a_restart_when_unsent_priorities_fill_the_queue(tmp_path, monkeypatch):
    monkeypatch.setattr("memsvc_client.conversation.SILENT_S", 0.3)
    address = f"ipc://{tmp_path}/s"
    with memsvc.Server(config(address)):
        learner = Learner(address, timeout=0.2, batch_size=4)
    keys = np.arange(4, dtype=np.uint64)

    def update_many():
        for _ in range(100_000):
            learner.update_priorities(keys, np.ones(4))

    with pytest.raises(WindowFull):
        update_many()
    with memsvc.Server(config(address)), Actor(address, timeout=10) as actor:
        fill(actor, 20)
        assert learner.sample(timeout=15).population == 20
        learner.close()


def test_only_the_answer_to_the_last_hello_moves_a_learner(tmp_path):
    # A server that was stopped answers the HELLOs of that time later; if it dies then, those answers name a draw address that is dead.
    with serve("local", tmp_path) as made, made.learner() as learner:
        talk = learner._talk
        draw = talk.draw
        talk._hello_seq = 101
        talk._greeted = time.monotonic()
        talk._heard_draw = talk._greeted - 60  # a connection that stands is given half of that
        talk.door.send(hello_message(100, "learner", learner.name))
        talk.listen(0)
        assert talk.draw is draw
        talk.door.send(hello_message(101, "learner", learner.name))
        talk.listen(0)
        assert talk.draw is not draw


def test_a_restart_is_no_malformed_message(tmp_path, caplog):
    address = f"ipc://{tmp_path}/s"
    with memsvc.Server(config(address)):
        actor = Actor(address, timeout=10)
    with memsvc.Server(config(address)) as server:
        fill(actor, 20)  # what was in flight to the old server is gone with it
        assert [peer["name"] for peer in server.stats()["peers"]] == [actor.name]
        actor.close()
        assert server.stats()["counts"]["malformed"] == 0
        assert not any("dropped a message" in record.message for record in caplog.records)


def test_another_schema_after_a_restart(tmp_path):
    address = f"ipc://{tmp_path}/s"
    with memsvc.Server(config(address)):
        actor = Actor(address, timeout=10)
        actor.add(**numbered(0), priority=1.0)
        actor.flush()
    with memsvc.Server(config(address, step={"obs": {"dtype": "uint8"}})):

        def refused():
            try:
                actor.add(**numbered(0), priority=1.0)
            except ConfigError as error:
                return "another schema" in str(error)
            return False

        until(refused, 15)
        actor.close()


def test_a_wildcard_is_reached_through_the_door():
    endpoint = ZmqEndpoint("tcp://replay.example:7700")
    assert endpoint._through_door("tcp://0.0.0.0:7801") == "tcp://replay.example:7801"
    assert endpoint._through_door("tcp://[::]:7801") == "tcp://replay.example:7801"
    assert endpoint._through_door("tcp://10.0.0.1:7801") == "tcp://10.0.0.1:7801"
    assert ZmqEndpoint("ipc:///x").connect is not None


def test_an_actor_that_is_dropped_still_sends(tmp_path):
    with serve("tcp", tmp_path) as made:
        actor = made.actor()
        for i in range(10):
            actor.add(**numbered(i), priority=1.0)
        actor.end_episode(terminated=True)
        del actor
        until(lambda: made.table()["items"] == 10)


def test_threads_share_an_actor_and_a_learner(served):
    with served.actor(envs=4) as actor, served.learner(batch_size=8) as learner:

        def adds(env):
            for i in range(200):
                actor.add(env=env, **numbered(i), priority=1.0)
            actor.end_episode(terminated=True, env=env)

        def samples():
            for _ in range(50):
                batch = learner.sample()
                check(batch)
                learner.update_priorities(batch.keys, np.ones(8))

        adding = [background(lambda env=env: adds(env)) for env in range(4)]
        sampling = [background(samples) for _ in range(3)]
        for result in adding + sampling:
            assert result(20) is None
        actor.flush(10)
        assert served.table()["items"] == 800
        until(lambda: learner.stats()["applied"] + learner.stats()["stale"] == 3 * 50 * 8)


@pytest.mark.parametrize("address", ["replay:7700", "tcp://replay", "tcp://replay:0", "tcp://replay:65536", "http://replay:80", None, 7700])
def test_what_is_no_address_is_refused_at_once(address):
    for client in (Actor, Learner):
        with pytest.raises(ConfigError, match="address"):
            client(address, timeout=5)
