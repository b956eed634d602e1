"""One actor of the demo, a process of its own: `python -m memsvc.demo.play ADDRESS GAME NUMBER SEED`.

Plays epsilon-greedily with the newest parameters that memsvc gives it, records every step through memsvc_client.Actor, and writes a JSON line to
standard output about twice a second: {"steps": so far, "version": of its parameters, "returns": of the episodes that ended since the last line}.
Ends on SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import deque
from typing import Any

import numpy as np
import torch
from memsvc_client import Actor
from memsvc_client.adapters import torch as adapter
from numpy.typing import NDArray

from . import game as games
from . import network

REPORT_S = 0.5
PARAMETERS_EVERY = 10  # steps
PACE_EVERY = 16  # steps between two looks at the clock: a sleep is no better than a millisecond
FIRST_PARAMETERS_S = 120.0


class Policy:
    """An epsilon-greedy policy over a Q-network, with the frame stack that the network expects. Not thread-safe."""

    def __init__(self, game: games.Game, number: int, seed: int) -> None:
        self._game = game
        self._final_epsilon = game.epsilons[number % len(game.epsilons)]
        self._random = np.random.default_rng(seed)
        self._frames: deque[NDArray[Any]] = deque(maxlen=game.stack)
        self.network = network.build(game)

    def start(self) -> None:
        """A new episode begins: the stack is filled by its first observation."""
        self._frames.clear()

    def look(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Takes in the next observation and returns its Q-values, float32[actions]."""
        self._frames.extend([obs] * (1 if self._frames else self._game.stack))
        stack = obs if self._game.stack == 1 else np.stack(self._frames)
        with torch.inference_mode():
            q: NDArray[np.float32] = self.network(torch.from_numpy(stack)[None])[0].numpy()
        return q

    def act(self, q: NDArray[np.float32], step: int) -> int:
        """The action for Q-values q at the actor's step number `step`."""
        explore = max(self._final_epsilon, 1.0 - step / self._game.decay_steps)
        return int(self._random.integers(self._game.actions)) if self._random.random() < explore else int(q.argmax())


def play(address: str, game: games.Game, number: int, seed: int) -> None:
    """Plays until the process is told to end. Raises memsvc's errors where the server cannot be reached."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    policy, env = Policy(game, number, seed), game.make()
    with Actor(address, name=f"actor-{number}") as actor:
        parameters = actor.params(timeout=FIRST_PARAMETERS_S)
        version, steps, total, returns = 0, 0, 0.0, []
        reported = began = time.monotonic()
        obs, _ = env.reset(seed=seed)
        policy.start()
        q = policy.look(obs)
        while True:
            if parameters is not None:
                version = parameters.version
                adapter.load(parameters, policy.network)
            action = policy.act(q, steps)
            following, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            learned = float(np.sign(float(reward)) if game.clip_rewards else reward)
            actor.add(obs=obs, action=action, reward=learned, value=q.max(), q=q[action])
            steps += 1
            q = policy.look(following)
            obs = following
            if terminated or truncated:
                actor.end_episode(terminated=terminated, final={"obs": obs, "value": q.max()})
                returns.append(total)
                total = 0.0
                obs, _ = env.reset()
                policy.start()
                q = policy.look(obs)
            now = time.monotonic()
            if now - reported >= REPORT_S:
                print(json.dumps({"steps": steps, "version": version, "returns": returns}), flush=True)
                reported, returns = now, []
            if game.pace and steps % PACE_EVERY == 0:
                # A slow machine must not be followed by a rush: the due time never lies more than a second back.
                began = max(began, now - steps / game.pace - 1.0)
                time.sleep(max(0.0, began + steps / game.pace - now))
            parameters = actor.params(timeout=0) if steps % PARAMETERS_EVERY == 0 else None


def main() -> None:
    """The command of the module's docstring."""
    address, name, number, seed = sys.argv[1:]
    # SystemExit unwinds through the client, which then says good-bye to the server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    play(address, games.find(name), int(number), int(seed))


if __name__ == "__main__":
    main()
