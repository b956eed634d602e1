"""Replay.save and the restore of it, through the binding; draws given back where each is the only one of its item; memory that is free again."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from memsvc_core import Replay
from memsvc_proto.errors import ConfigError, ProtocolError
from memsvc_proto.wire import Kind
from rig import Rig, table
from serving import Inbox, Playing, columns, config
from test_two_stage import FIELDS, GIVEN

from memsvc.engine import Engine

ALL = table(priority=GIVEN, actor={"select": "all"})
CACHES = table(priority=GIVEN)
ITEMS = {"key", "version", "value", "span", "head", "episode", "factor", "times", "updated", "era", "made"}


def played(settings: dict, steps: int = 200, **given: Any) -> Rig:
    """Two actors that have sent what they have, or draws of it."""
    rig = Rig(FIELDS, settings, **given)
    for k in range(2):
        peer = rig.join()
        for i in range(steps):
            peer.memory.add(0, {"id": 10_000 * k + i, "p": 1.0, "x": float(i)}, 1.0 + i % 3, -1)
        if settings["actor"]["select"] == "all":
            rig.push_all(peer)
        else:
            rig.push(peer, 150)
    return rig


def rows_of(replay: Any, keys: np.ndarray, stride: int) -> np.ndarray:
    out = np.zeros((len(keys), stride), np.uint8)
    assert replay.rows(keys, out).all()
    return out


def restored(rig: Rig, saved: Any, memory_bytes: int = 1 << 24) -> tuple[Any, dict[str, list[int]]]:
    replay = Replay(rig.schema, rig.specs, memory_bytes, 7, 5000)
    needed = replay.begin_restore(saved.state, [saved.items(i) for i in range(len(rig.specs))])
    rows = rows_of(rig.replay, needed, rig.schema.row_stride)
    half = len(needed) // 2
    assert replay.restore_rows(needed[half:], rows[half:]) + replay.restore_rows(needed[:half], rows[:half]) == len(needed)
    result = replay.finish_restore()
    replay.restored()
    return replay, result


@pytest.mark.parametrize("settings", [ALL, CACHES], ids=["all", "caches"])
def test_what_was_saved_is_there_again(settings: dict) -> None:
    rig = played(settings)
    drawn = rig.draw(64)
    rig.replay.update(0, drawn["keys"], np.full(64, 5.0))
    saved = rig.replay.save()
    items = saved.items(0)
    assert set(items) == ITEMS
    assert {len(column) for column in items.values()} == {rig.replay.stats()["tables"][0]["items"]}
    np.testing.assert_array_equal(np.sort(items["key"]), saved.row_keys)
    replay, result = restored(rig, saved)
    before, after = rig.replay.stats(), replay.stats()
    assert result["items"] == [len(items["key"])]
    assert result["dropped"] == [0]
    assert result["draws"] == [sum(actor["queue"] for actor in after["tables"][0]["actors"])]
    assert after["tables"][0].pop("total") == pytest.approx(before["tables"][0].pop("total"))
    assert after["tables"] == before["tables"]
    with pytest.raises(IndexError):
        saved.items(1)
    # The same learners' values, and the steps themselves.
    old = rig.replay
    rig.replay = replay
    again = rig.draw(64)
    np.testing.assert_array_equal(again["id"], drawn_ids(old, again["keys"], rig))
    # Actors go on: new items come in, priorities go back.
    for peer in rig.peers:
        peer.memory.add(0, {"id": 7, "p": 1.0, "x": 0.0}, 1.0, -1)
        rig.push(peer, 10)
    rig.feedback()
    assert replay.stats()["tables"][0]["inserted"] == before["tables"][0]["inserted"] + 2


def drawn_ids(replay: Any, keys: np.ndarray, rig: Rig) -> np.ndarray:
    return rows_of(replay, keys, rig.schema.row_stride)[:, :8].copy().view(np.int64)[:, 0]


def test_a_smaller_memory_keeps_the_newest_items() -> None:
    rig = played(ALL, 2000)
    saved = rig.replay.save()
    least = Replay.footprint(rig.schema, rig.specs, 1 << 24)["least_bytes"]
    replay, result = restored(rig, saved, least + 60_000)
    kept, dropped = result["items"][0], result["dropped"][0]
    assert kept + dropped == len(saved.row_keys)
    assert 0 < kept < len(saved.row_keys)
    np.testing.assert_array_equal(replay.save().items(0)["key"], saved.items(0)["key"][dropped:])


def test_a_state_that_is_damaged_is_refused_and_changes_nothing() -> None:
    rig = played(ALL)
    saved = rig.replay.save()
    items = saved.items(0)
    replay = Replay(rig.schema, rig.specs, 1 << 24, 7, 5000)
    flipped = bytearray(saved.state)
    flipped[len(flipped) // 3] ^= 1
    for state in (b"", saved.state[:-1], bytes(flipped), b"\0" * 100):
        with pytest.raises(ProtocolError, match="saved state"):
            replay.begin_restore(state, [items])
    for wrong in ({**items, "span": items["span"] + 1}, {**items, "value": items["value"] * np.nan}, {**items, "key": items["key"][:-1]}):
        with pytest.raises(ProtocolError):
            replay.begin_restore(saved.state, [wrong])
    with pytest.raises(ProtocolError, match="no column"):
        replay.begin_restore(saved.state, [{"key": items["key"]}])
    with pytest.raises(ProtocolError, match="dtype"):
        replay.begin_restore(saved.state, [{**items, "key": items["key"].astype(np.int64)}])
    with pytest.raises(ConfigError, match="one for each"):
        replay.begin_restore(saved.state, [])
    with pytest.raises(ConfigError, match="before anything else"):
        rig.replay.begin_restore(saved.state, [items])
    np.testing.assert_array_equal(replay.begin_restore(saved.state, [items]), saved.row_keys)


def test_tables_that_cannot_take_their_items_are_told_or_start_empty() -> None:
    rig = played(ALL)
    saved = rig.replay.save()
    other = Rig(FIELDS, CACHES)
    replay = Replay(rig.schema, other.specs, 1 << 24, 7, 5000)
    with pytest.raises(ConfigError, match=r"actor\.select"):
        replay.begin_restore(saved.state, [saved.items(0)])
    assert len(replay.begin_restore(saved.state, [None])) == 0
    assert replay.finish_restore() == {"items": [0], "dropped": [0], "draws": [0]}
    assert [actor["name"] for actor in replay.stats()["tables"][0]["actors"]] == ["actor-0", "actor-1"]
    renamed = Rig(FIELDS, table(priority=GIVEN, actor={"select": "all"}, name="other"))
    with pytest.raises(ConfigError, match="not saved"):
        Replay(rig.schema, renamed.specs, 1 << 24, 7, 5000).begin_restore(saved.state, [saved.items(0)])


def test_what_draws_used_up_after_the_save_stays_used_up() -> None:
    rig = played(CACHES)
    rig.replay.progress()
    saved = rig.replay.save()
    for _ in range(3):
        rig.draw(40)
    progress = rig.replay.progress()
    replay, _ = restored(rig, saved)
    replay.advance(progress)
    assert replay.stats()["tables"][0]["drawn"] == 120
    assert [a["queue"] for a in replay.stats()["tables"][0]["actors"]] == [a["queue"] for a in rig.replay.stats()["tables"][0]["actors"]]
    with pytest.raises(ProtocolError, match="progress"):
        replay.advance(progress[:-1])


def test_saves_while_traffic_goes_on_are_consistent() -> None:
    rig = Rig(FIELDS, ALL, CACHES | {"name": "caches"}, memory_bytes=1 << 20)
    peers = [rig.join() for _ in range(2)]
    done = threading.Event()

    def play(peer: Any) -> None:
        i = 0
        while not done.is_set():
            for _ in range(20):
                peer.memory.add(0, {"id": i, "p": 1.0, "x": 0.0}, 1.0, -1)
                i += 1
            rig.push(peer, 20, table=0)
            rig.push(peer, 20, table=1)

    threads = [threading.Thread(target=play, args=(peer,)) for peer in peers]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            saved = rig.replay.save()
            keys = np.concatenate([saved.items(0)["key"], saved.items(1)["key"]])
            np.testing.assert_array_equal(np.unique(keys), saved.row_keys)
            replay = Replay(rig.schema, rig.specs, 1 << 20, 7, 5000)
            needed = replay.begin_restore(saved.state, [saved.items(0), saved.items(1)])
            replay.restore_rows(needed, np.zeros((len(needed), rig.schema.row_stride), np.uint8))
            assert replay.finish_restore()["dropped"] == [0, 0]
            out = np.zeros((len(needed), rig.schema.row_stride), np.uint8)
            here = rig.replay.rows(needed, out)  # what was evicted meanwhile is not
            ids = out[here, :8].copy().view(np.int64)[:, 0]
            np.testing.assert_array_equal(ids, (needed[here] & ((1 << 36) - 1)).astype(np.int64))
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_a_batch_without_replacement_that_nobody_got_comes_to_the_next_learner() -> None:
    settings = {"name": "t", "actor": {"select": "without_replacement"}, "priority": {"source": "given", "exponent": 1.0}}
    engine = Engine(config("tcp://127.0.0.1:0", settings, step={"id": {"dtype": "int64"}}))
    player = Playing(engine, "a")
    player.play(8)
    player.push(draws=8)
    leaving, other = Inbox(engine), Inbox(engine)
    leaving.sample(5)
    assert leaving.got[-1].kind is Kind.BATCH
    leaving.say(Kind.BYE)
    assert engine.stats()["tables"][0]["put_back"] == 5
    seq = other.sample(8)
    assert sorted(columns(player.specs[0], other.got[-1])["id"].tolist()) == list(range(8))
    other.say(Kind.TAKEN, a=seq)
    assert engine.stats()["tables"][0]["in_flight"] == 0


@pytest.mark.parametrize("select", ["all", "prioritized"])
@pytest.mark.parametrize("pattern", ["oldest", "newest", "random", "every hundredth stays"])
def test_memory_of_what_was_deleted_is_free_for_new_items_at_once(select: str, pattern: str) -> None:
    count = 3000
    settings = table(priority=GIVEN, actor={"select": select})
    fields = [*FIELDS, ("obs", "|u1", (100,))]
    like = Rig(fields, settings)
    size = next(size for size in range(1 << 16, 1 << 24, 1 << 14) if Replay.footprint(like.schema, like.specs, size)["steps"] >= count)
    rig = Rig(fields, settings, memory_bytes=size)
    capacity = rig.replay.stats()["capacity_steps"]
    rig.replay.expect(0, 64)
    peer = rig.join()
    step = {"p": 1.0, "x": 0.0, "obs": np.zeros(100, np.uint8)}
    played = 0

    def fill(many: int) -> np.ndarray:
        nonlocal played
        for _ in range(many):
            peer.memory.add(0, step | {"id": played}, 1.0, -1)
            played += 1
        if select == "all":
            rig.push_all(peer)
        else:
            rig.replay.expect(0, many)
            rig.push(peer, many)
        return np.sort(rig.replay.save().items(0)["key"])

    keys = fill(capacity)
    assert rig.replay.stats()["tables"][0]["evicted"] == 0
    order = {"oldest": keys, "newest": keys[::-1], "random": np.random.default_rng(1).permutation(keys)}
    gone = order[pattern][: len(keys) * 99 // 100] if pattern in order else keys[np.arange(len(keys)) % 100 > 0]
    stays = np.setdiff1d(keys, gone)
    assert rig.replay.delete(0, gone)[0] == len(gone)
    now = fill(len(gone))
    assert np.isin(stays, now).all()
    stats = rig.replay.stats()["tables"][0]
    if select == "all":
        assert stats["evicted"] == 0
        assert len(now) == len(keys)
    size, _ = rig.specs[0].layout(len(now))
    out = np.zeros(size, np.uint8)
    assert rig.replay.get(0, now, out, 0)[0] == len(now)
