"""The child's side of the line protocol: one JSON object a line in, one out, until the input ends.

    {"do": "open", "work": {...}}               -> {}
    {"do": "fill"}                              -> {"seconds"}
    {"do": METRIC, "seconds": S}                -> {"items", "seconds", "p50_ms", "p99_ms"}, for "mixed" with "inserted" too
    anything that fails                         -> {"error"}

METRIC: sample, sample_update, sync, insert, add, add_batch, mixed. What libraries print goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from peers.peer import Peer, Work, Writer

_WAYS = {"insert": "insert", "add": "add", "add_batch": "chunk"}


def _draws(call: Callable[[], int], seconds: float) -> dict[str, Any]:
    call()
    items, calls = 0, []
    start = then = time.perf_counter()
    while then - start < seconds:
        items += call()
        now = time.perf_counter()
        calls.append((now - then) * 1e3)
        then = now
    return {"items": items, "seconds": then - start, "p50_ms": float(np.percentile(calls, 50)), "p99_ms": float(np.percentile(calls, 99))}


def _inserts(writer: Writer, seconds: float) -> dict[str, Any]:
    writer.make_room()
    before, start = writer.stored(), time.perf_counter()
    while time.perf_counter() - start < seconds:
        writer.write()
    writer.finish()
    took = time.perf_counter() - start
    return {"items": writer.stored() - before, "seconds": took}


def _actor(kind: type[Peer], work: Work, address: Any, pipe: Connection) -> None:
    """An actor process: inserts for as long as each message says, and answers with what arrived."""
    writer = kind.writer(work, address, "insert")
    pipe.send(None)
    while (seconds := pipe.recv()) is not None:
        pipe.send(_inserts(writer, seconds))
    writer.close()


class Runner:
    """One system and what has been opened on it so far."""

    def __init__(self, kind: type[Peer]) -> None:
        self._kind = kind
        self._peer: Peer | None = None
        self._writers: dict[str, Writer] = {}
        self._actor: tuple[Any, Connection] | None = None

    def handle(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Carries out one request."""
        do = asked["do"]
        if do == "open":
            self._peer = self._kind(Work(**asked["work"]))
            return {}
        peer = self._peer
        if peer is None:
            raise RuntimeError("not open")
        if do == "fill":
            start = time.perf_counter()
            peer.fill()
            return {"seconds": time.perf_counter() - start}
        if do in _WAYS:
            if do not in self._writers:
                self._writers[do] = peer.writer(peer.work, peer.address, _WAYS[do])
            return _inserts(self._writers[do], asked["seconds"])
        if do == "mixed":
            return self._mixed(peer, asked["seconds"])
        if do == "sample_update":
            start = time.perf_counter()
            got = _draws(peer.draw_and_update, asked["seconds"])
            peer.settle()
            return got | {"seconds": time.perf_counter() - start}
        return _draws({"sample": peer.draw, "sync": peer.draw_alone}[do], asked["seconds"])

    def _mixed(self, peer: Peer, seconds: float) -> dict[str, Any]:
        if self._actor is None:
            context: Any = multiprocessing.get_context(self._kind.start_method)
            ours, theirs = context.Pipe()
            process = context.Process(target=_actor, args=(self._kind, peer.work, peer.address, theirs), daemon=True)
            process.start()
            theirs.close()
            ours.recv()
            self._actor = process, ours
        pipe = self._actor[1]
        pipe.send(seconds)
        got = _draws(peer.draw, seconds)
        wrote = pipe.recv()
        return got | {"inserted": wrote["items"], "insert_seconds": wrote["seconds"]}

    def close(self) -> None:
        """Ends the actor process and the system."""
        if self._actor is not None:
            self._actor[1].send(None)
            self._actor[0].join(timeout=10)
        for writer in self._writers.values():
            writer.close()
        if self._peer is not None:
            self._peer.close()


def main(module: str, name: str) -> None:
    """Serves requests for the system that class `name` of `module` is."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    runner = Runner(getattr(importlib.import_module(module), name))
    try:
        for text in sys.stdin:
            try:
                answer = runner.handle(json.loads(text))
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"[:500]}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        runner.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
