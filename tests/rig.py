"""Memory objects joined with a Replay by direct calls: no socket, no thread, no clock. Also the few lines that make specs and read payloads."""

from __future__ import annotations

import copy
import struct
from dataclasses import dataclass, field

import numpy as np
from memsvc_core import Memory, Replay, Schema, TableSpec

DEFAULTS = {
    "name": "replay",
    "item": {
        "kind": "step",
        "n_step": 1,
        "gamma": 0.99,
        "frame_stack": 1,
        "stack": [],
        "pad": "repeat",
        "next": [],
        "length": 1,
        "stride": 1,
        "burn_in": 0,
        "tail": "shift",
        "initial": [],
    },
    "returns": None,
    "priority": {"source": "max", "exponent": 0.6, "coefficients": [1.0], "baseline": "value", "eta": 0.9, "decay": 1.0},
    "actor": {
        "select": "prioritized",
        "cache": 64,
        "every": 64,
        "linger_ms": 20,
        "max_steps": 100_000,
        "max_episodes": 0,
        "step_discount": 1.0,
        "episode_weights": False,
    },
    "sampler": "prioritized",
    "importance": {"beta": 0.4, "normalize": "table"},
    "capacity": {"items": 0, "per_actor_episodes": 0, "per_actor_steps": 0, "when_full": "evict"},
    "limits": {"min_items": 1, "samples_per_insert": 0.0, "tolerance": 0.0, "max_times_sampled": 0, "max_staleness": -1},
}
OWN = ("keys", "probabilities", "weights", "versions")


def table(**changes) -> dict:
    """Normalised table settings: the defaults with `changes` merged in, section by section."""
    made = copy.deepcopy(DEFAULTS)
    for name, change in changes.items():
        if isinstance(change, dict) and isinstance(made.get(name), dict):
            made[name].update(change)
        else:
            made[name] = change
    return made


@dataclass
class Payload:
    """A push payload, read by cpp/core/cache.h's grammar."""

    total: float
    population: int
    min_weight: float
    scale: float
    applied: int
    inserted: int
    exponent: float  # of the weights in this cache
    newest: int  # version by which staleness was judged
    stale: int
    episodes: int
    short_episodes: int
    unsent: int
    allowed: int
    rows: np.ndarray  # keys of the rows that travel
    items: list[tuple[int, int, float, int, int]]  # key, version, priority, span, head
    factors: np.ndarray  # of the items; empty where the table has none
    keys: np.ndarray  # of the draws
    weights: np.ndarray
    gone: np.ndarray
    bytes: int


HEAD = struct.Struct("<IIQQQQdQddQQQdqQQQQQ40x")


def factored(settings: dict) -> bool:
    """Whether items of a table carry the factor of their weight."""
    return settings["actor"]["episode_weights"] or settings["actor"]["step_discount"] < 1 or settings["priority"]["decay"] < 1


def read(payload: np.ndarray, made_bytes: int, factors: bool = False) -> Payload:
    """Takes a payload apart, without the product's reader."""
    raw = payload.tobytes()
    _, stride, rows, items, draws, gone, total, population, low, scale, applied, inserted, _, *told = HEAD.unpack_from(raw)
    at, parts = HEAD.size, []
    for size in (8 * rows, rows * stride, 32 * items, items * made_bytes, 8 * items * factors, 16 * draws, 8 * gone):
        parts.append(raw[at : at + size])
        at = (at + size + 63) // 64 * 64
    drawn = np.frombuffer(parts[5], [("key", "<u8"), ("weight", "<f8")])
    records = [struct.unpack_from("<QqdIH", parts[2], 32 * i) for i in range(items)]
    row_keys, factor, gone_keys = np.frombuffer(parts[0], "<u8"), np.frombuffer(parts[4], "<f8"), np.frombuffer(parts[6], "<u8")
    head = (total, population, low, scale, applied, inserted, *told)
    return Payload(*head, row_keys, records, factor, drawn["key"], drawn["weight"], gone_keys, len(raw))


@dataclass
class Batch:
    """A drawn batch: its columns, N and W."""

    columns: dict[str, np.ndarray]
    population: int
    total: float

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @property
    def w(self) -> np.ndarray:
        """w_now of every drawn item, from P = w_now / W."""
        return self["probabilities"] * self.total


@dataclass
class Peer:
    """An actor of the rig: its memory, and its number and streams at the server."""

    name: str
    number: int
    streams: list[int]
    memory: Memory
    sent: list[int] = field(default_factory=list)  # bytes of its payloads
    asked: int = 0  # payloads that the server asked for again
    shown: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))  # keys of the last snapshot


class Rig:
    """One Replay and its actors. `push`, `feedback` and `draw` are the only traffic, and happen when they are called."""

    def __init__(self, fields, *tables, memory_bytes: int = 1 << 24, seed: int = 1, first_stream: int = 1) -> None:
        self.schema = Schema(fields)
        self.settings = list(tables)
        self.specs = [TableSpec(self.schema, t) for t in tables]
        self.replay = Replay(self.schema, self.specs, memory_bytes, seed, first_stream)
        self.peers: list[Peer] = []

    def join(self, name: str | None = None, envs: int = 1, seed: int | None = None) -> Peer:
        """A new actor with a memory of its own."""
        name = name or f"actor-{len(self.peers)}"
        number, streams = self.replay.join(name, envs)
        peer = Peer(name, number, list(streams), Memory(self.schema, self.specs, streams, 100 + len(self.peers) if seed is None else seed))
        self.peers.append(peer)
        return peer

    def notices(self, peer: Peer, table: int = 0) -> int:
        """The server's word to an actor: what it asks for again, what it no longer holds. Returns the draws wanted."""
        wanted, missing, evicted = self.replay.notices(peer.number, table)
        peer.memory.evicted(table, evicted)
        peer.memory.missing(table, missing)
        peer.asked += len(missing)
        return wanted

    def push(self, peer: Peer, draws: int = 64, table: int = 0, max_bytes: int = 1 << 22) -> int:
        """Notices to the actor, then one payload of it to the server. Returns the payload's bytes, 0 when there was none."""
        self.notices(peer, table)
        payload = peer.memory.draw(table, draws, max_bytes, 0)
        if payload is None:
            return 0
        self.replay.push(peer.number, payload)
        peer.sent.append(payload.nbytes)
        return payload.nbytes

    def late(self, peer: Peer, draws: int, flight: list, delay: int, table: int = 0) -> None:
        """Like `push`, but the payload stays on its way while `delay` others are made: what it relies on may be gone when it arrives."""
        self.notices(peer, table)
        payload = peer.memory.draw(table, draws, 1 << 22, 0)
        if payload is not None:
            flight.append((peer, payload))
        while len(flight) > delay:
            sender, oldest = flight.pop(0)
            self.replay.push(sender.number, oldest)

    def push_all(self, peer: Peer, table: int = 0, max_bytes: int = 1 << 22) -> None:
        """All unsent items of a select = "all" table."""
        while self.push(peer, 0, table, max_bytes):
            pass

    def feedback(self, table: int = 0) -> None:
        """Learners' priorities to the actors' memories."""
        for peer in self.peers:
            found = self.replay.take_feedback(peer.number, table)
            if found is not None:
                peer.memory.feedback(table, *found)

    def snapshot(self, peer: Peer, draws: int, batch: int) -> Batch:
        """A batch from a server that has held nothing before, so that every item in it travelled as it now stands in the memory."""
        fresh = Rig(self.schema.fields, *self.settings)
        number, streams = fresh.replay.join(peer.name, len(peer.streams))
        assert list(streams) == peer.streams
        fresh.replay.expect(0, 2 * draws)
        peer.memory.evicted(0, peer.shown)
        payload = peer.memory.draw(0, draws, 1 << 26, 0)
        peer.shown = np.unique(fresh.read(payload).keys)
        fresh.replay.push(number, payload)
        found = fresh.draw(batch)
        assert found is not None
        return found

    def serve(self, table: int = 0) -> None:
        """What is wanted, from every actor."""
        for peer in self.peers:
            wanted = self.notices(peer, table)
            if wanted > 0:
                self.push(peer, wanted, table)

    def draw(self, batch: int, table: int = 0) -> Batch | None:
        """A learner's batch, as copies."""
        size, layout = self.specs[table].layout(batch)
        out = np.full(size + 128, 0xAA, np.uint8)
        found = self.replay.draw(table, batch, out, 64)
        if found is None:
            return None
        assert (out[:64] == 0xAA).all()
        assert (out[64 + size :] == 0xAA).all()
        columns = {}
        for name, dtype, shape, offset in layout:
            kind = np.dtype(dtype)
            count = int(np.prod(shape))
            columns[name] = np.frombuffer(out, kind, count, 64 + offset).reshape(shape).copy()
        return Batch(columns, *found)

    def stats(self, table: int = 0) -> dict:
        """The server's statistics of one table."""
        return self.replay.stats()["tables"][table]

    def read(self, payload: np.ndarray, table: int = 0) -> Payload:
        """`read` with this table's computed bytes and factors."""
        return read(payload, self.specs[table].item_bytes, factored(self.settings[table]))
