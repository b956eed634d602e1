"""Conversation: a learner's two links to a server, what was asked over them, and what has come back."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from memsvc_proto.errors import Closed, MemsvcError, WindowFull
from memsvc_proto.wire import Kind, Message

from .batch import Batch, Layout
from .follower import Follower
from .handover import Handover
from .seam import Endpoint, Link
from .slots import SPARE
from .stock import Ready, Stock
from .telling import Telling
from .turn import Turn
from .waiting import Waiting
from .welcome import Welcome, changed, find_table, greet, hello_message, refusal, say_bye

ASK_S = 1.0  # the longest that the server keeps a request before it says why it waits
SILENT_S = 3.0  # silence in which an answer was due: the server is greeted anew
_REGREET_S = 30.0
_LOST_S = 30.0  # silence of a connection that stands, after which a request counts as lost
_UP_BYTES = 1 << 20  # of the rings in memory shared with a server of this host; priorities of 30,000 items are still one message of it
_DOWN_BYTES = 1 << 18

_log = logging.getLogger("memsvc_client")


class Conversation(Telling):
    """Whoever calls anything but `answer` has the `turn`. Raises Unreachable, UnknownTable, or the server's refusal where the handshakes fail."""

    def __init__(self, endpoint: Endpoint, name: str, table: str | None, batch_size: int, ahead: int, topic: str, timeout: float) -> None:
        """`ahead`: batches that will be asked for before they are used."""
        super().__init__(name, timeout)
        self.where = str(endpoint)
        self.stock = Stock()
        self.turn = Turn(self._wake, f"learner {name!r}")
        self._endpoint, self._batch_size = endpoint, batch_size
        self._slots = ahead + SPARE
        deadline = time.monotonic() + timeout
        self.door: Link = endpoint.connect("door")
        try:
            self._welcome = greet(self.door, hello_message(1, "learner", name), timeout, self.where)
            self.table = find_table(self._welcome, table, self.where)
            self.table_name = str(self._welcome.tables[self.table]["name"])
            self.spec = self._welcome.specs[self.table]
            self.layout = Layout(self.spec, batch_size)
            self.draw = self._connect_draw()
            try:
                greet(self.draw, self._draw_hello(1), max(0.1, deadline - time.monotonic()), f"the draw address of {self.where}")
            except BaseException:
                self.draw.close()
                raise
        except BaseException:
            self.door.close()
            raise
        self.handover = Handover(endpoint)
        self.follower = Follower(topic)
        self.follower.restarted(self._welcome.versions)
        self._answers: dict[int, Message | None] = {}  # by the seq of what is being answered
        self._why: dict[str, Any] = {}  # meta of the last WAIT
        self._heard = self._heard_draw = self._greeted = time.monotonic()
        self._looked, self._silent_s = 0.0, 0.0  # when calls last looked around; for how long they have waited since something was heard
        self._draws_at: Any = None  # as the last WELCOME that was followed says
        self._patience = SILENT_S
        self._hello_seq = 0  # of the HELLO whose answer counts
        self._joined = 1
        self._whole = self._links()  # how the links were when the server was joined
        self._noticed = self._whole  # and when this was last looked at

    # Out.

    def ask(self, ahead: int, timeout: float, min_version: int | None = None) -> None:
        """Asks for batches until `ahead` of this `min_version` are here or on their way."""
        self.mend()
        for _ in range(self.stock.missing(ahead, min_version)):
            seq = self.next()
            # Half of a short wait, so that the server's reason comes before its end.
            patience = max(0.0, min(ASK_S, timeout / 2))
            meta = {} if min_version is None else {"min_version": min_version}
            slots = self.draw.slots
            number, frame = (slots.free() if slots is not None else None) or (-1, None)
            try:
                self.draw.send(Message(Kind.SAMPLE, seq, self.table, self._batch_size, 1 + number, patience, meta))
            except WindowFull:
                return  # priorities fill the queue while the server is away: who waits for a batch finds that out, and greets it anew
            self._expect()
            self.stock.ask(seq, min_version, self.follower.newest, frame)

    def mend(self) -> None:
        """Greets the server anew where a connection has broken, or shared memory has ended, though messages flow again: some may be lost; and where
        batches come from a new server by its socket its memory is better.
        """
        if self._links() != self._whole:
            self.listen(0)
            self._greet_anew(time.monotonic())

    def batch_of(self, one: Ready, copy: bool) -> Batch:
        """What its caller gets: a view of the slot in which it was drawn, or, with `copy` and where the caller keeps so many that none is left to
        draw into, a copy, which leaves the slot to later batches.
        """
        slots = self.draw.slots
        if one.frame is not None and (copy or (slots is not None and slots.short)):
            return self.layout.copy(one.batch, one.frame)
        return one.batch

    @property
    def settings(self) -> dict[str, Any]:
        """The table's settings, as the server last told them."""
        return self._welcome.tables[self.table]

    def configured(self, message: Message) -> dict[str, Any]:
        """Takes a CONFIGURED or SETTINGS; returns the settings in it."""
        if message.table < len(self._welcome.tables):
            self._welcome.tables[message.table] = message.meta
        return message.meta

    # In.

    def take(self, wait: float) -> None:
        """Waits for a message of the draw link, and takes what else is there, up to the next batch."""
        if self.updates.due:
            self._send_updates()
        message = self.draw.receive(wait)
        while message is not None:
            self._heard = self._heard_draw = time.monotonic()
            if message.kind is Kind.BATCH:
                frame = None if memoryview(message.body).nbytes else self.stock.frame(message.seq)
                if frame is not None:
                    message.body = frame
                self.stock.came(message.seq, self.layout.read(message), frame)
                return
            self.updates.answered(message.seq)
            asked = message.seq in self.stock.asked
            min_version = self.stock.answered(message.seq)
            if message.kind is Kind.WAIT:
                self._why = message.meta
            elif message.seq in self._answers:
                self._other(message)
            elif message.kind is Kind.UPDATED:
                self.counts["applied"] += message.a
                self.counts["stale"] += message.b
                self.counts["refused"] += memoryview(message.body).nbytes // 8
            elif message.kind is Kind.ERROR and asked:
                self.stock.refused[min_version] = refusal(message)
            else:
                self._other(message)
            message = self.draw.receive(0)

    def listen(self, wait: float) -> None:
        """The same for the door link."""
        message = self.door.receive(wait)
        while message is not None:
            self._heard = time.monotonic()
            if message.kind in (Kind.NOTICE, Kind.PARAMS):
                self.follower.heard(message)
            elif message.kind is Kind.WELCOME:
                # Where no connection has broken nothing is lost: the server, or the network, is slow. Of several HELLOs to a server that was away
                # the last counts: an older answer, perhaps of an older server, names a draw address that may be dead.
                quiet = time.monotonic() - max(self._heard_draw, self.draw.moved)
                slow = message.meta.get("epoch") == self._welcome.epoch and quiet < _LOST_S and self._links() == self._whole
                # One that was killed before the connection to it stood breaks nothing: it is back elsewhere.
                slow = slow and self._draws_at in (None, message.meta.get("draw"))
                if message.seq == self._hello_seq and not slow:
                    self._rejoin(Welcome.read(message))
                    self._draws_at = message.meta.get("draw")
            else:
                self._other(message)
            message = self.door.receive(0)

    def answer(self, send: Callable[[int], None], take: Callable[[float], None], waiting: Waiting) -> Message:
        """Without the turn: sends a request of a new seq and waits for its answer, which `take` receives; sends it again to a server that was
        restarted meanwhile. Raises the server's refusal, Unreachable.
        """
        with self.turn:
            seq = self.next()
            self._answers[seq] = None
            joined, forgotten = self._joined, False
            self._expect()
            send(seq)
        try:
            while True:
                with self.turn.patient:
                    if joined != self._joined:
                        joined = self._joined
                        send(seq)
                    message = self._answers[seq]
                    if message is None:
                        take(waiting.slice(self.reason))
                        self.look_around(waiting)
                        message = self._answers[seq]
                if message is not None:
                    if message.kind is Kind.ERROR and not forgotten and (message.meta.get("details") or {}).get("hello"):
                        # A server forgets a learner that has been silent for many minutes.
                        forgotten = True
                        with self.turn:
                            self._answers[seq] = None
                            self.draw.send(self._draw_hello(self.next(), self._seen()))
                            send(seq)
                        continue
                    if message.kind is Kind.ERROR:
                        raise refusal(message)
                    return message
                if waiting.slice(self.reason) <= 0:
                    raise self.unreachable(waiting)
        finally:
            self._answers.pop(seq, None)
            with contextlib.suppress(Closed), self.turn:
                self.draw.withdraw(seq)

    def fetch(self, fetch: Message) -> None:
        """Makes the follower's request: its answer is here at once, in shared memory, or comes over the door link."""
        try:
            answer = self.handover.fetch(fetch, self.follower)
            if answer is None:
                self.door.send(fetch)
            else:
                self.follower.heard(answer)
        except BaseException:  # Ctrl-C, say: it was not asked, and has to be
            self.follower.asked_at = -1.0
            raise

    def look_around(self, waiting: Waiting) -> None:
        """While a call waits: greets a server that has been silent for too long, or whose connection or shared memory has ended. It answers when it
        is back, perhaps with another draw address; then everything that has no answer is asked for and sent again.
        """
        now = time.monotonic()
        # Over calls together: somebody may ask again and again, for less than SILENT_S.
        since = max(self._heard, self.draw.moved)
        self._silent_s = now - max(since, waiting.began, self._looked) + (self._silent_s if since <= self._looked else 0.0)
        self._looked = now
        if self._links() == self._whole and self._silent_s < SILENT_S:
            return
        joined = self._joined
        self.listen(0)  # the answer to an earlier HELLO may have come behind something else: only that of the last one counts
        if joined != self._joined:
            return
        if self._heard > self._greeted:
            self._patience = SILENT_S
        self._greet_anew(now)
        self.listen(0)

    def _greet_anew(self, now: float) -> None:
        noticed, self._noticed = self._noticed, self._links()
        if now - self._greeted < self._patience and self._noticed in (noticed, self._whole):
            return
        # Rarer and rarer: all of them arrive when it is back.
        self._greeted, self._patience = now, min(_REGREET_S, 2 * self._patience)
        self._hello_seq = self.next()
        with contextlib.suppress(WindowFull):
            self.door.send(hello_message(self._hello_seq, "learner", self._name, versions=self._seen(), epoch=self._welcome.epoch))

    @property
    def silent(self) -> bool:
        """See Excuses."""
        return time.monotonic() - max(self._heard, self.draw.moved) >= SILENT_S

    def close(self, timeout: float) -> bool:
        """Without the turn: ends it, says BYE, and closes the links within `timeout`. False where another thread did not let go in time."""
        deadline = time.monotonic() + timeout
        if not self.turn.end(timeout):
            return False
        self._tell_taken()
        self.handover.close()
        for link in (self.draw, self.door):
            with contextlib.suppress(MemsvcError):
                say_bye(link, self.next(), min(deadline, time.monotonic() + timeout / 2))
            link.close()
        self.stock = Stock()  # batches that were never returned may lie in shared memory, which goes at once
        self.turn.__exit__()
        return True

    def _wake(self) -> None:
        self.draw.wake()
        self.door.wake()

    def _other(self, message: Message) -> None:
        if message.seq in self._answers:
            self._answers[message.seq] = message
        elif message.kind is Kind.SETTINGS:
            self.configured(message)
        elif message.kind is Kind.ERROR:
            self.counts["errors"] += 1
            _log.warning("the server refused a message of learner %s: %s", self._name, message.meta.get("message"))

    def _rejoin(self, welcome: Welcome) -> None:
        if not self._welcome.same_tables(welcome):
            raise changed(self.where)
        _log.warning("learner %s has joined the server at %s anew; %d requests are made again", self._name, self.where, len(self.stock.asked))
        # Where deliveries are counted the server has put back what it has not heard to be taken; one that is new has nothing to put back.
        kept = welcome.epoch != self._welcome.epoch or not self._counted
        self._welcome = welcome
        self._joined += 1
        old, self.draw = self.draw, self._connect_draw()
        old.close()
        self._whole = self._noticed = self._links()
        self.draw.send(self._draw_hello(self.next(), self._seen()))
        self.stock.restart(kept)
        self._taken.clear()
        self.updates.restart()
        self._send_updates()
        self.follower.restarted(welcome.versions)

    def _trouble(self) -> str:
        return self.door.trouble or self.draw.trouble

    def _expect(self) -> None:
        # From now on the draw link owes an answer: its silence counts from here.
        if not self.stock.asked:
            self._heard_draw = time.monotonic()

    def _links(self) -> tuple[bool, int, int]:
        return self.draw.parted, self.draw.breaks, self.door.breaks

    def _connect_draw(self) -> Link:
        link = self._endpoint.connect("draw")
        link.share(_UP_BYTES, _DOWN_BYTES, self._slots, self.layout.bytes)
        return link

    def _seen(self) -> dict[str, int]:
        return {self.follower.topic: self.follower.seen}

    def _draw_hello(self, seq: int, versions: dict[str, int] | None = None) -> Message:
        return hello_message(seq, "learner", self._name, versions=versions, table=self.table, batch=self._batch_size)
