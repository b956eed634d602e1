"""The closed loop of DEFINITIONS 7 as a game: actors that push caches at their own rates, learners that change what they are given, and beside them
the joint state of all actors, which says at every batch what exact sampling from the union would give. `Product` plays it with memsvc_core, `Naive`
with a few lines of numpy that know nothing of it: every cache keeps a copy of the whole memory that it was drawn from.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from rig import Rig, table

FIELDS = [("id", "<i8", ()), ("p", "<f8", ()), ("x", "<f8", ())]
CACHE = 64
Window = tuple[int, int, int]  # a row of the joint state, and its items from .. to


@dataclass
class Actor:
    """One memory: items `first` to `last` of its row of the joint state are in it."""

    row: int
    name: str
    first: int = 0
    last: int = 0
    pushes: list[tuple[int, int, int]] = field(default_factory=list)  # of each cache: draws so far with it, and the memory's first and last item
    left: bool = False

    def pushed(self, draws: int) -> None:
        self.pushes.append((draws + (self.pushes[-1][0] if self.pushes else 0), self.first, self.last))

    def reported(self) -> Window:
        """The memory as the newest cache's report saw it."""
        return (self.row, *self.pushes[-1][1:])

    def sources(self, queued: int, left: int) -> list[tuple[Window, float]]:
        """What the draws that went between two lengths of the queue were drawn from, and which part of them: draws come and go at the ends, so
        their numbers are known. Of the next one where none went. What the memory has lost meanwhile is not drawn."""
        end = self.pushes[-1][0]
        begin, upto = end - queued, max(end - left, end - queued + 1)
        parts = []
        for (at, first, last), before in zip(self.pushes, [0, *(at for at, _, _ in self.pushes)], strict=False):
            if (many := min(at, upto) - max(before, begin)) > 0:
                parts.append(((self.row, max(first, self.pushes[-1][1]), last), many / (upto - begin)))
        return parts


class Joint:
    """All items that ever are: first and present weight, a stored number x that goes with the first weight, and whether a learner has changed it."""

    def __init__(self, rows: int, wide: int, rng: np.random.Generator) -> None:
        self.p = rng.uniform(0.5, 1.5, (rows, wide))
        self.x = 0.4 * self.p + rng.uniform(0, 0.2, self.p.shape)
        self.w, self.updated, self.wide = self.p.copy(), np.zeros(self.p.shape, bool), wide

    def weight(self, window: Window) -> float:
        row, first, last = window
        return float(self.w[row, first:last].sum())

    def exact(self, sources: list[list[tuple[Window, float]]], shares: np.ndarray) -> tuple[float, float]:
        """Drawing an actor by its share, one of its memories by its part and then an item by weight: (share of updated items, mean of x that the
        importance weights are to give)."""
        updated = mean = items = 0.0
        for memories, share in zip(sources, shares, strict=True):
            for (row, a, b), part in memories:
                w = self.w[row, a:b]
                updated += share * part * w[self.updated[row, a:b]].sum() / w.sum()
                mean += part * self.x[row, a:b].sum()
                items += part * (b - a)
        return float(updated), float(mean / items)


class Product:
    """The real thing, by direct calls."""

    def __init__(self, joint: Joint, stock: int, size: int, seed: int) -> None:
        settings = table(priority={"source": "given", "exponent": 1.0}, actor={"max_steps": size + 101, "cache": CACHE})
        self.rig = Rig(FIELDS, settings, memory_bytes=1 << 25, seed=seed)
        self.rig.replay.expect(0, stock)
        self.joint, self.seed, self.peers = joint, seed, {}
        self.keys = np.zeros(joint.p.shape, np.uint64)

    def join(self, actor: Actor) -> None:
        self.peers[actor.row] = self.rig.join(actor.name, seed=1000 * self.seed + actor.row)

    def leave(self, actor: Actor) -> None:
        self.rig.replay.leave(self.peers[actor.row].number)

    def add(self, actor: Actor, many: int) -> None:
        row, memory = actor.row, self.peers[actor.row].memory
        for i in range(actor.last, actor.last + many):
            p = float(self.joint.p[row, i])
            memory.add(0, {"id": row * self.joint.wide + i, "p": p, "x": float(self.joint.x[row, i])}, p, -1)
            if i % 100 == 99:
                memory.end(0, True, None)
        memory.end(0, True, None)
        actor.last += many
        actor.first = actor.last - memory.stats()["tables"][0]["population"]

    def push(self, actor: Actor, draws: int) -> None:
        self.rig.push(self.peers[actor.row], draws)

    def feedback(self, actor: Actor) -> None:
        peer = self.peers[actor.row]
        found = self.rig.replay.take_feedback(peer.number, 0)
        if found is not None:
            peer.memory.feedback(0, *found)

    def queues(self) -> dict[int, int]:
        rows = {peer.number: row for row, peer in self.peers.items()}
        return {rows[a["actor"]]: a["queue"] for a in self.rig.stats()["actors"]}

    def draw(self, batch: int) -> tuple[np.ndarray, np.ndarray, int]:
        found = self.rig.draw(batch)
        assert found is not None
        at = np.divmod(found["id"], self.joint.wide)
        self.keys[at] = found["keys"]
        np.testing.assert_allclose(found.w, self.joint.w[at], rtol=1e-9)
        return found["id"], found["probabilities"], found.population

    def update(self, ids: np.ndarray, p: np.ndarray) -> None:
        applied, stale, _ = self.rig.replay.update(0, self.keys[np.divmod(ids, self.joint.wide)], p)
        assert (applied, stale) == (len(ids), 0)


class Naive:
    """The rule by its definition, or (rule = "split") the one that it replaced: further copies of a raised draw go to the end of its queue."""

    def __init__(self, joint: Joint, stock: int, size: int, seed: int, rule: str = "excess") -> None:
        self.joint, self.stock, self.size, self.rule = joint, stock, size, rule
        self.rng = np.random.default_rng(seed)
        self.actors: dict[int, Actor] = {}
        self.queue: dict[int, deque] = {}  # (item, w_then, the memory that it was drawn from)
        self.known: dict[int, np.ndarray] = {}  # weights as the actor knows them

    def join(self, actor: Actor) -> None:
        for row in [row for row, other in self.actors.items() if other.name == actor.name]:
            del self.actors[row], self.queue[row]
        self.actors[actor.row], self.queue[actor.row] = actor, deque()
        self.feedback(actor)

    def leave(self, actor: Actor) -> None:
        """The queue is used up."""

    def add(self, actor: Actor, many: int) -> None:
        actor.last += many
        actor.first = max(0, actor.last - self.size)

    def push(self, actor: Actor, draws: int) -> None:
        memory = np.zeros(self.joint.wide)
        memory[actor.first : actor.last] = self.known[actor.row][actor.first : actor.last]
        sums, queue = np.cumsum(memory), self.queue[actor.row]
        queue.extend((i, memory[i], memory) for i in np.searchsorted(sums, self.rng.uniform(0, sums[-1], draws), "right").tolist())
        mine = self.joint.w[actor.row, actor.first : actor.last].sum()
        total = mine + sum(self.mass(other) for other in self.actors.values() if other is not actor)
        while len(queue) > 2 * max(CACHE, int(np.ceil(self.stock * mine / total))):
            queue.popleft()

    def mass(self, actor: Actor) -> float:
        return self.joint.weight(actor.reported()) if actor.pushes else 0.0

    def feedback(self, actor: Actor) -> None:
        self.known[actor.row] = self.joint.w[actor.row].copy()

    def queues(self) -> dict[int, int]:
        return {row: len(queue) for row, queue in self.queue.items()}

    def take(self, actor: Actor, parts: dict) -> int | None:
        """One of an actor's items, None when thinning used its queue up. What the memory has lost weighs nothing."""
        w, queue = self.joint.w[actor.row].copy(), self.queue[actor.row]
        w[: actor.reported()[1]] = 0
        if self.rule == "excess":
            memory = queue[0][2]
            if id(memory) not in parts:
                now = np.where(memory > 0, w, 0)
                parts[id(memory)] = (np.cumsum(np.maximum(now - memory, 0)), now.sum())
            gains, total = parts[id(memory)]
            mass = self.rng.uniform(0, total)
            if mass < gains[-1]:
                return int(np.searchsorted(gains, mass, "right"))
        while queue:
            i, then, memory = queue.popleft()
            ratio = w[i] / then
            if self.rule == "split":
                copies = int(ratio) + (self.rng.uniform() < ratio - int(ratio))
                queue.extend([(i, w[i], memory)] * (copies - 1))
            else:
                copies = self.rng.uniform() < ratio
            if copies:
                return i
        return None

    def draw(self, batch: int) -> tuple[np.ndarray, np.ndarray, int]:
        ids: list[int] = []
        parts: dict = {}
        total = sum(self.mass(actor) for actor in self.actors.values())
        population = sum(actor.reported()[2] - actor.reported()[1] for actor in self.actors.values())
        active = {row: self.mass(actor) for row, actor in self.actors.items() if self.queue[row]}
        while len(ids) < batch:
            row = int(self.rng.choice(list(active), p=np.array(list(active.values())) / sum(active.values())))
            found = self.take(self.actors[row], parts)
            if found is not None:
                ids.append(row * self.joint.wide + found)
            if not self.queue[row]:
                del active[row]
        for row in [row for row, actor in self.actors.items() if actor.left and not self.queue[row]]:
            del self.actors[row], self.queue[row]
        drawn = np.array(ids)
        return drawn, self.joint.w[np.divmod(drawn, self.joint.wide)] / total, population

    def update(self, ids: np.ndarray, p: np.ndarray) -> None:
        """w_now is the joint state's weight."""


@dataclass(frozen=True)
class Game:
    """One world: how fast actors push, what learners do, and how memories and actors come and go."""

    sizes: tuple[int, ...] = (200, 1000, 5000)
    rates: tuple[int, ...] = (1, 1, 8)  # caches of an actor a round
    batch: int = 32
    learner: str = "none"  # gives an item .3 of its first weight ("cut"), 3 times it ("raise"), or the one or the other ("both")
    lags: tuple[int, ...] = (0,)  # of one learner each, who take turns: rounds until the new priorities of a batch arrive
    delay: int = 1  # rounds between feedbacks to the actors
    turnover: int = 0  # new items of an actor a round
    churn: int = 0  # an actor leaves, is replaced, or pushes nothing for 12 rounds, every so many rounds
    stock: int = 192
    rounds: int = 30


class Match:
    """A game under way."""

    def __init__(self, game: Game, make, seed: int) -> None:
        self.game, self.rng = game, np.random.default_rng(seed)
        rows = len(game.sizes) + (game.rounds // game.churn if game.churn else 0)
        self.joint = Joint(rows, max(game.sizes) + game.turnover * game.rounds, self.rng)
        self.service = make(self.joint, game.stock, max(game.sizes), seed + 1)
        self.actors: list[Actor] = []
        self.leaving: list[tuple[int, Actor]] = []  # with their places
        self.silent_until = [0] * len(game.sizes)
        self.joined = 0
        self.flight: list[tuple[int, np.ndarray]] = []
        self.found: dict[str, list[float]] = {}
        for place in range(len(game.sizes)):
            self.join(place, f"actor-{place}")

    def join(self, place: int, name: str) -> None:
        actor = Actor(self.joined, name)
        self.joined += 1
        self.service.join(actor)
        self.service.add(actor, self.game.sizes[place])
        self.push(actor)
        self.actors[place : place + 1] = [actor]

    def push(self, actor: Actor) -> None:
        self.service.push(actor, CACHE)
        actor.pushed(CACHE)

    def upset(self, round_: int) -> None:
        place, what = int(self.rng.integers(len(self.actors))), self.rng.integers(3)
        if what == 0:
            gone = self.actors[place]
            self.service.leave(gone)
            gone.left = True
            self.leaving.append((place, gone))
            self.join(place, f"actor-{place}-{round_}")
        elif what == 1:
            self.join(place, self.actors[place].name)
        else:
            self.silent_until[place] = round_ + 12

    def compare(self, queues: dict[int, int], draw) -> np.ndarray:
        """A batch, and how it differs from what is exact: of the memories that its draws were drawn from, and ("now.") as they are."""
        game, joint = self.game, self.joint
        alive = [(place, a) for place, a in [*enumerate(self.actors), *self.leaving] if queues.get(a.row, 0) > 0]
        mass = np.array([joint.weight(a.reported()) for _, a in alive])
        shares = mass / mass.sum()
        ids, probabilities, population = draw()
        # Where a queue ends, others take its places. Whether it may end is known before the draw, so leaving such batches out is fair.
        if any(queues[a.row] < 4 * (share * game.batch + 2) for (_, a), share in zip(alive, shares, strict=True)):
            return ids
        left = self.service.queues()
        row, i = np.divmod(ids, joint.wide)
        updated, mean = joint.exact([a.sources(queues[a.row], left[a.row]) for _, a in alive], shares)
        updated_now, mean_now = joint.exact([[((a.row, a.first, a.last), 1.0)] for _, a in alive], shares)
        for place in range(len(self.actors)):
            of = [(share, a.row) for (at, a), share in zip(alive, shares, strict=True) if at == place]
            self.found.setdefault(f"share {place}", []).append(np.isin(row, [r for _, r in of]).mean() - sum(share for share, _ in of))
        share_updated, estimate = joint.updated[row, i].mean(), (joint.x[row, i] / (population * probabilities)).mean()
        differences = {"updated": share_updated - updated, "now.updated": share_updated - updated_now}
        if all(queues.get(a.row, 0) > 0 for a in self.actors):  # one that starves is left out, but is part of P and N
            differences |= {"mean": estimate - mean, "now.mean": estimate - mean_now}
        for name, difference in differences.items():
            self.found.setdefault(name, []).append(difference)
        return ids

    def learn(self, round_: int) -> None:
        for due in [one for one in self.flight if one[0] <= round_]:
            self.flight.remove(due)
            # A learner that comes late may speak of items that are gone, or of an actor.
            row, i = np.divmod(due[1], self.joint.wide)
            ids = due[1][np.any([(row == a.row) & (i >= a.reported()[1]) for a in self.actors], axis=0)]
            at = np.divmod(ids, self.joint.wide)
            factor = {"cut": 0.3, "raise": 3.0}.get(self.game.learner) or np.where(ids % 2 == 0, 0.3, 3.0)
            self.joint.w[at] = self.joint.p[at] * factor
            self.joint.updated[at] = True
            self.service.update(ids, self.joint.w[at])

    def play(self) -> dict[str, np.ndarray]:
        game = self.game
        for round_ in range(game.rounds):
            if game.churn and round_ % game.churn == game.churn - 1:
                self.upset(round_)
            for place, actor in enumerate(self.actors):
                if game.turnover:
                    self.service.add(actor, game.turnover)
                for _ in range(game.rates[place] if self.silent_until[place] <= round_ else 0):
                    self.push(actor)
            ids = self.compare(self.service.queues(), lambda: self.service.draw(game.batch))
            if game.learner != "none":
                self.flight.append((round_ + game.lags[round_ % len(game.lags)], np.unique(ids)))
                self.learn(round_)
            if round_ % game.delay == game.delay - 1:
                for actor in self.actors:
                    self.service.feedback(actor)
        return {name: np.array(values) for name, values in self.found.items()}


def play(game: Game, make, seed: int) -> dict[str, np.ndarray]:
    """One game: of every batch, delivered minus exact. `share k` of the actor in place k, `updated` items' share, importance-weighted `mean` of x."""
    return Match(game, make, seed).play()


def block_means(values: np.ndarray, blocks: int) -> np.ndarray:
    """Means of blocks of neighbours: batches that share caches are not independent, blocks nearly are."""
    return np.array([part.mean() for part in np.array_split(values, blocks)])
