"""The rate limiter (DEFINITIONS 9) as its users meet it: who is ahead waits, is told so, and goes on."""

from __future__ import annotations

import _thread
import contextlib
import threading
import time

import numpy as np
import pytest
from memsvc_client import Closed, ConfigError, NotReady, WindowFull
from serving import CACHES, UNION, background, serve, until

S, E, MIN, BATCH = 2.0, 20.0, 10, 4
LIMITS = {"limits": {"samples_per_insert": S, "tolerance": E, "min_items": MIN}}
TABLES = {"union": UNION | LIMITS, "caches": CACHES | {"priority": {"source": "given", "exponent": 1.0}} | LIMITS}


def numbered(i):
    return {"obs": np.array([i, i + 0.25, -i], np.float32), "action": i, "reward": i / 2, "priority": 1.0}


@pytest.fixture(params=[(kind, table) for kind in ("local", "tcp") for table in TABLES], ids="-".join)
def served(request, tmp_path):
    kind, table = request.param
    with serve(kind, tmp_path, TABLES[table]) as made:
        yield made


def impatient(actor, timeout=0.8):
    """An actor that came with all the time it needed, and from now on waits for room no longer than this."""
    actor._timeout = timeout
    return actor


def play(actor, start, steps):
    for i in range(start, start + steps):
        actor.add(**numbered(i))


def fill_up(actor, start=0):
    """Adds until there is no room; returns the number of the step that was refused, and the error."""
    for i in range(start, start + 10_000):
        try:
            actor.add(**numbered(i))
        except WindowFull as full:
            return i, full
    raise AssertionError("nothing stopped it")


def drain(learner):
    """Samples until there is no batch; returns how many came, and the error."""
    for i in range(10_000):
        try:
            learner.sample(timeout=0.8)
        except NotReady as late:
            return i, late
    raise AssertionError("nothing stopped it")


def test_who_is_ahead_waits_and_is_told_by_how_much(served):
    with impatient(served.actor()) as actor, served.learner(batch_size=BATCH, prefetch=0) as learner:
        added, full = fill_up(actor)
        # Counting begins where the server first sees MIN items, which by then may be as many as it has allowed: those and what makes half of e.
        # The newest step is no item yet.
        assert MIN + E / 2 / S <= added - 1 <= MIN + 2 * E / 2 / S
        assert isinstance(full, TimeoutError)
        assert "ahead of its learners by 5 items" in str(full)
        assert "limits.samples_per_insert = 2 with limits.tolerance = 20" in str(full)
        assert (full.table, full.ahead, full.setting) == (learner.table, E / 2 / S, "limits.samples_per_insert")
        waiting = background(lambda: actor.add(**numbered(added)))
        learner.sample()
        assert waiting() is None
        batches, late = drain(learner)
        assert late.reason == "limiter"
        assert "learners of table" in str(late)
        assert f"ahead of its actors by {late.need - late.have} items" in str(late)
        # Now learners are: one more batch would have passed e/2.
        limiter = served.table()["limiter"]
        assert limiter["sampled"] == BATCH * (1 + batches)
        assert -E / 2 <= limiter["ahead"] < -E / 2 + BATCH
        assert late.need == late.have + np.ceil((BATCH - E / 2 - limiter["ahead"]) / S)
        waiting = background(lambda: learner.sample(timeout=20))
        for i in range(added + 1, added + 6):
            actor.add(**numbered(i))
        assert waiting().population > MIN


def test_a_batch_that_the_tolerance_never_allows_is_refused_with_the_arithmetic(served):
    with pytest.raises(ConfigError, match=r"19 \+ 2 = 21") as refused:
        served.learner(batch_size=19)
    assert "limits.tolerance" in str(refused.value)
    with served.learner(batch_size=18):
        pass


@pytest.mark.parametrize("slower", ["actors", "learner"])
def test_the_ratio_holds_whoever_is_faster(tmp_path, slower):
    s, e, batch = 1.5, 40.0, 16
    table = UNION | {"limits": {"samples_per_insert": s, "tolerance": e, "min_items": 50}}
    with serve("tcp", tmp_path, table) as made, made.learner(batch_size=batch) as learner:
        stop = threading.Event()

        def play_on(actor):
            i = 0
            while not stop.is_set():
                try:
                    actor.add(**numbered(i))
                except Closed:
                    return
                i += 1
                if slower == "actors":
                    time.sleep(0.002)

        actors = [made.actor(name=f"actor-{k}") for k in range(3)]
        playing = [background(lambda actor=actor: play_on(actor)) for actor in actors]
        try:
            seen = []
            for _ in range(120 if slower == "actors" else 60):
                learner.sample(timeout=20)
                if slower == "learner":
                    time.sleep(0.01)
                limiter = made.table()["limiter"]
                seen.append(limiter["sampled"] - s * limiter["inserted"])
            assert max(seen) - min(seen) <= e + s * len(actors)  # each call may have inserted one item beyond what was allowed
            limiter = made.table()["limiter"]
            assert limiter["sampled"] / (limiter["inserted"] - 50) == pytest.approx(s, rel=0.02 + e / limiter["sampled"])
        finally:
            stop.set()
            for actor in actors:
                actor.close()
            for thread in playing:
                thread()


def test_actors_that_pause_hold_up_nobody(tmp_path):
    # The budget is a handful of items; those who do not use theirs hand it back.
    table = UNION | {"limits": {"samples_per_insert": 1.0, "tolerance": 6.0, "min_items": 4}}
    with serve("tcp", tmp_path, table) as made, made.learner(batch_size=4, prefetch=0) as learner:
        actors = [made.actor(name=f"actor-{k}", timeout=20) for k in range(8)]
        for actor in actors:
            actor.add(**numbered(0))  # and then nothing: a pause
        waiting = background(lambda: [actors[-1].add(**numbered(i)) for i in range(1, 40)])
        for _ in range(6):
            learner.sample(timeout=10)
        for actor in actors:
            actor.close()
        waiting()


def test_a_waiting_add_obeys_ctrl_c_and_close(served):
    with served.actor() as actor:
        added, _ = fill_up(impatient(actor))
        impatient(actor, 30)
        timer = threading.Timer(0.2, _thread.interrupt_main)
        timer.start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            play(actor, added, 100)
        assert time.monotonic() - begin < 1.3
        waiting = background(lambda: play(actor, added, 100))
        until(lambda: actor._pusher._adders)
        begin = time.monotonic()
        actor.close()
        assert isinstance(waiting(), Closed)
        assert time.monotonic() - begin < 2.5


def test_an_episode_may_always_end(served):
    with impatient(served.actor()) as actor:
        fill_up(actor)
        actor.end_episode(terminated=True)
        actor.flush(10)


def test_limits_that_are_changed_while_both_wait(served):
    with served.actor() as actor, served.learner(batch_size=BATCH, prefetch=0) as learner:
        added, _ = fill_up(impatient(actor))
        impatient(actor, 20)
        waiting = background(lambda: [actor.add(**numbered(added + i)) for i in range(100)])
        settings = learner.configure({"limits.samples_per_insert": 0.0, "limits.tolerance": 0.0})
        assert settings["limits"]["samples_per_insert"] == 0
        assert len(waiting()) == 100
        until(lambda: served.table()["inserted"] >= added + 99)
        for _ in range(100):
            learner.sample()
        with pytest.raises(ConfigError, match="samples_per_insert"):
            learner.configure({"limits.samples_per_insert": 2.0, "limits.tolerance": 5.0})
        learner.configure({"limits.samples_per_insert": 2.0, "limits.tolerance": 20.0})
        _, late = drain(learner)
        assert late.reason == "limiter"
        until(lambda: actor._pusher._gates[0].limited)
        _, full = fill_up(impatient(actor))
        assert full.setting == "limits.samples_per_insert"


def test_a_server_that_restarts_allows_anew(tmp_path):
    from memsvc_client import Actor, Learner
    from serving import config

    import memsvc

    address = f"ipc://{tmp_path}/s"
    with memsvc.Server(config(address, TABLES["union"])):
        actor, learner = Actor(address, timeout=10), Learner(address, timeout=10, batch_size=BATCH)
        for i in range(8):
            actor.add(**numbered(i))
        actor.flush(10)
    with memsvc.Server(config(address, UNION | {"limits": {**LIMITS["limits"], "tolerance": 30.0}})) as server:
        impatient(actor, 15)
        done = threading.Event()
        adding = background(lambda: [[actor.add(**numbered(i)) for i in range(8, 60)], done.set()])
        assert learner.sample(timeout=15).population >= MIN
        while not done.is_set():
            with contextlib.suppress(NotReady):
                learner.sample(timeout=0.2)
        assert len(adding()[0]) == 52
        assert actor._pusher._gates[0].settings["limits"]["tolerance"] == 30.0  # what WELCOME says holds
        assert server.stats()["tables"][0]["limiter"]["inserted"] >= MIN
        actor.close()
        learner.close()
