"""One run of the chaos test: the world, the faults, the verdict, and what is printed of them."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

from .faults import Tormentor, plan
from .verdict import Verdict
from .world import World

WARM_S = 30.0
"""The longest until every client works, before the first fault."""

SNAPSHOT_S = 7.0
"""Between two of the daemon's, so that kills find it in the middle of some, and with much or little to do again."""


def chaos(
    folder: Path,
    seed: int,
    seconds: float,
    actors: int = 8,
    learners: int = 2,
    rate: float = 60.0,
    every: tuple[float, float] = (1.5, 4.0),
    longest: float = 8.0,
    server: dict[str, Any] | None = None,
) -> tuple[bool, str]:
    """Whether everything held, and what to print. `rate`: steps a second of each actor; `longest`: seconds of a stop or a cut; `server`: settings
    beside address and memory, durability = "journal" by default. Without durability the daemon is stopped and cut off, and not killed.
    """
    if server is None:
        server = {"durability": "journal", "data": str(folder / "data"), "fsync_ms": 0, "snapshot_s": SNAPSHOT_S}
    with World(folder, actors, learners, rate, server, spooled=True) as world:
        world.start()
        warm = time.monotonic() + WARM_S
        while time.monotonic() < warm and not all((folder / f"{one.name}.0.{kind}").exists() for one, kind in _files(world)):
            time.sleep(0.05)
        faults = plan(seed, seconds, world, every, kills_daemon=bool(server.get("durability", "off") != "off"), longest=longest)
        tormentor = Tormentor(world, faults)
        verdict = Verdict(world, tormentor, rate)
        try:
            tormentor.run(seconds)
            verdict.judge()
        except Exception as error:
            verdict.say("the run came to its end", False, "".join(traceback.format_exception(error)))
        finally:
            told = f"chaos, seed {seed}, {seconds:g} s, {len(tormentor.history)} faults; {actors} actors, {learners} learners\n{verdict}"
            if not verdict.holds:
                told += "\nfaults:\n" + "\n".join(f"  {one}" for one in tormentor.history)
    return verdict.holds, told


def _files(world: World) -> list[Any]:
    return [(one, "acked") for one in world.actors] + [(one, "drawn") for one in world.learners]
