"""How a client reaches a server. Link and Endpoint are the seam: ZMQ here, plain calls in memsvc/local.py, shared memory as a third kind later.

An Endpoint is an address; it makes Links. A client has a "door" link (hello, pushes, acknowledgements, feedback, parameters), a learner a "draw" link
too.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import secrets
import socket
import time
from typing import Literal, Protocol, TypeAlias, cast

import numpy as np
import zmq
from memsvc_proto.errors import ConfigError, ProtocolError, Unreachable, WindowFull
from memsvc_proto.wire import Kind, Message, pack, pack_into, unpack
from numpy.typing import NDArray

Role: TypeAlias = Literal["door", "draw"]

_log = logging.getLogger("memsvc_client")
_SMALL_BYTES = 1 << 16  # below this one copy costs less than a frame of its own, and aligns what arrives
_NOTICES = 1000  # parameter notices that may wait for a client that does not listen


class Link(Protocol):
    """One conversation with a server. One thread at a time may use it (its owner sees to that); `wake` may be called by any."""

    def send(self, message: Message, frame: NDArray[np.uint8] | None = None) -> None:
        """Hands the message over without waiting. With `frame`, the body is frame[64:], the 64 bytes before it are the link's, and the caller lets go
        of both.

        Raises WindowFull when no more can be queued (nothing was sent).
        """

    def receive(self, timeout_s: float) -> Message | None:
        """The next message (its body may be written to), or None at the timeout or at a `wake`. Ctrl-C is seen at once."""

    def wake(self) -> None:
        """Makes the receive that runs now, or the next one, return early. Never waits; does nothing on a closed link."""

    def close(self) -> None:
        """Frees the link; idempotent. What was not handed to the peer is dropped: say BYE and wait for its answer first."""


class Endpoint(Protocol):
    """Where a server is. `str(endpoint)` names it in messages."""

    @property
    def ahead(self) -> bool:
        """True where asking for batches ahead of their use saves time, that is where they travel."""

    def connect(self, role: Role) -> Link:
        """A new link. "draw" is known once a WELCOME has come over a "door" link of this endpoint."""


def endpoint_of(address: object) -> Endpoint:
    """The endpoint that an address names, or `address` itself where it is one. Raises ConfigError for anything else."""
    if isinstance(address, str):
        return ZmqEndpoint(address)
    if callable(getattr(address, "connect", None)):
        return cast(Endpoint, address)
    raise ConfigError(f'address {address!r}: expected "tcp://HOST:PORT", "ipc://PATH" or a server\'s endpoint, got {type(address).__name__}')


class ZmqEndpoint:
    """A server behind `tcp://host:port` or `ipc://path`. Pickles as its address. Raises ConfigError for what is no such address."""

    ahead = True

    def __init__(self, address: str) -> None:
        match = re.fullmatch(r"tcp://.+:(\d{1,5})|ipc://.+", address)
        if match is None or int(match[1] or 1) not in range(1, 65536):
            raise ConfigError(f"address {address!r}: expected tcp://HOST:PORT or ipc://PATH, as `memsvc serve` announces it", address=address)
        self.address = address
        self._announced: dict[str, str] = {}

    def __str__(self) -> str:
        return self.address

    def __reduce__(self) -> tuple[type[ZmqEndpoint], tuple[str]]:
        return ZmqEndpoint, (self.address,)

    def connect(self, role: Role) -> ZmqLink:
        """See Endpoint. Does not wait for the peer: a name that cannot be resolved yet, or a server not up yet, is tried again behind the scenes."""
        if role == "door":
            return ZmqLink(self, self.address)
        try:
            return ZmqLink(self, self._announced["draw"])
        except KeyError:
            raise Unreachable(f"the server at {self.address} has not announced where batches are drawn: say HELLO at its door first") from None

    def learn(self, message: Message) -> str:
        """Takes the addresses from a WELCOME; returns the one of parameter notices, or "" when none is announced."""
        for name in ("draw", "params"):
            self._announced[name] = self._through_door(str(message.meta.get(name) or ""))
        return self._announced["params"]

    def _through_door(self, announced: str) -> str:
        # A server bound to every interface announces a wildcard; the host by which its door was reached stands in for it.
        match = re.fullmatch(r"tcp://(?:\*|0\.0\.0\.0|\[::\]):(\d+)", announced)
        if match and self.address.startswith("tcp://"):
            return f"{self.address.rsplit(':', 1)[0]}:{match[1]}"
        return announced


class ZmqLink:
    """A DEALER, on a door link a SUB for parameter notices once a WELCOME names their address, and a socket pair that wakes the receiver."""

    def __init__(self, endpoint: ZmqEndpoint, address: str) -> None:
        self.malformed = 0  # messages dropped because they could not be read
        self._endpoint = endpoint
        self._poller = zmq.Poller()
        self._dealer = _socket(zmq.DEALER, address)
        self._notices: zmq.Socket[bytes] | None = None
        self._notices_at = ""
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._poller.register(self._dealer, zmq.POLLIN)
        self._poller.register(self._woken, zmq.POLLIN)

    def send(self, message: Message, frame: NDArray[np.uint8] | None = None) -> None:
        """See Link. Frames of 64 KB and more are sent from where they are."""
        try:
            if frame is None:
                self._dealer.send(pack(message), zmq.NOBLOCK)
            else:
                pack_into(message, frame)
                self._dealer.send(frame.data, zmq.NOBLOCK, frame.nbytes < _SMALL_BYTES)
        except zmq.Again:
            raise WindowFull(f"messages to {self._endpoint} wait to be sent, and no more can be queued: the server does not take them") from None

    def receive(self, timeout_s: float) -> Message | None:
        """See Link. A malformed message is dropped, counted and logged once."""
        deadline = time.monotonic() + timeout_s
        while True:
            message = self._take()
            if message is not None:
                return message
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            ready = self._poller.poll(math.ceil(left * 1e3))
            if any(source == self._woken.fileno() for source, _ in ready):
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
                return None

    def wake(self) -> None:
        """See Link. A pair that is full has woken the receiver already."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def close(self) -> None:
        """See Link."""
        self._dealer.close(0)
        if self._notices is not None:
            self._notices.close(0)
        self._waker.close()
        self._woken.close()

    def _take(self) -> Message | None:
        for source in (self._dealer, self._notices):
            if source is None:
                continue
            try:
                frames = source.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                continue
            try:
                # A small frame lies anywhere in a shared buffer: its copy is aligned. A large one is its own memory, at a multiple of 8.
                raw = frames[-1].buffer
                message = unpack(bytearray(raw) if raw.nbytes < _SMALL_BYTES else raw)
            except ProtocolError as error:
                self.malformed += 1
                if self.malformed == 1:
                    _log.warning("a message from %s cannot be read and is dropped, as later ones will be: %s", self._endpoint, error)
                continue
            if message.kind is Kind.WELCOME:
                self._listen(self._endpoint.learn(message))
            return message
        return None

    def _listen(self, address: str) -> None:
        if address == self._notices_at or not address:
            return
        if self._notices is not None:
            self._poller.unregister(self._notices)
            self._notices.close(0)
        self._notices = _socket(zmq.SUB, address)
        self._notices_at = address
        self._poller.register(self._notices, zmq.POLLIN)


_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}


def _context() -> zmq.Context[zmq.Socket[bytes]]:
    # One per process: an I/O thread does not survive a fork, and the context of a parent is never touched in its child.
    context = _contexts.get(os.getpid())
    if context is None:
        context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, min(65535, context.get(zmq.SOCKET_LIMIT)))
        _contexts[os.getpid()] = context
    return context


def _socket(kind: int, address: str) -> zmq.Socket[bytes]:
    made = _context().socket(kind)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.RECONNECT_IVL, 100)
    made.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
    # The I/O thread answers heartbeats, so a client that is busy for minutes is no dead client, and a dead connection is opened anew.
    made.setsockopt(zmq.HEARTBEAT_IVL, 5000)
    made.setsockopt(zmq.HEARTBEAT_TIMEOUT, 20000)
    if "[" in address:
        made.setsockopt(zmq.IPV6, 1)
    if kind == zmq.DEALER:
        made.setsockopt(zmq.ROUTING_ID, b"m" + secrets.token_bytes(15))
    else:
        made.setsockopt(zmq.RCVHWM, _NOTICES)
        made.setsockopt(zmq.SUBSCRIBE, b"")
    try:
        made.connect(address)
    except zmq.ZMQError as error:
        made.close(0)
        raise ConfigError(f"address {address!r} cannot be used: {error}", address=address) from None
    return made
