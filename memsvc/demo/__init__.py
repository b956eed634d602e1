"""`memsvc demo`: the whole path on real games. A daemon, two actors and a PyTorch DQN learner, each a process of its own, talk only through memsvc.

This process starts them, shows what their status lines say, and ends them.
"""

from __future__ import annotations

import queue
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..children import ChildFailed, Children, interrupts

if TYPE_CHECKING:
    from ..display import Display
    from .game import Game
    from .progress import Progress

ACTORS = 2
START_S = 60.0  # within which everything must be up, and what the learner may take beyond its time
SHOW_S = 0.25


def main(env: str = "CartPole-v1", seconds: float | None = None, out: str | Path | None = None, seed: int = 0, plain: bool = False) -> int:
    """Runs the demo of the game `env` (CartPole-v1 or ALE/...) and returns the exit status.

    seconds: the longest time to learn, by default the game's own; CartPole ends earlier once it is learned. out: where the learning curve goes,
    a PNG file or a folder (None: memsvc-demo.png here). plain: lines instead of the live table, as whenever standard output is no terminal.
    0: the game ran, and where it has a goal, 20 greedy episodes of the learned parameters reach it on average. 1: they do not, or a process failed.
    2: no such game, or something of memsvc[demo] is not installed. 130: interrupted (Ctrl-C, SIGTERM, SIGHUP). A sentence says which.
    No process is left behind in any case.
    """
    try:
        from . import game as games

        game = games.find(env)
        from ..display import Display
        from . import curve
        from .progress import Progress
    except ValueError as error:
        return _refuse(str(error))
    except ImportError as error:
        return _refuse(f"the demo needs what memsvc[demo] installs: {error}")
    seconds = game.seconds if seconds is None else seconds
    path = Path("memsvc-demo.png" if out is None else out)
    if path.is_dir():
        path /= f"memsvc-{env.rpartition('/')[2]}.png"
    progress = Progress()
    with Display(f"memsvc demo: {env}", plain) as display:
        try:
            _run(game, seconds, seed, progress, display)
        except KeyboardInterrupt:
            display.say("interrupted; every process of the demo has ended")
            return 130
        except ChildFailed as error:
            display.say(f"the demo failed: {error}")
            return 1
    print(progress.summary())
    curve.save(progress, f"{env}: DQN through memsvc", game.goal, path)
    print(f"learning curve: {path.resolve()}")
    if not game.goal:
        return 0
    reached = progress.result is not None and progress.result >= game.goal
    says = f"greedy mean return over 20 episodes: {progress.result:.1f}" if progress.result is not None else "the learner gave no result"
    print(f"{says} ({'reaches' if reached else 'MISSES'} the goal of {game.goal:g}) after {progress.time_s:.0f} s")
    return 0 if reached else 1


def _refuse(why: str) -> int:
    print(why, file=sys.stderr)
    return 2


def _run(game: Game, seconds: float, seed: int, progress: Progress, display: Display) -> None:
    """Fills `progress` until the learner has ended. Raises ChildFailed, KeyboardInterrupt; every child has ended when it returns or raises."""
    with tempfile.TemporaryDirectory(prefix="memsvc-demo-") as name, interrupts() as interrupted, Children(Path(name)) as children:
        began = time.monotonic()
        address = _serve(children, Path(name), game.config, interrupted)
        display.say(f"the daemon serves at {address}; {ACTORS} actors play {game.name}, for at most {seconds:.0f} s")
        children.start("learner", "memsvc.demo.learn", address, game.name, str(seconds), str(seed), ends=True)
        for number in range(ACTORS):
            children.start(f"actor-{number}", "memsvc.demo.play", address, game.name, str(number), str(1_000 * seed + number))
        while not children.ended("learner") or not children.lines.empty():
            _check(children, interrupted)
            for child, line in _arrived(children):
                progress.take(child, line, time.monotonic() - began)
            display.show(progress, time.monotonic() - began)
            if time.monotonic() - began > seconds + START_S:
                raise ChildFailed(children.failure("learner", f"has not ended {START_S:.0f} s after its time"))


def _serve(children: Children, folder: Path, config: str, interrupted: threading.Event) -> str:
    """Starts the daemon and returns its address once it serves."""
    file = folder / "memsvc.toml"
    file.write_text(config)
    about = children.serve(folder, file, check=lambda: _check(children, interrupted), within_s=START_S)
    return str(about["address"])


def _check(children: Children, interrupted: threading.Event) -> None:
    if interrupted.is_set():
        raise KeyboardInterrupt
    children.check()


def _arrived(children: Children) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines that are there, after a wait of at most SHOW_S for the first."""
    wait = SHOW_S
    while True:
        try:
            yield children.lines.get(timeout=wait)
        except queue.Empty:
            return
        wait = 1e-3
