"""The way of payloads between memory and server: sent once, evicted, asked for again, given up, refused (DEFINITIONS 7; cpp/core/cache.h)."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from memsvc_core import Replay, Schema, TableSpec
from memsvc_proto.errors import ProtocolError
from rig import Rig, table
from scipy.stats import chisquare
from test_two_stage import FIELDS, GIVEN, fill


def fits(fields, settings, size: int, steps: int) -> bool:
    """Whether a store of `size` bytes holds that many steps."""
    schema = Schema(fields)
    return Replay.footprint(schema, [TableSpec(schema, settings)], size)["steps"] >= steps


def test_payload_travels_once(rng):
    fields = [*FIELDS, ("obs", "|u1", (1000,))]
    rig = Rig(fields, table(priority=GIVEN))
    peer = rig.join()
    for i in range(300):
        peer.memory.add(0, {"id": i, "p": 1.0, "x": 0.0, "obs": np.full(1000, i % 251, np.uint8)}, 1.0, -1)
    rig.replay.expect(0, 4000)
    assert rig.push(peer, 4000) > 299 * 1000
    for _ in range(10):
        batch = rig.draw(1000)
        np.testing.assert_array_equal(batch["obs"], np.repeat((batch["id"] % 251)[:, None], 1000, 1))
        assert rig.push(peer, 1000) / 1000 < 16.2


@pytest.mark.parametrize(("select", "delay"), [("prioritized", 0), ("prioritized", 6), ("all", 0)])
def test_a_small_store_evicts_asks_again_and_delivers_the_truth(select, delay, rng):
    fields = [*FIELDS, ("obs", "<f4", (16,)), ("reward", "<f4", ())]
    settings = table(
        item={"kind": "transition", "n_step": 2, "gamma": 1.0, "frame_stack": 3, "stack": ["obs"], "next": ["obs"]},
        priority=GIVEN,
        actor={"select": select, "cache": 32},
    )
    small = next(size for size in range(1 << 13, 1 << 22, 1 << 11) if fits(fields, settings, size, 900))  # the stock fits, the items do not
    rig = Rig(fields, settings, memory_bytes=small)
    capacity = rig.replay.stats()["capacity_steps"]
    assert capacity < 1000
    rig.replay.expect(0, 64)
    w = rng.uniform(0.2, 1, (2, 1500))
    for k in range(2):
        peer = rig.join()
        for i in range(1500):
            step = {"id": 10_000 * k + i, "p": 0.0, "x": 0.0, "obs": np.full(16, 10_000 * k + i, np.float32), "reward": float(i)}
            peer.memory.add(0, step, float(w[k, i]), -1)
            if i % 50 == 49:
                peer.memory.end(0, i % 100 == 99, {"obs": np.full(16, -i, np.float32)})
                if select == "all":
                    rig.push_all(peer)
    served, counts, flight = 0, np.zeros(20_000), []
    for _ in range(700):
        for peer in rig.peers if select == "prioritized" else ():
            rig.late(peer, 32, flight, delay)
        batch = rig.draw(24)
        if batch is None:
            continue
        served += 1
        counts += np.bincount(batch["id"], minlength=20_000)
        ids = batch["id"]
        at = ids % 10_000 % 50
        for age in range(3):
            np.testing.assert_array_equal(batch["obs"][:, 2 - age], np.repeat((ids - np.minimum(age, at))[:, None], 16, 1))
        over = at + 2 >= 50
        following = np.where(over, -(ids % 10_000 // 50 * 50 + 49), ids + 2)
        np.testing.assert_array_equal(batch["next_obs"][:, 2], np.repeat(following[:, None], 16, 1))
        np.testing.assert_allclose(batch["reward"], np.where(at == 49, ids % 10_000, 2 * (ids % 10_000) + 1))
        np.testing.assert_allclose(batch.w, w[ids // 10_000, ids % 10_000], rtol=1e-9)
    assert rig.replay.stats()["steps"] <= capacity
    assert served > 600
    assert rig.stats()["evicted"] > 1000
    assert any(peer.asked for peer in rig.peers) == (delay > 0)
    if select == "prioritized":
        flat = np.concatenate([counts[:1500], counts[10_000:11_500]]).reshape(-1, 100).sum(1)
        truth = w.reshape(-1, 100).sum(1)
        assert chisquare(flat, flat.sum() * truth / truth.sum()).pvalue > 1e-3


@pytest.mark.parametrize("delay", [0, 8])
def test_what_the_actor_has_no_more_is_given_up(delay, rng):
    """Evicted at the server, then evicted at the actor: the waiting draws are dropped and nothing hangs."""
    fields = [*FIELDS, ("obs", "<f4", (16,))]
    settings = table(priority=GIVEN, actor={"max_steps": 400})
    small = next(size for size in range(1 << 13, 1 << 22, 1 << 11) if fits(fields, settings, size, 100))
    rig = Rig(fields, settings, memory_bytes=small)
    rig.replay.expect(0, 64)
    peer, served, flight = rig.join(), 0, []
    for i in range(6000):
        peer.memory.add(0, {"id": i, "p": 0.0, "x": 0.0, "obs": np.full(16, i, np.float32)}, float(rng.uniform(0.2, 1)), -1)
        if i % 40 == 39:
            peer.memory.end(0, True, None)
        if i % 10 == 0:
            rig.late(peer, 16, flight, delay)
            batch = rig.draw(8)
            if batch is not None:
                served += 1
                np.testing.assert_array_equal(batch["obs"], np.repeat(batch["id"][:, None], 16, 1))
                assert (batch["id"] > i - 400 - 700).all()
    assert served > 500


def _but_pushes(stats):
    return {key: value for key, value in stats.items() if key not in ("pushes", "actors")}  # where refused pushes are counted


def test_malformed_payloads_change_nothing(rng):
    rig = Rig(FIELDS, table(priority=GIVEN))
    peer = rig.join()
    fill(peer, np.ones(30))
    good = peer.memory.draw(0, 100, 1 << 20, 0)
    before = _but_pushes(rig.replay.stats())
    for size in (0, 1, 64, 127, 128, good.nbytes // 2 // 8 * 8, good.nbytes - 8):
        with pytest.raises(ProtocolError):
            rig.replay.push(peer.number, good[:size])
    for at in range(0, 64, 4):  # table, stride and counts
        bad = good.copy()
        bad[at : at + 4] = 0xFF
        if at < 40:
            with pytest.raises(ProtocolError):
                rig.replay.push(peer.number, bad)
    for word, value in ((40, np.nan), (40, -1.0), (48, None)):
        bad = good.copy()
        if value is not None:
            bad[word : word + 8] = np.frombuffer(np.float64(value).tobytes(), np.uint8)
            with pytest.raises(ProtocolError):
                rig.replay.push(peer.number, bad)
    for _ in range(300):
        bad = good.copy()
        where = rng.integers(0, bad.nbytes, 3)
        bad[where] = rng.integers(0, 256, 3)
        other = Rig(FIELDS, table(priority=GIVEN))
        number, _ = other.replay.join("actor-0", 1)
        try:
            other.replay.push(number, bad)
        except ProtocolError:
            continue
        other.draw(8)
        other.stats()
    assert _but_pushes(rig.replay.stats()) == before
    pushes = rig.replay.stats()["pushes"]
    assert pushes["received"] == pushes["malformed"] > 0
    rig.replay.push(peer.number, good)
    assert rig.draw(50) is not None


@pytest.mark.parametrize("delay", [0, 5])
def test_an_actor_that_left_takes_its_waiting_draws_with_it(delay, rng):
    """Draws whose payload was evicted on their way can never be filled once their actor is gone: they must not keep its weight alive."""
    fields = [*FIELDS, ("obs", "<f4", (16,))]
    small = next(size for size in range(1 << 13, 1 << 22, 1 << 11) if fits(fields, table(priority=GIVEN), size, 100))
    rig, flight = Rig(fields, table(priority=GIVEN), memory_bytes=small), []
    rig.replay.expect(0, 64)
    for k in range(2):
        peer = rig.join()
        for i in range(1000):
            step = {"id": 10_000 * k + i, "p": 0.0, "x": 0.0, "obs": np.full(16, 10_000 * k + i, np.float32)}
            peer.memory.add(0, step, 1.0, -1)
        peer.memory.end(0, True, None)
    for _ in range(100):
        for peer in rig.peers:
            rig.late(peer, 16, flight, delay)
        rig.draw(16)
    rig.replay.leave(rig.peers[0].number)
    for _ in range(200):
        rig.push(rig.peers[1], 16)
        batch = rig.draw(16)
        if batch is not None:
            np.testing.assert_array_equal(batch["obs"], np.repeat(batch["id"][:, None], 16, 1))
    assert rig.stats()["population"] == 1000
    assert rig.stats()["total"] == pytest.approx(1000)
    assert (rig.draw(8)["id"] >= 10_000).all()


DTYPES = ["|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_every_dtype_and_shape_travels_bit_by_bit(shape, rng):
    fields = [("id", "<i8", ()), *((f"f{i}", dtype, shape) for i, dtype in enumerate(DTYPES))]
    rig = Rig(fields, table(actor={"select": "all"}))
    peer, truth = rig.join(), []
    for i in range(40):
        step = {"id": np.int64(i)}
        for name, dtype, _ in fields[1:]:
            kind = np.dtype(dtype)
            raw = rng.integers(0, 256, (int(np.prod(shape)), kind.itemsize), np.uint8) & (1 if kind.kind == "b" else 255)
            step[name] = np.frombuffer(raw.tobytes(), kind).reshape(shape)  # any bits: NaNs with payloads, infinities; read-only
        truth.append(step)
        peer.memory.add(0, step, None, -1)
    peer.memory.end(0, True, None)
    rig.push_all(peer)
    batch = rig.draw(80)
    for name, dtype, _ in fields:
        assert batch[name].dtype == np.dtype(dtype)
        for row, i in zip(batch[name], batch["id"].tolist(), strict=True):
            assert row.tobytes() == truth[i][name].tobytes()


def test_threads_may_share_memory_and_server():
    fields = [*FIELDS, ("obs", "<f4", (64,))]
    rig = Rig(fields, table(priority=GIVEN, actor={"max_steps": 3000}), memory_bytes=1 << 20)
    peers, failures, seen, stop = [rig.join() for _ in range(2)], [], [0], threading.Event()

    def play(peer, first: int) -> None:
        for i in range(first, first + 12_000):
            peer.memory.add(0, {"id": i, "p": 1.0, "x": 0.0, "obs": np.full(64, i, np.float32)}, 1.0, -1)
            if i % 37 == 0:
                peer.memory.end(0, True, None)

    def serve(peer) -> None:
        while not stop.is_set():
            rig.push(peer, 64)
            found = rig.replay.take_feedback(peer.number, 0)
            if found is not None:
                peer.memory.feedback(0, *found)

    def learn() -> None:
        while not stop.is_set() or not seen[0]:
            batch = rig.draw(32)
            if batch is not None:
                seen[0] += 1
                rig.replay.update(0, batch["keys"], np.full(32, 0.5))
                if not (batch["obs"] == batch["id"][:, None]).all():
                    failures.append(batch["id"])
            rig.stats()

    work = [threading.Thread(target=play, args=(p, 100_000 * k)) for k, p in enumerate(peers)]
    others = [threading.Thread(target=serve, args=(p,)) for p in peers] + [threading.Thread(target=learn) for _ in range(2)]
    for thread in work + others:
        thread.start()
    for thread in work:
        thread.join()
    stop.set()
    for thread in others:
        thread.join()
    assert not failures
    assert seen[0]
    for peer in peers:
        for _ in range(3):
            rig.feedback()
            rig.push(peer, 8)
    assert rig.stats()["total"] == pytest.approx(sum(p.memory.stats()["tables"][0]["total"] for p in peers), rel=1e-9)
