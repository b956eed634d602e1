"""An actor with a spool in a process of its own, told by lines on stdin what to do: outages.py ADDRESS SPOOL NAME [SETTING=NUMBER ...].

`add FIRST N` adds steps with these ids, `play` ends the episode then; `kept` waits until all is spooled or acknowledged; `flush`; `stats`; `close`.
Each line is answered by one of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from memsvc_client import Actor, ZmqEndpoint


def play(actor: Any, first: int, n: int, priority: float | None = 1.0, end: bool = True) -> None:
    """One episode of n steps whose ids count from `first`; without its end it may go on."""
    for i in range(first, first + n):
        actor.add(obs=np.full(3, i, np.float32), action=i, reward=1.0, priority=priority)
    if end:
        actor.end_episode(True)


def kept(actor: Any, timeout: float = 20.0) -> None:
    """Waits until nothing is in this process's memory alone."""
    deadline = time.monotonic() + timeout
    while any(table["unsent"] for table in actor.stats()["memory"]["tables"]):
        if time.monotonic() > deadline:
            raise AssertionError(f"items stay unsent: {actor.stats()}")
        time.sleep(0.01)


def main(address: str, spool: str, name: str, *settings: str) -> None:
    """Runs until stdin ends."""
    numbers = {key: int(value) for key, value in (setting.split("=") for setting in settings)}
    priority = None if numbers.pop("caches", 0) else 1.0
    actor = Actor(ZmqEndpoint(address, shared=False), name=name or None, timeout=20, spool=spool, **numbers)
    print(json.dumps("made"), flush=True)
    for line in sys.stdin:
        what, *values = line.split()
        answer: Any = "done"
        if what in ("play", "add"):
            play(actor, *map(int, values), priority=priority, end=what == "play")
        elif what == "kept":
            kept(actor)
        elif what == "flush":
            actor.flush(30)
        elif what == "stats":
            answer = actor.stats()
        elif what == "close":
            answer = actor.close()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
