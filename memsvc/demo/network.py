"""The Q-network that actors and learner share."""

from __future__ import annotations

import torch
from torch import nn

from .game import Game


class Scale(nn.Module):
    """uint8 pixels to float32 in 0 .. 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 of the same shape."""
        return x.float() / 255.0


def build(game: Game) -> nn.Sequential:
    """A fresh network obs[B, ...] -> Q[B, actions]: convolutions for stacked frames uint8[B, stack, 84, 84], two hidden layers for float32[B, n]."""
    if len(game.shape) == 1:
        width = game.hidden
        return nn.Sequential(nn.Linear(*game.shape, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, game.actions))
    convolutions = [Scale(), nn.Conv2d(game.stack, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*convolutions, nn.Linear(32 * 9 * 9, game.hidden), nn.ReLU(), nn.Linear(game.hidden, game.actions))
