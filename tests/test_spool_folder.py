"""A spool's folder: its bound, who has it, a full disk, what is refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from memsvc_client.spool import Spool, differences
from memsvc_proto.errors import ConfigError
from spooled import LASTING, SESSION, abandon, begin, files, left, put, python


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
