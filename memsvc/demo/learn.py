"""The DQN learner of the demo, a process of its own: `python -m memsvc.demo.learn ADDRESS GAME SECONDS SEED`.

Double DQN (van Hasselt et al. 2016) on prioritized n-step transitions (Schaul et al. 2016) that memsvc draws; sends every batch's new priorities
back and publishes its parameters. Writes a JSON line to standard output about twice a second: {"updates", "draws", "version", "age": mean number of
versions by which the drawn items are behind, "loss"}, with "greedy" (mean return of 20 greedy episodes) when it has evaluated, and at last
{"result": ...}: the greedy mean return over 20 further episodes of the best parameters, null for a game without a goal.
Ends at the goal, after SECONDS, or on SIGTERM.
"""

from __future__ import annotations

import copy
import json
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from memsvc_client import Learner
from memsvc_client.adapters import torch as adapter
from torch import nn

from . import game as games
from . import network

EPISODES = 20
REPORT_S = 0.5
SMALLEST_PRIORITY = 1e-3  # so that an item whose error is 0 now is seen again
LEAST_UPDATES = 2_000  # a lucky network of the first seconds is not yet a learned one
PATIENCE = 0.5  # share of the time after which a greedy return above the goal will do, though it misses the aim


class DoubleDqn:
    """Online and target network with their optimiser. Not thread-safe."""

    def __init__(self, game: games.Game) -> None:
        self.game = game
        self.online = network.build(game)
        self._target = copy.deepcopy(self.online)
        self._optimizer = torch.optim.Adam(self.online.parameters(), lr=game.learning_rate)

    def update(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, float]:
        """One step of gradient descent on a batch of transitions; returns the absolute errors float32[B], which become priorities, and the loss."""
        following = batch["next_obs"]
        with torch.no_grad():
            chosen = self.online(following).argmax(1, keepdim=True)
            bootstrap = self._target(following).gather(1, chosen)[:, 0]
            wanted = batch["reward"] + batch["discount"] * bootstrap
        q = self.online(batch["obs"]).gather(1, batch["action"][:, None])[:, 0]
        loss = (batch["weights"] * nn.functional.smooth_l1_loss(q, wanted, reduction="none")).mean()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self._optimizer.step()
        with torch.no_grad():
            for target, online in zip(self._target.parameters(), self.online.parameters(), strict=True):
                target.lerp_(online, self.game.target_rate)
        return (wanted - q).detach().abs(), float(loss.detach())


def greedy_return(game: games.Game, net: nn.Module, seed: int) -> float:
    """The mean undiscounted return of 20 greedy episodes with seeds `seed` .. `seed + 19`, played side by side. For games without a frame stack."""
    envs = [game.make() for _ in range(EPISODES)]
    obs = [env.reset(seed=seed + i)[0] for i, env in enumerate(envs)]
    total, running = 0.0, list(range(EPISODES))
    while running:
        with torch.inference_mode():
            actions = net(torch.from_numpy(np.stack([obs[i] for i in running]))).argmax(1).tolist()
        for i, action in zip(list(running), actions, strict=True):
            obs[i], reward, terminated, truncated, _ = envs[i].step(action)
            total += float(reward)
            if terminated or truncated:
                running.remove(i)
    return total / EPISODES


class Report:
    """Numbers since the last line, and the lines. Not thread-safe."""

    def __init__(self) -> None:
        self.updates = self.draws = self.version = 0
        self._ages: list[float] = []
        self._losses: list[float] = []
        self._written = time.monotonic()

    def count(self, batch_size: int, age: float, loss: float) -> None:
        """One update was made on a batch of items that are `age` versions old on average."""
        self.updates += 1
        self.draws += batch_size
        self._ages.append(age)
        self._losses.append(loss)

    def write(self, now: bool = False, **more: Any) -> None:
        """Writes a line if one is due, or `now`."""
        if not now and time.monotonic() - self._written < REPORT_S:
            return
        line = {"updates": self.updates, "draws": self.draws, "version": self.version, **more}
        if self._ages:
            line |= {"age": float(np.mean(self._ages)), "loss": float(np.mean(self._losses))}
        print(json.dumps(line), flush=True)
        self._ages, self._losses, self._written = [], [], time.monotonic()


def learn(address: str, game: games.Game, seconds: float, seed: int) -> None:
    """Learns until the game's aim is reached or `seconds` have passed since the first batch, then writes the result. Raises memsvc's errors."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    dqn, report = DoubleDqn(game), Report()
    best, best_return = copy.deepcopy(dqn.online), -np.inf
    with Learner(address, table="replay", batch_size=game.batch_size) as learner:
        report.version = adapter.publish(learner, dqn.online)
        began: float | None = None
        while began is None or time.monotonic() - began < seconds:
            batch = learner.sample(timeout=60)
            began = time.monotonic() if began is None else began
            errors, loss = dqn.update(adapter.as_tensors(batch))
            learner.update_priorities(batch.keys, errors + SMALLEST_PRIORITY)
            report.count(game.batch_size, report.version - float(batch.versions.mean()), loss)
            if report.updates % game.publish_every == 0:
                report.version = adapter.publish(learner, dqn.online)
            report.write()
            if not game.goal or report.updates % game.evaluate_every:
                continue
            greedy = greedy_return(game, dqn.online, seed + EPISODES * report.updates)
            report.write(now=True, greedy=greedy)
            if greedy > best_return:
                best, best_return = copy.deepcopy(dqn.online), greedy
            late = time.monotonic() - began > PATIENCE * seconds
            if report.updates >= LEAST_UPDATES and (greedy >= game.aim or (late and best_return > 1.5 * game.goal)):
                break
        if game.goal:
            report.version = adapter.publish(learner, best)
    # Other episodes than those that chose the best parameters, or the choice would flatter them.
    result = greedy_return(game, best, 1_000_000_000 + seed) if game.goal else None
    report.write(now=True, result=result)


def main() -> None:
    """The command of the module's docstring."""
    address, name, seconds, seed = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    learn(address, games.find(name), float(seconds), int(seed))


if __name__ == "__main__":
    main()
