"""A server in the same process, without sockets: `send` runs the engine in the caller's thread, and the answer is there when it returns."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any

from memsvc_proto import wire
from memsvc_proto.errors import Closed
from memsvc_proto.wire import Kind, Message

from .engine import Engine
from .peer import Peer

QUEUED_MESSAGES = 1024
"""What may wait for a client that does not listen; further messages are dropped."""


class LocalPeer(Peer):
    """An inbox. Notices are kept as the newest per topic, so a client that does not listen costs nothing."""

    def __init__(self, link: str, engine: Engine) -> None:
        super().__init__(link)
        self._engine = engine
        self.inbox: deque[Message] = deque()
        self.notices: dict[str, Message] = {}
        self.news = threading.Condition(threading.Lock())
        self.woken = False
        self.closed = False
        self._receivers = 0

    def send(self, message: Message, frame: Any = None) -> None:
        """See Peer. The body is handed over as it is."""
        if len(self.inbox) >= QUEUED_MESSAGES:
            self._engine.unsent(self, message)
            return
        self.inbox.append(message)
        if self._receivers:
            with self.news:
                self.news.notify()

    def in_flight(self) -> int:
        """See Peer: answers that the client has not taken yet."""
        return sum(1 for one in list(self.inbox) if one.kind in (Kind.BATCH, Kind.PARAMS, Kind.ITEMS)) if self.inbox else 0

    @property
    def within(self) -> bool:
        """See Peer."""
        return True

    def probe(self) -> None:
        """See Peer: a plain call does not break."""

    def notice(self, topic: str, version: int, size: int) -> None:
        """A new version of the parameters."""
        with self.news:
            self.notices[topic] = Message(Kind.NOTICE, a=version, b=size, meta={"topic": topic})
            self.news.notify()

    def wake(self) -> None:
        """Makes the receive that runs now, or the next one, return."""
        with self.news:
            self.woken = True
            self.news.notify_all()

    def shut(self) -> None:
        """From now on every use raises Closed."""
        with self.news:
            self.closed = True
            self.news.notify_all()

    def receive(self, timeout_s: float) -> Message | None:
        """The oldest message; None at the timeout or a wake. Raises Closed."""
        if self.inbox:
            return self._pop()
        with self.news:
            self._receivers += 1  # before the last look: a sender that misses it has appended before that look
            try:
                self.news.wait_for(lambda: self.inbox or self.notices or self.woken or self.closed, timeout_s)
                if self.inbox:
                    return self._pop()
                if self.notices:
                    return self.notices.pop(next(iter(self.notices)))
                if self.closed:
                    raise Closed("the server was closed")
                if timeout_s > 0:  # a look without waiting leaves the wake to the receive that it is meant for
                    self.woken = False
                return None
            finally:
                self._receivers -= 1

    def _pop(self) -> Message | None:
        try:
            return self.inbox.popleft()
        except IndexError:  # another thread was quicker
            return None


class LocalLink:
    """A Link (clients/seam.py) by plain calls. `send` is thread-safe here, and so is `receive`."""

    def __init__(self, engine: Engine, peer: LocalPeer, closed: threading.Event) -> None:
        self._engine = engine
        self._peer = peer
        self._closed = closed

    def send(self, message: Message, frame: Any = None) -> None:
        """Handles the message in this thread. Raises Closed when the server was closed."""
        if self._closed.is_set():
            raise Closed("the server was closed")
        if frame is not None:
            message.body = memoryview(frame)[wire.HEADER_BYTES :]
        self._engine.handle(self._peer, message)

    def reserve(self, size: int) -> None:
        """See Link: within a process nothing is copied anyway."""

    transport = "process"
    parted = False
    slots = None
    trouble = ""
    refused = False
    renewed = 0
    breaks = 0
    moved = 0.0

    def let_go(self, seq: int) -> None:
        """See Link."""

    def withdraw(self, seq: int) -> None:
        """See Link: everything has gone."""

    def share(self, up: int, down: int, slots: int = 0, slot_bytes: int = 0, kept: bool = False) -> None:
        """See Link: there is nothing to share within a process."""

    def receive(self, timeout_s: float) -> Message | None:
        """The next message, or None at the timeout or a wake. Raises Closed when the server was closed and nothing is left."""
        return self._peer.receive(timeout_s)

    def wake(self) -> None:
        """Makes the receive that runs now, or the next one, return early."""
        self._peer.wake()

    def close(self) -> None:
        """Leaves the engine. Idempotent."""
        if self._peer.notice in self._engine.notices:
            self._engine.notices.remove(self._peer.notice)
        if not self._closed.is_set():
            self._engine.lost(self._peer)


class LocalEndpoint:
    """An Endpoint (clients/seam.py) of a server in this process; Server.endpoint makes it. It does not survive a fork and is not pickled."""

    ahead = False

    def __init__(self, engine: Engine, address: str) -> None:
        self._engine = engine
        self._address = address
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._peers: list[LocalPeer] = []

    def __str__(self) -> str:
        return f"{self._address} (in process)"

    @property
    def beside(self) -> str:
        """As ZmqEndpoint's (clients/endpoint.py): large parameters go through memory that clients in other processes of this host see too."""
        return self._engine.addresses["beside"]

    def __reduce__(self) -> Any:
        raise TypeError(f"an in-process client of {self._address} cannot be sent to another process; make one there with its address")

    def connect(self, role: str) -> LocalLink:
        """A new link, "door" or "draw". Raises Closed."""
        peer = LocalPeer(role, self._engine)
        with self._lock:
            if self._closed.is_set() or self._pid != os.getpid():
                raise Closed("the server was closed" if self._closed.is_set() else "the server lives in the parent process; connect to its address")
            self._peers = [one for one in self._peers if not one.gone]
            self._peers.append(peer)
        if role == "door":
            self._engine.notices.append(peer.notice)
        return LocalLink(self._engine, peer, self._closed)

    def queues(self) -> dict[str, int]:
        """Bytes that wait in inboxes of clients in this process."""
        with self._lock:
            peers = list(self._peers)
        return {"inboxes": sum(memoryview(one.body).nbytes + wire.HEADER_BYTES for peer in peers for one in list(peer.inbox))}

    def close(self) -> None:
        """Wakes every blocked client with Closed."""
        with self._lock:
            self._closed.set()
            peers, self._peers = self._peers, []
        for peer in peers:
            peer.shut()
