"""An actor that plays CartPole-v1 for a daemon: `python actor.py [ADDRESS] [NAME] [STEPS]`. Run as many as you like, each under a name of its own.

Needs gymnasium and the memsvc client; no framework: the policy is a few lines of numpy over the parameters that learner.py publishes.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import gymnasium as gym
import numpy as np
from memsvc_client import Actor
from numpy.typing import NDArray

EPSILON = 0.1


def q_values(parameters: dict[str, NDArray[Any]], obs: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[2]: one hidden layer, as learner.py has it."""
    hidden = np.maximum(parameters["0.weight"] @ obs + parameters["0.bias"], 0)
    values: NDArray[np.float32] = parameters["2.weight"] @ hidden + parameters["2.bias"]
    return values


def main(address: str = "tcp://127.0.0.1:7700", name: str = "actor-0", steps: str = "100000") -> None:
    """Plays that many steps with the newest parameters; every step is recorded through memsvc."""
    random, env = np.random.default_rng(), gym.make("CartPole-v1")
    with Actor(address, name=name) as actor:
        newest = actor.params(timeout=60)  # waits for the learner's first publication
        assert newest is not None
        obs, _ = env.reset()
        returns: list[float] = []
        total = 0.0
        for step in range(int(steps)):
            newest = actor.params(timeout=0) or newest  # None: nothing newer
            explore = random.random() < max(EPSILON, 1 - step / 3_000)
            action = int(random.integers(2)) if explore else int(q_values(newest.arrays, obs).argmax())
            following, reward, terminated, truncated, _ = env.step(action)
            actor.add(obs=obs, action=action, reward=float(reward))
            obs, total = following, total + float(reward)
            if terminated or truncated:
                # The final observation is stored too: it is the next observation of the last steps.
                actor.end_episode(terminated=terminated, final={"obs": obs})
                obs, _ = env.reset()
                returns, total = [*returns[-19:], total], 0.0
            if (step + 1) % 1_000 == 0:
                print(f"{name}: {step + 1:,} steps, parameters {newest.version}, mean return {np.mean(returns or [total]):.1f}", flush=True)
        actor.flush(timeout=30)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C: the actor says good-bye to the server on its way out
        main(*sys.argv[1:])
