"""An actor with a spool: the server away for longer than the window lasts, the actor killed, both killed; every item comes exactly once."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memsvc_client import Actor, Learner, ZmqEndpoint
from memsvc_proto.errors import ConfigError, WindowFull
from outages import kept, play
from proxy import Proxy
from serving import CACHES, UNION, config, until

import memsvc

QUEUE = UNION | {"sampler": "fifo", "priority": {"source": "max"}, "limits": {"max_times_sampled": 1}}
GIVEN = QUEUE | {"priority": {"source": "given", "exponent": 1.0}}


class Place:
    """A server behind one address, which may go away and come back, with its state or as a new one; and a spool."""

    def __init__(self, tmp_path: Path, *tables: dict[str, Any], step: dict[str, Any] | None = None) -> None:
        self.tables, self.step, self.spool = tables, step, tmp_path / "spool"
        self.server: Any = memsvc.Server(config("tcp://127.0.0.1:0", *tables, step=step))
        self.proxy = Proxy(self.server.address)
        self.children: list[subprocess.Popen[str]] = []

    def away(self) -> None:
        """The server is not reached; it keeps its state."""
        self.proxy.cut(refuse=True)

    def back(self) -> None:
        self.proxy.resume()

    def forgets(self, *tables: dict[str, Any]) -> None:
        """The server is replaced by one without its state."""
        self.server.close()
        self.server = memsvc.Server(config("tcp://127.0.0.1:0", *(tables or self.tables), step=self.step))
        self.proxy.retarget(self.server.address)

    def actor(self, **settings: Any) -> Actor:
        return Actor(ZmqEndpoint(self.proxy.address, shared=False), **{"timeout": 20, "spool": self.spool, "name": "a", **settings})

    def child(self, name: str = "a", **settings: int) -> subprocess.Popen[str]:
        numbers = [f"{key}={value}" for key, value in settings.items()]
        command = [sys.executable, str(Path(__file__).with_name("outages.py")), self.proxy.address, str(self.spool), name, *numbers]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.children.append(child)
        assert answer(child) == "made"
        return child

    def learner(self, batch: int) -> Learner:
        return Learner(self.server.address, batch_size=batch, prefetch=0, timeout=20)

    def taken(self, n: int, rest: int = 0) -> list[int]:
        """Ids of n items, each of which the server gives out once; `rest` more are there."""
        found: list[int] = []
        with self.learner(10) as learner:
            while len(found) < n:
                got = learner.sample(20)
                assert (got["obs"] == got["action"][:, None]).all()
                found += got["action"].tolist()
        until(lambda: self.server.engine.replay.stats()["tables"][0]["items"] == rest)
        return sorted(found)

    def close(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.communicate()
        self.proxy.close()
        self.server.close()


def answer(child: subprocess.Popen[str], line: str = "") -> Any:
    """Says a line to a child, if any, and returns what it answers."""
    assert child.stdin is not None
    assert child.stdout is not None
    if line:
        child.stdin.write(line + "\n")
        child.stdin.flush()
    said = child.stdout.readline()
    assert said, "the child has ended"
    return json.loads(said)


def killed(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, GIVEN)
    yield made
    made.close()


def test_an_outage_longer_than_the_window_lasts_costs_nothing(place: Place) -> None:
    with place.actor(window_bytes=20_000, message_bytes=2_000) as actor:
        play(actor, 0, 100)
        actor.flush(20)
        place.away()
        for first in range(100, 4100, 100):
            play(actor, first, 100)
        kept(actor)
        stats = actor.stats()
        assert stats["spool"]["bytes"] > 200_000
        assert stats["spool"]["records"] == stats["outbox"]["pending"]["pushes"]
        place.back()
        actor.flush(30)
        assert actor.stats()["spool"]["records"] == 0
        assert place.taken(4100) == list(range(4100))
    assert sorted(os.listdir(place.spool)) == ["memsvc.lock"]


@pytest.mark.parametrize("name", ["a", ""], ids=["same name", "other name"])
@pytest.mark.parametrize("state", ["kept", "lost"])
def test_what_a_killed_actor_made_comes_when_it_is_started_again(place: Place, name: str, state: str) -> None:
    first = place.child(name, window_bytes=20_000, message_bytes=2_000)
    answer(first, "play 0 50")
    answer(first, "flush")
    place.away()
    for begin in range(50, 850, 100):
        answer(first, f"play {begin} 100")
    answer(first, "kept")
    killed(first)
    if state == "lost":
        place.forgets()
    place.back()
    second = place.child(name)
    answer(second, "play 850 50")
    answer(second, "flush")
    spool = until(lambda: (stats := answer(second, "stats")["spool"]) and not stats["records"] and stats)
    assert spool["delivered_of_earlier_session"] > 20
    assert spool["damaged"] == 0
    begin = 50 if state == "lost" else 0
    assert place.taken(900 - begin) == list(range(begin, 900))
    answer(second, "close")
    assert sorted(os.listdir(place.spool)) == ["memsvc.lock"]


def test_two_generations_in_one_spool_both_come(place: Place) -> None:
    """The second actor is killed before the server is back."""
    first = place.child(message_bytes=2_000)
    place.away()
    answer(first, "play 0 300")
    answer(first, "kept")
    killed(first)
    place.back()
    second = place.child(message_bytes=2_000)
    answer(second, "flush")
    place.away()
    answer(second, "play 300 300")
    answer(second, "kept")
    killed(second)
    place.forgets()
    place.back()
    with place.actor() as third:
        play(third, 600, 10)
        third.flush(20)
        until(lambda: not third.stats()["spool"]["records"])
        assert place.taken(310) == list(range(300, 610))


def test_killed_at_any_moment_nothing_comes_twice_and_only_the_newest_is_missing(place: Place, rng: np.random.Generator) -> None:
    """The server is reached now and then; each generation finds what the one before has left."""
    safe: list[int] = []
    for generation in range(4):
        child = place.child(window_bytes=20_000, message_bytes=2_000)
        if generation % 2:
            place.away()
        assert child.stdin is not None
        plays = [f"play {100_000 * generation + begin} 100\n" for begin in range(0, 5000, 100)]
        sure = int(rng.integers(5, 25))
        child.stdin.writelines([*plays[:sure], "kept\n", *plays[sure:]])
        child.stdin.flush()
        for _ in range(sure + 1 + int(rng.integers(0, 20))):
            answer(child)
        safe.append(100 * sure)
        killed(child)
        place.back()
    with place.actor() as last:
        last.flush(60)
        assert last.stats()["spool"]["damaged"] == 0
        there = place.server.engine.replay.stats()["tables"][0]["items"]
        found = np.array(place.taken(there // 10 * 10, there % 10))
    for generation in range(4):
        ids = found[found // 100_000 == generation] % 100_000
        # What had been made and not pushed yet when it was killed is all that may be missing; the queue's last few were not taken.
        assert len(ids) >= safe[generation] - there % 10
        assert np.array_equal(ids, np.arange(len(ids)))


def test_a_full_spool_makes_add_wait_and_says_so(tmp_path: Path) -> None:
    made = Place(tmp_path, GIVEN | {"actor": GIVEN["actor"] | {"max_steps": 500}})
    try:
        with made.actor(spool_bytes=70_000, window_bytes=4_000, message_bytes=2_000, timeout=10) as actor:
            actor._timeout = 1.0
            made.away()
            with pytest.raises(WindowFull, match=f"the spool at {made.spool} is full.*spool_bytes"):
                play(actor, 0, 5000)
            done = actor.stats()["memory"]["added"]
            assert 1000 < done < 5000
            assert actor.stats()["spool"]["bytes"] <= 70_000
            made.back()
            actor._timeout = 20.0
            play(actor, done, 5000 - done)
            actor.flush(30)
            assert made.taken(5000) == list(range(5000))
    finally:
        made.close()


def test_a_full_disk_is_said_and_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Place(tmp_path, GIVEN | {"actor": GIVEN["actor"] | {"max_steps": 500}})
    try:
        with made.actor(window_bytes=4_000, message_bytes=2_000) as actor:
            play(actor, 0, 100)
            actor.flush(20)
            made.away()

            def full(*arguments: object) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            monkeypatch.setattr("memsvc_client.volume._write", full)
            actor._timeout = 1.0
            with pytest.raises(WindowFull, match=f"the spool at {made.spool} cannot be written: .*No space left"):
                play(actor, 100, 5000)
            done = actor.stats()["memory"]["added"]
            monkeypatch.undo()
            actor._timeout = 20.0
            play(actor, done, 3000 - done)
            kept(actor)
            assert actor.stats()["outbox"]["pending"]["pushes"] == actor.stats()["spool"]["records"] > 0
            made.back()
            actor.flush(30)
            assert made.taken(3000) == list(range(3000))
    finally:
        made.close()


def test_another_schema_or_table_is_told_and_nothing_is_deleted(place: Place) -> None:
    first = place.child(message_bytes=2_000)
    place.away()
    answer(first, "play 0 300")
    answer(first, "kept")
    killed(first)
    place.forgets(GIVEN | {"name": "other"})
    place.back()
    with pytest.raises(ConfigError, match=r'that do not fit the server.*tables\[0\].name: "union" in the spool, "other" at the server.*Nothing was'):
        place.actor()
    place.forgets(GIVEN)
    with place.actor() as actor:
        actor.flush(20)
        until(lambda: not actor.stats()["spool"]["records"])
        assert place.taken(300) == list(range(300))


def test_a_second_actor_is_told_who_has_the_spool(place: Place) -> None:
    with place.actor(), pytest.raises(ConfigError, match=f"{place.spool} is used by"):
        place.actor(name="b")
    place.actor().close()


def test_items_whose_rows_went_with_the_old_server_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Transitions share rows: the first of those that were not acknowledged begin with rows that were."""
    made = Place(tmp_path, {**UNION, "item": {"kind": "transition", "n_step": 3, "next": ["obs"]}})
    try:
        first = made.child(message_bytes=2_000)
        answer(first, "add 0 100")
        answer(first, "flush")
        made.away()
        answer(first, "add 100 100")
        answer(first, "kept")
        left = answer(first, "stats")["outbox"]["pending"]["items"]
        killed(first)
        made.forgets()
        made.back()
        with caplog.at_level(logging.WARNING, "memsvc_client"), made.actor() as actor:
            actor.flush(20)
            told = re.search(r"\((\d+) items, \d+ bytes\) of actor a .* were delivered from the spool; (\d+) items came incomplete", caplog.text)
            assert told is not None, caplog.text
            assert int(told[1]) == left == 100
            missing = int(told[2])
            assert 1 <= missing <= 3
            assert made.server.engine.replay.stats()["tables"][0]["items"] == left - missing
            with made.learner(100) as learner:
                for _ in range(5):
                    assert (learner.sample(20)["action"] >= 97 + missing).all()
    finally:
        made.close()


def test_caches_are_delivered_under_their_own_session(tmp_path: Path) -> None:
    made = Place(tmp_path, CACHES)
    try:
        first = made.child("first", caches=1)
        answer(first, "play 0 100")
        answer(first, "flush")
        made.away()
        for begin in range(100, 1100, 100):
            answer(first, f"play {begin} 100")
        pushed = until(lambda: answer(first, "stats")["spool"]["records"])  # one or many: a slow machine makes few large pushes
        killed(first)
        made.back()
        with made.actor(name="second") as actor:
            until(lambda: not actor.stats()["spool"]["records"])
            assert actor.stats()["spool"]["delivered_of_earlier_session"] >= pushed
            play(actor, 1100, 100, None)
            actor.flush(20)
            with made.learner(16) as learner:
                for _ in range(20):
                    batch = learner.sample(20)
                    assert (batch["obs"] == batch["action"][:, None]).all()
    finally:
        made.close()


def test_with_memory_shared_with_the_server_it_is_the_same(tmp_path: Path) -> None:
    """Pushes go through a ring, which is not needed to send them again."""
    table = GIVEN | {"actor": GIVEN["actor"] | {"linger_ms": 1}}
    with memsvc.Server(config("tcp://127.0.0.1:0", table)) as server:
        address = server.address
        actor = Actor(address, name="a", timeout=20, spool=tmp_path / "s", window_bytes=20_000, message_bytes=2_000)
        play(actor, 0, 1000)
        actor.flush(20)
        assert actor.stats()["transport"] == "shared"
    play(actor, 1000, 3000)
    kept(actor)
    with memsvc.Server(config(address, table)) as server:
        actor.flush(40)
        counts = actor.stats()["outbox"]
        assert counts["sent"]["items"] == counts["acknowledged"]["items"] == 4000
        with Learner(address, batch_size=10, prefetch=0, timeout=20) as learner:
            items = server.engine.replay.stats()["tables"][0]["items"]
            found = sorted(one for _ in range(items // 10) for one in learner.sample(20)["action"].tolist())
        assert found == list(range(4000 - items, 4000))
        assert items >= 3000
        actor.close()
