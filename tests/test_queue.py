"""Queues and bounds by actor, at the level of memories and a replay: IMPALA's queue, DAPO's newest episodes, samplers in an order, deletion."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from memsvc_proto.errors import NotReady, WindowFull
from rig import Peer, Rig, table
from scipy.stats import chisquare
from serving import background, serve, until

ID = [("id", "<i8", ())]
STEPS = [("id", "<i8", ()), ("obs", "<f4", (4,)), ("reward", "<f4", ()), ("value", "<f4", ())]
UNROLL = 5


def union(**changes) -> dict:
    """A table of the whole union, with given priorities of exponent 1."""
    return table(**{"priority": {"source": "given", "exponent": 1.0}, "actor": {"select": "all"}, **changes})


def step(number: int) -> dict:
    """A step that knows its number in every field."""
    return {"id": number, "obs": np.full(4, number, np.float32), "reward": float(number), "value": 0.0}


def take(rig: Rig, batch: int, ticket: int, at: int = 0) -> tuple[list[int], list[int]] | None:
    """(ids of the items' first steps, keys) of a batch with a ticket."""
    size, layout = rig.specs[at].layout(batch)
    out = np.zeros(size, np.uint8)
    if rig.replay.draw(at, batch, out, 0, None, ticket) is None:
        return None
    found = {}
    for name, dtype, shape, offset in layout:
        kind = np.dtype(dtype)
        found[name] = np.frombuffer(out, kind, int(np.prod(shape)), offset).reshape(shape)
    ids = found["id"] if found["id"].ndim == 1 else found["id"][:, 0]
    if found["id"].ndim == 2:
        assert (found["id"] == ids[:, None] + np.arange(found["id"].shape[1])).all()
    return ids.tolist(), found["keys"].tolist()


class Unrolls:
    """An actor that plays unrolls for a queue and stops when its gate is closed, as the client does."""

    def __init__(self, peer: Peer, number: int, unrolls: int) -> None:
        self.peer, self.first, self.steps, self.played = peer, number * 1_000_000, unrolls * UNROLL, 0
        self.refused = 0
        self.keys: dict[int, int] = {}  # of the items that were sent: which unroll

    def play(self, steps: int, rng: np.random.Generator) -> None:
        """Up to so many steps; a whole number of unrolls an episode."""
        for _ in range(min(steps, self.steps - self.played)):
            try:
                self.peer.memory.add(0, {"id": self.first + self.played}, 1.0, -1)
            except WindowFull:
                self.refused += 1
                return
            self.played += 1
            if self.played == self.steps or (self.played % UNROLL == 0 and rng.integers(4) == 0):
                self.peer.memory.end(0, True, None)

    def push(self, rig: Rig) -> list[int]:
        """What there is room for; the gate closes where something is left, and opens where nothing is. Returns the unrolls that went."""
        room = rig.notices(self.peer)
        payload = self.peer.memory.draw(0, room, 1 << 20, 0)
        sent = []
        if payload is not None:
            for key, *_ in rig.read(payload).items:
                assert key not in self.keys
                self.keys[key] = self.first + len(self.keys) * UNROLL
                sent.append(self.keys[key])
            assert len(sent) <= room
            assert rig.replay.push(self.peer.number, payload) == (len(sent), 0)
        self.peer.memory.gate(0, None, self.peer.memory.unsent(0)[0] > 0)
        return sent


@pytest.mark.parametrize("returned", [0.0, 0.25])
def test_a_queue_gives_each_of_ten_thousand_unrolls_to_one_of_two_learners(returned, rng):
    """What is drawn is always the oldest that is there; a batch that is put back is there again, at its old place."""
    item = {"kind": "sequence", "length": UNROLL, "stride": UNROLL, "tail": "drop"}
    rig = Rig(
        ID,
        union(item=item, sampler="fifo", limits={"max_times_sampled": 1}, capacity={"items": 60, "when_full": "block"}),
        memory_bytes=1 << 19,
    )
    actors = [Unrolls(rig.join(), k, 2500) for k in range(4)]
    waiting: list[int] = []  # unrolls at the server, by arrival
    arrival: dict[int, int] = {}
    open_: list[tuple[int, int, list[int]]] = []  # ticket, learner, unrolls
    got: list[list[int]] = [[], []]
    tickets = 0
    while sum(map(len, got)) < 10_000:
        event = rng.integers(3)
        if event == 0:
            actor = actors[rng.integers(4)]
            actor.play(int(rng.integers(1, 60)), rng)
            for unroll in actor.push(rig):
                arrival[unroll] = len(arrival)
                waiting.append(unroll)
            assert rig.stats()["items"] == len(waiting) + sum(len(u) for _, _, u in open_) <= 60
        elif event == 1:
            tickets += 1
            size = int(rng.integers(1, 9))
            batch = take(rig, size, tickets)
            if batch is None:
                assert len(waiting) < size
                assert rig.replay.why_not(0, size)[0] in ("few", "empty")
                size = len(waiting)
                if size == 0 or sum(map(len, got)) + size + sum(len(u) for _, _, u in open_) < 10_000:
                    continue
                batch = take(rig, size, tickets)
            assert batch[0] == waiting[:size]
            del waiting[:size]
            open_.append((tickets, int(rng.integers(2)), batch[0]))
        elif open_:
            ticket, learner, unrolls = open_.pop(0)  # confirmed, or not, in the order in which they were sent
            if rng.random() < returned:
                rig.replay.put_back(0, ticket)
                waiting = sorted(waiting + unrolls, key=arrival.__getitem__)
            else:
                rig.replay.taken(0, ticket)
                got[learner] += unrolls
        assert rig.stats()["in_flight"] == sum(len(u) for _, _, u in open_)
    assert sorted(got[0] + got[1]) == sorted(k * 1_000_000 + i * UNROLL for k in range(4) for i in range(2500))
    assert min(map(len, got)) > 4000
    assert sum(actor.refused for actor in actors) > 100  # writers waited
    for learner in got:
        for k in range(4):
            own = [unroll for unroll in learner if unroll // 1_000_000 == k]
            assert returned > 0 or own == sorted(own)
    stats = rig.stats()
    assert (stats["items"], stats["evicted"], stats["in_flight"]) == (0, 0, 0)
    assert rig.replay.stats()["steps"] == 0
    assert (stats["put_back"] > 0) == (returned > 0)


class Newest:
    """An actor that plays whole episodes of steps with numbers of their own, and remembers which."""

    def __init__(self, peer: Peer, number: int, envs: int = 1) -> None:
        self.peer, self.next = peer, number * 1_000_000
        self.episodes: list[list[int]] = []
        self.open: list[list[int]] = [[] for _ in range(envs)]

    def add(self, env: int, given: bool) -> None:
        """One step."""
        self.peer.memory.add(env, step(self.next), 1.0 if given else None, -1)
        self.open[env].append(self.next)
        self.next += 1

    def end(self, env: int, rng: np.random.Generator) -> None:
        """The episode's end."""
        terminated = bool(rng.integers(2))
        self.peer.memory.end(env, terminated, None if terminated else step(-1))
        self.episodes.append(self.open[env])
        self.open[env] = []

    def play(self, episodes: int, steps: tuple[int, int], rng: np.random.Generator, given: bool) -> None:
        """Whole episodes, the environments' steps mixed."""
        left = episodes
        planned = [int(rng.integers(*steps)) for _ in self.open]
        while left > 0:
            env = int(rng.integers(len(self.open)))
            self.add(env, given)
            if len(self.open[env]) >= planned[env]:
                self.end(env, rng)
                planned[env] = int(rng.integers(*steps))
                left -= 1


def equally_often(counts: dict[int, int], expected: list[int]) -> None:
    """Exactly these were drawn, and none more often than chance explains."""
    assert set(counts) == set(expected)
    assert chisquare([counts[i] for i in expected]).pvalue > 1e-3


def drawn(rig: Rig, draws: int, batch: int = 500, before=lambda: None) -> dict[int, int]:
    """How often each item was drawn."""
    counts: dict[int, int] = {}
    for _ in range(draws // batch):
        before()
        for i in rig.draw(batch)["id"].tolist():
            counts[i] = counts.get(i, 0) + 1
    return counts


@pytest.mark.parametrize("returns", [{"gamma": 0.99, "lambda": 0.95}, None], ids=["returns", "steps"])
def test_of_fifty_episodes_of_each_actor_the_newest_twenty_can_be_drawn(returns, rng):
    """DAPO. Actors of very different pace, one with several environments; the union is right after every push, not only in the end."""
    rig = Rig(STEPS, union(returns=returns, sampler="uniform", capacity={"per_actor_episodes": 20}))
    actors = [Newest(rig.join(envs=envs), k, envs) for k, envs in enumerate((1, 1, 3, 1))]
    lengths = ((1, 4), (5, 10), (3, 20), (30, 60))
    rates = (1, 2, 10, 5)
    while any(len(actor.episodes) < 50 for actor in actors):
        for actor, length, rate in zip(actors, lengths, rates, strict=True):
            actor.play(min(rate, 50 - len(actor.episodes)), length, rng, True)
            rig.push_all(actor.peer, max_bytes=int(rng.integers(300, 20_000)))
        if returns:  # without, unfinished episodes are here too
            expected = [i for actor in actors for episode in actor.episodes[-20:] for i in episode]
            assert rig.stats()["items"] == len(expected)
    for env in range(3):
        if actors[2].open[env]:
            actors[2].end(env, rng)
    rig.push_all(actors[2].peer)
    expected = [i for actor in actors for episode in actor.episodes[-20:] for i in episode]
    assert rig.stats()["population"] == rig.stats()["items"] == len(expected)
    equally_often(drawn(rig, 40 * len(expected)), expected)
    assert rig.stats()["evicted"] == sum(len(actor.episodes[i]) for actor in actors for i in range(len(actor.episodes) - 20))


def test_the_same_with_caches_and_a_memory_of_twenty_episodes(rng):
    rig = Rig(STEPS, table(actor={"select": "uniform", "max_episodes": 20}, returns={"gamma": 0.99, "lambda": 0.95}))
    actors = [Newest(rig.join(), k) for k in range(4)]
    rig.replay.expect(0, 2000)
    for episode in range(50):
        for actor, length in zip(actors, ((1, 4), (5, 10), (3, 20), (30, 60)), strict=True):
            actor.play(1, length, rng, False)
            if episode % (1 + actor.next // 1_000_000) == 0:
                rig.push(actor.peer, 64)
        if episode >= 10:
            rig.draw(20)
    expected = [i for actor in actors for e in actor.episodes[-20:] for i in e]
    for peer in rig.peers:
        rig.push(peer, 0)
    stats = rig.stats()
    assert stats["population"] == len(expected)
    while any(actor["queue"] for actor in rig.stats()["actors"]):  # caches that were drawn earlier are used up
        if rig.draw(1) is None:
            break
    for peer in rig.peers:
        peer.memory.evicted(0, np.zeros(0, np.uint64))
    equally_often(drawn(rig, 40 * len(expected), before=rig.serve), expected)


@pytest.mark.parametrize(
    ("item", "length"),
    [
        ({"kind": "step"}, 1),
        ({"kind": "transition", "n_step": 3, "next": ["obs"]}, 1),
        ({"kind": "sequence", "length": 5, "stride": 5, "tail": "drop"}, 5),
    ],
    ids=["step", "transition", "sequence"],
)
def test_of_each_actor_the_newest_steps_can_be_drawn(item, length, rng):
    rig = Rig(STEPS, union(item=item, sampler="uniform", capacity={"per_actor_steps": 300}))
    actors = [Newest(rig.join(), k) for k in range(3)]
    for round_ in range(60):
        for actor, pace in zip(actors, (1, 4, 12), strict=True):
            if round_ == 0 and pace == 1:
                continue
            for _ in range(5 * pace):
                actor.add(0, True)
            actor.end(0, rng)
            rig.push_all(actor.peer, max_bytes=int(rng.integers(300, 20_000)))
    expected = [i for actor in actors for i in [i for episode in actor.episodes for i in episode[::length]][-300 // length :]]
    assert rig.stats()["items"] == len(expected) == (295 + 600) // length
    batch = rig.draw(40 * len(expected))
    ids = batch["id"] if batch["id"].ndim == 1 else batch["id"][:, 0]
    assert set(ids.tolist()) == set(expected)


@pytest.mark.parametrize("sampler", ["fifo", "lifo", "max", "min"])
def test_an_order_is_that_of_sorting(sampler, rng):
    """Whatever was updated, deleted or evicted before; each item once, in that order, P = 1; fewer than a batch: it waits."""
    rig = Rig(ID, union(sampler=sampler, capacity={"items": 200}))
    p = rng.permutation(1000) / 100.0
    p[::7] = 0
    peers = [rig.join() for _ in range(3)]
    keys, made = {}, [0, 0, 0]
    for i in range(1000):
        which = int(rng.integers(3))
        peers[which].memory.add(0, {"id": i}, float(p[i]), -1)
        peers[which].memory.end(0, True, None)
        keys[i] = (peers[which].streams[0] << 36) + 2 * made[which]
        made[which] += 1
        rig.push_all(peers[which])
        if i % 50 == 49:
            changed = rng.choice(np.arange(max(0, i - 250), i + 1), 20, replace=False)
            new = np.round(rng.permutation(20) + i * 20) / 977.0
            rig.replay.update(0, np.array([keys[j] for j in changed], np.uint64), new)
            for j, value in zip(changed.tolist(), new, strict=True):
                p[j] = value
    live = list(range(800, 1000))
    gone = rng.choice(live, 50, replace=False).tolist()
    assert rig.replay.delete(0, np.array([keys[i] for i in [*gone, 3, 4]], np.uint64)) == (50, 2)
    live = [i for i in live if i not in set(gone) and p[i] > 0]
    order = {"fifo": lambda i: i, "lifo": lambda i: -i, "max": lambda i: -p[i], "min": lambda i: p[i]}[sampler]
    expected = sorted(live, key=order)
    for n in (1, 2, 17, len(live)):
        batch = rig.draw(n)
        assert batch["id"].tolist() == expected[:n]
        assert (batch["probabilities"] == 1).all()
        assert (batch["weights"] == 1).all()
        assert batch.population == len(live)
    assert rig.draw(len(live) + 1) is None
    assert rig.replay.why_not(0, len(live) + 1) == ("few", len(live), len(live) + 1)


def test_several_tables_store_and_send_each_step_once(rng):
    """By rows and by bytes: what the second and third table add is their items, whatever was pushed first."""
    first = union(name="queue", item={"kind": "sequence", "length": 5, "stride": 5, "tail": "pad", "next": ["obs"]}, sampler="fifo")
    second = union(name="n-step", item={"kind": "transition", "n_step": 3, "next": ["obs"]})
    third = union(name="steps", sampler="uniform")
    rig = Rig(STEPS, first, second, third)
    actor = Newest(rig.join(envs=2), 0, 2)
    rows, sent = 0, [0, 0, 0]
    for _ in range(30):
        actor.play(3, (1, 30), rng, True)
        for env in range(2):
            if actor.open[env]:
                actor.end(env, rng)
        for index in rng.permutation(3).tolist():
            while (payload := actor.peer.memory.draw(index, 0, 5000, 0)) is not None:
                found = rig.read(payload, index)
                rig.replay.push(actor.peer.number, payload)
                rows += len(found.rows)
                sent[index] += len(found.items)
                overhead = 192 + 7 * 64 + 40 * len(found.items) + len(found.items) * rig.specs[index].item_bytes + 8 * len(found.rows)
                assert found.bytes <= overhead + len(found.rows) * rig.schema.row_stride
    steps = sum(map(len, actor.episodes))
    finals = len(actor.episodes)
    assert rows == rig.replay.stats()["steps"] == steps + finals
    assert sent == [sum(-(-len(e) // 5) for e in actor.episodes), steps, steps]
    assert [t["items"] for t in rig.replay.stats()["tables"]] == sent
    # A step goes when the last of its items has gone, in whichever table.
    everything = [rig.draw(20 * n, i)["keys"] if i else rig.draw(n, i)["keys"] for i, n in enumerate(sent)]
    while len(np.unique(everything[1])) < sent[1]:
        everything[1] = np.concatenate([everything[1], rig.draw(5000, 1)["keys"]])
    while len(np.unique(everything[2])) < sent[2]:
        everything[2] = np.concatenate([everything[2], rig.draw(5000, 2)["keys"]])
    assert rig.replay.delete(1, np.unique(everything[1]))[0] == steps
    assert rig.replay.stats()["steps"] == steps + finals
    assert rig.replay.delete(0, everything[0])[0] == sent[0]
    assert rig.replay.stats()["steps"] == steps
    assert rig.replay.delete(2, np.unique(everything[2]))[0] == steps
    assert rig.replay.stats()["steps"] == 0


@pytest.mark.parametrize("which", ["random", "oldest", "newest", "all but every hundredth"])
@pytest.mark.parametrize("when_full", ["evict", "block"])
def test_after_deleting_99_of_100_the_room_is_there_at_once(when_full, which, rng):
    """Twice the table's content passes without one eviction, and the items that stayed are whole."""
    n = 2000
    item = {"kind": "transition", "n_step": 3, "next": ["obs"]}
    rig = Rig(STEPS, union(item=item, sampler="uniform", capacity={"items": n, "when_full": when_full}))
    actor = Newest(rig.join(), 0)
    for _ in range(5):
        for _ in range(n // 50):
            for _ in range(50):
                actor.add(0, True)
            actor.end(0, rng)
        while rig.stats()["items"] < n:
            room = rig.notices(actor.peer)
            payload = actor.peer.memory.draw(0, room, 1 << 16, 0)
            assert payload is not None
            rig.replay.push(actor.peer.number, payload)
        assert rig.stats()["evicted"] == 0
        keys: dict[int, int] = {}
        while len(keys) < n:
            batch = rig.draw(4 * n)
            keys.update(zip(batch["id"].tolist(), batch["keys"].tolist(), strict=True))
        ids = sorted(keys)
        stay = {"random": rng.permutation(n)[: n // 100], "oldest": np.arange(n - n // 100, n), "newest": np.arange(n // 100)}
        kept = {ids[i] for i in stay.get(which, np.arange(0, n, 100))}
        assert len(kept) == n // 100
        gone = rng.permutation([keys[i] for i in ids if i not in kept]).astype(np.uint64)
        assert rig.replay.delete(0, gone) == (len(gone), 0)
        assert rig.replay.delete(0, gone[:9]) == (0, 9)
        assert rig.stats()["items"] == rig.stats()["population"] == len(kept)
        assert rig.replay.stats()["steps"] <= 5 * len(kept)  # the rows of what stayed, and no more
        batch = rig.draw(40 * len(kept))
        assert set(batch["id"].tolist()) == kept
        np.testing.assert_array_equal(batch["obs"], np.repeat(batch["id"][:, None], 4, 1).astype(np.float32))
        rest = rng.permutation([keys[i] for i in kept]).astype(np.uint64)
        assert rig.replay.delete(0, rest)[0] == len(kept)
        assert rig.replay.stats()["steps"] == 0


SERVED_STEP = {"id": {"dtype": "int64"}}
QUEUE = {
    "name": "queue",
    "item": {"kind": "sequence", "length": UNROLL, "stride": UNROLL, "tail": "drop"},
    "priority": {"source": "max"},
    "actor": {"select": "all", "linger_ms": 2},
    "sampler": "fifo",
    "capacity": {"items": 500, "when_full": "block"},
    "limits": {"max_times_sampled": 1},
}


@pytest.mark.parametrize("leaves", [False, True], ids=["two learners", "a third leaves"])
def test_ten_thousand_unrolls_over_tcp(leaves, tmp_path: Path):
    """IMPALA: four actors that wait when the queue is full, two learners that take what is oldest. A third learner that leaves with batches which its
    program has not seen takes none of them along."""
    total, got, lock = 10_000, [[], [], []], threading.Lock()
    with serve("tcp", tmp_path, QUEUE, step=SERVED_STEP) as served:

        def act(number: int) -> None:
            with served.actor(name=f"actor-{number}", timeout=60) as actor:
                first = number * 1_000_000
                for i in range(total // 4 * UNROLL):
                    actor.add(id=first + i)
                    if i % (20 * UNROLL) == 20 * UNROLL - 1:
                        actor.end_episode(terminated=True)
                actor.flush(timeout=60)

        def learn(number: int, batches: int) -> None:
            with served.learner(table="queue", batch_size=10, prefetch=2) as learner:
                while batches and sum(map(len, got)) < total:
                    try:
                        ids = learner.sample(timeout=0.2)["id"]
                    except NotReady:
                        continue
                    assert (ids == ids[:, :1] + np.arange(UNROLL)).all()
                    with lock:
                        got[number] += ids[:, 0].tolist()
                    batches -= 1

        threads = [background(lambda k=k: act(k)) for k in range(4)]
        threads += [background(lambda k=k: learn(k, total)) for k in range(2)]
        if leaves:
            threads.append(background(lambda: learn(2, 40)))
        for result in threads:
            assert result(90) is None
        table_ = until(lambda: served.table() if served.table()["items"] == 0 else None)
        assert (table_["evicted"], table_["in_flight"]) == (0, 0)
    assert sorted(unroll for learner in got for unroll in learner) == sorted(k * 1_000_000 + i * UNROLL for k in range(4) for i in range(total // 4))
    assert min(len(g) for g in got[:2]) > 1000
    assert len(got[2]) == 400 * leaves
    for learner in got if not leaves else got[2:]:
        for k in range(4):
            own = [unroll for unroll in learner if unroll // 1_000_000 == k]
            assert own == sorted(own)


def test_three_tables_cost_the_wire_one_copy_of_a_step(tmp_path: Path):
    frames = {"obs": {"dtype": "uint8", "shape": [2000]}, "reward": {"dtype": "float32"}}
    whole = {"priority": {"source": "max"}, "actor": {"select": "all", "linger_ms": 2}}
    tables = (
        whole | {"name": "steps"},
        whole | {"name": "n-step", "item": {"kind": "transition", "n_step": 3, "next": ["obs"]}},
        whole | {"name": "unrolls", "item": {"kind": "sequence", "length": 10, "stride": 10, "next": ["obs"]}, "sampler": "fifo"},
    )
    with serve("tcp", tmp_path, *tables, step=frames, memory="16MiB") as served, served.actor() as actor:
        for i in range(2000):
            actor.add(obs=np.full(2000, i % 251, np.uint8), reward=0.0)
            if i % 100 == 99:
                actor.end_episode(terminated=True)
        actor.flush(timeout=30)
        stats = served.server.stats()
        assert [t["items"] for t in stats["tables"]] == [2000, 2000, 200]
        assert stats["steps"] == 2000 + 20
        assert 2020 * 2000 < actor.stats()["acknowledged_bytes"] < 1.15 * 2020 * 2000
