"""Prioritized n-step double DQN (Schaul et al. 2016, van Hasselt et al. 2016) on CartPole-v1: `python dqn.py`.

The service draws 3-step transitions by priority in two stages; the learner corrects by importance weights and sends new priorities back.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from memsvc_client.adapters.torch import as_tensors, publish
from torch import nn
from trial import AIM, Array, Curve, clients, follow, games, main

CONFIG = """
[server]
address = "tcp://127.0.0.1:0"
memory = "64MiB"

[step]
obs = { dtype = "float32", shape = [4] }
action = { dtype = "int64" }
reward = { dtype = "float32" }

[[table]]
name = "replay"
item = { kind = "transition", n_step = 3, gamma = 0.99, next = ["obs"] }
priority = { source = "max", exponent = 0.6 }       # a new item is drawn soon; then its own error counts
actor = { max_steps = 60_000 }
importance = { beta = 0.4 }
limits = { min_items = 1_000 }
"""
ENVS, BATCH = 8, 128
STEPS_EVERY, UPDATES = 128, 32  # play so many steps, then make so many updates
START, EVALUATE_EVERY = 2_048, 2_048
EXPLORE_STEPS, EPSILON = 5_000, 0.05
RATE, TARGET_RATE = 1e-3, 0.05


def train(seed: int = 0, steps: int = 60_000, address: str | None = None, aim: float = AIM) -> Curve:
    """Plays and learns by turns until the aim is reached, or `steps` environment steps are played."""
    torch.manual_seed(seed)
    random, curve = np.random.default_rng(seed), Curve("prioritized DQN", seed, aim)
    online = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    target, playing = copy.deepcopy(online), copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=RATE)
    envs, obs = games(ENVS, seed)
    active = np.ones(ENVS, np.bool_)

    def greedy(obs: Array) -> Array:
        actions: Array = playing(torch.from_numpy(obs)).argmax(1).numpy()
        return actions

    with clients(CONFIG, address, seed, ENVS, BATCH) as (actor, learner):
        follow(actor, playing, publish(learner, online))
        for played in range(ENVS, steps + 1, ENVS):
            with torch.inference_mode():
                explore = random.random(ENVS) < max(EPSILON, 1 - played / EXPLORE_STEPS)
                action = np.where(explore, random.integers(2, size=ENVS), greedy(obs))
            following, reward, terminated, truncated, _ = envs.step(action)
            ends = {"terminated": terminated, "truncated": truncated, "final": {"obs": following}}
            actor.add_batch(obs=obs, action=action, reward=reward, **ends, active=active)
            obs, active = following, ~(terminated | truncated)
            if played % STEPS_EVERY or played < START:
                continue

            actor.flush()
            for _ in range(UPDATES):
                batch = learner.sample()
                errors = update(online, target, optimizer, as_tensors(batch))
                learner.update_priorities(batch.keys, errors + 1e-3)  # not 0, which is never drawn again
            follow(actor, playing, publish(learner, online))
            if played % EVALUATE_EVERY == 0 and curve.reached(played, greedy):
                break
    return curve


def update(online: nn.Module, target: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> Array:
    """One step of gradient descent on transitions; returns the absolute errors float32[B], which become priorities."""
    with torch.no_grad():  # `reward` is the 3-step sum already; `discount` is gamma^3, less near an end, and 0 where the episode terminated
        chosen = online(batch["next_obs"]).argmax(1, keepdim=True)
        wanted = batch["reward"] + batch["discount"] * target(batch["next_obs"]).gather(1, chosen)[:, 0]
    q = online(batch["obs"]).gather(1, batch["action"][:, None])[:, 0]
    loss = (batch["weights"] * nn.functional.smooth_l1_loss(q, wanted, reduction="none")).mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(online.parameters(), 10.0)
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
            slow.lerp_(fast, TARGET_RATE)
    errors: Array = (wanted - q).detach().abs().numpy()
    return errors


if __name__ == "__main__":
    main(CONFIG, train)
