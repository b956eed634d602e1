"""One seed and one order of operations give the same draws, bit for bit, in any process and on either code of the trees; other objects are apart."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from memsvc_core import SumTree, use_simd
from play import Player
from rig import Rig, table
from serving import CACHES, STEP, UNION, config, until

import memsvc

FIELDS = [("id", "<i8", ()), ("obs", "<f4", (3,)), ("reward", "<f4", ()), ("value", "<f4", ())]
SAMPLERS = ("prioritized", "uniform", "fifo", "lifo", "max", "min")
CASES = (
    {f"all, {sampler}": {"actor": {"select": "all"}, "sampler": sampler} for sampler in SAMPLERS}
    | {f"all, {sampler}, twice": {"actor": {"select": "all"}, "sampler": sampler, "limits": {"max_times_sampled": 2}} for sampler in SAMPLERS}
    | {f"caches, {select}": {"actor": {"select": select}} for select in ("prioritized", "uniform", "without_replacement")}
    | {
        "all, by episodes": {"actor": {"select": "all"}, "capacity": {"per_actor_episodes": 4}},
        "all, decay": {"actor": {"select": "all"}, "priority": {"decay": 0.7}},
        "caches, decay": {"priority": {"decay": 0.7}, "actor": {"step_discount": 0.95}},
        "caches, td": {"priority": {"source": "td"}},
        "sequences": {"item": {"kind": "sequence", "length": 5, "stride": 2, "tail": "pad"}, "actor": {"select": "all"}},
    }
)


def settings(case: str) -> dict:
    """The table of a case."""
    made = {"item": {"kind": "transition", "n_step": 2, "next": ["obs"]}, "returns": {"gamma": 0.9, "lambda": 0.8}} | CASES[case]
    return table(**{**made, "priority": {"source": "given"} | made.get("priority", {}), "limits": {"max_staleness": 20} | made.get("limits", {})})


def record(case: str, seed: int = 11) -> list[str]:
    """A digest of every payload, of every batch's bytes, and of the statistics, over a random but scripted run. `seed` is the server's."""
    rng, rig, made = np.random.default_rng(5), Rig(FIELDS, settings(case), memory_bytes=1 << 18, seed=seed), []
    given = rig.settings[0]["priority"]["source"] == "given"
    players = [Player(rig.join(envs=2), FIELDS, rng, 2, (1, 25), 1_000_000 * k, given=given) for k in range(3)]
    whole, known, tickets = rig.settings[0]["actor"]["select"] == "all", np.zeros(0, np.uint64), []
    rig.replay.expect(0, 200)

    def note(kind: str, *parts: object) -> None:
        digest = hashlib.sha256(b"".join(p.tobytes() if isinstance(p, np.ndarray) else repr(p).encode() for p in parts))
        made.append(f"{kind} {digest.hexdigest()[:16]}")

    def push(player: Player) -> None:
        wanted = rig.notices(player.peer)
        payload = player.peer.memory.draw(0, max(wanted, 8), 4000, 0)
        if payload is not None:
            note("push", payload, rig.replay.push(player.peer.number, payload))

    def draw() -> None:
        nonlocal known
        size = int(rng.integers(1, 40))
        least = int(rng.integers(0, 4)) if whole and rng.integers(4) == 0 else None
        bytes_, layout = rig.specs[0].layout(size)
        out, ticket = np.zeros(bytes_, np.uint8), len(made) + 1
        found = rig.replay.draw(0, size, out, 0, least, ticket)
        note("waits" if found is None else "draw", size, out, found, rig.replay.why_not(0, size, least))
        if found is not None:
            tickets.append(ticket)
            offset = next(at for name, _, _, at in layout if name == "keys")
            known = np.concatenate([known, out[offset : offset + 8 * size].view(np.uint64)])[-300:]

    for _ in range(600):
        event = rng.integers(10)
        player = players[rng.integers(3)]
        if event < 3:
            player.play(int(rng.integers(1, 8)))
        elif event < 6:
            push(player)
        elif event < 8:
            draw()
        elif event == 8 and len(known):
            keys = rng.choice(known, 12)
            note("update", *rig.replay.update(0, keys, rng.uniform(0, 2, 12)))
            rig.feedback()
            if whole:
                note("delete", *rig.replay.delete(0, keys[:2]))
        elif tickets:
            settle = rig.replay.put_back if rng.integers(3) == 0 else rig.replay.taken
            settle(0, tickets.pop(int(rng.integers(len(tickets)))))
            newest = max(1, max(p.version for p in players) - 4)
            rig.replay.publish("default", newest)
            player.peer.memory.newest(newest)
    note("stats", json.dumps(rig.stats(), sort_keys=True))
    return made


def begin(simd: bool) -> subprocess.Popen[str]:
    """Records all cases in a process of its own."""
    code = f"import json, memsvc_core, test_determinism as t; memsvc_core.use_simd({simd}); print(json.dumps({{c: t.record(c) for c in t.CASES}}))"
    environment = os.environ | {"PYTHONHASHSEED": str(int(simd))}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment, stdout=pipe, stderr=pipe, text=True)


def test_the_switch_chooses_the_code():
    use_simd(False)
    off = SumTree(9, 1)
    use_simd(True)
    assert not off.vectorised
    assert not SumTree(9, 1, simd=False).vectorised
    assert SumTree(9, 1).vectorised == ("avx512f" in Path("/proc/cpuinfo").read_text())


def test_two_processes_one_without_simd_draw_the_same_bits():
    processes, recorded = [begin(True), begin(False)], []
    for process in processes:
        told, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        recorded.append(json.loads(told))
    fast, slow = recorded
    assert list(fast) == list(slow) == list(CASES)
    for case in CASES:
        assert fast[case] == slow[case], case
        kinds = [line.split()[0] for line in fast[case]]
        assert min(kinds.count("push"), kinds.count("draw"), kinds.count("update")) >= 30, case


@pytest.mark.parametrize("case", ["all, prioritized", "all, uniform", "caches, prioritized"])
def test_the_server_s_seed_decides_and_nothing_else(case):
    assert record(case) == record(case)
    one, other = record(case, 11), record(case, 12)
    differs = [a != b for a, b in zip(one, other, strict=True) if a.startswith("draw")]
    assert np.mean(differs) > 0.5


def test_tables_of_one_server_draw_apart(rng):
    rig = Rig([("id", "<i8", ())], *(table(name=n, priority={"source": "given"}, actor={"select": "all"}) for n in "ab"))
    peer = rig.join()
    for i in range(5000):
        peer.memory.add(0, {"id": i}, 1.0, -1)
    peer.memory.end(0, True, None)
    for k in range(2):
        rig.push_all(peer, k)
    first, second = (np.sort(rig.draw(256, k)["id"]) for k in range(2))
    assert (first == second).mean() < 0.2


def test_a_memory_s_seed_decides_its_draws():
    drawn = []
    for seed in (1, 1, 2):
        rig = Rig([("id", "<i8", ())], table(priority={"source": "given"}))
        peer = rig.join(seed=seed)
        for i in range(5000):
            peer.memory.add(0, {"id": i}, 1.0, -1)
        drawn.append(rig.read(peer.memory.draw(0, 256, 1 << 20, 0)).keys)
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert len(np.intersect1d(drawn[0], drawn[2])) < 64


def test_the_seed_is_told_and_servers_without_one_are_apart():
    seeds = []
    for seed in (7, 0, 0):
        server = {"address": "tcp://127.0.0.1:0", "memory": "8MiB", "control": "", "http": "", "seed": seed}
        with memsvc.Server({"server": server, "step": STEP, "table": [UNION]}) as serving:
            seeds.append(serving.stats()["seed"])
            assert serving.engine.replay.stats()["seed"] == seeds[-1]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert min(seeds) > 0


def test_actors_without_a_seed_draw_apart():
    """Two servers with one seed, an actor of one name and the same steps at each: only the actors' own random streams differ."""
    drawn = []
    for _ in range(2):
        big = CACHES | {"actor": {"cache": 256, "every": 10_000, "linger_ms": 1, "max_steps": 20_000}, "priority": {"source": "given"}}
        with memsvc.Server(config("tcp://127.0.0.1:0", big)) as server, server.actor(name="one", timeout=10) as actor:
            for i in range(8000):
                actor.add(obs=np.full(3, i, np.float32), action=i, reward=0.0, priority=1.0)
            actor.end_episode(terminated=True)
            with server.learner(table="replay", batch_size=128, timeout=10) as learner:
                until(lambda: server.stats()["tables"][0]["population"] == 8000)
                drawn.append(learner.sample()["action"])
    assert len(np.intersect1d(*drawn)) < 40
