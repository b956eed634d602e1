"""Parameters: bit for bit, whole, newest at once, versions that only grow, several topics."""

from __future__ import annotations

import time

import numpy as np
import pytest
from memsvc_client import NotReady, ProtocolError, SchemaError
from memsvc_client.params import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, Blob, decode
from serving import KINDS, background, serve, until

DTYPES = ("?", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8")


def same(got, given):
    given = np.asarray(given)
    return got.dtype == given.dtype and got.shape == given.shape and got.tobytes() == given.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_layout_keeps_its_bits(dtype, rng):
    raw = rng.integers(0, 2, (4, 6)) if dtype == "?" else np.frombuffer(rng.bytes(24 * np.dtype(dtype).itemsize), dtype)
    plain = np.array(raw, dtype).reshape(4, 6)
    frozen = plain.copy()
    frozen.setflags(write=False)
    given = {
        "plain": plain,
        "0d": plain[0, 0].reshape(()),
        "scalar": plain[1, 1],
        "empty": plain[:0],
        "strided": plain[::2, 1::3],
        "reversed": plain[::-1, ::-1],
        "fortran": np.asfortranarray(plain),
        "read-only": frozen,
        "broadcast": np.broadcast_to(plain[0], (3, 6)),
    }
    got = decode(Blob(given).joined())
    assert got.keys() == given.keys()
    for name, array in given.items():
        assert same(got[name], array), name
        assert got[name].flags.writeable, name


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2])
def test_types_without_a_numpy_name(dtype, rng):
    given = np.frombuffer(rng.bytes(24), dtype).reshape(2, -1)
    assert same(decode(Blob({"w": given}).joined())["w"], given)


@pytest.mark.parametrize(
    "value",
    [np.zeros(2, ">f4"), np.zeros(2, complex), np.array([object()]), np.array(["a"]), np.zeros(2, [("x", "f4"), ("y", "f4")]), np.zeros(1, "M8[s]")],
)
def test_what_cannot_be_published_names_the_array(value):
    with pytest.raises(SchemaError, match="'layer/w'"):
        Blob({"layer/w": value}).joined()


def test_what_is_no_dictionary_is_said_so():
    with pytest.raises(SchemaError, match="dictionary"):
        Blob(np.zeros(3)).joined()  # type: ignore[arg-type]


def test_arrays_of_other_frameworks():
    class Foreign:
        """Offers dlpack alone, as a framework without numpy would."""

        def __init__(self, array):
            self._array = array

        def __array__(self, *args, **kwargs):
            raise TypeError("not through numpy")

        def __dlpack__(self, **kwargs):
            return self._array.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return self._array.__dlpack_device__()

    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert same(decode(Blob({"w": Foreign(given)}).joined())["w"], given)
    assert decode(Blob({"lr": 0.5}).joined())["lr"] == np.float64(0.5)


@pytest.mark.parametrize("blob", [b"", b"garbage", bytes(1000), b"\xff" * 64])
def test_a_blob_that_is_none(blob):
    with pytest.raises(ProtocolError):
        decode(blob)


@pytest.mark.parametrize("kind", KINDS)
def test_newest_at_once_and_none_when_nothing_is_newer(kind, tmp_path):
    with serve(kind, tmp_path) as served, served.actor() as actor, served.learner() as learner:
        with pytest.raises(NotReady, match="topic 'default'") as caught:
            actor.params(timeout=0.05)
        assert caught.value.reason == "unpublished"
        with pytest.raises(NotReady):
            learner.params(timeout=0.05)
        waiting = background(lambda: actor.params(timeout=10))
        first = learner.publish({"w": np.arange(3.0)})
        got = waiting()
        assert got.version == first
        assert same(got.arrays["w"], np.arange(3.0))
        began = time.monotonic()
        assert actor.params(timeout=10) is None
        assert time.monotonic() - began < 0.5
        versions = [learner.publish({"w": np.full(3, float(i))}) for i in range(5)]
        assert versions == sorted(set(versions))
        assert versions[0] > first
        newest = until(lambda: (p := actor.params()) and p.version == versions[-1] and p)
        assert newest.arrays["w"][0] == 4.0
        with served.actor() as late, served.learner() as other:
            assert late.params(timeout=10).version == versions[-1]
            assert other.params(timeout=10).version == versions[-1]
            assert other.params(timeout=10) is None
        assert learner.params().version == versions[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_topics_are_apart(kind, tmp_path):
    with serve(kind, tmp_path) as served, served.actor(topic="a") as a, served.actor(topic="b") as b, served.learner(topic="a") as learner:
        learner.publish({"x": np.zeros(1)})
        assert a.params().arrays.keys() == {"x"}
        with pytest.raises(NotReady):
            b.params(timeout=0.05)
        learner.publish({"y": np.zeros(1)}, topic="b")
        assert b.params().arrays.keys() == {"y"}
        assert a.params() is None


@pytest.mark.parametrize("kind", ["local", "tcp"])
def test_the_first_publication_of_100_mb_arrives_whole(kind, tmp_path, rng):
    big = rng.standard_normal(25_000_000, np.float32)
    with serve(kind, tmp_path) as served, served.actor() as actor, served.learner() as learner:
        waiting = background(lambda: actor.params(timeout=60))
        version = learner.publish({"big": big, "small": np.arange(5)}, timeout=60)
        got = waiting(60)
        assert got.version == version
        assert np.array_equal(got.arrays["big"], big)
        assert same(got.arrays["small"], np.arange(5))


@pytest.mark.parametrize("kind", KINDS)
def test_steps_carry_the_version_that_was_returned(kind, tmp_path):
    with serve(kind, tmp_path) as served, served.actor() as actor, served.learner(batch_size=1) as learner:
        step = {"obs": np.zeros(3, np.float32), "action": 1, "reward": 0.0}
        actor.add(**step, priority=1.0)
        actor.end_episode(terminated=True)
        actor.flush(10)
        assert learner.sample().versions[0] == -1
        version = learner.publish({"w": np.zeros(1)})
        actor.params()
        actor.add(**step, priority=1.0)
        actor.add(**step, priority=1.0, version=77)
        actor.end_episode(terminated=True)
        actor.flush(10)
        assert {int(learner.sample().versions[0]) for _ in range(40)} == {-1, version, 77}
