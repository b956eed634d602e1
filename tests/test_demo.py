"""`memsvc demo` as a user runs it, and its parts that have an answer of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from memsvc.demo import atari, game
from memsvc.demo.progress import Counter, Progress

PNG = b"\x89PNG\r\n\x1a\n"
DEMO = [sys.executable, "-m", "memsvc.cli", "demo", "--plain"]


def demo(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *arguments], capture_output=True, text=True, timeout=timeout)


def processes_of(session: set[int]) -> set[int]:
    """Those of the processes that still live (a zombie does not)."""
    alive = set()
    for pid in session:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            alive.add(pid)
    return alive


def children_of(pid: int) -> set[int]:
    return {int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()}


def test_cartpole_is_learned(tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    began = time.monotonic()
    done = demo("--out", str(picture), timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - began < 240
    found = re.search(r"greedy mean return over 20 episodes: ([\d.]+)", done.stdout)
    assert found
    assert float(found[1]) >= 195
    assert f"learning curve: {picture}" in done.stdout
    assert picture.read_bytes().startswith(PNG)
    assert re.search(r"return [\d.]+  .*steps/s [\d,]+  draws/s [\d,]+  .*version [\d,]+  lag \d+", done.stdout), "the display's lines"


def test_pong_runs_on_real_frames(tmp_path: Path) -> None:
    done = demo("--env", "ALE/Pong-v5", "--seconds", "12", "--out", str(tmp_path), timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    rates = re.search(r"([\d,]+) steps/s, ([\d,]+) draws/s, ([\d,.]+) batches/s, ([\d,]+) versions, mean lag [\d.]+ versions", done.stdout)
    assert rates
    assert all(float(rate.replace(",", "")) > 0 for rate in rates.groups())
    assert (tmp_path / "memsvc-Pong-v5.png").read_bytes().startswith(PNG)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize(("victim", "status"), [(None, 130), ("memsvc.demo.play", 1)])
def test_nothing_is_left_behind(tmp_path: Path, victim: str | None, status: int) -> None:
    """After Ctrl-C, and after an actor that was killed."""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [*DEMO, "--out", str(tmp_path / "x.png")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    try:
        deadline = time.monotonic() + 60
        while len(children := children_of(process.pid)) < 4:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if victim is None:
            process.send_signal(signal.SIGINT)
        else:
            os.kill(next(pid for pid in children if victim in Path(f"/proc/{pid}/cmdline").read_text()), signal.SIGKILL)
        said, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == status, said
    assert re.search("interrupted" if victim is None else r"the actor-\d process ended with status -9", said)
    assert not processes_of(children)
    assert not list(tmp_path.iterdir())


def test_a_game_that_it_cannot_play() -> None:
    done = demo("--env", "Taxi-v3", timeout=60)
    assert done.returncode == 2
    assert "cannot play 'Taxi-v3'" in done.stderr
    with pytest.raises(ValueError, match="NoSuchGame"):
        game.find("ALE/NoSuchGame-v5")


def test_average_of_areas(rng: np.random.Generator) -> None:
    image = rng.integers(0, 256, (210, 160), np.uint8)
    small = atari.average(image, 84, 84)
    # Naive reference: every pixel repeated until 84 divides both sides (210 * 2 = 5 * 84, 160 * 21 = 40 * 84), then plain means of blocks.
    large = image.repeat(2, axis=0).repeat(21, axis=1)
    np.testing.assert_allclose(small, large.reshape(84, 5, 84, 40).mean((1, 3)), rtol=1e-6)
    np.testing.assert_array_equal(atari.average(image, 210, 160), image)


class Flicker(gym.Env[np.ndarray, int]):
    """Frame k is k everywhere but in the lower half, which shows sprites in odd frames only; ends after `length` frames."""

    observation_space = gym.spaces.Box(0, 255, (210, 160), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length = length

    def frame(self) -> np.ndarray:
        image = np.full((210, 160), self.k, np.uint8)
        image[105:] = 200 if self.k % 2 else 0
        return image

    def reset(self, **_):
        self.k = 0
        return self.frame(), {}

    def step(self, action):
        self.k += 1
        return self.frame(), 1.0, self.k == self.length, False, {}


def test_grey_frames_skip_sum_and_take_the_maximum() -> None:
    env = atari.GreyFrames(Flicker(length=9))
    obs, _ = env.reset()
    assert obs.shape == (84, 84)
    assert obs.dtype == np.uint8
    assert (obs == 0).all()
    obs, reward, terminated, _, _ = env.step(0)
    assert (obs[:42] == 4).all()
    assert (obs[42:] == 200).all()
    assert (reward, terminated) == (4.0, False)
    env.step(0)
    obs, reward, terminated, _, _ = env.step(0)
    assert (obs[:42] == 9).all()
    assert (reward, terminated) == (1.0, True)


def test_progress_puts_the_lines_together() -> None:
    progress = Progress()
    for second in range(11):
        progress.take("actor-0", {"steps": 100 * second, "version": second, "returns": [float(second)]}, second)
        progress.take("actor-1", {"steps": 50 * second, "version": max(0, second - 3), "returns": []}, second)
        progress.take("learner", {"updates": 2 * second, "draws": 64 * second, "version": second + 1, "age": 1.5}, second)
    progress.take("learner", {"updates": 21, "draws": 704, "version": 12, "greedy": 77.0, "result": None}, 11.0)
    assert progress.steps_rate == pytest.approx(150)
    assert progress.draws.rate == pytest.approx(64)
    assert progress.lag == 5
    assert progress.mean_return == 5
    assert progress.greedy == [(11.0, 77.0)]
    assert progress.result is None
    assert "150 steps/s, 64 draws/s" in progress.summary()


def test_a_counter_has_no_rate_before_its_second_value() -> None:
    counter = Counter()
    assert (counter.rate, counter.mean_rate) == (0, 0)
    counter.set(1.0, 10)
    assert (counter.rate, counter.mean_rate) == (0, 0)
