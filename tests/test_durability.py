"""What a server that comes back has: after a crash at any moment, after an orderly end, in each mode."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from durable import CACHES, UNION, House, Player, answer_to
from memsvc_proto.wire import Kind
from serving import Inbox, columns, until

from memsvc.durability.segments import SegmentWriter


def learner(house: House) -> Inbox:
    peer = Inbox(house.engine)
    peer.hello("learner", "l", table=0, batch=4)
    return peer


def update(peer: Inbox, keys: list[int], priorities: list[float]) -> None:
    body = np.array(keys, np.uint64).tobytes() + np.array(priorities, np.float64).tobytes()
    seq = peer.say(Kind.UPDATE, table=0, b=len(keys), body=body)
    until(lambda: [one for one in peer.of(Kind.UPDATED) if one.seq == seq])


@pytest.mark.parametrize("mode", ["journal", "snapshot"])
def test_an_orderly_end_keeps_everything(tmp_path: Path, mode: str) -> None:
    with House(tmp_path / "data", durability=mode) as house:
        player = Player(house.engine, "a")
        player.play(40, priority=2.0)
        player.give()
        before = house.items()
        assert len(before) == 40
        update(learner(house), list(before)[:5], [9.0] * 5)
        changed = house.items()
        assert [value for value, _ in list(changed.values())].count(9.0) == 5
        inserted = house.table()["inserted"]
    with House(tmp_path / "data", durability=mode) as house:
        assert house.items() == changed
        assert house.table()["inserted"] == inserted
        assert house.stats["damage"] == 0
        again = Player(house.engine, "b", session=2)
        assert not set(again.streams) & set(player.streams)
        again.play(10)
        again.give()
        assert len(house.items()) == 50


@pytest.mark.parametrize("checkpoint", [False, True])
def test_after_a_crash_everything_acknowledged_is_there_once(tmp_path: Path, checkpoint: bool) -> None:
    with House(tmp_path / "data") as house:
        players = [Player(house.engine, f"a{i}", session=i + 1) for i in range(3)]
        peer = learner(house)
        for turn in range(6):
            for player in players:
                player.play(20, priority=1.0 + turn)
                player.give()
            if turn == 3 and checkpoint:
                assert house.engine.keeper.checkpoint()["items"] == {"union": 240}
            update(peer, list(house.items())[:7], [20.0 + turn] * 7)
        before, epoch = house.items(), house.engine.epoch
        copy = house.crash(tmp_path / "copy")
    for _ in range(2):  # also after a restart that nothing follows
        with House(copy) as house:
            assert house.items() == before
            assert house.engine.epoch == epoch
            assert house.stats["damage"] == 0
            resumed = Player(house.engine, "a0", session=1, streams=tuple(players[0].streams), first=players[0].number + 1)
            assert resumed.welcome["resumed"]
            assert resumed.streams == players[0].streams
            assert resumed.welcome["stored"] == players[0].number


def test_a_push_that_was_stored_before_the_crash_is_not_stored_again(tmp_path: Path) -> None:
    with House(tmp_path / "data") as house:
        player = Player(house.engine, "a")
        player.play(10)
        payload = player.payload()
        number = player.put(payload)
        until(lambda: player.acknowledged == number)
        copy = house.crash(tmp_path / "copy")
    with House(copy) as house:
        again = Player(house.engine, "a", streams=tuple(player.streams), first=number)
        assert again.put(payload) == number
        until(lambda: again.acknowledged == number)
        assert len(house.items()) == 10
        assert house.engine.stats()["pushes"]["refused"]["duplicate"] == 1


def test_what_was_drawn_before_the_crash_is_not_drawn_again(tmp_path: Path) -> None:
    queue = {**UNION, "sampler": "fifo", "limits": {"max_times_sampled": 1}}
    with House(tmp_path / "data", queue) as house:
        player = Player(house.engine, "a")
        player.play(64)
        player.give()
        peer = learner(house)
        seen = []
        for _ in range(8):
            seq = peer.sample(4)
            batch = answer_to(peer, seq)
            seen += columns(player.specs[0], batch)["id"].tolist()
            peer.say(Kind.TAKEN, table=0, a=seq)
        house.keeper.settle()
        copy = house.crash(tmp_path / "copy")
    assert seen == list(range(32))
    with House(copy, queue) as house:
        peer = learner(house)
        seq = peer.sample(4)
        batch = answer_to(peer, seq)
        assert columns(player.specs[0], batch)["id"].tolist() == [32, 33, 34, 35]


def test_a_batch_of_a_queue_waits_until_what_was_confirmed_before_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = {**UNION, "sampler": "fifo", "limits": {"max_times_sampled": 1}}
    with House(tmp_path / "data", queue) as house:
        player = Player(house.engine, "a")
        player.play(16)
        player.give()
        peer = learner(house)
        seq = peer.sample(4)
        answer_to(peer, seq)
        disk = threading.Event()
        real = SegmentWriter.sync

        def sync(writer: SegmentWriter) -> None:
            assert disk.wait(20)
            real(writer)

        monkeypatch.setattr(SegmentWriter, "sync", sync)
        peer.say(Kind.TAKEN, table=0, a=seq)
        seq = peer.sample(4)
        until(lambda: peer.settling == 1)
        assert not [one for one in peer.got if one.seq == seq]
        disk.set()
        assert answer_to(peer, seq).kind is Kind.BATCH
        assert peer.settling == 0


def test_no_more_than_fsync_ms_is_acknowledged_ahead_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = threading.Event()
    real = SegmentWriter.sync

    def sync(writer: SegmentWriter) -> None:
        assert disk.wait(20)
        real(writer)

    with House(tmp_path / "data", fsync_ms=400) as house:
        player = Player(house.engine, "a")
        house.keeper.settle()
        monkeypatch.setattr(SegmentWriter, "sync", sync)
        began, last = time.monotonic(), 0.0
        while time.monotonic() < began + 1.2:
            player.play(1)
            before = player.acknowledged
            while (payload := player.payload()) is not None:
                player.put(payload)
            if player.acknowledged > before:
                last = time.monotonic() - began
            time.sleep(0.02)
        assert 0.0 < last < 1.0
        assert player.acknowledged < player.number
        disk.set()
        until(lambda: player.acknowledged == player.number)


def test_caches_go_on_with_their_queues(tmp_path: Path) -> None:
    with House(tmp_path / "data", CACHES) as house:
        player = Player(house.engine, "a")
        player.play(50)
        player.give(draws=32, union=False)
        queue = house.table()["actors"][0]["queue"]
        assert queue == 32
        copy = house.crash(tmp_path / "copy")
    with House(copy, CACHES) as house:
        assert house.table()["actors"][0]["queue"] == 32
        peer = learner(house)
        seq = peer.sample(16)
        batch = answer_to(peer, seq)
        assert batch.kind is Kind.BATCH


def test_a_snapshot_brings_back_what_it_saw(tmp_path: Path) -> None:
    with House(tmp_path / "data", durability="snapshot") as house:
        player = Player(house.engine, "a")
        player.play(30)
        player.give()
        house.engine.keeper.checkpoint()
        before = house.items()
        player.play(10)
        player.give()
        copy = house.crash(tmp_path / "copy")
    with House(copy, durability="snapshot") as house:
        assert house.items() == before
        # The actor goes on where it is; what was acknowledged since the snapshot is gone, and it can tell how much.
        again = Player(house.engine, "a", streams=tuple(player.streams), first=player.number + 1)
        assert again.welcome["stored"] < player.number
        house.engine.keeper.checkpoint()


def test_the_other_memory_size_keeps_the_newest(tmp_path: Path) -> None:
    with House(tmp_path / "data") as house:
        player = Player(house.engine, "a")
        for _ in range(40):
            player.play(1000)
            player.give()
        before = house.items()
    for memory in ("1MiB", "32MiB"):
        with House(tmp_path / "data", memory=memory) as house:
            after = house.items()
            assert set(after) <= set(before)
            newest = sorted(before)[-len(after) :]
            assert sorted(after) == newest
            assert 1000 < len(after) <= len(before)


def test_parameters_come_back_with_their_versions(tmp_path: Path) -> None:
    from safetensors.numpy import save

    blob = save({"w": np.arange(4, dtype=np.float32)})
    with House(tmp_path / "data") as house:
        peer = learner(house)
        for _ in range(3):
            seq = peer.say(Kind.PUBLISH, meta={"topic": "default"}, body=blob)
            until(lambda seq=seq: [one for one in peer.of(Kind.PUBLISHED) if one.seq == seq])
        copy = house.crash(tmp_path / "copy")
    with House(copy) as house:
        assert house.engine.parameters.newest("default") == (3, blob)
        assert house.engine.publish("default", blob) == 4


def test_settings_that_were_changed_while_it_ran_hold_on(tmp_path: Path) -> None:
    with House(tmp_path / "data") as house:
        house.engine.configure(house.engine.tables[0], {"importance.beta": 0.9})
        house.keeper.when_safe(lambda: None)
        player = Player(house.engine, "a")
        player.play(3)
        player.give()
        copy = house.crash(tmp_path / "copy")
    with House(copy) as house:
        assert house.engine.tables[0].settings["importance"]["beta"] == 0.9
    with House(copy) as house:
        assert house.engine.tables[0].settings["importance"]["beta"] == 0.9


def test_the_same_is_drawn_after_a_crash_as_without_it(tmp_path: Path) -> None:
    """Counters, limiter and random state go on exactly where they were, with a snapshot in the middle of the journal as without."""
    paced = {**UNION, "limits": {"samples_per_insert": 4.0, "tolerance": 100.0}}
    with House(tmp_path / "data", paced) as house:
        player, peer = Player(house.engine, "a"), learner(house)

        def drawn(of: Inbox, n: int) -> list[list[int]]:
            out = []
            for _ in range(n):
                seq = of.sample(4)
                out.append(columns(player.specs[0], answer_to(of, seq))["id"].tolist())
                of.say(Kind.TAKEN, table=0, a=seq)
            return out

        for turn in range(6):
            player.play(20, priority=1.0 + turn)
            player.give()
            drawn(peer, 3)
            update(peer, list(house.items())[:5], [7.0 + turn] * 5)
            if turn == 2:
                house.keeper.checkpoint()
        house.keeper.settle()
        copy = house.crash(tmp_path / "copy")
        told = {**house.table(), "actors": []}  # nobody has come back yet
        expected = drawn(peer, 20)
    with House(copy, paced) as house:
        assert house.table() == told
        assert drawn(learner(house), 20) == expected
