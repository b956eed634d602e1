"""What arrives for an actor, and what becomes of it: acknowledgements, allowances, priorities, settings, parameters, a server that is new."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from memsvc_core import Memory, TableSpec
from memsvc_proto.errors import Closed, ConfigError
from memsvc_proto.wire import Kind, Message

from .desk import Desk
from .outlet import Outlet
from .seam import Link
from .topics import Topics
from .welcome import Welcome, changed, hello_message, refusal
from .window import Window

_log = logging.getLogger("memsvc_client")


class Arrivals(Desk):
    """The half of the pusher's thread that listens. Its methods belong to that thread."""

    def __init__(
        self, link: Link, memory: Memory, welcome: Welcome, outlets: Sequence[Outlet], name: str, envs: int, where: str, topic: str, window_bytes: int
    ) -> None:
        super().__init__(link, name, where, Window(window_bytes), Topics(topic, welcome.versions), [outlet.gate for outlet in outlets])
        self._memory, self._welcome, self._envs, self._outlets = memory, welcome, envs, outlets
        self._hello_seq = 1
        self._told_newest = 0  # the memory knows that this version exists
        self._complained: set[str] = set()
        self._tell_newest()

    @abstractmethod
    def _next(self) -> int:
        """The seq of the next message."""

    def _hello(self, now: float) -> None:
        self._pulse.greet(now)
        self._hello_seq = self._next()
        own = self._topics.own.topic
        self._link.send(hello_message(self._hello_seq, "actor", self._name, self._envs, self._topics.seen(), self._welcome.epoch, topic=own))

    def _handle(self, message: Message) -> None:
        now = time.monotonic()
        self._pulse.hear(now)
        if message.kind is Kind.ACK:
            self._acknowledge(message, now)
        elif message.kind is Kind.FEEDBACK:
            self._feed(message)
        elif message.kind in (Kind.NOTICE, Kind.PARAMS):
            with self._changed:
                self._topics.heard(message)
                self._changed.notify_all()
            self._tell_newest()
        elif message.kind is Kind.SETTINGS:
            self._configure(message)
        elif message.kind is Kind.WELCOME and message.seq == self._hello_seq:  # of several HELLOs to a server that was away the last counts
            self._reopen(Welcome.read(message))
        elif message.kind is Kind.PONG:
            if message.meta.get("member") is False and not self._pulse.greeting:
                self._hello(now)
        elif message.kind is Kind.ERROR:
            self._refused(message, now)

    def _acknowledge(self, message: Message, now: float) -> None:
        body = memoryview(message.body)
        allowed, ahead = message.meta.get("allowed"), message.meta.get("ahead", 0.0)
        if message.table >= len(self._outlets) or body.nbytes % 8 or message.b * 8 > body.nbytes:
            self._complain("ack", "an acknowledgement of the server at %s is malformed and dropped", self._where)
            return
        outlet = self._outlets[message.table]
        outlet.acknowledged(message.seq, message.a, now)
        if isinstance(allowed, int) and isinstance(ahead, (int, float)):
            outlet.gate.granted(message.seq, allowed, ahead, now)
        with self._changed:
            self._window.settle(message.seq)
            self._changed.notify_all()
        if body.nbytes:
            keys = np.frombuffer(body, np.uint64)
            if len(keys) > message.b:
                self._memory.evicted(message.table, keys[message.b :])
            if message.b:
                outlet.missing(keys[: message.b])
        # Told of a moment, one table's acknowledgement may come before another's of the same push: only of earlier ones is everything known.
        self._memory.settled(self._window.answered)

    def _feed(self, message: Message) -> None:
        body, n = memoryview(message.body), message.b
        if message.table >= len(self._outlets) or body.nbytes != 16 * n:
            self._complain("feedback", "priorities from the server at %s are malformed and dropped", self._where)
            return
        self._memory.feedback(message.table, message.a, np.frombuffer(body, np.uint64, n), np.frombuffer(body, np.float64, n, 8 * n))

    def _configure(self, message: Message) -> None:
        try:
            if message.table >= len(self._outlets):
                raise ConfigError(f"there is no table {message.table}")
            spec = TableSpec(self._welcome.schema, message.meta)
            self._apply(message.table, spec, message.meta)
        except (ConfigError, TypeError, RuntimeError) as error:  # the latter two: of another type than the core takes
            self._complain("settings", "changed settings from the server at %s cannot be used, and are ignored: %s", self._where, error)

    def _apply(self, table: int, spec: TableSpec, settings: dict[str, object]) -> None:
        self._memory.configure(table, spec)
        self._welcome.tables[table] = settings
        self._outlets[table].configure(settings)
        with self._changed:
            self._changed.notify_all()

    def _tell_newest(self) -> None:
        newest = self._topics.own.newest
        if newest > self._told_newest:
            self._told_newest = newest
            self._memory.newest(newest)
            for outlet in self._outlets:
                outlet.aged()

    def _refused(self, message: Message, now: float) -> None:
        details = message.meta.get("details")
        if isinstance(details, dict) and details.get("hello"):
            if not self._pulse.greeting:
                self._hello(now)
            return
        if message.meta.get("code") == Closed.code or message.seq == self._hello_seq:
            raise refusal(message)
        self._complain(str(message.meta.get("code")), "the server refused a message of actor %s: %s", self._name, message.meta.get("message"))
        with self._changed:
            self._window.settle(message.seq)
            self._changed.notify_all()

    def _reopen(self, welcome: Welcome) -> None:
        if not self._welcome.same_tables(welcome):
            raise changed(self._where)
        self._pulse.greeted()
        _log.warning(
            "actor %s has joined the server at %s anew: %d bytes that had been acknowledged and %d in flight are gone with the old one",
            *(self._name, self._where, self._window.acknowledged, self._window.bytes),
        )
        self._memory.reopen(welcome.streams)
        for outlet in self._outlets:
            outlet.restart()
        with self._changed:
            self._welcome = welcome
            self._window.restart()
            self._flush_started = self._flush_done  # what was flushed to the old server is not at the new one
            self._topics.restarted(welcome.versions)
            self._changed.notify_all()
        for table, (spec, settings) in enumerate(zip(welcome.specs, welcome.tables, strict=True)):
            self._apply(table, spec, settings)
        self._tell_newest()

    def _complain(self, kind: str, text: str, *values: object) -> None:
        if kind not in self._complained:
            self._complained.add(kind)
            _log.warning(text, *values)
