"""Replay, with every call that changes what is kept written to the journal: what the engine works with where durability is "journal"."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import zmq
from memsvc_proto.errors import ProtocolError
from numpy.typing import NDArray

from .gate import Gate
from .journal import Journal
from .records import Form, Record


class Recorder:
    """Has all of Replay's methods, with the same contracts. Thread-safe.

    A call takes its place in the journal before it is made, and fills it when its effect is known: what follows from it, such as a priority of an
    item that it has brought, comes behind it there too. Draws are not written one by one (Replay.progress).
    """

    def __init__(self, replay: Any, journal: Journal, gate: Gate, form: Form) -> None:
        self._replay = replay
        self._journal = journal
        self._gate = gate
        self._form = form
        self._who: dict[int, str] = {}  # an actor's "join" as JSON: it goes with its pushes, so that each can be done again by itself
        for name in dir(replay):
            if not name.startswith("_") and not hasattr(type(self), name):
                setattr(self, name, getattr(replay, name))

    def join(self, name: str, envs: int, topic: str = "default") -> tuple[int, list[int]]:
        """See Replay."""
        with _Place(self) as place:
            actor, streams = self._replay.join(name, envs, topic)
            place.record = self._joined(actor, {"name": name, "envs": envs, "topic": topic, "session": 0, "streams": list(map(int, streams))})
            return actor, streams

    def resume(
        self, name: str, envs: int, topic: str, session: int, streams: Sequence[int], first: int, fed: int = 0
    ) -> tuple[int, list[int], int, bool]:
        """See Replay."""
        with _Place(self) as place:
            actor, has, stored, known = self._replay.resume(name, envs, topic, session, streams, first, fed)
            meta = {"name": name, "envs": envs, "topic": topic, "session": session, "streams": list(map(int, has)), "first": first, "fed": fed}
            place.record = self._joined(actor, meta)
            return actor, has, stored, known

    def leave(self, actor: int) -> None:
        """See Replay."""
        with _Place(self) as place:
            self._replay.leave(actor)
            self._who.pop(actor, None)
            place.record = Record("leave", actor)

    def push(self, actor: int, payload: Any, number: int = 0) -> tuple[int, int] | None:
        """See Replay."""
        with _Place(self) as place:
            try:
                done: tuple[int, int] | None = self._replay.push(actor, payload, number)
            except ProtocolError:
                if number:  # it counts as dealt with, also after a restart
                    place.record = Record("refused", actor, number, text=self._who.get(actor, ""))
                raise
            if done is not None:
                held = _held(payload)
                table = int(held[:4].view(np.uint32)[0])
                place.record = Record("push", actor, number, table, text=self._who.get(actor, ""), parts=self._form.cut(table, held))
            return done

    def update(self, table: int, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> Any:
        """See Replay."""
        with _Place(self) as place:
            done = self._replay.update(table, keys, priorities)
            place.record = Record("update", table=table, keys=np.array(keys), priorities=np.array(priorities))
            return done

    def delete(self, table: int, keys: NDArray[np.uint64]) -> Any:
        """See Replay."""
        with _Place(self) as place:
            done = self._replay.delete(table, keys)
            place.record = Record("delete", table=table, keys=np.array(keys))
            return done

    def take_feedback(self, actor: int, table: int) -> Any:
        """See Replay."""
        with _Place(self) as place:
            taken = self._replay.take_feedback(actor, table)
            if taken is not None:
                place.record = Record("feedback", actor, taken[0], table)
            return taken

    def publish(self, topic: str, version: int) -> None:
        """See Replay."""
        with _Place(self) as place:
            self._replay.publish(topic, version)
            place.record = Record("publish", number=version, meta={"topic": topic})

    def _joined(self, actor: int, meta: dict[str, Any]) -> Record:
        text = self._who[actor] = json.dumps(meta, separators=(",", ":"))
        return Record("join", actor, text=text)


class _Place:
    """Inside the gate, with a place in the journal; at the end it is filled with `record`, or given up where that is None."""

    __slots__ = ("_owner", "_slot", "record")

    def __init__(self, owner: Recorder) -> None:
        self._owner = owner
        self.record: Record | None = None

    def __enter__(self) -> _Place:
        self._owner._gate.enter()
        self._slot = self._owner._journal.reserve()
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if self.record is None:
                self._owner._journal.cancel(self._slot)
            else:
                self._owner._journal.fill(self._slot, self.record)
        finally:
            self._owner._gate.leave()


def _held(payload: Any) -> NDArray[np.uint8]:
    # Received messages stay as they are for as long as they are held; anything else may be written to again by its owner.
    if isinstance(payload, memoryview) and isinstance(payload.obj, zmq.Frame | bytes):
        return np.frombuffer(payload, np.uint8)
    return np.array(np.frombuffer(payload, np.uint8))
