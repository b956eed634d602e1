"""Delivering: an actor that finds pushes of earlier sessions in its spool sends those before its own, each session under its own name and numbers.

Its own session has joined before, so what is made meanwhile goes into the spool too, as while a server is away. A server takes one session of a
connection at a time: the earlier ones are resumed one after the other (or adopted, by a server that has lost its state), then its own again.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from typing import Any

import numpy as np
from memsvc_proto.errors import Closed, Forbidden, Gap, ServerError, WindowFull
from memsvc_proto.wire import HEADER_BYTES, Kind, Message

from .arrivals import Arrivals
from .outbox import Outbox, Push
from .recovery import Recovery
from .reel import Reel
from .spool import Spool
from .welcome import Welcome, changed, refusal

_MOST_KEYS = 1 << 20  # of incomplete items that are told apart
_OF_A_SESSION = (Kind.ACK, Kind.FEEDBACK, Kind.WELCOME, Kind.PONG, Kind.ERROR)

_log = logging.getLogger("memsvc_client")


class Delivery:
    """One earlier session."""

    def __init__(self, reel: Reel, limit_bytes: int) -> None:
        self.reel = reel
        about = reel.about
        self.who: dict[str, Any] = {key: about[key] for key in ("name", "topic", "session", "streams")} | {"envs": len(about["streams"])}
        self.outbox = Outbox(limit_bytes, reel.first - 1, reel)
        self.outbox.load(Push(note.number, note.seq, note.table, note.steps, note.items, HEADER_BYTES + note.bytes, 0, None) for note in reel.notes())
        self.recovery = Recovery(self.outbox)
        self.joined = False
        """The server has answered its HELLO."""
        self.over = False
        """Nothing is left: the next HELLO is another session's."""
        self._incomplete: set[int] = set()

    def settle(self, number: int, now: float) -> int:
        """The server has dealt with everything up to this number. Returns how many pushes it has newly acknowledged."""
        before = self.outbox.totals.acknowledged.pushes
        if self.outbox.settle(number):
            self.recovery.moved(now)
        self.over = self.joined and not len(self.outbox)
        return self.outbox.totals.acknowledged.pushes - before

    def incomplete(self, message: Message) -> None:
        """The server asks for rows that this session had sent before: nobody has them any more."""
        body = memoryview(message.body)
        if body.nbytes % 8 == 0 and message.b * 8 <= body.nbytes and len(self._incomplete) < _MOST_KEYS:
            self._incomplete.update(np.frombuffer(body, np.uint64, message.b).tolist())

    def account(self) -> str:
        """What became of it, in words."""
        totals, missing = self.outbox.totals, len(self._incomplete)
        told = (
            f"{totals.acknowledged.pushes} pushes ({totals.acknowledged.items} items, {totals.acknowledged.bytes} bytes) of actor {self.who['name']} "
        )
        told += f"(session {self.who['session']}) were delivered from the spool"
        for count, why in ((totals.refused, "were damaged or refused"), (totals.lost, "are lost, for their streams are taken")):
            if count.pushes:
                told += f", {count.pushes} ({count.items} items) {why}"
        if missing:
            told += f"; {missing} items came incomplete, for their first rows had been acknowledged by a server that has lost them"
        return told

    @property
    def harmed(self) -> bool:
        """Whether something did not arrive."""
        return bool(self._incomplete) or self.outbox.totals.refused.pushes + self.outbox.totals.lost.pushes > 0


class Delivering(Arrivals):
    """While `_delivery` is set, the connection is that session's; what belongs to no session (parameters, settings) is handled as ever."""

    _spool: Spool | None = None
    _delivery: Delivery | None = None
    _seq: int

    @abstractmethod
    def _most(self) -> int:
        """Bytes that may be on their way at once."""

    def _deliver(self, now: float) -> None:
        """Takes up what earlier sessions have left, if anything is."""
        if self._spool is not None and self._spool.earlier:
            # Their seqs come again: other messages' must not be taken for them.
            self._seq = max(self._seq, *(reel.newest_seq for reel in self._spool.earlier))
            self._delivery = Delivery(self._spool.earlier[0], self._outbox.limit_bytes)
            _log.info("actor %s: its spool holds pushes of %d earlier sessions, which are sent first", self._name, len(self._spool.earlier))
            self._hello(now)

    def _hello(self, now: float) -> None:
        delivery = self._delivery
        if delivery is None or delivery.over:
            super()._hello(now)
        else:
            delivery.joined = False
            self._greet({**delivery.who, "first": delivery.outbox.first, "fed": 0}, now)

    def _handle(self, message: Message) -> None:
        delivery = self._delivery
        if delivery is None or message.kind not in _OF_A_SESSION:
            super()._handle(message)
            return
        now = time.monotonic()
        self._pulse.hear(now)
        if message.kind is Kind.WELCOME:
            if message.seq != self._hello_seq:
                return
            if delivery.over:
                self._delivery = None
                super()._handle(message)
                return
            self._pulse.greeted()
            self._joined(delivery, Welcome.read(message), now)
        elif message.kind is Kind.ERROR:
            self._refused_earlier(delivery, message, now)
        elif message.kind is Kind.PONG and not self._pulse.greeting:
            if message.meta.get("member") is False:
                self._hello(now)
            elif isinstance(taken := message.meta.get("stored"), int):
                delivery.recovery.answered(message.seq, taken)
        elif message.kind is Kind.ACK and delivery.joined:
            self._settle_earlier(delivery, int(message.f), now)
            if message.b:
                delivery.incomplete(message)
        self._transmit_earlier(now)

    def _transmit_earlier(self, now: float) -> None:
        """Sends what there is room for on the way; after the last acknowledgement the next session has its turn."""
        delivery = self._delivery
        if delivery is None or self._pulse.lost or self._pulse.greeting:
            return
        outbox = delivery.outbox
        while delivery.joined and now >= delivery.recovery.paused_until and (push := outbox.due(self._most())) is not None:
            frame = outbox.frame(push)
            if frame is None:  # damaged: the server must not wait for it, once it has those before
                if push.number == outbox.first:
                    self._give_up_earlier(delivery, push, now, True)
                break
            try:
                self._link.send(Message(Kind.PUSH, push.seq, push.table, push.steps, push.number, body=frame[HEADER_BYTES:]), frame)
            except WindowFull:
                return
            if push.number == outbox.first:
                delivery.recovery.moved(now)
            outbox.went(push)
        if delivery.over and not self._pulse.greeting:
            self._finish(delivery, now)

    def _joined(self, delivery: Delivery, welcome: Welcome, now: float) -> None:
        if not self._welcome.same_tables(welcome):
            raise changed(self._where)
        if welcome.streams != delivery.who["streams"]:
            delivery.outbox.drop()
        delivery.joined = True
        delivery.recovery.joined()
        self._settle_earlier(delivery, welcome.stored if welcome.resumed else 0, now)

    def _settle_earlier(self, delivery: Delivery, number: int, now: float) -> None:
        if self._spool is not None:
            self._spool.delivered += delivery.settle(number, now)

    def _refused_earlier(self, delivery: Delivery, message: Message, now: float) -> None:
        details, code = message.meta.get("details"), message.meta.get("code")
        details = details if isinstance(details, dict) else {}
        if details.get("hello"):
            if not self._pulse.greeting:
                self._hello(now)
            return
        if code in (Closed.code, Forbidden.code) or message.seq == self._hello_seq:
            raise refusal(message)
        expected, push = details.get("expected"), delivery.outbox.find(message.seq)
        if code == Gap.code and isinstance(expected, int):
            if not delivery.recovery.gap(expected) and not self._pulse.greeting:
                self._hello(now)
        elif push is not None and not (code == ServerError.code and delivery.recovery.failed(push, now)):
            self._complain(str(code), "the server refused a push of actor %s: %s", delivery.who["name"], message.meta.get("message"))
            self._give_up_earlier(delivery, push, now, code == ServerError.code)

    def _give_up_earlier(self, delivery: Delivery, push: Push, now: float, awaited: bool) -> None:
        push.refused = True
        self._settle_earlier(delivery, push.number, now)
        if awaited and not delivery.over and not self._pulse.greeting:
            self._hello(now)

    def _finish(self, delivery: Delivery, now: float) -> None:
        _log.log(logging.WARNING if delivery.harmed else logging.INFO, "actor %s: %s", self._name, delivery.account())
        if self._spool is not None:
            self._spool.finish(delivery.reel)
            if self._spool.earlier:
                self._delivery = Delivery(self._spool.earlier[0], self._outbox.limit_bytes)
        self._hello(now)

    def _begin_anew(self, before: Welcome, welcome: Welcome, now: float) -> None:
        super()._begin_anew(before, welcome, now)
        if self._spool is not None and welcome.streams != before.streams and isinstance(old := self._outbox.spool, Reel):
            # What lies in the files is of streams that are no longer this actor's; it was counted as lost.
            self._spool.finish(old)
            with self._changed:
                self._outbox.spool = self._spool.begin(self._name, self._session, welcome.streams, self._topics.own.topic, welcome.lasting())
