"""Large parameters on one host: one copy in memory that all see, which nobody changes under its reader and nobody's death leaks."""

from __future__ import annotations

import fcntl
import gc
import json
import mmap
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
from memsvc_client import Actor, ProtocolError, SchemaError
from memsvc_client.beside import Side
from memsvc_client.endpoint import ZmqEndpoint
from memsvc_client.memory_file import MemoryFile, available
from memsvc_client.params import Blob, decode
from memsvc_client.segments import MOST, SHARED_BYTES, Segments, hold, mapped
from serving import KINDS, background, serve, until

pytestmark = pytest.mark.skipif(not available(), reason="this system has no memory without a name")

LARGE = 4 * SHARED_BYTES


def weights(value, size=LARGE):
    return {"w": np.full((4, size // 16), value, np.float32), "step": np.int64(value)}


def is_weights(params, value):
    return params.arrays["step"] == value and bool((params.arrays["w"] == value).all())


def in_shared_memory(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return isinstance(array.base, memoryview) and isinstance(array.base.obj, mmap.mmap)


def newer(client, than=0):
    return until(lambda: (params := client.params()) and params.version > than and params)


def segments_of(learner):
    return [segment for pool in learner._talk.handover._segments._kept.values() for segment in pool]


def shared_files():
    gc.collect()
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:"):
                found.add(os.stat(int(fd)).st_ino)
        except OSError:  # closed meanwhile
            continue
    return len(found)


def test_what_is_written_here_the_library_reads_and_the_other_way_round(rng):
    given = {
        **{f"a{i}": np.array(rng.integers(0, 2, (3, i)), dtype) for i, dtype in enumerate(("?", "u1", "<i2", "<f4", "<f8", "<c8", "<f2", "<u8"))},
        'größe\n"': np.arange(5, dtype=np.int8)[::-1],
        "0d": np.float32(3),
    }
    for blob in (
        Blob(given).joined(),
        safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in given.items()}, {"by": "the library"}),
    ):
        memory = mmap.mmap(-1, len(blob))
        memory[:] = blob
        for got in (safetensors.numpy.load(blob), decode(blob), decode(memory)):
            assert got.keys() == given.keys()
            for name, array in given.items():
                assert got[name].dtype == array.dtype
                assert np.array_equal(got[name].reshape(array.shape), array), name
    written = np.zeros(len(Blob(given).joined()) + 100, np.uint8)
    Blob(given).write(written)
    assert written[:-100].tobytes() == Blob(given).joined()
    assert not written[-100:].any()


def test_a_name_that_the_format_keeps_for_itself():
    with pytest.raises(SchemaError, match="'__metadata__'"):
        Blob({"__metadata__": np.zeros(3)})


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 17]}},
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}},
        {"w": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}},
        {"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 16]}},
        {"w": {"dtype": "F32", "shape": [2.0, 2], "data_offsets": [0, 16]}},
        {"w": {"dtype": "F32", "shape": "aa", "data_offsets": [0, 16]}},
        {"w": {"dtype": "F33", "shape": [4], "data_offsets": [0, 16]}},
        {"w": {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]}},
        {"w": {"dtype": "F32", "shape": [4]}},
        {"w": None},
        [],
    ],
)
def test_a_header_that_lies_is_no_blob(header):
    text = json.dumps(header).encode()
    memory = mmap.mmap(-1, 4096)
    memory[:] = (len(text).to_bytes(8, "little") + text + bytes(64)).ljust(4096, b"\0")[:4096]
    memory.resize(8 + len(text) + 64)
    with pytest.raises(ProtocolError):
        decode(memory)


@pytest.mark.parametrize("kind", KINDS)
def test_large_parameters_are_one_copy_for_all(kind, tmp_path):
    with serve(kind, tmp_path) as served, served.actor() as actor, served.actor() as other, served.learner() as learner:
        version = learner.publish(weights(1))
        got = [newer(client) for client in (actor, other, learner)]
        for params in got:
            assert params.version == version
            assert is_weights(params, 1)
            assert in_shared_memory(params.arrays["w"])
        assert actor.params() is None
        small = learner.publish({"w": np.zeros(3)})
        params = newer(actor, version)
        assert params.version == small == version + 1
        assert not in_shared_memory(params.arrays["w"])
        late = learner.publish(weights(2))
        with served.actor() as joined:
            params = joined.params(timeout=10)
            assert params.version == late
            assert is_weights(params, 2)
        assert served.server.stats()["parameters"]["default"] == {"version": late, "bytes": Blob(weights(2)).size}


def test_what_one_reader_writes_no_other_sees(tmp_path):
    with serve("ipc", tmp_path) as served, served.actor() as one, served.actor() as other, served.learner() as learner:
        learner.publish(weights(1))
        mine = newer(one)
        mine.arrays["w"][:] = 7
        assert is_weights(newer(other), 1)
        with served.actor() as late:
            assert is_weights(late.params(timeout=10), 1)
        for value in range(2, 8):
            learner.publish(weights(value))
            assert is_weights(newer(one, 1), value)
        assert (mine.arrays["w"] == 7).all()


def test_parameters_never_change_under_their_reader(tmp_path):
    with serve("ipc", tmp_path) as served, served.actor() as actor, served.learner() as learner:
        kept = []
        version = 0
        for value in range(1, 3 * MOST):
            learner.publish(weights(value))
            params = newer(actor, version)
            version = params.version
            kept.append(params.arrays["w"][1:2, ::2])  # a view of a view holds the memory as well
        del params
        gc.collect()
        for value, array in enumerate(kept, 1):
            assert (array == value).all()
        assert len(segments_of(learner)) == MOST


def test_memory_is_written_again_when_its_readers_have_let_go(tmp_path):
    with serve("ipc", tmp_path) as served, served.actor() as actor, served.learner() as learner:
        version = 0
        for value in range(1, 40):
            learner.publish(weights(value, LARGE + 16 * (1000 * value % 7)))
            params = newer(actor, version)
            version = params.version
        assert is_weights(params, 39)
        assert len(segments_of(learner)) <= 3


def test_a_slow_reader_costs_no_more_than_what_it_holds(tmp_path):
    with serve("ipc", tmp_path) as served, served.actor() as slow, served.actor() as quick, served.learner() as learner:
        before = shared_files()
        learner.publish(weights(1))
        held, version = newer(slow), 0
        for value in range(2, 200):
            learner.publish(weights(value))
            if value % 10 == 0:
                params = newer(quick, version)
                version = params.version
        assert is_weights(held, 1)
        assert len(segments_of(learner)) <= MOST
        # The pool, and what is no more in it: the server's newest, and of each actor what it has, what it will take next, and what it fetches.
        assert shared_files() <= before + MOST + 7


def test_nothing_is_left_when_all_have_left(tmp_path):
    before = shared_files()

    def live():
        with serve("ipc", tmp_path) as served, served.actor() as actor, served.learner() as learner:
            for value in range(6):
                learner.publish(weights(value), topic=f"t{value % 2}")
                learner.publish(weights(value))
            newer(actor)
            newer(learner)
            assert shared_files() > before

    live()
    assert shared_files() == before


READER = """
import sys, time
from memsvc_client import Actor
actor = Actor(sys.argv[1])
params = actor.params(timeout=20)
print(params.version, params.arrays["w"][0, 0], flush=True)
time.sleep(60)
"""
WRITER = """
import sys, time
import numpy as np
from memsvc_client import Learner
learner = Learner(sys.argv[1], timeout=20)
version = learner.publish({"w": np.full(1 << 20, 3.0)})
print(version, flush=True)
while True:
    learner._talk.handover._segments._take("default", 1 << 23)  # dies with memory that it has not handed over
    time.sleep(60)
"""


def started(code, *args):
    return subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True)


def test_a_killed_reader_leaves_its_memory_to_be_written_again(tmp_path):
    with serve("ipc", tmp_path) as served, served.learner() as learner:
        learner.publish(weights(1))
        (segment,) = segments_of(learner)
        reader = started(READER, served.where)
        try:
            assert reader.stdout.readline().split() == ["1", "1.0"]
            learner.publish(weights(2))
            with pytest.raises(BlockingIOError):
                fcntl.flock(segment.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            reader.send_signal(signal.SIGKILL)
            reader.wait(10)
            for value in range(3, 8):
                learner.publish(weights(value))
            assert len(segments_of(learner)) == 2
            assert segment in segments_of(learner)
        finally:
            reader.kill()
            reader.communicate()


def test_a_killed_publisher_leaves_what_it_had_published(tmp_path):
    with serve("ipc", tmp_path) as served, served.actor() as actor:
        writer = started(WRITER, served.where)
        try:
            assert writer.stdout.readline().split() == ["1"]
            writer.send_signal(signal.SIGKILL)
            writer.wait(10)
            params = actor.params(timeout=10)
            assert (params.arrays["w"] == 3).all()
            assert in_shared_memory(params.arrays["w"])
            with served.learner() as learner:
                assert learner.publish(weights(4)) == 2
                assert is_weights(newer(actor, 1), 4)
        finally:
            writer.kill()
            writer.communicate()


def unsealed(size):
    fd = os.memfd_create("memsvc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, size)
    return fd


def sparse(size):
    fd = os.memfd_create("memsvc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def test_memory_that_cannot_be_trusted_is_refused(tmp_path):
    with serve("tcp", tmp_path) as served, served.actor() as actor, served.learner() as learner:
        learner.publish(weights(1))
        good = MemoryFile.make(LARGE)
        blob = Blob({"w": np.zeros(LARGE - 4096, np.uint8)})
        blob.write(good.bytes)
        empty = MemoryFile.make(LARGE)
        fds = {"unsealed": unsealed(LARGE), "sparse": sparse(LARGE), "good": good.fd, "empty": empty.fd}
        fds["pipe"], other = os.pipe()
        side = Side.connect(served.server.endpoint.beside)
        assert side is not None

        def publish(*names, size=LARGE, topic="default"):
            return side.ask({"ask": "publish", "topic": topic, "size": size}, [fds[name] for name in names])

        try:
            for name, match in (("unsealed", "sealed"), ("sparse", "bytes"), ("pipe", "no memory"), ("empty", "safetensors")):
                with pytest.raises(ProtocolError, match=match):
                    publish(name)
            for size in (LARGE + 1, 0, -1, 1 << 60, True, "9", None):
                with pytest.raises(ProtocolError, match=r"announced|integer"):
                    publish("good", size=size)
            for names in ((), ("good", "good")):
                with pytest.raises(ProtocolError, match="one descriptor"):
                    publish(*names)
            with pytest.raises(ProtocolError, match="topic"):
                publish("good", topic=7)
            fcntl.flock(good.fd, fcntl.LOCK_EX)
            with pytest.raises(ProtocolError, match="held"):
                publish("good")
            fcntl.flock(good.fd, fcntl.LOCK_UN)
            for request in ({"topic": "default"}, {"topic": "default", "newer_than": "0"}, {"newer_than": 0}):
                with pytest.raises(ProtocolError):
                    side.ask({"ask": "fetch", **request})
            assert is_weights(newer(actor), 1)
            assert publish("good", size=blob.size)[0] == {"version": 2}
            good.bytes[9:64] = ord(" ")  # its writer breaks the rule
            with pytest.raises(ProtocolError, match="cannot be read"):
                newer(actor, 1)
            learner.publish(weights(3))
            assert is_weights(newer(actor, 2), 3)
        finally:
            side.close()
            for fd in (fds["unsealed"], fds["sparse"], fds["pipe"], other):
                os.close(fd)
            good.close()
            empty.close()


def test_too_many_topics_are_refused_as_ever(tmp_path):
    with serve("ipc", tmp_path) as served, served.learner() as learner:
        for i in range(256):
            learner.publish({"w": np.zeros(1)}, topic=f"t{i}")
        with pytest.raises(ProtocolError, match="256 topics already"):
            learner.publish(weights(1), topic="one more")


def test_who_cannot_share_memory_has_the_same_by_messages(tmp_path, caplog):
    with serve("ipc", tmp_path) as served, served.learner() as learner, Actor(ZmqEndpoint(served.where, shared=False), timeout=10) as far:
        learner.publish(weights(1))
        params = newer(far)
        assert is_weights(params, 1)
        assert not in_shared_memory(params.arrays["w"])
        with served.actor() as near:
            far_learner = type(learner)(ZmqEndpoint(served.where, shared=False), timeout=10)
            with far_learner:
                assert far_learner.publish(weights(2)) == 2
            assert is_weights(newer(near, 1), 2)
            learner.publish(weights(3))
            assert in_shared_memory(newer(near, 2).arrays["w"])
        assert is_weights(newer(far, 2), 3)


def test_the_side_socket_fails_and_messages_go_on(tmp_path, caplog):
    with serve("tcp", tmp_path) as served, served.actor() as actor, served.learner() as learner:
        learner.publish(weights(1))
        newer(actor)
        served.server._beside.stop(5)
        assert learner.publish(weights(2)) == 2
        params = newer(actor, 1)
        assert is_weights(params, 2)
        assert not in_shared_memory(params.arrays["w"])
        assert learner.publish(weights(3)) == 3
        assert sum("by messages" in record.message for record in caplog.records) == 2


def test_a_server_that_was_started_anew_shares_them_too(tmp_path):
    with serve("ipc", tmp_path) as first, first.actor() as actor:
        with first.learner() as learner:
            learner.publish(weights(1))
            held = newer(actor)
        first.server.close()
        with serve("ipc", tmp_path) as second, second.learner() as learner:
            until(lambda: any(peer["role"] == "actor" for peer in second.server.stats()["peers"]), 30)

            def arrives():  # its subscription may stand after a notice
                learner.publish(weights(2))
                params = actor.params()
                return params is not None and is_weights(params, 2) and in_shared_memory(params.arrays["w"])

            until(arrives, 30)
            assert is_weights(held, 1)


def test_a_publication_that_failed_leaves_its_memory_alone():
    pool = Segments()
    with pytest.raises(RuntimeError), pool.lend("t", LARGE) as failed:
        raise RuntimeError("no answer came: the server may take it yet")
    with pool.lend("t", LARGE) as one, pool.lend("t", LARGE) as two:
        assert len({failed, one, two}) == 3
        held = hold(one.fd, LARGE)
    view = np.frombuffer(mapped(held, LARGE), np.uint8)
    os.close(held)
    with pool.lend("t", LARGE) as again:
        assert again is two
    del view
    gc.collect()
    with pool.lend("t", LARGE) as again:
        assert again is one
    with pool.lend("t", 10 * LARGE) as large:  # the smaller ones go
        assert large not in (one, two)
    assert one.fd == two.fd == -1
    with pool.lend("t", LARGE) as lent:
        pool.close()
        assert lent.fd >= 0
    assert lent.fd == -1


def test_publishers_of_several_threads(tmp_path):
    with serve("ipc", tmp_path) as served, served.actor() as actor, served.learner() as learner:
        waiting = [background(lambda value=value: [learner.publish(weights(value)) for _ in range(20)]) for value in range(1, 5)]
        versions = [version for result in waiting for version in result(30)]
        assert sorted(versions) == list(range(1, 81))
        params = newer(actor, 79)
        assert is_weights(params, int(params.arrays["step"]))
