"""A data folder that something has happened to: nothing is ever silently empty, and what verifies is served."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
from pathlib import Path

import pytest
from durable import CACHES, UNION, House, Player, config
from memsvc_proto.errors import ConfigError, ServerError
from memsvc_proto.wire import Kind
from serving import until

import memsvc
from memsvc.durability.keeper import Keeper


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, dict[int, tuple[float, int]]]:
    """A crashed folder with a snapshot in the middle of its journal, and what it held."""
    with House(tmp_path / "data") as house:
        player = Player(house.engine, "a")
        for turn in range(20):
            player.play(10)
            player.give()
            if turn == 9:
                house.keeper.checkpoint()
        held = house.items()
        copy = house.crash(tmp_path / "copy")
    return copy, held


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: path.name)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_a_torn_last_record_is_cut_off(filled: tuple[Path, dict], caplog: pytest.LogCaptureFixture) -> None:
    copy, held = filled
    with open(newest(copy, "journal/*.arrow"), "ab") as file:
        file.write(b"\xff\xff\xff\xff\x20\x03\x00\x00\x10")
    with caplog.at_level(logging.WARNING, "memsvc"), House(copy) as house:
        assert house.items() == held
        assert house.stats["restored"]["torn"] == 9
        assert house.stats["damage"] == 0
    assert "cut off" in caplog.text


def test_a_flipped_bit_in_the_journal_is_told_and_the_rest_is_served(filled: tuple[Path, dict], caplog: pytest.LogCaptureFixture) -> None:
    copy, held = filled
    path = newest(copy, "journal/*.arrow")
    flip(path, path.stat().st_size - 700)
    with caplog.at_level(logging.ERROR, "memsvc"), House(copy) as house:
        found = house.items()
        assert set(found) < set(held)
        assert len(found) >= len(held) - 10
        assert house.stats["damage"] > 0
        assert any(path.name in line for line in house.stats["damages"])
    assert "checksum" in caplog.text
    assert list(copy.glob("journal/*.damaged"))
    with House(copy) as house:  # told once: what verified was written anew
        assert house.items() == found
        assert house.stats["damage"] == 0


def test_a_damaged_snapshot_gives_way_to_the_one_before(filled: tuple[Path, dict]) -> None:
    copy, held = filled
    path = newest(copy, "snapshots/*.safetensors")
    flip(path, path.stat().st_size // 2)
    with House(copy) as house:
        assert house.items() == held
        assert house.stats["damage"] == 1
    assert list(copy.glob("snapshots/*.damaged"))


def test_without_a_snapshot_the_whole_journal_is_done_again(filled: tuple[Path, dict]) -> None:
    copy, held = filled
    for path in copy.glob("snapshots/*"):
        path.unlink()
    with House(copy) as house:
        assert house.items() == held
        assert house.stats["damage"] > 0


def test_a_missing_segment_is_told(filled: tuple[Path, dict], caplog: pytest.LogCaptureFixture) -> None:
    copy, held = filled
    newest(copy, "journal/*.arrow").unlink()
    with caplog.at_level(logging.ERROR, "memsvc"), House(copy) as house:
        assert len(house.items()) < len(held)
        assert any("is missing" in line for line in house.stats["damages"])
        player = Player(house.engine, "b", session=9)
        player.play(5)
        player.give()
    assert "missing" in caplog.text


def test_a_lost_server_json_is_told(filled: tuple[Path, dict]) -> None:
    copy, held = filled
    (copy / "server.json").unlink()
    with House(copy) as house:
        assert house.items() == held
        assert house.stats["damage"] == 1
    (copy / "server.json").write_text("{")
    with House(copy) as house:
        assert house.items() == held
        assert house.stats["damage"] == 1


def test_a_second_server_on_a_folder_is_refused(tmp_path: Path) -> None:
    with House(tmp_path / "data"), pytest.raises(ConfigError, match=rf"server.data: .* in use by another server \(process {os.getpid()}\)"):
        Keeper(config(tmp_path / "data"))
    with House(tmp_path / "data"):
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"server.data: .*file"):
        Keeper(config(tmp_path / "file"))
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(ConfigError, match=r"server.data: .*closed"):
            Keeper(config(tmp_path / "closed"))


def test_another_configuration_is_told_field_by_field(filled: tuple[Path, dict]) -> None:
    copy, held = filled
    other = {**UNION, "priority": {"source": "given", "exponent": 0.5}, "limits": {"min_items": 3}}
    with pytest.raises(ConfigError) as told:
        House(copy, other)
    for part in ("table.union.priority.exponent: 1.0 -> 0.5", "table.union.limits.min_items: 1 -> 3", "--on-mismatch"):
        assert part in str(told.value)
    with House(copy, other, on_mismatch="file") as house:
        assert house.items() == held
        assert house.engine.tables[0].settings["priority"]["exponent"] == 1.0
    with House(copy, other, on_mismatch="config") as house:
        assert house.items() == held
        assert house.engine.tables[0].settings["limits"]["min_items"] == 3
    with House(copy, other) as house:  # it is the stored one now
        assert house.items() == held


def test_tables_of_another_form_start_empty_and_it_is_told(filled: tuple[Path, dict], caplog: pytest.LogCaptureFixture) -> None:
    copy, held = filled
    with caplog.at_level(logging.ERROR, "memsvc"), House(copy, CACHES, UNION, on_mismatch="config") as house:
        assert house.items(1) == held
        assert not house.items(0)
        player = Player(house.engine, "b", session=5)
        player.play(20)
        player.give(table=1)
        held = house.items(1)
    with caplog.at_level(logging.ERROR, "memsvc"), House(copy, {**CACHES, "name": "union"}, on_mismatch="config") as house:
        assert not house.items()
    assert f"table 'union' starts empty: its {len(held)} items" in caplog.text


def test_steps_of_another_form_leave_everything_behind(filled: tuple[Path, dict], caplog: pytest.LogCaptureFixture) -> None:
    copy, held = filled
    step = {"id": {"dtype": "int64"}, "obs": {"dtype": "float32", "shape": [3]}, "more": {"dtype": "float64"}}
    with caplog.at_level(logging.ERROR, "memsvc"):
        keeper = Keeper(config(copy, step=step), "config")
        assert keeper.replay.stats()["tables"][0]["items"] == 0
        keeper.close(5)
    assert f"its {len(held)} items" in caplog.text
    assert list(copy.glob("left-*/*.arrow"))
    keeper = Keeper(config(copy, step=step))
    keeper.close(5)


def test_a_full_disk_stops_acknowledgements_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from memsvc.durability.segments import SegmentWriter

    with House(tmp_path / "data") as house:
        player = Player(house.engine, "a")
        player.play(10)
        player.give()
        append, full = SegmentWriter.append, [True]

        def failing(self: SegmentWriter, record: object) -> int:
            if full[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return append(self, record)  # type: ignore[arg-type]

        monkeypatch.setattr(SegmentWriter, "append", failing)
        player.play(10)
        payload = player.payload()
        number = player.put(payload)
        until(lambda: "No space left" in house.stats["journal"]["trouble"])
        assert player.acknowledged == number - 1
        assert house.table()["items"] == 20  # draws go on, from what is not acknowledged too
        monkeypatch.setattr("memsvc.durability.pruning._WAIT_S", 0.2)
        with pytest.raises(ServerError, match="No space left"):
            house.keeper.checkpoint()
        full[0] = False
        until(lambda: player.acknowledged == number)
        assert house.stats["journal"]["trouble"] == ""
        held = house.items()
        copy = house.crash(tmp_path / "copy")
    with House(copy) as house:
        assert house.items() == held
        assert house.stats["damage"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with House(disk / "data") as house:
            (disk / "filler").write_bytes(bytes(600 << 10))
            player = Player(house.engine, "a")
            pushed = 0
            while not house.stats["journal"]["trouble"] and pushed < 2000:
                player.play(200)
                while (payload := player.payload()) is not None:
                    pushed = player.put(payload)
                    until(lambda pushed=pushed: player.acknowledged >= pushed or house.stats["journal"]["trouble"])
            assert "No space left" in house.stats["journal"]["trouble"]
            (disk / "filler").unlink()
            until(lambda: player.acknowledged == player.number)
            held = house.items()
            copy = house.crash(tmp_path / "copy")
        with House(copy) as house:
            assert house.items() == held
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_disk_use_is_bounded_under_eviction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memsvc.durability.segments.SEGMENT_BYTES", 64 << 10)
    monkeypatch.setattr("memsvc.durability.pruning.SLACK_BYTES", 128 << 10)
    small = {**UNION, "capacity": {"items": 500}}
    with House(tmp_path / "data", small, fsync_ms=1) as house:
        house.keeper._journal._writer._most = 64 << 10
        player = Player(house.engine, "a")
        keep = 0
        for turn in range(60):
            player.play(100)
            player.give()
            if turn % 4 == 3:
                house.keeper.checkpoint()
            if turn > 30:
                keep = max(keep, sum(path.stat().st_size for path in (tmp_path / "data" / "journal").glob("*")))
        held = house.items()
        assert len(held) == 500
        assert house.stats["segments"]["removed"] > 0
        assert keep < 1 << 20
        copy = house.crash(tmp_path / "copy")
    with House(copy, small) as house:
        assert house.items() == held
        assert house.stats["damage"] == 0


def test_a_setting_that_cannot_be_is_refused() -> None:
    base = {"step": {"id": {"dtype": "int64"}}, "table": [UNION]}
    for server, words in (
        ({"durability": "journal"}, "server.data: is missing"),
        ({"durability": "never", "data": "d"}, 'server.durability: expected "off" or "snapshot" or "journal"'),
        ({"fsync_ms": 5}, "server.fsync_ms: 5 needs durability"),
        ({"durability": "journal", "data": "d", "fsync_ms": 1001}, "server.fsync_ms: expected an integer from 0 to 1000"),
        ({"durability": "journal", "data": "d", "snapshot_s": 0}, "server.snapshot_s: expected a number from 1"),
    ):
        with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
            memsvc.Config.from_dict({**base, "server": server})


def test_actors_are_told_why_they_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from memsvc.durability.segments import SegmentWriter

    def failing(self: SegmentWriter, record: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with House(tmp_path / "data") as house:
        player = Player(house.engine, "a")
        player.play(10)
        monkeypatch.setattr(SegmentWriter, "append", failing)
        player.put(player.payload())
        until(lambda: house.keeper.waits)
        answer = player.ask(Kind.PING)
        assert "No space left" in answer.meta["waits"]
