"""Two-stage sampling as its users meet it: actors and a learner over sockets, each at its own pace (DEFINITIONS 7)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare
from serving import Served, serve, until

STEP = {"actor": {"dtype": "int32"}, "id": {"dtype": "int64"}}
BATCH, CACHE, PREFETCH = 64, 64, 2
TRAINING_S = 0.001
"""What a learner takes for a batch. One that does nothing else outruns its actors until they know how much it wants, and then they starve."""


def table(max_steps: int) -> dict:
    return {
        "name": "replay",
        "item": {"kind": "step"},
        "actor": {"cache": CACHE, "every": CACHE, "max_steps": max_steps},
        "priority": {"source": "given", "exponent": 1.0},
    }


def batches(learner, n: int, warm: int = 200):
    """n batches at a learner's pace, after those in which demand finds its level."""
    for i in range(warm + n):
        batch = learner.sample()
        if i >= warm:
            yield batch
        time.sleep(TRAINING_S)


class Playing:
    """Three actors whose items have priority `p[actor, id % width]`; `run` lets them go on adding steps at their own rates."""

    def __init__(self, served: Served, p: NDArray[np.float64], steps: int) -> None:
        self.p, self.added = p, [0, 0, 0]
        self.actors = [served.actor(name=f"actor-{k}", seed=k) for k in range(3)]
        for k in range(3):
            self.add(k, steps)
        for actor in self.actors:
            actor.flush()

    def add(self, k: int, steps: int) -> None:
        for _ in range(steps):
            i = self.added[k]
            self.actors[k].add(actor=k, id=i, priority=float(self.p[k, i % self.p.shape[1]]))
            self.added[k] += 1

    @contextlib.contextmanager
    def run(self, rates: tuple[int, int, int]) -> Iterator[None]:
        stop = threading.Event()

        def play(k: int) -> None:
            first, begin = self.added[k], time.monotonic()
            while not stop.wait(0.005):
                self.add(k, first + int(rates[k] * (time.monotonic() - begin)) - self.added[k])

        threads = [threading.Thread(target=play, args=(k,), daemon=True) for k in range(3)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(10)

    def close(self) -> None:
        for actor in self.actors:
            actor.close()


@pytest.fixture
def played(tmp_path):
    """Makes Playings at a server of their own, over tcp: (what plays, a learner, the server)."""
    with contextlib.ExitStack() as stack:

        def make(p: NDArray[np.float64], steps: int) -> tuple[Playing, object, Served]:
            served = stack.enter_context(serve("tcp", tmp_path, table(steps), step=STEP, memory="64MiB"))
            playing = Playing(served, p, steps)
            stack.callback(playing.close)
            learner = stack.enter_context(served.learner(batch_size=BATCH, prefetch=PREFETCH))
            return playing, learner, served

        yield make


def test_three_actors_of_equal_weight_supply_a_third_each_whatever_their_rates(played, rng):
    # A memory is a whole number of times the pattern of priorities, so that the weights stay equal while it turns over.
    pattern = np.tile(rng.uniform(0.2, 1, 256), (3, 1))
    playing, learner, served = played(pattern, 2049)
    shares, starved = np.zeros(3), None
    with playing.run((100, 100, 800)):
        for batch in batches(learner, 2000):
            starved = served.table()["starved"] if starved is None else starved
            assert batch.population == 3 * 2048
            shares += np.bincount(batch["actor"], minlength=3)
        table = served.table()
        # Demand keeps pace: hardly a batch finds an actor's queue empty.
        assert table["starved"] - starved <= 20
        np.testing.assert_allclose(shares / shares.sum(), 1 / 3, atol=0.01)
        assert table["total"] == pytest.approx(3 * 8 * pattern[0].sum(), rel=1e-9)
        # Nobody draws any more: what is pushed still, a cache every 64 steps, pushes out what is above
        # twice the stock of 1,024, which follows what is taken in steps of an eighth.
        until(lambda: all(lane["queue"] <= 2 * np.ceil(1024 * 8 / 7 / 3) + CACHE for lane in served.table()["actors"]))


def test_items_come_as_often_as_they_weigh(played, rng):
    p = rng.uniform(0.01, 1, (3, 300)) ** 2
    _, learner, served = played(p, 301)
    w, counts = p.copy(), np.zeros((3, 300))
    for batch in batches(learner, 2000):
        np.add.at(counts, (batch["actor"], batch["id"]), 1)
        np.testing.assert_allclose(batch.probabilities, w[batch["actor"], batch["id"]] / w.sum(), rtol=1e-9)
    if not any(lane["starved"] for lane in served.table()["actors"]):  # else the machine has stalled an actor, whose share was others' meanwhile
        assert chisquare(counts.ravel(), w.ravel() / w.sum() * counts.sum()).pvalue > 1e-4
    for k in range(3):
        assert chisquare(counts[k], w[k] / w[k].sum() * counts[k].sum()).pvalue > 1e-4


def naive(p: NDArray[np.float64], rounds: int, rng) -> float:
    """The share of updated items among the draws of one table of everything."""
    w, updated, share = p.ravel().copy(), np.zeros(p.size, bool), 0.0
    for _ in range(rounds):
        drawn = rng.choice(p.size, BATCH, p=w / w.sum())
        share += updated[drawn].mean() / rounds
        updated[drawn] = True
        w[drawn] = 0.3 * p.ravel()[drawn]
    return share


def test_a_learner_that_cuts_what_it_is_given_still_draws_exactly(played, rng):
    steps, rounds = 10_000, 600
    p = rng.uniform(0.2, 1, (3, steps))
    x = rng.uniform(0, 1, p.shape) * p
    playing, learner, served = played(p, steps + 1)
    w, updated = p.copy(), np.zeros(p.shape, bool)
    # A batch is drawn when it is asked for, which is `PREFETCH` batches before it is returned: before the last updates.
    unseen: deque[tuple] = deque()
    got = exact = estimate = 0.0
    for batch in batches(learner, rounds, warm=0):
        at = (batch["actor"], batch["id"])
        exact += w[updated].sum() / w.sum()
        got += updated[at].mean()
        estimate += (x[at] / (batch.population * batch.probabilities)).mean()
        learner.update_priorities(batch.keys, 0.3 * p[at])
        unseen.append(at)
        if len(unseen) > PREFETCH:
            seen = unseen.popleft()
            updated[seen], w[seen] = True, 0.3 * p[seen]
    assert got / rounds == pytest.approx(exact / rounds, abs=0.01)
    assert got / rounds == pytest.approx(naive(p, rounds, rng), abs=0.015)
    assert estimate / rounds == pytest.approx(x.mean(), rel=0.02)
    while unseen:
        seen = unseen.popleft()
        w[seen] = 0.3 * p[seen]
    until(lambda: learner.stats()["applied"] + learner.stats()["stale"] == BATCH * rounds)
    assert learner.stats()["stale"] == 0
    assert served.table()["total"] == pytest.approx(w.sum(), rel=1e-9)
    # The changes have come back to the actors' memories.
    until(lambda: [a.stats()["memory"]["tables"][0]["total"] for a in playing.actors] == pytest.approx(w.sum(1), rel=1e-9))
