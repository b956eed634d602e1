"""The Keras DQN of test_tensorflow.py: its network, its training step, and its actor, a process of its own: `python cartpole.py ADDRESS`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf

CONFIG = """
[step]
obs    = { dtype = "float32", shape = [4] }
action = { dtype = "int32" }
reward = { dtype = "float32" }
[[table]]
name       = "replay"
item       = { kind = "transition", n_step = 3, gamma = 0.99, next = ["obs"] }
priority   = { source = "max", exponent = 0.6 }
actor      = { max_steps = 20_000 }
importance = { beta = 0.4 }
limits     = { min_items = 500 }
"""


def network() -> Any:
    """Q of the two actions, [batch, 2], from observations [batch, 4]."""
    layers = tf.keras.layers
    return tf.keras.Sequential([tf.keras.Input((4,)), layers.Dense(128, "relu"), layers.Dense(128, "relu"), layers.Dense(2)])


def trainer(online: Any, target: Any) -> Callable[[Any], Any]:
    """One double-DQN update from a batch of the dataset, as one graph; returns |td error| [batch]."""
    optimizer = tf.keras.optimizers.Adam(1e-3)

    @tf.function
    def train(batch: Any) -> Any:
        best = tf.argmax(online(batch["next_obs"]), axis=1)
        goal = batch["reward"] + batch["discount"] * tf.gather(target(batch["next_obs"]), best, batch_dims=1)
        with tf.GradientTape() as tape:
            error = tf.abs(goal - tf.gather(online(batch["obs"]), batch["action"], batch_dims=1))
            loss = tf.reduce_mean(batch["weights"] * tf.where(error < 1, 0.5 * error**2, error - 0.5))
        optimizer.apply_gradients(zip(tape.gradient(loss, online.trainable_variables), online.trainable_variables, strict=True))
        for slow, fast in zip(target.trainable_variables, online.trainable_variables, strict=True):
            slow.assign_add(0.01 * (fast - slow))
        return error

    return train


def policy(model: Any) -> Callable[[Any], int]:
    """The model's greedy action in numpy: one observation is too little work for a TensorFlow call."""
    w = [weight.numpy() for weight in model.weights]

    def act(obs: Any) -> int:
        hidden = np.maximum(np.maximum(obs @ w[0] + w[1], 0) @ w[2] + w[3], 0)
        return int(np.argmax(hidden @ w[4] + w[5]))

    return act


def greedy_mean(model: Any, episodes: int = 20) -> float:
    """Mean return of the greedy policy."""
    act, env, total = policy(model), gymnasium.make("CartPole-v1"), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=1000 + episode)
        done = False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, done = total + float(reward), terminated or truncated
    return total / episodes


def play(address: str) -> None:
    """Plays epsilon-greedily with the newest parameters until it is ended."""
    from memsvc_client import Actor
    from memsvc_client.adapters.tensorflow import load

    rng, env, model, steps = np.random.default_rng(11), gymnasium.make("CartPole-v1"), network(), 0
    with Actor(address, name="player") as actor:
        obs, _ = env.reset(seed=11)
        load(actor.params(timeout=60), model)
        act = policy(model)
        while True:
            explores = rng.random() < max(0.05, 1 - steps / 5000)
            action = int(rng.integers(2)) if explores else act(obs)
            after, reward, terminated, truncated, _ = env.step(action)
            actor.add(obs=obs, action=action, reward=reward)
            obs, steps = after, steps + 1
            if terminated or truncated:
                actor.end_episode(terminated=terminated, final={"obs": obs})
                obs, _ = env.reset()
                params = actor.params(timeout=0)
                if params is not None:
                    load(params, model)
                    act = policy(model)


if __name__ == "__main__":
    play(sys.argv[1])
