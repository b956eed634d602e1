"""Records of the journal, done again on a restored Replay."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import numpy as np
from memsvc_core import Schema, TableSpec
from memsvc_proto.errors import Gap, MemsvcError, ProtocolError, ServerError

from .records import Record, payload_of

log = logging.getLogger("memsvc")

_FIRST_MADE_UP = 1 << 63


class Again:
    """Gives Replay the calls that records tell of, in their order. Calls that Replay refuses now are counted in `refused`, and do no harm."""

    def __init__(self, replay: Any, schema: Schema, settings: list[dict[str, Any]]) -> None:
        """`settings` of the tables, which records of their changes change."""
        self._replay = replay
        self._schema = schema
        self.settings = settings
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.versions: dict[str, int] = {}
        self._actors: dict[int, int] = {}  # number in the journal -> number now

    def do(self, record: Record) -> None:
        """Does one. Never raises for what Replay refuses."""
        act = getattr(self, f"_{record.kind}", None)
        if act is None:
            self.refused[record.kind] += 1
            return
        try:
            act(record)
            self.done[record.kind] += 1
        except (MemsvcError, ValueError, KeyError) as error:
            if not self.refused[record.kind]:
                log.warning("record %d (%s) of the journal is refused now: %s (further ones are counted only)", record.at, record.kind, error)
            self.refused[record.kind] += 1

    def _actor(self, record: Record) -> int:
        return self._actors.get(record.actor, record.actor)

    def _join(self, record: Record, first: int | None = None) -> None:
        one = record.meta
        session = one["session"] or _FIRST_MADE_UP + record.at
        first = one.get("first", 1) if first is None else first
        number, streams, _, _ = self._replay.resume(one["name"], one["envs"], one["topic"], session, one["streams"], first, one.get("fed", 0))
        self._actors[record.actor] = int(number)
        if list(map(int, streams)) != one["streams"]:
            raise ServerError(f"actor {one['name']!r} had streams {one['streams'][:4]}, which others have now")

    def _leave(self, record: Record) -> None:
        self._replay.leave(self._actor(record))
        self._actors.pop(record.actor, None)

    def _push(self, record: Record) -> None:
        payload = payload_of(record, record.table)
        try:
            self._replay.push(self._actor(record), payload, record.number)
        except (Gap, ServerError):  # what came before is lost, or the actor's "join" is
            if not record.meta:
                raise
            self._join(record, record.number or 1)
            self._replay.push(self._actor(record), payload, record.number)

    def _refused(self, record: Record) -> None:
        try:
            self._replay.push(self._actor(record), b"", record.number)
        except Gap:
            self._join(record, record.number + 1)
        except ProtocolError:
            pass  # again

    def _update(self, record: Record) -> None:
        self._replay.update(record.table, np.frombuffer(record.keys, np.uint64), np.frombuffer(record.priorities, np.float64))

    def _feedback(self, record: Record) -> None:
        self._replay.take_feedback(self._actor(record), record.table)

    def _delete(self, record: Record) -> None:
        self._replay.delete(record.table, np.frombuffer(record.keys, np.uint64))

    def _configure(self, record: Record) -> None:
        self._replay.configure(record.table, TableSpec(self._schema, record.meta))
        self.settings[record.table] = record.meta

    def _publish(self, record: Record) -> None:
        topic, version = record.meta["topic"], record.number
        self._replay.publish(topic, version)
        self.versions[topic] = max(version, self.versions.get(topic, 0))

    def _progress(self, record: Record) -> None:
        self._replay.advance(record.part("head", np.uint8))

    def _rows(self, record: Record) -> None:
        """Rows that were moved here: they have been looked at before."""
