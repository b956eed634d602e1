"""What the four proofs share: CartPole-v1 side by side, an actor and a learner of one service, greedy evaluation, and the command line."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from memsvc_client import Actor, Learner
from memsvc_client.adapters.torch import load
from numpy.typing import NDArray
from torch import nn

import memsvc

SOLVED = 195.0  # what CartPole calls solved; a perfect player gets 500
AIM = 475.0  # where a trial stops
EPISODES = 100  # of an evaluation

Array = NDArray[Any]
Policy = Callable[[Array], Array]
"""obs float32[n, 4], one step after the other -> actions int64[n]. A policy with a memory is made anew for each evaluation."""


def games(n: int, seed: int) -> tuple[gym.vector.VectorEnv[Array, Array, Array], Array]:
    """n CartPoles that step together, and their first observations float32[n, 4]. An episode has 500 steps at most.

    After its last step an environment spends one step on its reset, whatever the action (Gymnasium's next-step autoreset): what `step` returned
    before is the episode's true final observation, and the reset step is kept out of memsvc by `active`.
    """
    envs = gym.make_vec("CartPole-v1", num_envs=n, vectorization_mode="vector_entry_point")
    return envs, envs.reset(seed=seed)[0]


@contextlib.contextmanager
def clients(config: str, address: str | None, seed: int, envs: int, batch_size: int) -> Iterator[tuple[Actor, Learner]]:
    """An actor of `envs` environments and a learner, of a server in this process, or of the daemon at `address`, which serves the same `config`."""
    if address is None:
        with (
            memsvc.Server(memsvc.Config.parse(config, {"server.seed": seed + 1})) as server,
            server.actor(name="actor-0", envs=envs, seed=seed) as actor,
            server.learner(batch_size=batch_size) as learner,
        ):
            yield actor, learner
    else:
        with Actor(address, name="actor-0", envs=envs, seed=seed) as actor, Learner(address, batch_size=batch_size) as learner:
            yield actor, learner


def follow(actor: Actor, net: nn.Module, version: int, timeout: float = 30.0) -> None:
    """Loads the published parameters into `net` once `version` is here; TimeoutError when it does not come. An actor of its own takes what there is
    (`params(timeout=0)`) and plays on; a trial, which plays and learns by turns, waits, so that what it plays with is always as old.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        params = actor.params(timeout)
        if params is not None:
            load(params, net)
            if params.version >= version:
                return
        time.sleep(1e-4)
    raise TimeoutError(f"version {version} of the parameters has not come within {timeout:g} s")


def greedy_return(policy: Policy, seed: int, episodes: int = EPISODES) -> float:
    """Mean return of that many episodes, played side by side to their ends."""
    envs, obs = games(episodes, seed)
    total, running = np.zeros(episodes), np.ones(episodes, np.bool_)
    with torch.inference_mode():
        while running.any():
            obs, reward, terminated, truncated, _ = envs.step(policy(obs))
            total += reward * running
            running &= ~(terminated | truncated)
    return float(total.mean())


@dataclass
class Curve:
    """A learning curve: after `steps[i]` environment steps the greedy mean return over 100 episodes was `returns[i]`. `aim`: enough to stop."""

    name: str
    seed: int
    aim: float = AIM
    steps: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    seconds: float = 0.0
    _began: float = field(default_factory=time.monotonic)

    def reached(self, steps: int, policy: Policy) -> bool:
        """Evaluates a policy that was learned from so many environment steps, adds a point, and tells whether it reaches the aim."""
        self.steps.append(steps)
        self.returns.append(greedy_return(policy, 10_000 * self.seed + steps))
        self.seconds = time.monotonic() - self._began
        print(f"{self.name}, seed {self.seed}: {steps:7,} steps, greedy return {self.returns[-1]:5.1f}, {self.seconds:4.1f} s", flush=True)
        return self.returns[-1] >= self.aim

    @property
    def solved_at(self) -> int | None:
        """Environment steps at the first evaluation of 195 or more, None before."""
        return next((steps for steps, mean in zip(self.steps, self.returns, strict=True) if mean >= SOLVED), None)


def main(config: str, train: Callable[..., Curve], **variants: dict[str, Any]) -> None:
    """The command line of a proof: `python FILE [--seed N] [--steps N] [--address tcp://...]`, or `--config` for what `memsvc serve` needs.

    Each of `variants` is a flag of that name, and what it passes to `train`.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", action="store_true", help="print the configuration that a daemon at --address must serve, and end")
    parser.add_argument("--address", help="of a daemon; default: a server in this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="most environment steps")
    for name in variants:
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true")
    arguments = parser.parse_args()
    if arguments.config:
        print(config)
        return
    torch.set_num_threads(1)
    limit = {} if arguments.steps is None else {"steps": arguments.steps}
    chosen = {key: value for name, settings in variants.items() if getattr(arguments, name) for key, value in settings.items()}
    curve = train(seed=arguments.seed, address=arguments.address, **limit, **chosen)
    solved = f"reached after {curve.solved_at:,} steps" if curve.solved_at is not None else "not reached"
    print(f"{curve.name}: {SOLVED:g} {solved}, best {max(curve.returns, default=0.0):.1f}")
