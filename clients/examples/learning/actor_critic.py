"""A policy and a value function for CartPole, as impala.py and dapo.py use them."""

from __future__ import annotations

import torch
from torch import nn
from trial import Array

WIDTH = 64


class ActorCritic(nn.Module):
    """obs float32[..., 4] -> logits[..., 2] and value[...], from two networks that share nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))
        self.value = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, obs: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        """The policy's distribution over actions, and the value."""
        return torch.distributions.Categorical(logits=self.policy(obs)), self.value(obs)[..., 0]

    @torch.no_grad()
    def act(self, obs: Array) -> tuple[Array, Array]:
        """Actions int64[n] drawn from the policy by torch's global generator, and their log-probabilities float32[n]."""
        policy, _ = self(torch.from_numpy(obs))
        action = policy.sample()
        return action.numpy(), policy.log_prob(action).numpy()

    @torch.no_grad()
    def greedy(self, obs: Array) -> Array:
        """The likeliest actions, int64[n]."""
        actions: Array = self.policy(torch.from_numpy(obs)).argmax(1).numpy()
        return actions

    @torch.no_grad()
    def estimate(self, obs: Array) -> Array:
        """Values float32[n]."""
        values: Array = self.value(torch.from_numpy(obs))[:, 0].numpy()
        return values
