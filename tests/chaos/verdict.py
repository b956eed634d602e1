"""What must hold at the end: a list of (what, whether it holds, numbers)."""

from __future__ import annotations

import collections
import json
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from memsvc_client import Learner, NotReady
from numpy.typing import NDArray

from . import deliveries
from .content import DRAW, ENVS, FINAL, LEDGER, QUEUE, TABLES, identities, read_lines, torn
from .faults import KILL, Tormentor
from .learners import BATCH, NUMBERS
from .world import World

BACK_S = 20.0
"""The longest after the last fault until everybody has added, or drawn, and was answered."""
GROWTH_BYTES = 16 << 20
"""Growth of the daemon's memory in one of its runs that counts as none: pools, and what snapshots take for a moment, are touched first."""
SLOPE_BYTES, STEP_BYTES = 128 << 10, 512
"""The same in a second, later on; and for each step that is stored meanwhile: the journal and two snapshots know where it lies, in four tables. (With
a memory that is full nothing grows: soak.py.)"""

EXPECTED = [
    r"INFO ",
    r"WARNING (actor|learner) \S+ (has joined|joined|at|: )",
    r"WARNING actor \S+: the server at .* has been silent",
    r"WARNING actor '\S+' on \S+ replaces the one of that name",
    r"WARNING .*(cannot be used any more, sockets are used)",
    r"WARNING a connection to \S+ ended in its handshake",
    r"WARNING segment \S+ ends in the middle of a record, which was never acknowledged",
    r"WARNING parameters of topic '\S+' (go to|come from) the server by messages: the server's side socket",
]
"""Lines that faults explain."""


class Finding(NamedTuple):
    """One line of the verdict."""

    what: str
    holds: bool
    numbers: str


class Verdict:
    """Looks while everything still runs (`working`), ends the clients, reads the tables, and judges."""

    def __init__(self, world: World, tormentor: Tormentor, rate: float) -> None:
        self.findings: list[Finding] = []
        self._world, self._tormentor, self._rate = world, tormentor, rate

    @property
    def holds(self) -> bool:
        """Whether all of it does."""
        return all(one.holds for one in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"  {'ok  ' if one.holds else 'WRONG'} {one.what}: {one.numbers}" for one in self.findings)

    def say(self, what: str, holds: bool, numbers: str) -> None:
        """Adds a finding."""
        self.findings.append(Finding(what, bool(holds), numbers))

    def judge(self) -> None:
        """All of it, in the order in which it can be seen."""
        self.working()
        wrong = self._world.end(self._world.actors, 90) + self._world.end(self._world.learners, 15)
        self.say("clients end by themselves", not wrong, ", ".join(wrong) or f"{len(self._world.clients)}")
        self.stored()
        self.keys()
        self.counters()
        wrong = self._world.end([self._world.daemon], 10)
        self.say("the daemon ends by itself", not wrong, ", ".join(wrong) or "yes")
        self.memory()
        self.logs()

    def working(self) -> None:
        """Everybody goes on within BACK_S: each actor has something acknowledged that it added since, each learner has drawn."""
        began = time.time()
        waiting: dict[str, Callable[[], bool]] = {}
        for actor in self._world.actors:
            waiting[actor.name] = lambda name=actor.name, run=actor.runs - 1: self._acked_since(name, run, began)  # type: ignore[misc]
        for learner in self._world.learners:
            before = self._drawn(learner.name, learner.runs - 1)
            waiting[learner.name] = lambda one=learner, was=before: self._has_drawn(one.name, one.runs - 1, was)  # type: ignore[misc]
        took: dict[str, float] = {}
        while waiting and time.time() - began < BACK_S:
            for name in [name for name, done in waiting.items() if done()]:
                del waiting[name]
                took[name] = time.time() - began
            time.sleep(0.1)
        slowest = max(took, key=lambda name: took[name], default="")
        self.say("everybody is back", not waiting, f"never: {', '.join(waiting)}" if waiting else f"the last, {slowest}, after {took[slowest]:.1f} s")

    def _acked_since(self, name: str, run: int, since: float) -> bool:
        lines = [one for one in read_lines(self._world.folder / f"{name}.{run}.acked") if one["event"] == "acked"]
        fresh = [one["counts"] for one in lines if one["at"] > since]
        return bool(fresh) and fresh[-1] != fresh[0]

    def _drawn(self, name: str, run: int) -> dict[str, int]:
        lines = [one for one in read_lines(self._world.folder / f"{name}.{run}.drawn") if one["event"] == "drawn"]
        return lines[-1]["counts"] if lines else {}

    def _has_drawn(self, name: str, run: int, before: dict[str, int]) -> bool:
        now = self._drawn(name, run)
        return bool(now) and all(now[table] > before.get(table, 0) for table in now)

    def acknowledged(self) -> NDArray[np.uint64]:
        """Identities of all steps whose items the actors were told to be stored."""
        parts = [np.zeros(0, np.uint64)]
        for slot, actor in enumerate(self._world.actors):
            for run in range(actor.runs):
                lines = [one for one in read_lines(self._world.folder / f"{actor.name}.{run}.acked") if one["event"] == "acked"]
                for env, count in enumerate(lines[-1]["counts"] if lines else []):
                    tags = np.stack([np.full(count, slot), np.full(count, run), np.full(count, env), np.arange(count)], 1)
                    parts.append(identities(tags.astype(np.int64)))
        return np.concatenate(parts)

    def stored(self) -> None:
        """Every acknowledged step is in the ledger, once; the queue has given each once."""
        acked, address = self.acknowledged(), self._world.address
        with Learner(address, table=LEDGER, batch_size=1, prefetch=0, timeout=20) as viewer:
            self.stats = viewer.server_stats()
        table = self.stats["tables"][NUMBERS[LEDGER]]
        everything = self._all(LEDGER, table["items"])
        ledger = identities(everything["tag"]) if everything else np.zeros(0, np.uint64)
        self._ledger = ledger
        wrong = torn(everything) if everything else []
        once, times = np.unique(ledger, return_counts=True)
        lost = np.setdiff1d(acked, once)
        numbers = f"{len(acked):,} acknowledged, {len(once):,} stored, {len(lost)} lost {_shown(lost)}"
        self.say("every acknowledged step is stored", not len(lost), numbers)
        self.say("none is stored twice", (times == 1).all(), f"{int((times > 1).sum())} were {_shown(once[times > 1])}")
        self.say("nothing was evicted", not table["evicted"], f"{table['evicted']:,}")
        self.say("no stored item is torn", not wrong, f"{len(wrong)} of {len(ledger):,} {wrong[:3]}")
        noted = [one for path in self._world.folder.glob("*.drawn") for one in read_lines(path) if one["event"] == "torn"]
        drawn = sum(path.stat().st_size // DRAW.itemsize for path in self._world.folder.glob("*.draws"))
        self.say(
            "no drawn item was torn", not noted, f"{len(noted)} batches with such, {drawn:,} items drawn {[one['wrong'][:1] for one in noted[:3]]}"
        )
        self._acked = len(acked)
        self._queued(acked)

    def _queued(self, acked: NDArray[np.uint64]) -> None:
        learners = [(one, run) for one in self._world.learners[1::2] for run in range(one.runs)]
        runs = [deliveries.given(self._world.folder, one.name, run, run < one.runs - 1, QUEUE) for one, run in learners]
        left = np.concatenate([np.zeros(0, np.uint64), *(identities(batch["tag"]) for size in (BATCH, 1) for batch in self._drain(QUEUE, size))])
        had = np.unique(np.concatenate([left, *(one.items.reshape(-1) for one in runs)]))
        missing = np.setdiff1d(acked, had)
        may_miss = BATCH * sum(one.kills for one in self._world.learners[1::2])
        numbers = f"{sum(one.items.size for one in runs):,} by learners, {len(left):,} left; {len(missing)} never (at most {may_miss})"
        self.say("the queue gave each item", len(missing) <= may_miss, numbers)
        again, wrong = deliveries.repeated(runs, left)
        numbers = f"{again} again, which learners had not confirmed when they were parted from the server; {len(wrong)} others {_shown(wrong)}"
        self.say("the queue gave none twice", not len(wrong), numbers)
        # Each table has pushes of its own: of what nobody acknowledged the queue may have had the last steps of an actor that was killed.
        beyond = np.setdiff1d(had, self._ledger)
        last = [one.runs - 1 for one in self._world.actors]
        strange = [one for one in beyond if (int(one) >> 44 & 0xFFF) == last[int(one) >> 56]]
        self.say("what only the queue had is of actors that were killed", not strange, f"{len(beyond)} items, {len(strange)} of others")

    def _unacknowledged(self) -> int:
        # Steps that killed actors have sent at the most, and were not told of.
        total, runs = 0.0, collections.Counter[str]()
        for one in self._tormentor.history:
            if one.kind != KILL or not one.target.startswith("actor"):
                continue
            lines = read_lines(self._world.folder / f"{one.target}.{runs[one.target]}.acked")
            runs[one.target] += 1
            if lines:
                total += ENVS + self._rate * (self._tormentor.began + one.at - lines[-1]["at"] + 0.5)  # as fast as it makes up for a pause
        return int(total)

    def _all(self, table: str, items: int) -> Any:
        if not items:
            return None
        with Learner(self._world.address, table=table, batch_size=items, prefetch=0, timeout=30) as learner:
            return learner.sample()

    def _drain(self, table: str, size: int) -> list[Any]:
        batches = []
        with Learner(self._world.address, table=table, batch_size=size, prefetch=0, timeout=10) as learner:
            try:
                while True:
                    batches.append(learner.sample(timeout=0.5))
            except NotReady:
                return batches

    def _draws(self, *tables: str) -> NDArray[Any]:
        parts = [np.zeros(0, DRAW), *(deliveries.draws_in(path) for path in self._world.folder.glob("*.draws"))]
        draws = np.concatenate(parts)
        return draws[np.isin(draws["table"], [NUMBERS[table] for table in tables])]

    def keys(self) -> None:
        """A key means one item, in all runs of the daemon, and an item of a table has one key."""
        draws = self._draws(*NUMBERS)
        who = identities(draws["tag"])
        for table, number in NUMBERS.items():
            mine = draws["table"] == number
            pairs = np.unique(np.stack([draws["key"][mine], who[mine]], 1), axis=0) if mine.any() else np.zeros((0, 2), np.uint64)
            keys, items = len(np.unique(pairs[:, 0])), len(np.unique(pairs[:, 1]))
            self.say(f"keys of {table} are unique", keys == len(pairs) == items, f"{keys:,} keys of {items:,} items in {int(mine.sum()):,} draws")

    def counters(self) -> None:
        """Both sides have counted alike."""
        counts = self.stats["counts"]
        self.say("the server met no failure", not counts["failures"] and not counts["malformed"], json.dumps(counts))
        more = self._unacknowledged()
        for table in TABLES[:3]:
            kept = self.stats["tables"][NUMBERS[table["name"]]]
            there = kept["items"] + kept["exhausted"] + kept["evicted"] + kept["deleted"]
            most = len(self._ledger) + more  # the tables have pushes of their own
            numbers = f"{there:,}, {self._acked:,} acknowledged, {len(self._ledger):,} in the ledger, at most {more} more of killed actors"
            self.say(f"{table['name']} holds what was made", self._acked <= there <= most, numbers)
        pushes = self.stats["pushes"]
        told = pushes["stored"] + sum(pushes["refused"].values())
        self.say("the server's pushes add up", pushes["received"] == told and not pushes["refused"]["malformed"], json.dumps(pushes))
        sums, wrong = collections.Counter[str](), []
        for actor in self._world.actors:
            for line in read_lines(self._world.folder / f"{actor.name}.{actor.runs - 1}.acked"):
                if line["event"] != "end":
                    continue
                box = {name: count["items"] for name, count in line["stats"]["outbox"].items() if isinstance(count, dict)}
                sums.update(box)
                if box["sent"] != box["acknowledged"] + box["pending"] or box["refused"] or box["lost"] or box["gone"]:
                    wrong.append(f"{actor.name}: {box}")
        self.say("the actors' items add up", not wrong, "; ".join(wrong) or json.dumps(sums))

    def memory(self) -> None:
        """The daemon's resident memory does not grow: by no more than GROWTH_BYTES in any of its runs, once it has restored; and in long ones the
        slope, once everything has been touched."""
        runs = collections.defaultdict(list)
        for at, run, size in self._world.samples:
            runs[run].append((at, size))
        told, holds = [], True
        for run, samples in runs.items():
            at, size = np.array(samples, float).T
            if at[-1] - at[0] < 15:
                continue
            begin = np.median(size[(at > at[0] + 5) & (at < at[0] + 10)])  # a snapshot takes some MiB for a moment
            grown = float(np.median(size[at > at[-1] - 5]) - begin)
            holds = holds and grown < GROWTH_BYTES
            text = f"run {run} {at[-1] - at[0]:.0f} s: {size.max() / 2**20:.0f} MiB, {grown / 2**20:+.1f} MiB"
            late = at > at[0] + 20
            if at[late].size and at[-1] - at[late][0] > 25:
                slope = float(np.polyfit(at[late], size[late], 1)[0])
                holds = holds and slope < SLOPE_BYTES + STEP_BYTES * self._rate * len(self._world.actors)
                text += f", {slope / 1024:+.1f} KiB/s"
            told.append(text)
        self.say("the daemon's memory is flat", holds, "; ".join(told) or "no run was long enough")

    def logs(self) -> None:
        """No traceback, and no line that no fault explains."""
        strange: collections.Counter[str] = collections.Counter()
        for path in sorted(self._world.folder.glob("*.log")):
            for line in path.read_text(errors="replace").splitlines():
                text = re.sub(r"^\S+ \S+ (?=[A-Z]+ )", "", line)
                if text and not any(re.match(one, text) for one in EXPECTED):
                    strange[f"{path.name}: {text[:160]}"] += 1
        self.say(
            "no log line is strange", not strange, f"{sum(strange.values())} are{''.join(chr(10) + '         ' + one for one in list(strange)[:12])}"
        )


def _shown(which: NDArray[np.uint64]) -> str:
    return str([[int(one) >> 56, int(one) >> 44 & 0xFFF, int(one) >> 40 & 0xF, int(one) & (FINAL - 1)] for one in which[:4]]) if len(which) else ""
