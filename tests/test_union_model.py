"""A select = "all" table against an O(N) list with a Python copy of its random stream: the exact same items, in the exact same order, for ever.

The order in which the table uses its random numbers: one uniform number a place of the batch (stratified masses; where max_times_sampled leaves
places over, the same again for those), then, for random samplers, the shuffle.
"""

from __future__ import annotations

import math
from itertools import accumulate
from random import Random as Programs

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memsvc_core import TableSpec
from rig import Rig, table

M64 = (1 << 64) - 1
ID = [("id", "<i8", ())]
PALETTE = (0.0, 0.0, 1.0, 2.0, 0.3, 7.5, 1e-3, 40.0, 1e-30, 3e7)
KINDS = ("insert", "insert", "update", "update", "delete", "draw", "draw", "draw", "recent", "settle", "get", "configure")


class Xoshiro:
    """cpp/core/random.h again: xoshiro256++, seeded by splitmix64."""

    def __init__(self, seed: int) -> None:
        self.state = []
        for _ in range(4):
            seed = (seed + 0x9E3779B97F4A7C15) & M64
            z = seed
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
            self.state.append(z ^ (z >> 31))

    def next(self) -> int:
        """64 bits."""
        s = self.state
        result = (rotated((s[0] + s[3]) & M64, 23) + s[0]) & M64
        t = (s[1] << 17) & M64
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotated(s[3], 45)
        return result

    def uniform(self) -> float:
        """53 bits in [0, 1)."""
        return (self.next() >> 11) * 2.0**-53

    def below(self, n: int) -> int:
        """Lemire's multiply-shift, in 0 .. n - 1."""
        return (self.next() * n) >> 64


def rotated(x: int, k: int) -> int:
    return ((x << k) | (x >> (64 - k))) & M64


class Item:
    """What the list knows of an item. `times`: draws so far; `flying`: of these, not confirmed."""

    def __init__(self, key: int, p: float, version: int, arrival: int) -> None:
        self.key, self.p, self.version, self.arrival = key, p, version, arrival
        self.times = self.flying = 0
        self.factor = 1.0


class Model:
    """The table as a list of places. A new item takes the place that became free last; at the start the lowest."""

    def __init__(self, seed: int, capacity: int, exponent: float, sampler: str, most: int, decay: float) -> None:
        self.random = Xoshiro(Xoshiro(seed).next())
        self.exponent, self.sampler, self.most, self.decay = exponent, sampler, most, decay
        self.places: list[Item | None] = [None] * capacity
        self.free = list(range(capacity))[::-1]
        self.at: dict[int, int] = {}
        self.arrivals = 0
        self.tickets: dict[int, list[Item]] = {}

    def weight(self, item: Item) -> float:
        """w, 0 where the item cannot be drawn."""
        return 0.0 if item.p == 0 or (self.most and item.times >= self.most) else self.full_weight(item)

    def full_weight(self, item: Item) -> float:
        """factor * p^exponent."""
        return item.factor * (1.0 if self.sampler == "uniform" else item.p**self.exponent)

    def items(self) -> list[Item]:
        """All of them, by place."""
        return [item for item in self.places if item is not None]

    def remove(self, key: int) -> None:
        place = self.at.pop(key)
        self.places[place] = None
        self.free.append(place)

    def insert(self, new: list[tuple[int, float, int]]) -> None:
        """(key, p, version) each. The oldest make room first; those set aside (drawn as often as they may, not confirmed) are not among them. The
        newest are kept where that is not enough.
        """
        while len(self.free) < len(new):
            able = [i for i in self.items() if not (self.most and i.times >= self.most)]
            if not able:
                break
            self.remove(min(able, key=lambda item: item.arrival).key)
        for key, p, version in new[max(0, len(new) - len(self.free)) :]:
            self.at[key] = self.free.pop()
            self.places[self.at[key]] = Item(key, p, version, self.arrivals)
            self.arrivals += 1

    def update(self, keys: list[int], priorities: list[float]) -> tuple[int, int, list[int]]:
        """As Replay.update."""
        applied, refused = 0, []
        for key, p in zip(keys, priorities, strict=True):
            if not (math.isfinite(p) and p >= 0):
                refused.append(key)
            elif key in self.at:
                self.places[self.at[key]].p = p
                applied += 1
        return applied, len(keys) - applied - len(refused), refused

    def delete(self, keys: list[int]) -> tuple[int, int]:
        """As Replay.delete."""
        here = 0
        for key in keys:
            if key in self.at:
                self.remove(key)
                here += 1
        return here, len(keys) - here

    def draw(self, n: int, least: int | None, ticket: int) -> tuple[list[int], list[float], int, float] | None:
        """(keys, weights, N, W), or None."""
        live = [item for item in self.items() if self.weight(item) > 0 and (least is None or item.version >= least)]
        room = sum(self.most - item.times for item in live) if self.most else n * len(live)
        if room < n:
            return None
        population, total = len(live), math.fsum(self.weight(item) for item in live)
        if self.sampler not in ("prioritized", "uniform"):
            order = {"fifo": lambda i: i.arrival, "lifo": lambda i: -i.arrival, "max": lambda i: -i.p, "min": lambda i: i.p}[self.sampler]
            if population < n:
                return None
            chosen, weights, total = sorted(live, key=order)[:n], [1.0] * n, 1.0
            for item in chosen:
                item.times += 1
        else:
            chosen = []
            while len(chosen) < n:
                upto = list(accumulate(self.weight(item) for item in live))
                places = n - len(chosen)
                slice_ = upto[-1] / places
                masses = [(k + self.random.uniform()) * slice_ for k in range(places)]
                for item in [self.landing(live, upto, mass) for mass in masses]:
                    if not self.most or item.times < self.most:
                        item.times += 1
                        chosen.append(item)
            for i in range(n, 1, -1):
                j = self.random.below(i)
                chosen[i - 1], chosen[j] = chosen[j], chosen[i - 1]
            weights = [self.full_weight(item) for item in chosen]
            for item in chosen:
                item.factor = max(item.factor * self.decay, 1e-100)
        if self.most and ticket:
            for item in chosen:
                item.flying += 1
            self.tickets[ticket] = chosen
        return [item.key for item in chosen], weights, population, total

    def landing(self, live: list[Item], upto: list[float], mass: float) -> Item:
        """Where the running sum passes `mass`; past the end the last drawable one."""
        for item, sum_ in zip(live, upto, strict=True):
            if mass < sum_:
                return item
        return next(item for item in reversed(live) if self.weight(item) > 0)

    def settle(self, ticket: int, taken: bool) -> None:
        """As Replay.taken and Replay.put_back."""
        for item in self.tickets.pop(ticket):
            if self.places[self.at[item.key]] is not item if item.key in self.at else True:
                continue
            item.flying -= 1
            if not taken:
                item.times -= 1
            elif item.flying == 0 and item.times >= self.most:
                self.remove(item.key)


class Both:
    """The product and the model, side by side."""

    def __init__(self, seed: int, capacity: int, exponent: float, sampler: str, most: int, decay: float) -> None:
        limits, priority = {"max_times_sampled": most}, {"source": "given", "exponent": exponent, "decay": decay}
        self.made = table(priority=priority, actor={"select": "all"}, sampler=sampler, capacity={"items": capacity}, limits=limits)
        self.rig = Rig(ID, self.made, memory_bytes=1 << 17, seed=seed)
        self.model = Model(seed, capacity, exponent, sampler, most, decay)
        self.peers = [self.rig.join() for _ in range(3)]
        self.steps = [0, 0, 0]
        self.known: list[int] = []
        self.priorities = 0
        self.next_ticket, self.version = 1, 0
        self.layouts: dict[int, tuple[np.ndarray, dict[str, int]]] = {}

    def run(self, kind: str, n: int, seed: int) -> None:
        """One operation; what it works on follows from `seed`."""
        getattr(self, kind)(n, Programs(seed))

    def priority(self, random: Programs) -> float:
        """One with many equals; where priorities make the order, and the order of equals is not said, one that has none."""
        if self.model.sampler not in ("max", "min"):
            return random.choice(PALETTE)
        self.priorities += 1
        return 0.0 if random.randrange(5) == 0 else 10 * random.random() + 1e-6 * self.priorities

    def insert(self, n: int, random: Programs) -> None:
        which = random.randrange(3)
        peer, new = self.peers[which], []
        self.version += random.randrange(2)
        for _ in range(n):
            p = self.priority(random)
            new.append(((peer.streams[0] << 36) + self.steps[which], p, self.version))
            peer.memory.add(0, {"id": new[-1][0]}, p, self.version)
            self.steps[which] += 1
        peer.memory.end(0, True, None)
        self.steps[which] += 1
        self.rig.replay.push(peer.number, peer.memory.draw(0, 0, 1 << 20, 0))
        self.model.insert(new)
        self.known = (self.known + [key for key, _, _ in new])[-2 * len(self.model.places) :]

    def keys(self, n: int, random: Programs) -> list[int]:
        """Of items that are there or were."""
        return [random.choice(self.known) for _ in range(n)] if self.known else []

    def update(self, n: int, random: Programs) -> None:
        keys = self.keys(n, random)
        p = [self.priority(random) if random.randrange(6) else random.choice((math.nan, -1.0, math.inf)) for _ in keys]
        applied, stale, refused = self.rig.replay.update(0, np.array(keys, np.uint64), np.array(p))
        assert (applied, stale, refused.tolist()) == self.model.update(keys, p)

    def delete(self, n: int, random: Programs) -> None:
        keys = self.keys(1 + n // 4, random)
        assert self.rig.replay.delete(0, np.array(keys, np.uint64)) == self.model.delete(keys)

    def draw(self, n: int, random: Programs, least: int | None = None) -> None:
        n = 300 if random.randrange(100) == 0 else n  # more than one chunk of the tree's
        if n not in self.layouts:
            size, layout = self.rig.specs[0].layout(n)
            self.layouts[n] = np.zeros(size, np.uint8), {name: at for name, _, _, at in layout}
        out, at = self.layouts[n]
        ticket = self.next_ticket if self.model.most else 0
        found, expected = self.rig.replay.draw(0, n, out, 0, least, ticket), self.model.draw(n, least, ticket)
        assert (found is None) == (expected is None)
        if expected is None:
            assert self.rig.replay.why_not(0, n, least)[0] != "ready"
            return
        self.next_ticket += 1
        keys, weights, population, total = expected
        assert out[at["keys"] : at["keys"] + 8 * n].view(np.uint64).tolist() == keys
        assert out[at["id"] : at["id"] + 8 * n].view(np.int64).tolist() == keys
        probabilities = out[at["probabilities"] : at["probabilities"] + 8 * n].view(np.float64)
        assert probabilities.tolist() == pytest.approx([w / total for w in weights], rel=1e-12)
        assert found == (population, pytest.approx(total, rel=1e-12))

    def get(self, n: int, random: Programs) -> None:
        keys = list(dict.fromkeys(self.keys(n, random)))
        if not keys:
            return
        out = np.zeros(self.rig.specs[0].layout(len(keys))[0], np.uint8)
        found, population, total = self.rig.replay.get(0, np.array(keys, np.uint64), out, 0)
        here = [self.model.places[self.model.at[key]] for key in keys if key in self.model.at]
        live = [w for w in map(self.model.weight, self.model.items()) if w > 0]
        assert (found, population) == (len(here), len(live))
        if not here:
            return
        at = {name: offset for name, _, _, offset in self.rig.specs[0].layout(found)[1]}
        for name, kind in (("keys", np.uint64), ("id", np.int64)):
            assert out[at[name] : at[name] + 8 * found].view(kind).tolist() == [item.key for item in here]
        if live and self.model.sampler in ("prioritized", "uniform"):
            assert total == pytest.approx(math.fsum(live), rel=1e-12)
            probabilities = out[at["probabilities"] : at["probabilities"] + 8 * found].view(np.float64)
            assert probabilities.tolist() == pytest.approx([self.model.weight(item) / total for item in here], rel=1e-12)

    def configure(self, n: int, random: Programs) -> None:
        if n > 2:
            return  # it is rare
        self.model.exponent = self.made["priority"]["exponent"] = random.choice((0.0, 0.3, 0.6, 1.0, 2.0))
        self.rig.replay.configure(0, TableSpec(self.rig.schema, self.made))

    def recent(self, n: int, random: Programs) -> None:
        self.draw(n, random, self.version - random.randrange(4))

    def settle(self, n: int, random: Programs) -> None:
        for ticket in list(self.model.tickets)[: n // 2]:
            taken = random.randrange(3) > 0
            (self.rig.replay.taken if taken else self.rig.replay.put_back)(0, ticket)
            self.model.settle(ticket, taken)

    def compare(self) -> None:
        """Everything that the statistics say."""
        stats, items = self.rig.stats(), self.model.items()
        live = [w for w in map(self.model.weight, items) if w > 0]
        assert (stats["items"], stats["population"]) == (len(items), len(live))
        if self.model.sampler in ("prioritized", "uniform"):
            assert stats["total"] == pytest.approx(math.fsum(live), rel=1e-12)
            assert stats["min_weight"] == (pytest.approx(min(live), rel=1e-12) if live else 0)


SAMPLERS = ("prioritized", "uniform", "fifo", "lifo", "max", "min")
tables = st.tuples(
    st.integers(0, M64),
    st.sampled_from((1, 2, 7, 8, 9, 23, 65)),
    st.sampled_from((0.0, 0.6, 1.0)),
    st.sampled_from(SAMPLERS),
    st.sampled_from((0, 1, 3)),
    st.sampled_from((1.0, 1.0, 0.5)),
)
operations = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 12), st.integers(0, 1 << 16)), max_size=80)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(made=tables, program=operations)
def test_short_programs(made, program):
    """Those that hypothesis can make small when one fails."""
    both = Both(*made)
    for operation in program:
        both.run(*operation)
        both.compare()


@pytest.mark.parametrize(("most", "decay"), [(0, 1.0), (1, 1.0), (3, 1.0), (0, 0.5)])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_long_programs(sampler, most, decay):
    """A hundred thousand operations in all, over tables of every kind."""
    random = Programs(f"{sampler} {most} {decay}")
    for capacity in (1, 5, 8, 64, 150):
        both = Both(random.randrange(1 << 64), capacity, random.choice((0.6, 1.0)), sampler, most, decay)
        for i in range(840):
            both.run(random.choice(KINDS), random.randrange(1, 13), random.randrange(1 << 30))
            if i % 20 == 0:
                both.compare()
        both.compare()
