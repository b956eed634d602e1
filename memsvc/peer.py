"""Who talks to the engine: one Peer per connection, whatever carries its messages."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from memsvc_proto.wire import Kind, Message


@dataclass
class Membership:
    """What a HELLO has told: who this is."""

    role: str
    name: str
    host: str
    pid: int
    topic: str = "default"
    """An actor's parameters."""
    table: int | None = None
    """A learner's, on its draw link."""
    batch: int = 0
    """Items that the learner asks for at a time."""
    actor: int = -1
    """The core's actor number; -1 for other roles."""
    session: int = 0
    """An actor's, 0 where it does not number its pushes."""
    taken: int = 0
    """Number of its newest push that the core has taken, and"""
    stored: int = 0
    """of the newest one that is acknowledged."""
    replaced: bool = False
    """A newer client of the same name has taken this one's place."""


@dataclass(eq=False)
class Peer(ABC):
    """One connection, as the engine sees it. Carriers derive from it and implement `send` and `in_flight`, both callable from any thread."""

    link: str
    """"door" or "draw"."""
    member: Membership | None = None
    last_push: int = 0
    """Seq of the last PUSH seen, which unasked ACKs repeat."""
    told: dict[int, float] = field(default_factory=dict)
    """Table -> when an unasked ACK last went, since the last PUSH."""
    fetches: dict[str, int] = field(default_factory=dict)
    """Topic -> seq of a FETCH that waits until what was sent before has left."""
    asking: int = 0
    """SAMPLE requests that wait at the server."""
    settling: int = 0
    """Batches that were drawn for it, and wait until what it has confirmed is on disk."""
    messages: int = 0
    """Messages that it has sent."""
    heard: float = 0.0
    """When the last message came."""
    probed: float = 0.0
    """Seconds of silence after which it was last probed."""
    gone: bool = False
    key: str = ""
    """Public key of who is at its other end, where the server has keys."""
    token: str = ""
    """What its WELCOME tells for the socket beside the addresses."""
    order: threading.Lock = field(default_factory=threading.Lock)
    """Held from when the core is asked for what an actor is to be told until that is sent: numbered feedback must not overtake feedback, nor a
    WELCOME what was meant for the actor before it. Taken before any other lock but that of a change of settings."""

    @abstractmethod
    def send(self, message: Message, frame: Any = None) -> None:
        """Sends; never blocks, never raises. With `frame` the body stands at frame[64:] already and is not copied.

        A peer that cannot take it loses it, and the engine is told (Engine.unsent).
        """

    @abstractmethod
    def in_flight(self) -> int:
        """Large messages that were sent and have not left this process: batches and parameters."""

    @property
    def within(self) -> bool:
        """True where its other end is in this process: what it is sent is not on its way, it is there."""
        return False

    @property
    def shared(self) -> bool:
        """True while its messages go through memory that it shares with this process."""
        return False

    def slot(self, number: int, size: int) -> Any:
        """Where it wants a batch of `size` bytes drawn, u8[size]; None where it has no such place (the batch then goes in its message)."""
        return None

    def probe(self) -> None:
        """Sends what means nothing, which finds out whether the connection still exists; carriers whose connections cannot break do nothing."""
        self.pong(0)

    def pong(self, seq: int, waits: str = "") -> None:
        """Answers a PING; `waits`: why nothing is acknowledged now."""
        meta: dict[str, Any] = {"member": self.member is not None}
        if self.member is not None and self.member.role == "actor":
            meta["stored"] = self.member.taken
        if waits:
            meta["waits"] = waits
        self.send(Message(Kind.PONG, seq, meta=meta))
