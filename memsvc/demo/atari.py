"""Atari games of the Arcade Learning Environment (ale-py ships their ROMs) as grey 84 x 84 frames."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, SupportsFloat

import ale_py
import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from .game import Env, Game

SIZE = 84
SKIP = 4
STACK = 4

CONFIG = f"""
[server]
address = "tcp://127.0.0.1:0"
memory = "1GiB"

[step]
obs = {{ dtype = "uint8", shape = [{SIZE}, {SIZE}] }}
action = {{ dtype = "int64" }}
reward = {{ dtype = "float32" }}
value = {{ dtype = "float32" }}
q = {{ dtype = "float32" }}

[[table]]
name = "replay"
item = {{ kind = "transition", n_step = 3, gamma = 0.99, frame_stack = {STACK}, stack = ["obs"], next = ["obs"] }}
priority = {{ source = "td", baseline = "q", exponent = 0.6 }}
actor = {{ select = "prioritized", cache = 64, every = 64, max_steps = 30_000 }}
importance = {{ beta = 0.4, normalize = "table" }}
limits = {{ min_items = 1_000 }}
"""


@cache
def shares(size: int, to: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Which of `size` pixels make each of `to` equal stretches, and by what share: int64[k, to], float32[k, to]; the shares of a stretch sum to 1."""
    edges = np.arange(to + 1) * (size / to)
    pixels = edges[:-1].astype(np.int64) + np.arange(int(np.ceil(size / to)) + 1)[:, None]
    overlaps = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    return np.minimum(pixels, size - 1), (np.maximum(overlaps, 0) * (to / size)).astype(np.float32)


def average(image: NDArray[Any], height: int, width: int) -> NDArray[np.float32]:
    """float32[height, width]: the means of `image` over equal areas, pixels on their edges by their share.

    A few gathers, not a product with a matrix: BLAS would start threads in every actor.
    """
    rows = sum(share[:, None] * image[pixels] for pixels, share in zip(*shares(len(image), height), strict=True))
    means: NDArray[np.float32] = sum(share * rows[:, pixels] for pixels, share in zip(*shares(image.shape[1], width), strict=True))
    return means


class GreyFrames(gym.Wrapper[NDArray[np.uint8], Any, NDArray[np.uint8], Any]):
    """The usual preprocessing of Atari (Mnih et al. 2015, Machado et al. 2018), without OpenCV and without a stack: memsvc stacks.

    Each step repeats its action for SKIP frames, sums their rewards and observes the pixelwise maximum of the last two (sprites flicker), averaged
    over areas to uint8[84, 84]. The environment must be made with frameskip=1 and obs_type="grayscale". Every observation is an array of its own.
    """

    def __init__(self, env: gym.Env[NDArray[np.uint8], Any]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(0, 255, (SIZE, SIZE), np.uint8)

    def _observe(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.rint(average(frame, SIZE, SIZE)).astype(np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """The first frame, uint8[84, 84], and ALE's info."""
        frame, info = self.env.reset(seed=seed, options=options)
        return self._observe(frame), info

    def step(self, action: Any) -> tuple[NDArray[np.uint8], SupportsFloat, bool, bool, dict[str, Any]]:
        """Up to SKIP frames with one action: (uint8[84, 84], sum of rewards, terminated, truncated, ALE's info)."""
        total, before, frame = 0.0, None, None
        terminated = truncated = False
        info: dict[str, Any] = {}
        for _ in range(SKIP):
            before = frame
            frame, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        assert frame is not None
        return self._observe(frame if before is None else np.maximum(before, frame)), total, terminated, truncated, info


def make(name: str) -> Env:
    """One environment of that name, with the sticky actions (0.25) of ALE's v5 games. Raises gymnasium.error.Error for a name that ALE lacks."""
    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # a banner for every environment otherwise
    return GreyFrames(gym.make(name, frameskip=1, obs_type="grayscale"))


def game(name: str) -> Game:
    """The demo's game for an ALE name; raises ValueError for a name that the Arcade Learning Environment does not know."""
    try:
        env = make(name)
    except gym.error.Error as error:
        raise ValueError(f"the demo cannot play {name!r}: {error}") from error
    assert isinstance(env.action_space, gym.spaces.Discrete)
    actions = int(env.action_space.n)
    env.close()
    return Game(
        name=name,
        make=partial(make, name),
        shape=(SIZE, SIZE),
        actions=actions,
        config=CONFIG,
        stack=STACK,
        hidden=256,
        decay_steps=20_000,
        batch_size=32,
        learning_rate=2.5e-4,
        target_rate=0.005,
        clip_rewards=True,
        seconds=60.0,
    )
