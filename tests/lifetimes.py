"""Programs whose processes fork, spawn and end in every way, run by test_processes.py: lifetimes.py SCENARIO ROLE PARENT ADDRESS.

Each prints "well" at its end, or lets an exception out; what else it writes to stderr is noise.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import time
from typing import Any

import numpy as np
from memsvc_client import Actor, Learner
from memsvc_proto.errors import Closed, UsedAfterFork
from serving import UNION, config

import memsvc


def add(actor: Actor, start: int, n: int) -> None:
    for i in range(start, start + n):
        actor.add(obs=np.full(3, i, np.float32), action=i, reward=0.0, priority=1.0)
    actor.end_episode(True)


def sound(batch: Any) -> None:
    assert (batch["obs"] == batch["action"][:, None]).all()


def make(role: str, address: str) -> Any:
    if role == "server":
        return memsvc.Server(config("tcp://127.0.0.1:0", UNION))
    return Actor(address, timeout=10) if role == "actor" else Learner(address, batch_size=4, timeout=10)


def use(role: str, client: Any, start: int) -> None:
    if role == "actor":
        add(client, start, 10)
        client.flush(10)
    elif role == "learner":
        sound(client.sample())
    else:
        with Actor(client.address, timeout=10) as actor, client.learner(batch_size=4) as learner:
            add(actor, start, 10)
            sound(learner.sample())


def keep_busy(role: str, client: Any, stop: threading.Event) -> None:
    # Until the stop, or the end of the client; a call is under way nearly all of the time.
    with contextlib.suppress(Closed):
        while not stop.is_set():
            if role == "server":
                client.stats()
            else:
                use(role, client, 0)


def child(inherited: Any, role: str, address: str) -> None:
    # `inherited` is the parent's own object, where the process was forked.
    if inherited is not None:
        call = {"actor": lambda: add(inherited, 0, 1), "learner": lambda: inherited.sample(1), "server": lambda: inherited.stats()}[role]
        try:
            call()
        except UsedAfterFork:
            pass
        else:
            raise AssertionError("the parent's object went on in its child")
        if role != "server":
            inherited.close()
    with make(role, address) as own:
        use(role, own, 500)


def parenthood(method: str, role: str, parent: str, address: str) -> None:
    """A process that has an object of `role`, unused, used, or in use by another thread, makes a child, and goes on."""
    kept, stop = make(role, address), threading.Event()
    busy = threading.Thread(target=keep_busy, args=(role, kept, stop))
    if parent != "unused":
        use(role, kept, 0)
    if parent == "busy":
        busy.start()
    if method == "bare":  # os.fork, and an end as of any program: what was registered for the exit runs in the child
        pid = os.fork()
        if not pid:
            child(kept, role, address)
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    else:
        made = multiprocessing.get_context(method).Process(target=child, args=(kept if method == "fork" else None, role, address))
        made.start()
        made.join(30)
        assert made.exitcode == 0, made.exitcode
    stop.set()
    if parent == "busy":
        busy.join(10)
    use(role, kept, 1000)
    kept.close()


class Dropped(Exception):
    """What a program ends with."""


def ending(how: str, role: str, _: str, address: str) -> None:
    """A process that ends without close(): by itself, in a thread, by an exception, at once."""
    kept = make(role, address)
    use(role, kept, 0)
    if role == "actor":
        add(kept, 10, 10)  # not flushed
    other: Any = (lambda: keep_busy(role, kept, threading.Event())) if how == "busy" else sys.exit
    threading.Thread(target=other, daemon=True).start()
    globals()["kept"] = kept  # as a script has it
    if how == "error":
        raise Dropped
    if how == "at-once":
        print("well", flush=True)
        os._exit(0)
    if how == "busy":
        time.sleep(0.1)


if __name__ == "__main__":
    scenario, role, parent, address = sys.argv[1:]
    (parenthood if scenario in ("fork", "spawn", "forkserver", "bare") else ending)(scenario, role, parent, address)
    print("well", flush=True)
