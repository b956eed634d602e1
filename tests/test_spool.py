"""The files of a spool: what is found again after a kill, a torn end, a flipped bit."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from memsvc_client.outlet import HEAD
from memsvc_client.spool import Spool
from memsvc_client.volume import RECORD_BYTES, record_bytes
from memsvc_proto.errors import ConfigError
from spooled import SESSION, abandon, begin, files, frame_of, left, put


def test_what_was_appended_is_read_back_by_this_process_and_by_the_next(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", 1 << 20, "a")
    reel = begin(spool)
    assert put(reel, 1, 2, 3) == [True] * 3
    frame = reel.frame(2)
    assert frame is not None
    assert frame.flags.writeable
    assert np.array_equal(frame[64:], frame_of(2)[64:])
    assert reel.pending == 3
    assert reel.first == 1
    assert reel.frame(4) is None
    reel.acknowledged(1)
    assert reel.pending == 2
    assert reel.first == 2
    assert spool.stats()["records"] == 2
    abandon(spool)
    numbers, spool = left(tmp_path / "s")
    (old,) = spool.earlier
    assert numbers == [1, 2, 3]
    assert (old.first, old.last, old.pending, old.known) == (2, 3, 2, 1)
    assert old.about["name"] == "actor-7"
    assert old.about["session"] == SESSION
    assert old.about["streams"] == [1, 2]
    spool.close()


def test_only_the_owner_may_read_it_and_nothing_is_left_when_all_is_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", 1 << 20, "a")
    reel = begin(spool)
    put(reel, 1)
    assert stat.S_IMODE(os.stat(tmp_path / "s").st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in (tmp_path / "s").iterdir())
    reel.acknowledged(1)
    spool.close()
    spool.close()
    assert [file.name for file in (tmp_path / "s").iterdir()] == ["memsvc.lock"]


def test_what_is_not_acknowledged_outlives_an_orderly_end(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20, "a")
    reel = begin(spool)
    put(reel, 1, 2)
    reel.acknowledged(1)
    spool.close()
    numbers, spool = left(tmp_path)
    assert numbers == [1, 2]
    assert spool.earlier[0].first == 2
    spool.earlier[0].acknowledged(2)
    spool.finish(spool.earlier[0])
    assert spool.earlier == []
    assert files(tmp_path) == []
    assert spool.bytes == 0
    spool.close()


def test_a_last_record_torn_at_any_byte_is_passed_over_and_the_others_stay(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20, "a")
    reel = begin(spool)
    put(reel, 1, 2, size=100)
    (file,) = files(tmp_path)
    whole = file.stat().st_size
    put(reel, 3, size=150)
    abandon(spool)
    raw = file.read_bytes()
    for end in range(whole, len(raw)):
        file.write_bytes(raw[:end])
        numbers, spool = left(tmp_path)
        assert (numbers, spool.stats()["damaged"]) == ([1, 2], 0), end
        abandon(spool)
    file.write_bytes(raw)
    assert left(tmp_path)[0] == [1, 2, 3]


def test_a_file_torn_within_its_head_held_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20, "a")
    put(begin(spool), 1)
    abandon(spool)
    (file,) = files(tmp_path)
    raw = file.read_bytes()[: -record_bytes(1000)]
    for end in range(0, len(raw), 7):
        file.write_bytes(raw[:end])
        numbers, spool = left(tmp_path)
        assert numbers == []
        assert spool.earlier == []
        assert spool.stats()["damaged"] == 0
        assert not file.exists()
        abandon(spool)


def test_a_flipped_bit_costs_one_record_is_counted_and_never_sent(tmp_path: Path, rng: np.random.Generator) -> None:
    spool = Spool(tmp_path, 1 << 20, "a")
    put(begin(spool), 1, 2, 3, size=200)
    abandon(spool)
    (file,) = files(tmp_path)
    raw = file.read_bytes()
    step = record_bytes(200)
    start = len(raw) - 3 * step
    for bit in rng.choice(8 * 3 * step, 150, replace=False):
        at, broken = start + int(bit) // 8, bytearray(raw)
        broken[at] ^= 1 << (int(bit) % 8)
        file.write_bytes(broken)
        numbers, spool = left(tmp_path)
        hit, offset = divmod(at - start, step)
        padding = offset >= RECORD_BYTES + 200
        assert numbers == [n for n in (1, 2, 3) if padding or n != hit + 1], at
        assert spool.stats()["damaged"] == (0 if padding else 1), at
        abandon(spool)


def test_what_is_not_acknowledged_is_listed_without_gaps(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20, "a")
    reel = begin(spool)
    frame = frame_of(1)
    frame[RECORD_BYTES : RECORD_BYTES + HEAD.size] = np.frombuffer(HEAD.pack(0, 8, 5, 3, *[0] * 16), np.uint8)
    put(reel, 1, 2, 3)
    (file,) = files(tmp_path)
    start = file.stat().st_size
    put(reel, 4)
    assert reel.append(5, 50, 0, 500, frame)
    reel.acknowledged(2)
    with file.open("r+b") as raw:
        raw.seek(start + 20)
        raw.write(b"#")
    abandon(spool)
    spool = Spool(tmp_path, 1 << 20, "a")
    (old,) = spool.earlier
    notes = list(old.notes())
    assert [note.number for note in notes] == [3, 4, 5]
    assert [note.seq for note in notes] == [30, 30, 50]
    assert notes[2] == (5, 50, 0, 500, 3, 1000)
    assert spool.stats()["damaged"] == 1
    assert old.frame(4) is None
    assert spool.stats()["damaged"] == 1
    spool.close()


def test_a_file_whose_head_is_damaged_is_set_aside_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path, 1 << 20, "a")
    put(begin(spool), 1)
    abandon(spool)
    (file,) = files(tmp_path)
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)
    numbers, spool = left(tmp_path)
    assert numbers == []
    assert spool.stats()["damaged"] == 1
    assert "is damaged" in caplog.text
    assert file.with_name(file.name + ".damaged").read_bytes() == raw
    spool.close()


def test_a_damaged_mark_only_means_that_more_is_sent_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20, "a")
    reel = begin(spool)
    put(reel, 1, 2)
    reel.acknowledged(1)
    abandon(spool)
    (file,) = files(tmp_path)
    raw = bytearray(file.read_bytes())
    raw[24] ^= 4
    file.write_bytes(raw)
    assert left(tmp_path)[1].earlier[0].first == 1


def test_another_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20, "a")
    put(begin(spool), 1)
    abandon(spool)
    (file,) = files(tmp_path)
    raw = bytearray(file.read_bytes())
    raw[8] = 99
    file.write_bytes(raw)
    with pytest.raises(ConfigError, match="format 99"):
        Spool(tmp_path, 1 << 20, "b")
    assert file.read_bytes() == raw
    file.unlink()
    Spool(tmp_path, 1 << 20, "b").close()
