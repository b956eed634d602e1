"""Recurrent Q-learning from sequences (R2D2, Kapturowski et al. 2019) on CartPole-v1 without velocities: `python r2d2.py`.

The service cuts episodes into overlapping sequences and gives each the recurrent state that was the input of its first step. The first steps of a
sequence only warm that state up (burn-in); priorities mix the largest and the mean error of the rest. `--feed-forward`: the same learner with as
many weights and no memory, which cannot do it.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from memsvc_client import mixed_priorities
from memsvc_client.adapters.torch import as_tensors, publish
from torch import nn
from trial import AIM, EPISODES, Array, Curve, clients, follow, games, main

LENGTH, BURN_IN, N_STEP, ETA = 16, 4, 3, 0.9
STATE = 32
CONFIG = f"""
[server]
address = "tcp://127.0.0.1:0"
memory = "64MiB"

[step]
obs = {{ dtype = "float32", shape = [3] }}            # position, angle and the last action, no velocities
action = {{ dtype = "int64" }}
reward = {{ dtype = "float32" }}
value = {{ dtype = "float32" }}                       # the largest Q, for new items' priorities
q = {{ dtype = "float32" }}                           # Q of the action taken
state = {{ dtype = "float32", shape = [{STATE}] }}    # the recurrent state that was the input of this step

[[table]]
name = "replay"
item = {{ kind = "sequence", length = {LENGTH}, stride = 8, burn_in = {BURN_IN}, tail = "pad", gamma = 0.99, initial = ["state"], next = ["obs"] }}
priority = {{ source = "td", baseline = "q", exponent = 0.6, eta = {ETA} }}
actor = {{ max_steps = 60_000 }}
importance = {{ beta = 0.4 }}
"""
ENVS, BATCH = 8, 64
STEPS_EVERY, UPDATES = 128, 32  # play so many steps, then make so many updates
START, EVALUATE_EVERY = 2_048, 2_048
EXPLORE_STEPS, EPSILON = 4_000, np.linspace(0.02, 0.3, ENVS)  # each environment explores at a rate of its own, as Ape-X's actors do
RATE, TARGET_RATE = 2e-3, 0.05


def seen(obs: Array, force: Array) -> Array:
    """What the network sees, float32[n, 3]: position and angle, scaled so that their changes count, and the last action (-1 or 1, 0 at the start)."""
    return np.column_stack([obs[:, 0] / 0.2, obs[:, 2] / 0.05, force]).astype(np.float32)


class Network(nn.Module):
    """Q-values of every step of sequences: obs float32[B, T, 3], state float32[B, 32] -> q[B, T, 2], state after the last step[B, 32]."""

    def __init__(self, recurrent: bool) -> None:
        super().__init__()
        self.recurrent = recurrent
        without = nn.Sequential(nn.Linear(3, 3 * STATE), nn.ReLU(), nn.Linear(3 * STATE, STATE), nn.ReLU())
        self.body: nn.Module = nn.GRU(3, STATE, batch_first=True) if recurrent else without
        self.head = nn.Sequential(nn.Linear(STATE, 2 * STATE), nn.ReLU(), nn.Linear(2 * STATE, 1 + 2))

    def forward(self, obs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See the class."""
        if self.recurrent:
            x, state = self.body(obs, state[None])
            state = state[0]
        else:
            x = self.body(obs)
        value, advantage = self.head(x).split([1, 2], -1)  # dueling (Wang et al. 2016)
        return value + advantage - advantage.mean(-1, keepdim=True), state

    def step(self, obs: Array, state: torch.Tensor) -> tuple[Array, torch.Tensor]:
        """One step of n environments, without gradients: q float32[n, 2] and the state for the next step."""
        with torch.no_grad():
            q, after = self(torch.from_numpy(obs[:, None]), state)
        values: Array = q[:, 0].numpy()
        return values, after


class Greedy:
    """The network as a policy; remembers its state from call to call."""

    def __init__(self, net: Network) -> None:
        self.net, self.state, self.force = net, torch.zeros(EPISODES, STATE), np.zeros(EPISODES)

    def __call__(self, obs: Array) -> Array:
        q, self.state = self.net.step(seen(obs, self.force), self.state)
        actions: Array = q.argmax(1)
        self.force = 2 * actions - 1
        return actions


def train(seed: int = 0, steps: int = 40_000, address: str | None = None, aim: float = AIM, recurrent: bool = True) -> Curve:
    """Plays and learns by turns until the aim is reached, or `steps` environment steps are played."""
    torch.manual_seed(seed)
    random, curve = np.random.default_rng(seed), Curve("R2D2" if recurrent else "R2D2 without memory", seed, aim)
    online = Network(recurrent)
    target, playing = copy.deepcopy(online), copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=RATE)
    envs, obs = games(ENVS, seed)
    obs, state, active = seen(obs, np.zeros(ENVS)), torch.zeros(ENVS, STATE), np.ones(ENVS, np.bool_)
    with clients(CONFIG, address, seed, ENVS, BATCH) as (actor, learner):
        follow(actor, playing, publish(learner, online))
        for played in range(ENVS, steps + 1, ENVS):
            q, after = playing.step(obs, state)
            explore = random.random(ENVS) < np.maximum(EPSILON, 1 - played / EXPLORE_STEPS)
            action = np.where(explore, random.integers(2, size=ENVS), q.argmax(1))
            following, reward, terminated, truncated, _ = envs.step(action)
            following = seen(following, (2 * action - 1) * active)
            taken = np.take_along_axis(q, action[:, None], 1)[:, 0]
            step = {"obs": obs, "action": action, "reward": reward, "value": q.max(1), "q": taken, "state": state.numpy()}
            final = {"obs": following, "value": playing.step(following, after)[0].max(1)}
            actor.add_batch(**step, terminated=terminated, truncated=truncated, final=final, active=active)
            after[~active] = 0  # these have just been reset
            obs, state, active = following, after, ~(terminated | truncated)
            if played % STEPS_EVERY or played < START:
                continue

            actor.flush()
            optimizer.param_groups[0]["lr"] = RATE * (1 - played / steps)
            for _ in range(UPDATES):
                batch = learner.sample()
                learner.update_priorities(batch.keys, update(online, target, optimizer, as_tensors(batch)) + 1e-3)
            follow(actor, playing, publish(learner, online))
            if played % EVALUATE_EVERY == 0 and curve.reached(played, Greedy(online)):
                break
    return curve


def update(online: Network, target: Network, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> Array:
    """One step of gradient descent on sequences; returns their priorities float32[B]."""
    mask, rows, length = batch["mask"], torch.arange(len(batch["length"])), batch["length"].long()
    # Observations 0 .. T of every sequence: the one after its last step comes apart, because padded sequences end earlier.
    obs = nn.functional.pad(batch["obs"], (0, 0, 0, 1))
    obs[rows, length] = batch["next_obs"]
    with torch.no_grad():
        warm, state = online(obs[:, :BURN_IN], batch["initial_state"])
    q = torch.cat([warm, online(obs[:, BURN_IN:], state)[0]], 1)
    with torch.no_grad():
        chosen = q.argmax(2, keepdim=True)
        bootstrap = target(obs, batch["initial_state"])[0].gather(2, chosen)[:, 1:, 0]  # of the observation after each step
        wanted = n_step(batch["reward"], batch["discount"], bootstrap, mask)
    errors = wanted - q[:, :-1].gather(2, batch["action"][:, :, None])[:, :, 0]
    trained = mask & (torch.arange(LENGTH) >= BURN_IN)
    loss = batch["weights"][:, None] * nn.functional.smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none")
    optimizer.zero_grad()
    ((loss * trained).sum() / trained.sum()).backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(online.parameters(), 10.0)
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
            slow.lerp_(fast, TARGET_RATE)
    return mixed_priorities(errors.detach(), ETA, BURN_IN, mask)


def n_step(reward: torch.Tensor, discount: torch.Tensor, bootstrap: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Targets [B, T] over N_STEP steps, fewer towards the end of a sequence: reward_t + discount_t * (... + discount_{t+n-1} * bootstrap_{t+n-1}),
    where bootstrap_t is the value of the observation after step t.
    """
    ahead = nn.functional.pad(mask[:, 1:], (0, 1))  # is there a next step in the sequence?
    wanted = reward + discount * bootstrap
    for _ in range(N_STEP - 1):
        wanted = reward + discount * torch.where(ahead, nn.functional.pad(wanted[:, 1:], (0, 1)), bootstrap)
    return wanted


if __name__ == "__main__":
    main(CONFIG, train, feed_forward={"recurrent": False})
