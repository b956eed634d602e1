"""The spool of an actor: what is found again after a kill, a flipped bit, a full disk; its bound, its lock."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memsvc_client.outlet import HEAD
from memsvc_client.reel import Reel
from memsvc_client.spool import Spool, differences
from memsvc_client.volume import RECORD_BYTES, record_bytes
from memsvc_proto.errors import ConfigError

LASTING: dict[str, Any] = {"schema": [["obs", "<f4", [3]]], "tables": [{"name": "replay", "item": {"kind": "step", "n_step": 3}}]}
SESSION = "00000000000000ab"


def frame_of(number: int, size: int = 1000) -> np.ndarray:
    frame = np.zeros(RECORD_BYTES + size, np.uint8)
    frame[RECORD_BYTES:] = np.random.default_rng(number).integers(0, 256, size, np.uint8)
    return frame


def put(reel: Reel, *numbers: int, size: int = 1000) -> list[bool]:
    return [reel.append(n, 10 * n, 0, 100 * n, frame_of(n, size)) for n in numbers]


def begin(spool: Spool, session: str = SESSION, streams: list[int] | None = None) -> Reel:
    return spool.begin("actor-7", session, [1, 2] if streams is None else streams, "default", LASTING)


def files(path: Path) -> list[Path]:
    return sorted(path.glob("memsvc-*.spool"))


def abandon(spool: Spool) -> None:
    """As after a kill: the files stay as they are."""
    spool._let_go()


def left(path: Path) -> tuple[list[int], Spool]:
    """The numbers that a new process finds and can read."""
    spool = Spool(path, 1 << 20, "b")
    numbers = []
    for reel in spool.earlier:
        for number in range(1, reel.last + 1):
            found = reel.record(number)
            if found is not None:
                assert found[:4] == (number, 10 * number, 0, 100 * number)
                payload = found.frame[RECORD_BYTES:]
                assert np.array_equal(payload, frame_of(number, payload.nbytes)[RECORD_BYTES:])
                numbers.append(number)
    return numbers, spool


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


def test_at_the_bound_nothing_more_is_taken_and_acknowledged_space_is_given_back(tmp_path: Path) -> None:
    limit = 1 << 20
    spool = Spool(tmp_path, limit, "a")
    reel = begin(spool)
    number = 1
    while put(reel, number, size=10_000) == [True]:
        number += 1
    assert number > 90
    assert 0.97 * limit < spool.bytes <= limit
    assert len(files(tmp_path)) >= 8
    assert sum(file.stat().st_size for file in files(tmp_path)) == spool.bytes
    assert reel.trouble == ""
    assert reel.last == number - 1
    held = spool.bytes
    for _ in range(300):  # three times around
        reel.acknowledged(reel.first)
        if put(reel, number, size=10_000) == [True]:
            number += 1
    assert number > 350
    assert spool.bytes <= limit
    assert len(files(tmp_path)) <= 10
    assert held - spool.bytes < 2 * limit // 8
    reel.acknowledged(number - 1)
    assert reel.pending == 0
    assert spool.bytes < limit // 4
    abandon(spool)
    assert left(tmp_path)[0] == []


def test_one_push_larger_than_the_bound_has_room_where_nothing_else_waits(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 64 << 10, "a")
    reel = begin(spool)
    assert put(reel, 1, size=200_000) == [True]
    assert put(reel, 2) == [False]
    reel.acknowledged(1)
    assert put(reel, 2, size=200_000) == [True]
    assert reel.record(2) is not None
    assert spool.bytes < 210_000
    spool.close()


def test_what_earlier_sessions_left_counts_against_the_bound(tmp_path: Path) -> None:
    for session in ("1a", "2b"):
        spool = Spool(tmp_path, 1 << 20, "a")
        put(begin(spool, session), 1, 2, size=100_000)
        abandon(spool)
    spool = Spool(tmp_path, 1 << 20, "a")
    assert [reel.about["session"] for reel in spool.earlier] == ["1a", "2b"]
    reel = begin(spool, "3c")
    assert put(reel, *range(1, 8), size=100_000) == [True] * 6 + [False]
    old = spool.earlier[0]
    old.acknowledged(2)
    spool.finish(old)
    assert put(reel, 7, size=100_000) == [True]
    assert spool.bytes <= 1 << 20
    spool.close()


def test_two_actors_do_not_use_one_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20, "a")
    with pytest.raises(ConfigError, match=f"used by an actor of this process .{os.getpid()}.*a folder of its own") as caught:
        Spool(tmp_path, 1 << 20, "b")
    assert caught.value.path == str(tmp_path)
    code = f"""
        from memsvc_client.spool import Spool
        try:
            Spool({str(tmp_path)!r}, 1 << 20, "c")
        except Exception as error:
            print(type(error).__name__, error)
    """
    said = python(code)
    assert said.startswith("ConfigError")
    assert f"actor 'a', process {os.getpid()} on" in said
    assert str(tmp_path) in said
    spool.close()
    assert python(code) == ""
    Spool(tmp_path, 1 << 20, "b").close()


def test_a_killed_actor_gives_its_spool_free_although_its_forked_children_live(tmp_path: Path) -> None:
    code = f"""
        import os, signal, time
        import numpy as np
        from memsvc_client.spool import Spool
        reel = Spool({str(tmp_path)!r}, 1 << 20, "a").begin("actor-7", "ab", [1], "default", {{}})
        reel.append(1, 10, 0, 100, np.zeros(164, np.uint8))
        child = os.fork()
        if not child:
            os.close(1), os.close(2)
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    child = int(python(code, -signal.SIGKILL))
    try:
        spool = Spool(tmp_path, 1 << 20, "b")
        assert spool.earlier[0].pending == 1
        spool.close()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    code = f"""
        import resource
        import numpy as np
        from memsvc_client.spool import Spool
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        spool = Spool({str(tmp_path)!r}, 1 << 20, "a")
        reel = spool.begin("actor-7", "{SESSION}", [1, 2], "default", {{}})
        number = 1
        while reel.append(number, 10 * number, 0, 100 * number, {frame_source("number")}):
            number += 1
        assert "File too large" in reel.trouble, reel.trouble
        assert reel.pending == number - 1 and reel.frame(number) is None and reel.frame(number - 1) is not None
        reel.acknowledged(number - 1)
        assert reel.append(number, 10 * number, 0, 100 * number, {frame_source("number")}), reel.trouble
        assert reel.trouble == ""
        print(number, flush=True)
        import os
        os._exit(0)
    """
    number = int(python(code))
    numbers, spool = left(tmp_path)
    assert number > 3
    assert numbers == [number]
    assert spool.earlier[0].first == number
    spool.close()


def frame_source(number: str) -> str:
    return f"np.concatenate([np.zeros(64, np.uint8), np.random.default_rng({number}).integers(0, 256, 9000, np.uint8)])"


@pytest.mark.parametrize("where", ["/proc/nothing", "file/below"])
def test_a_folder_that_cannot_be_used_is_refused_by_name(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    path = os.path.join(tmp_path, where)
    with pytest.raises(ConfigError, match=f"spool: {path} cannot be used") as caught:
        Spool(path, 1 << 20, "a")
    assert caught.value.path == path


def test_what_does_not_fit_the_server_is_told_and_kept(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20, "a")
    put(begin(spool), 1)
    abandon(spool)
    spool = Spool(tmp_path, 1 << 20, "a")
    spool.check(LASTING, "tcp://there")
    other = {"schema": [["obs", "<f4", [4]]], "tables": [{"name": "replay", "item": {"kind": "step", "n_step": 5}}]}
    with pytest.raises(ConfigError, match=r"1 pushes of actor 'actor-7'.*tcp://there.*move this one aside") as caught:
        spool.check(other, "tcp://there")
    assert caught.value.differences == [
        "schema[0][2][0]: 3 in the spool, 4 at the server",
        "tables[0].item.n_step: 3 in the spool, 5 at the server",
    ]
    spool.close()
    assert left(tmp_path)[0] == [1]


def test_differences_name_what_is_missing() -> None:
    assert differences({"a": 1, "b": [1]}, {"a": 1, "b": [1, 2], "c": "x"}) == [
        "b: [1] in the spool, [1, 2] at the server",
        'c: null in the spool, "x" at the server',
    ]


def python(code: str, code_expected: int = 0) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code_expected, done.stderr
    return done.stdout.strip()
