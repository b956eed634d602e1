"""Real frames: 2,000 steps of ALE's Pong through a server over TCP. Every drawn stack and next stack is the one rebuilt from the recorded frames."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from memsvc_client import Actor, Learner

import memsvc
from memsvc.demo import atari

STEPS = 2_000
STACK, N_STEP, GAMMA = 4, 3, 0.99
BATCH = 64
LEAST_BATCHES = 150
SECONDS = 60


@dataclass
class Episode:
    """What the test itself remembers: frames o_0 .. o_T, rewards and actions of T steps. Its steps have the numbers first .. first + T - 1."""

    first: int
    frames: list[np.ndarray]
    rewards: list[float] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    terminated: bool = False

    def stack(self, t: int) -> np.ndarray:
        """DEFINITIONS 3, "repeat"."""
        return np.stack([self.frames[max(0, k)] for k in range(t - STACK + 1, t + 1)])


@pytest.fixture(scope="module")
def episodes() -> list[Episode]:
    """2,000 real steps in episodes cut at random lengths from 1 on. Early cuts do not reset the game, so that it also comes to its natural end."""
    rng = np.random.default_rng(7)
    env = atari.make("ALE/Pong-v5")
    obs, _ = env.reset(seed=11)
    recorded = [Episode(0, [obs])]
    length = int(rng.integers(1, 60))
    resets = 0
    for number in range(STEPS):
        episode = recorded[-1]
        action = int(rng.integers(6))
        obs, reward, terminated, truncated, _ = env.step(action)
        episode.frames.append(obs)
        episode.rewards.append(float(reward))
        episode.actions.append(action)
        if terminated or truncated or len(episode.rewards) == length:
            episode.terminated = terminated
            if terminated or truncated or (number > 1_200 and rng.random() < 1 / 3):
                obs, _ = env.reset()
                resets += 1
            recorded.append(Episode(number + 1, [obs]))
            length = int(rng.integers(1, 4)) if rng.random() < 0.2 else int(rng.integers(1, 60))
    env.close()
    recorded[-1].terminated = True  # the last one is ended here, so that all items are final
    assert len(recorded) > 40
    assert resets > 3
    assert any(e.terminated for e in recorded[:-1]), "the game has come to its end at least once"
    assert {1, 2, 3} <= {len(e.rewards) for e in recorded}
    return [e for e in recorded if e.rewards]


def config(select: str, memory: str) -> dict[str, Any]:
    return {
        "server": {"address": "tcp://127.0.0.1:0", "memory": memory, "control": "", "seed": 5},
        "step": {
            "obs": {"dtype": "uint8", "shape": [84, 84]},
            "action": {"dtype": "int32"},
            "reward": {"dtype": "float32"},
            "index": {"dtype": "int64"},
        },
        "table": [
            {
                "name": "replay",
                "item": {"kind": "transition", "n_step": N_STEP, "gamma": GAMMA, "frame_stack": STACK, "stack": ["obs"], "next": ["obs"]},
                "priority": {"source": "max"},
                "actor": {"select": select, "cache": 64, "every": 64},
                "limits": {"min_items": 200},
            }
        ],
    }


class Checker:
    """Compares batches with the recorded episodes."""

    def __init__(self, episodes: list[Episode], exact: bool) -> None:
        self._of = {e.first + t: (e, t) for e in episodes for t in range(len(e.rewards))}
        self._exact = exact
        self.seen: set[int] = set()
        self.items = self.short = 0

    def check(self, batch: Any) -> None:
        """An item drawn while its episode grew may span fewer than n steps; its discount says how many, and all else must fit that number."""
        for i, number in enumerate(batch["index"].tolist()):
            episode, t = self._of[number]
            left = len(episode.rewards) - t
            full = min(N_STEP, left)
            discount = float(batch["discount"][i])
            if discount == 0:
                assert episode.terminated
                assert left <= N_STEP
                span = left
            else:
                span = round(np.log(discount) / np.log(GAMMA))
                assert discount == pytest.approx(GAMMA**span, rel=1e-6)
                assert 1 <= span <= full
                assert not (episode.terminated and span == left)
                if self._exact:
                    assert span == full
            np.testing.assert_array_equal(batch["obs"][i], episode.stack(t), err_msg=f"stack of step {number}, {t} steps into its episode")
            np.testing.assert_array_equal(
                batch["next_obs"][i], episode.stack(t + span), err_msg=f"next stack of step {number} (+{span}), {left} before the end"
            )
            assert batch["action"][i] == episode.actions[t]
            assert batch["reward"][i] == pytest.approx(sum(GAMMA**k * episode.rewards[t + k] for k in range(span)), abs=1e-6)
            self.seen.add(number)
            self.items += 1
            self.short += span < full


# 6 MiB hold fewer steps than there are: payloads are evicted, asked for again and sent again.
@pytest.mark.parametrize(("select", "memory"), [("prioritized", "64MiB"), ("prioritized", "6MiB"), ("all", "64MiB")])
def test_every_drawn_stack_is_the_recorded_one(episodes: list[Episode], select: str, memory: str) -> None:
    checker = Checker(episodes, exact=select == "all")
    edges = {e.first for e in episodes} | {e.first + len(e.rewards) - 1 for e in episodes}
    with (
        memsvc.Server(memsvc.Config.from_dict(config(select, memory))) as server,
        Actor(server.address, name="atari", seed=3) as actor,
        Learner(server.address, table="replay", batch_size=BATCH) as learner,
    ):
        added = 0
        for episode in episodes:
            for t, reward in enumerate(episode.rewards):
                actor.add(obs=episode.frames[t], action=episode.actions[t], reward=reward, index=episode.first + t)
                added += 1
                if added >= 500 and added % 50 == 0:
                    checker.check(learner.sample(timeout=30))
            # A terminated episode is given its final observation too: the discount alone says that nothing follows.
            actor.end_episode(terminated=episode.terminated, final={"obs": episode.frames[-1]})
        assert added == STEPS
        actor.flush(timeout=30)
        deadline = time.monotonic() + SECONDS
        batches = 0
        while batches < LEAST_BATCHES or not edges <= checker.seen:
            assert time.monotonic() < deadline, f"never drawn in {batches} batches: {sorted(edges - checker.seen)[:10]}"
            checker.check(learner.sample(timeout=30))
            batches += 1
        # What is cached keeps the span it had; but few items are drawn in the moment when they are among the newest two steps.
        assert checker.short < 0.05 * checker.items
        if memory == "6MiB":
            assert server.stats()["tables"][0]["evicted"] > 0
