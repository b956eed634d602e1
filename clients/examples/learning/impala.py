"""IMPALA's actor-critic with V-trace (Espeholt et al. 2018) on CartPole-v1: `python impala.py`.

The table is a queue: every unroll of 20 steps is delivered once, oldest first, and actors wait while it is full. Steps carry the log-probability with
which the actor chose its action, so that the learner can correct for parameters that have moved on since.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from actor_critic import ActorCritic
from memsvc_client.adapters.torch import as_tensors, publish
from memsvc_proto.errors import NotReady
from torch import nn
from trial import AIM, Curve, clients, follow, games, main

UNROLL = 20
CONFIG = f"""
[server]
address = "tcp://127.0.0.1:0"
memory = "64MiB"

[step]
obs = {{ dtype = "float32", shape = [4] }}
action = {{ dtype = "int64" }}
reward = {{ dtype = "float32" }}
log_probability = {{ dtype = "float32" }}

[[table]]
name = "queue"
item = {{ kind = "sequence", length = {UNROLL}, stride = {UNROLL}, tail = "pad", gamma = 0.99, next = ["obs"] }}
actor = {{ select = "all" }}
sampler = "fifo"
limits = {{ max_times_sampled = 1 }}
capacity = {{ items = 256, when_full = "block" }}
"""
ENVS, BATCH = 16, 16
EVALUATE_EVERY = 32  # rounds of playing an unroll and learning from what there is
RATE, ENTROPY, VALUE = 1e-3, 0.01, 0.5


def train(seed: int = 0, steps: int = 200_000, address: str | None = None, aim: float = AIM) -> Curve:
    """Plays and learns by turns until the aim is reached, or `steps` environment steps are played."""
    torch.manual_seed(seed)
    curve, net = Curve("IMPALA", seed, aim), ActorCritic()
    playing, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), lr=RATE)
    envs, obs = games(ENVS, seed)
    active = np.ones(ENVS, np.bool_)
    with clients(CONFIG, address, seed, ENVS, BATCH) as (actor, learner):
        for turn in range(1, steps // (ENVS * UNROLL) + 1):
            follow(actor, playing, publish(learner, net))
            for _ in range(UNROLL):
                action, log_probability = playing.act(obs)
                following, reward, terminated, truncated, _ = envs.step(action)
                step = {"obs": obs, "action": action, "reward": reward, "log_probability": log_probability}
                actor.add_batch(**step, terminated=terminated, truncated=truncated, final={"obs": following}, active=active)
                obs, active = following, ~(terminated | truncated)
            actor.flush()

            optimizer.param_groups[0]["lr"] = RATE * (1 - turn * ENVS * UNROLL / steps)
            while True:
                try:
                    batch = learner.sample(timeout=0)
                except NotReady:  # fewer unrolls than a batch are left; they wait for the next turn
                    break
                update(net, optimizer, as_tensors(batch))
            if turn % EVALUATE_EVERY == 0 and curve.reached(turn * ENVS * UNROLL, net.greedy):
                break
    return curve


def update(net: ActorCritic, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> None:
    """One step of gradient descent on unrolls [B, T]."""
    mask, rows = batch["mask"], torch.arange(len(batch["obs"]))
    # Observations 0 .. T of every unroll: the one after its last step comes apart, because unrolls at the end of an episode are shorter.
    obs = nn.functional.pad(batch["obs"], (0, 0, 0, 1))
    obs[rows, batch["length"].long()] = batch["next_obs"]
    policy, values = net(obs)
    entropy = policy.entropy()[:, :-1]
    log_probability = policy.log_prob(nn.functional.pad(batch["action"], (0, 1)))[:, :-1]
    log_ratio = log_probability.detach() - batch["log_probability"]
    targets, advantage = v_trace(batch["reward"], batch["discount"], values.detach(), log_ratio, mask)
    loss = -log_probability * advantage + VALUE * (targets - values[:, :-1]).square() - ENTROPY * entropy
    optimizer.zero_grad()
    ((loss * mask).sum() / mask.sum()).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()


def v_trace(
    reward: torch.Tensor, discount: torch.Tensor, values: torch.Tensor, log_ratio: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """V-trace targets v[B, T] and policy-gradient advantages [B, T] (Espeholt et al. 2018, equation 1, with rho_bar = c_bar = 1).

    reward, discount [B, T] of each step (discount 0: the episode terminated); values [B, T + 1] of the observations before each step and after the
    last; log_ratio [B, T] = log pi(a|x) - log mu(a|x); mask bool[B, T], False behind an unroll's end, where the results are 0.
    """
    ratio = log_ratio.exp().clamp(max=1.0) * mask
    surprise = ratio * (reward + discount * values[:, 1:] - values[:, :-1])
    # v_t - V(x_t), from the end: behind the last step nothing is known but V itself, so the difference is 0 there.
    excess = torch.zeros_like(values)
    for t in reversed(range(reward.shape[1])):
        excess[:, t] = surprise[:, t] + discount[:, t] * ratio[:, t] * excess[:, t + 1]
    targets = values + excess
    advantage = ratio * (reward + discount * targets[:, 1:] - values[:, :-1])
    return targets[:, :-1] * mask, advantage


if __name__ == "__main__":
    main(CONFIG, train)
