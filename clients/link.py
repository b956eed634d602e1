"""What a client and a server say over ZMQ, with memory shared on one host (channel.py): the Link of seam.py."""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import socket
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import zmq
from memsvc_proto.errors import ConfigError, ProtocolError, WindowFull
from memsvc_proto.parts import WHOLE_BYTES, Whole
from memsvc_proto.wire import Kind, Message, pack, pack_head, pack_into, unpack
from numpy.typing import NDArray

from .channel import Channel, Plan
from .handshakes import LOOK_S, Handshakes
from .seam import Role
from .sending import MOMENT_S, Sending
from .slots import Slots
from .sockets import connect, zmq_socket

if TYPE_CHECKING:
    from .endpoint import ZmqEndpoint

_log = logging.getLogger("memsvc_client")
_SMALL_BYTES = 1 << 16  # below this one copy costs less than a frame of its own, and aligns what arrives


class ZmqLink:
    """A DEALER, on a door link a SUB for parameter notices once a WELCOME names their address, and a socket pair that wakes the receiver."""

    def __init__(self, endpoint: ZmqEndpoint, address: str, role: Role) -> None:
        self.malformed = 0  # messages dropped because they could not be read
        self._endpoint = endpoint
        self._role = role
        self._plan: Plan | None = None  # of the memory that its owner wants to share
        self._kept = False  # frames are sent again
        self._channel: Channel | None = None
        self._tried = ""  # the name of the last server's socket for shared memory
        self.parted = False
        self._poller = zmq.Poller()
        self._identity = b"m" + secrets.token_bytes(15)
        self._dealer = zmq_socket(zmq.DEALER, self._identity)
        self._handshakes = Handshakes(self._dealer, address, endpoint.credentials)
        try:
            connect(self._dealer, address, self._handshakes.own)
        except ConfigError:
            self._handshakes.close()
            raise
        self._look_at = 0.0
        self._whole, self.moved = Whole(), 0.0
        self._sending = Sending(self._send_part)
        self._notices: zmq.Socket[bytes] | None = None
        # And how often the door's connection had been renewed, since a refusal ends both for good, and broken: SUBs have no heartbeats.
        self._notices_at = ("", 0, 0)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._poller.register(self._dealer, zmq.POLLIN)
        self._poller.register(self._woken, zmq.POLLIN)

    @property
    def transport(self) -> str:
        """See Link."""
        return "shared" if self._channel is not None and self._channel.begun else "socket"

    @property
    def slots(self) -> Slots | None:
        """See Link."""
        return self._channel.slots if self._channel is not None else None

    def let_go(self, seq: int) -> None:
        """See Link."""
        if self._channel is not None:
            self._channel.let_go(seq)

    @property
    def trouble(self) -> str:
        """See Link. Asked by threads that do not own the link too, so it looks at nothing: `receive` has, when its time was over."""
        return self._handshakes.trouble

    @property
    def refused(self) -> bool:
        """See Link."""
        return self._handshakes.refused

    @property
    def renewed(self) -> int:
        """See Link."""
        return self._handshakes.renewed

    @property
    def breaks(self) -> int:
        """See Link."""
        self._look_sometimes(time.monotonic())
        return self._handshakes.breaks

    def share(self, up: int, down: int, slots: int = 0, slot_bytes: int = 0, kept: bool = False) -> None:
        """See Link."""
        self._kept = kept
        self._plan = Plan.of(up, down, slots, slot_bytes)
        self._open_channel()

    def send(self, message: Message, frame: NDArray[np.uint8] | None = None) -> None:
        """See Link. Frames of 64 KB and more that go by the socket are sent from where they are."""
        channel, sent = self._channel, False
        if frame is None:
            if isinstance(message.body, list):
                return self._sending.add(message.seq, pack_head(message, sum(piece.nbytes for piece in message.body)), *message.body)
            raw: Any = pack(message)
        else:
            pack_into(message, frame)
            raw = frame
        if (self._sending.busy and self._role == "door") or (len(raw) > WHOLE_BYTES and channel is None):  # pushes keep their order
            return self._sending.add(message.seq, raw)
        try:
            if channel is None or channel.ended:
                self._send_raw(raw)
            elif not channel.send(raw, message.seq if self._kept and frame is not None else 0):
                if not channel.room():
                    raise zmq.Again
                self._send_raw(raw)
                sent = True
                channel.mark()
        except ProtocolError as error:
            self._give_up(error)
            if not sent:
                self._send_raw(raw)
        except zmq.Again:
            raise WindowFull(f"messages to {self._endpoint} wait to be sent, and no more can be queued: the server does not take them") from None

    def reserve(self, size: int) -> NDArray[np.uint8] | None:
        """See Link: in the ring, where memory is shared."""
        channel = self._channel
        if channel is None or channel.ended:
            return None
        try:
            return channel.reserve(size)
        except ProtocolError as error:
            self._give_up(error)
            return None

    def receive(self, timeout_s: float) -> Message | None:
        """See Link. A malformed message is dropped, counted and logged once."""
        if self._sending.busy and self._sending.go_on():
            self.moved = time.monotonic()
        message = self._take()
        if message is not None or timeout_s <= 0:
            return message
        deadline = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            self._look_sometimes(now)
            if self._sleep(min(deadline - now, MOMENT_S) if self._sending.busy else deadline - now):
                return None
            if self._sending.busy and self._sending.go_on():
                self.moved = now
            message, now = self._take(), time.monotonic()
            if message is None and now >= deadline:
                self._look(now)
            if message is not None or now >= deadline:
                return message

    def withdraw(self, seq: int) -> None:
        """See Link."""
        self._sending.withdraw(seq)

    def wake(self) -> None:
        """See Link. A pair that is full has woken the receiver already."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def close(self) -> None:
        """See Link."""
        self._close_channel()
        self._handshakes.close()
        self._dealer.close(0)
        if self._notices is not None:
            self._notices.close(0)
        self._waker.close()
        self._woken.close()

    def _send_raw(self, raw: Any) -> None:
        self._dealer.send(raw, zmq.NOBLOCK, isinstance(raw, bytes) or raw.nbytes < _SMALL_BYTES)

    def _look_sometimes(self, now: float) -> None:
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look(now)

    def _look(self, now: float) -> None:
        before = self._handshakes.breaks
        self._handshakes.look(now)
        if self._handshakes.breaks != before:
            self._sending.restart()
            self._listen(self._notices_at[0])

    def _send_part(self, raw: Any) -> zmq.MessageTracker | None:
        channel = self._channel
        try:
            if channel is not None and not channel.ended:
                if channel.send(raw):
                    return None
                if not channel.room():
                    raise zmq.Again
        except ProtocolError as error:
            self._give_up(error)
        tracker: zmq.MessageTracker = self._dealer.send(raw, zmq.NOBLOCK, copy=False, track=True)
        if channel is not None and self._channel is channel and not channel.ended:
            channel.mark()
        return tracker

    def _sleep(self, seconds: float) -> bool:
        # Until something may have come. True: `wake` was called.
        channel = self._channel
        try:
            if seconds <= 0 or (channel is not None and not channel.doze()):
                return False
        except ProtocolError as error:
            self._give_up(error)
            return False
        for source, _ in self._poller.poll(math.ceil(seconds * 1e3)):
            if source == self._woken.fileno():
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
                return True
            if channel is not None and source == channel.fileno():
                channel.heard()
        return False

    def _take(self) -> Message | None:
        while True:
            raw = self._next_raw()
            if raw is None:
                return None
            try:
                message = unpack(raw)
                if message.kind is Kind.PART:
                    self.moved = time.monotonic()
                    whole = self._whole.take(message)
                    if whole is None:
                        continue
                    message = unpack(whole)
            except ProtocolError as error:
                self.malformed += 1
                if self.malformed == 1:
                    _log.warning("a message from %s cannot be read and is dropped, as later ones will be: %s", self._endpoint, error)
                continue
            if message.kind is Kind.SHARED:
                if self._channel is not None:
                    self._channel.begun = True
                continue
            if message.kind is Kind.WELCOME:
                self._listen(self._endpoint.learn(message))
                self._open_channel()
            return message

    def _next_raw(self) -> Any:
        channel = self._channel
        raw: Any = None
        if channel is None:
            raw = self._from(self._dealer)
        else:
            try:
                raw = channel.next(self._from_dealer)
            except ProtocolError as error:
                self._give_up(error)
            if raw is None and channel.ended:
                self._close_channel()
                raw = self._from(self._dealer)
        return raw if raw is not None or self._notices is None else self._from(self._notices)

    def _from_dealer(self) -> Any:
        return self._from(self._dealer)

    @staticmethod
    def _from(source: zmq.Socket[bytes]) -> Any:
        try:
            frame = source.recv_multipart(zmq.NOBLOCK, copy=False)[-1]
        except zmq.Again:
            return None
        # A small frame lies anywhere in a shared buffer: its copy is aligned. A large one is its own memory, at a multiple of 8.
        raw = frame.buffer
        return bytearray(raw) if raw.nbytes < _SMALL_BYTES else raw

    def _open_channel(self) -> None:
        if self._plan is None or self._channel is not None or self._tried == self._endpoint.beside:
            return
        self._tried = self._endpoint.beside
        if not self._tried:
            return
        channel = Channel.open(self._endpoint.beside, self._role, self._identity, self._plan, token=self._endpoint.token)
        if channel is None:
            return
        try:
            # The server reads the ring from here on; what was sent before comes by the socket, and before this.
            self._dealer.send(pack(Message(Kind.SHARED)), zmq.NOBLOCK)
        except zmq.Again:
            channel.close()
            return
        self._channel, self.parted = channel, False
        self._poller.register(channel.fileno(), zmq.POLLIN)

    def _give_up(self, error: ProtocolError) -> None:
        _log.warning("memory shared with %s cannot be used any more, sockets are used: %s", self._endpoint, error)
        self._close_channel()

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self.parted = True
            self._poller.unregister(channel.fileno())
            channel.close()

    def _listen(self, address: str) -> None:
        at = (address, self._handshakes.renewed, self._handshakes.breaks)
        if not address or at == self._notices_at:
            return
        if self._notices is not None:
            self._poller.unregister(self._notices)
            self._notices.close(0)
        self._notices = zmq_socket(zmq.SUB, b"")
        connect(self._notices, address, self._handshakes.own)
        self._notices_at = at
        self._poller.register(self._notices, zmq.POLLIN)
