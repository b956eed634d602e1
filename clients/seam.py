"""The seam between clients and servers: an Endpoint is an address; it makes Links. ZMQ is behind it in link.py, plain calls in memsvc/local.py.

A client has a "door" link (hello, pushes, acknowledgements, feedback, parameters), a learner a "draw" link too.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

import numpy as np
from memsvc_proto.wire import Message
from numpy.typing import NDArray

from .slots import Slots

Role: TypeAlias = Literal["door", "draw"]


class Link(Protocol):
    """One conversation with a server. One thread at a time may use it (its owner sees to that); `wake` may be called by any."""

    def send(self, message: Message, frame: NDArray[np.uint8] | None = None) -> None:
        """Hands the message over without waiting; a body that is a list of buffers, all of them one after the other, goes in parts, from where it is,
        during later calls. With `frame`, the body is frame[64:], the 64 bytes before it are the link's, and the caller lets go
        of both. A frame that begins what was reserved last is not copied.

        Raises WindowFull when no more can be queued (nothing was sent).
        """

    def reserve(self, size: int) -> NDArray[np.uint8] | None:
        """Memory from which a frame of at most `size` bytes goes without a copy if it is made there; until the next `send` or `reserve`, which need
        not use it. None: there is no such memory, or no room in it now.
        """

    def receive(self, timeout_s: float) -> Message | None:
        """The next message (its body may be written to), or None at the timeout or at a `wake`. Ctrl-C is seen at once."""

    def wake(self) -> None:
        """Makes the receive that runs now, or the next one, return early. Never waits; does nothing on a closed link."""

    @property
    def transport(self) -> str:
        """What carries messages now: "shared" memory, a "socket", or "process" for plain calls."""

    @property
    def parted(self) -> bool:
        """True where memory was shared and the server has ended that: it has gone, and another may be in its place, which a HELLO finds out."""

    @property
    def trouble(self) -> str:
        """Why there is no connection, as far as that is known: handshakes fail, since one side expects keys that the other has not. "" else."""

    @property
    def refused(self) -> bool:
        """True where the server has said that it does not take this client's key."""

    @property
    def renewed(self) -> int:
        """How often a connection that was given up was made anew: what had been sent over it before, a HELLO say, is lost."""

    @property
    def moved(self) -> float:
        """When a part of a large message last came or went (time.monotonic): `receive` tells of whole ones only."""

    def withdraw(self, seq: int) -> None:
        """What has not gone yet of the large message `seq` will not."""

    @property
    def breaks(self) -> int:
        """How often its connection has broken, as it is known a quarter of a second later: what had no answer then may be lost."""

    @property
    def slots(self) -> Slots | None:
        """Where the server can draw batches into; None: they come in their messages."""

    def let_go(self, seq: int) -> None:
        """Frames of messages up to `seq` will not be sent again: what was promised to `share` about them ends."""

    def share(self, up: int, down: int, slots: int = 0, slot_bytes: int = 0, kept: bool = False) -> None:
        """From now on, or from the next WELCOME, messages go through memory shared with a server of this host: rings of `up` bytes to it and `down`
        bytes from it, where a message takes at most about half of one (larger ones go as before), and so many slots for batches. Again with every
        server that takes this one's place. `kept`: what a frame that was sent lies in stays as it is until `let_go`, also when it has been read, and
        when the memory is no longer shared. Waits for the server, 4 s at most; where it cannot be, everything stays as it is.
        """

    def close(self) -> None:
        """Frees the link; idempotent. What was not handed to the peer is dropped: say BYE and wait for its answer first."""


class Endpoint(Protocol):
    """Where a server is. `str(endpoint)` names it in messages."""

    @property
    def ahead(self) -> bool:
        """True where asking for batches ahead of their use saves time, that is where they travel."""

    def connect(self, role: Role) -> Link:
        """A new link. "draw" is known once a WELCOME has come over a "door" link of this endpoint."""
