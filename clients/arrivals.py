"""What arrives for an actor, and what becomes of it: acknowledgements, allowances, priorities, settings, parameters, a server that is new."""

from __future__ import annotations

import contextlib
import logging
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from memsvc_core import Memory, TableSpec
from memsvc_proto.errors import Closed, ConfigError, Forbidden, Gap, ServerError, WindowFull
from memsvc_proto.wire import Kind, Message

from .desk import Desk
from .outbox import Count, Outbox, Push
from .outlet import Outlet
from .recovery import Recovery
from .seam import Link
from .topics import Topics
from .welcome import Welcome, changed, hello_message, refusal

_MOST_PUSHES = 1 << 53  # above this the number in an ACK would not be exact
_log = logging.getLogger("memsvc_client")


class Arrivals(Desk):
    """The half of the pusher's thread that listens. Its methods belong to that thread."""

    def __init__(
        self,
        link: Link,
        memory: Memory,
        welcome: Welcome,
        outlets: Sequence[Outlet],
        outbox: Outbox,
        name: str,
        envs: int,
        where: str,
        topic: str,
        session: str,
    ) -> None:
        super().__init__(link, name, where, outbox, Topics(topic, welcome.versions), [outlet.gate for outlet in outlets])
        self._memory, self._welcome, self._envs, self._outlets, self._session = memory, welcome, envs, outlets, session
        self._recovery = Recovery(outbox)
        self._hello_seq = 1
        self._fed = 0  # number of the newest feedback
        self._next_feedback = dict.fromkeys(range(len(outlets)), 1)  # by table: the number expected; none where it is not known
        self._told_newest = 0  # the memory knows that this version exists
        self._complained: set[str] = set()
        self._tell_newest()

    @abstractmethod
    def _next(self) -> int:
        """The seq of the next message."""

    def _hello(self, now: float) -> None:
        self._greet(
            {
                **{"name": self._name, "envs": self._envs, "topic": self._topics.own.topic, "session": self._session},
                **{"streams": self._welcome.streams, "first": self._outbox.first, "fed": self._fed},
            },
            now,
        )

    def _greet(self, who: dict[str, Any], now: float) -> None:
        self._pulse.greet(now)
        self._hello_seq = self._next()
        with contextlib.suppress(WindowFull):  # then when it is late
            self._link.send(hello_message(self._hello_seq, "actor", versions=self._topics.seen(), epoch=self._welcome.epoch, **who))

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
            self._rejoin(Welcome.read(message), now)
        elif message.kind is Kind.PONG and not self._pulse.greeting:
            self._waits = str(message.meta.get("waits") or "")
            if message.meta.get("member") is False:
                self._hello(now)
            elif isinstance(taken := message.meta.get("stored"), int):
                with self._changed:
                    self._recovery.answered(message.seq, taken)
        elif message.kind is Kind.ERROR:
            self._refused(message, now)

    def _acknowledge(self, message: Message, now: float) -> None:
        body = memoryview(message.body)
        allowed, ahead = message.meta.get("allowed"), message.meta.get("ahead", 0.0)
        if message.table >= len(self._outlets) or body.nbytes % 8 or message.b * 8 > body.nbytes or not 0 <= message.f < _MOST_PUSHES:
            self._complain("ack", "an acknowledgement of the server at %s is malformed and dropped", self._where)
            return
        outlet = self._outlets[message.table]
        outlet.acknowledged(message.seq, message.a, now)
        if isinstance(allowed, int) and isinstance(ahead, (int, float)):
            outlet.gate.granted(message.seq, allowed, ahead, now)
        self._settle(int(message.f), now)
        if body.nbytes:
            keys = np.frombuffer(body, np.uint64)
            if len(keys) > message.b:
                self._memory.evicted(message.table, keys[message.b :])
            if message.b:
                outlet.missing(keys[: message.b])
        # Told of a moment, one table's acknowledgement may come before another's of the same push: only of earlier ones is everything known.
        self._memory.settled(self._outbox.answered)

    def _settle(self, number: int, now: float) -> int:
        with self._changed:
            seq = self._outbox.settle(number)
            if seq:
                self._recovery.moved(now)
                self._link.let_go(seq)
            self._changed.notify_all()
        return seq

    def _feed(self, message: Message) -> None:
        body, n = memoryview(message.body), message.b
        if message.table >= len(self._outlets) or body.nbytes != 16 * n:
            self._complain("feedback", "priorities from the server at %s are malformed and dropped", self._where)
            return
        expected, self._next_feedback[message.table] = self._next_feedback.get(message.table), message.a + 1
        if expected is not None and message.a > expected and not self._pulse.greeting:
            self._hello(time.monotonic())  # one was lost: who joins anew is offered again what its reports do not contain
        self._fed = max(self._fed, message.a)
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
        details, code = message.meta.get("details"), message.meta.get("code")
        details = details if isinstance(details, dict) else {}
        if details.get("hello"):
            if not self._pulse.greeting:
                self._hello(now)
            return
        if code in (Closed.code, Forbidden.code) or message.seq == self._hello_seq:
            raise refusal(message)
        expected = details.get("expected")
        if code == Gap.code and isinstance(expected, int):
            with self._changed:
                known = self._recovery.gap(expected)
            if not known and not self._pulse.greeting:
                self._hello(now)
            return
        push = self._outbox.find(message.seq)
        if push is not None and code == ServerError.code:
            with self._changed:
                again = self._recovery.failed(push, now)
            if again:
                return
        self._complain(str(code), "the server refused a message of actor %s: %s", self._name, message.meta.get("message"))
        if push is not None:
            self._give_up(push, now, code == ServerError.code)

    def _give_up(self, push: Push, now: float, awaited: bool) -> None:
        """A push counts as refused, those before it as acknowledged; `awaited`: the server does not know so yet, and waits for it."""
        push.refused = True
        self._settle(push.number, now)
        if awaited and not self._pulse.greeting:
            self._hello(now)

    def _rejoin(self, welcome: Welcome, now: float) -> None:
        if not self._welcome.same_tables(welcome):
            raise changed(self._where)
        self._pulse.greeted()
        before, self._welcome = self._welcome, welcome
        self._next_feedback.clear()
        # A new server knows the session where it has had an earlier HELLO, whose answer did not arrive.
        if welcome.resumed and welcome.epoch == before.epoch:
            self._resumed(welcome, now)
        else:
            self._begin_anew(before, welcome, now)
        with self._changed:
            self._recovery.joined()
            self._topics.restarted(welcome.versions)
            self._changed.notify_all()
        for table, (spec, settings) in enumerate(zip(welcome.specs, welcome.tables, strict=True)):
            if settings != before.tables[table]:
                self._apply(table, spec, settings)
        self._tell_newest()

    def _resumed(self, welcome: Welcome, now: float) -> None:
        seq = self._settle(welcome.stored, now)
        for outlet in self._outlets:
            outlet.resumed(seq)
        # A server that was restored to what it was a while ago: what it lacks is nowhere. (`stored` may lack what was acknowledged since the HELLO.)
        with self._changed:
            gone = self._outbox.forgotten(max(welcome.stored, welcome.has))
        level = logging.WARNING if gone.pushes else logging.INFO
        _log.log(level, "actor %s goes on at %s: %s", self._name, self._where, self._account(gone))

    def _begin_anew(self, before: Welcome, welcome: Welcome, now: float) -> None:
        """A server that knows nothing of this actor."""
        adopted = welcome.streams == before.streams
        with self._changed:
            gone = self._outbox.forgotten(0) if welcome.epoch != before.epoch else Count()
            lost = Count() if adopted else self._outbox.drop()
            self._flush_started = self._flush_done  # what was flushed to the old server is not at the new one
        account = self._account(gone)
        if adopted:
            self._memory.forget()
        else:
            account += (
                f"; {lost.pushes} pushes ({lost.items} items, {lost.bytes} bytes) without an acknowledgement are lost, for their streams are taken"
            )
            self._memory.reopen(welcome.streams)
        _log.warning("actor %s has joined the server at %s anew: %s", self._name, self._where, account)
        for outlet in self._outlets:
            outlet.restart()
        if lost.pushes:  # their numbers do not come
            self._hello(now)

    def _account(self, gone: Count) -> str:
        pending = self._outbox.pending
        return (
            f"{gone.pushes} pushes ({gone.items} items, {gone.bytes} bytes) that had been acknowledged are gone with the server's state, "
            f"{pending.pushes} ({pending.items} items, {pending.bytes} bytes) without an acknowledgement are sent again"
        )

    def _complain(self, kind: str, text: str, *values: object) -> None:
        if kind not in self._complained:
            self._complained.add(kind)
            _log.warning(text, *values)
