"""Divergence-augmented policy optimization (DAPO; Wang et al. 2019, NeurIPS) on CartPole-v1: `python dapo.py`.

The service draws uniformly from the newest 20 episodes of each actor and has their lambda-returns and advantages computed there, from the values that
the actor records. That data is old by many updates, so the learner weighs it by the ratio of policies and takes from the advantage the divergence
between its own policy and the one that played: small and safe steps, off policy.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from actor_critic import ActorCritic
from memsvc_client.adapters.torch import as_tensors, publish
from torch import nn
from trial import AIM, Curve, clients, follow, games, main

LENGTH, GAMMA = 16, 0.99
# Sequences of 16 that start every 16 steps and are padded at the end: each step lies in exactly one, so all steps are drawn equally often.
CONFIG = f"""
[server]
address = "tcp://127.0.0.1:0"
memory = "64MiB"

[step]
obs = {{ dtype = "float32", shape = [4] }}
action = {{ dtype = "int64" }}
reward = {{ dtype = "float32" }}
value = {{ dtype = "float32" }}
log_probability = {{ dtype = "float32" }}

[[table]]
name = "replay"
item = {{ kind = "sequence", length = {LENGTH}, stride = {LENGTH}, tail = "pad", gamma = {GAMMA} }}
returns = {{ gamma = {GAMMA}, lambda = 0.95 }}
actor = {{ select = "uniform", max_episodes = 20 }}
"""
ENVS, BATCH = 8, 32
STEPS_EVERY, UPDATES = 256, 8  # play so many steps, then make so many updates
START, EVALUATE_EVERY = 1_024, 2_048
RATE, DIVERGENCE, ENTROPY, VALUE = 1e-3, 0.5, 0.01, 0.5  # DIVERGENCE is the paper's 1 / eta


def train(seed: int = 0, steps: int = 100_000, address: str | None = None, aim: float = AIM) -> Curve:
    """Plays and learns by turns until the aim is reached, or `steps` environment steps are played."""
    torch.manual_seed(seed)
    curve, net = Curve("DAPO", seed, aim), ActorCritic()
    playing, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), lr=RATE)
    envs, obs = games(ENVS, seed)
    active = np.ones(ENVS, np.bool_)
    with clients(CONFIG, address, seed, ENVS, BATCH) as (actor, learner):
        follow(actor, playing, publish(learner, net))
        for played in range(ENVS, steps + 1, ENVS):
            action, log_probability = playing.act(obs)
            following, reward, terminated, truncated, _ = envs.step(action)
            step = {"obs": obs, "action": action, "reward": reward, "value": playing.estimate(obs), "log_probability": log_probability}
            # Where an episode was cut by the time limit, its returns go on with the value of the final observation.
            ends = {"terminated": terminated, "truncated": truncated, "final": {"obs": following, "value": playing.estimate(following)}}
            actor.add_batch(**step, **ends, active=active)
            obs, active = following, ~(terminated | truncated)
            if played % STEPS_EVERY or played < START:
                continue

            actor.flush()
            for _ in range(UPDATES):
                update(net, optimizer, as_tensors(learner.sample()))
            follow(actor, playing, publish(learner, net))
            if played % EVALUATE_EVERY == 0 and curve.reached(played, net.greedy):
                break
    return curve


def update(net: ActorCritic, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> None:
    """One step of gradient descent on sequences [B, T]."""
    mask, count = batch["mask"], batch["mask"].sum()
    policy, values = net(batch["obs"])
    log_probability = policy.log_prob(batch["action"])
    log_ratio = log_probability.detach() - batch["log_probability"]
    advantage = batch["advantage"]
    mean = (advantage * mask).sum() / count
    advantage = (advantage - mean) / (((advantage - mean).square() * mask).sum() / count + 1e-8).sqrt()
    augmented = advantage - DIVERGENCE * divergence(log_ratio, batch["discount"], mask)
    gain = log_ratio.exp().clamp(max=1.0) * augmented * log_probability + ENTROPY * policy.entropy()
    loss = VALUE * (batch["return"] - values).square() - gain
    optimizer.zero_grad()
    ((loss * mask).sum() / count).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()


def divergence(log_ratio: torch.Tensor, discount: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What going on from each step costs in divergence from the policy that played, [B, T]: D_t = f_t + discount_t * c_{t+1} * D_{t+1}, where
    f = log pi(a|s) - log mu(a|s) is the Bregman divergence of the conditional entropy (KL) at one step, and c = min(1, pi / mu).
    """
    cost = torch.zeros(log_ratio.shape[0], log_ratio.shape[1] + 1)
    ratio = nn.functional.pad(log_ratio.exp().clamp(max=1.0) * mask, (0, 1))
    for t in reversed(range(log_ratio.shape[1])):
        cost[:, t] = mask[:, t] * (log_ratio[:, t] + discount[:, t] * ratio[:, t + 1] * cost[:, t + 1])
    return cost[:, :-1]


if __name__ == "__main__":
    main(CONFIG, train)
