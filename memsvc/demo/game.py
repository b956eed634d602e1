"""What the demo must know of a game: how to make it, what its actors record, and how its learner learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium as gym
from numpy.typing import NDArray

Env: TypeAlias = gym.Env[NDArray[Any], Any]


@dataclass(frozen=True)
class Game:
    """One game of the demo; immutable.

    `make()` gives a new environment whose observations have the dtype of the step field `obs` and `shape`; actions are 0 .. actions - 1.
    `config` is the text of a memsvc.toml with one table, "replay". `stack` is its frame_stack. `hidden` is the width of the network's last layer.
    `pace` is the most steps per second that one actor plays (0: as many as it can). Each actor explores with a chance that falls from 1 to its own
    of `epsilons` over its first `decay_steps` steps. `target_rate` is the share of the online network that the target network takes over per update.
    A game with `goal` > 0 is learned until a greedy mean return of `aim` over 20 episodes and has failed below `goal`; others just run.
    `seconds` is how long at most when the user names no time.
    """

    name: str
    make: Callable[[], Env]
    shape: tuple[int, ...]
    actions: int
    config: str
    stack: int = 1
    hidden: int = 128
    pace: float = 0.0
    epsilons: tuple[float, ...] = (0.05, 0.2)
    decay_steps: int = 2_500
    batch_size: int = 128
    learning_rate: float = 1e-3
    target_rate: float = 0.01
    publish_every: int = 10
    evaluate_every: int = 250
    clip_rewards: bool = False
    goal: float = 0.0
    aim: float = 0.0
    seconds: float = 60.0


def find(env: str) -> Game:
    """The game of a Gymnasium name; imports its package. Raises ValueError, which says what is known, for any but CartPole-v1 and ALE/..."""
    if env == "CartPole-v1":
        from . import cartpole

        return cartpole.GAME
    if env.startswith("ALE/"):
        from . import atari

        return atari.game(env)
    raise ValueError(f"the demo cannot play {env!r}: it knows CartPole-v1 and the Atari games named ALE/..., as ALE/Pong-v5")
