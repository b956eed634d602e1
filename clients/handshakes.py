"""What became of handshakes: libzmq tells that to a monitor alone. A client learns here why nobody answers, a server whom it has turned away."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable

import zmq
from memsvc_proto.errors import MemsvcError

from .credentials import Credentials, curve_client

AGAIN_S = 2.0
LOOK_S = 0.25
"""How often a link that hears nothing looks."""
_MISMATCH = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_EVENT = struct.Struct("=hi")


class Monitor:
    """The handshakes of one socket, for the thread that owns it. Nothing is done for it while messages flow."""

    def __init__(self, watched: zmq.Socket[bytes]) -> None:
        self._watched = watched
        name = f"inproc://handshakes-{id(self)}-{os.urandom(4).hex()}"
        watched.monitor(name, _FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._events: zmq.Socket[bytes] = watched.context.socket(zmq.PAIR)
        self._events.setsockopt(zmq.LINGER, 0)
        # libzmq's I/O thread waits for ever where a monitor is full: whatever comes must find room. A client's is a few bytes every second or two.
        self._events.setsockopt(zmq.RCVHWM, 0)
        self._events.connect(name)

    def read(self) -> list[tuple[int, int]]:
        """(event, value) of what has happened since the last look."""
        found = []
        with contextlib.suppress(zmq.Again):
            while True:
                found.append(_EVENT.unpack(self._events.recv_multipart(zmq.NOBLOCK)[0]))
        return found

    def close(self) -> None:
        """Before the socket is closed."""
        if not self._watched.closed:
            self._watched.disable_monitor()  # first: else its events would go nowhere, and stop the I/O thread
        self._events.close(0)


class Handshakes:
    """A client's connection to `address`: why it does not stand, and a new one where libzmq has given up (after a refusal it does for good)."""

    def __init__(self, socket: zmq.Socket[bytes], address: str, own: Callable[[], Credentials | None]) -> None:
        """`own` reads the key file, where there is one, again."""
        self._monitor = Monitor(socket)
        self._socket, self._address, self._read_own = socket, address, own
        self.own = own()
        """What it encrypts with."""
        self._again = 0.0  # when a new connection is made; 0: there is one
        self._failed: tuple[int, int] | None = None
        self.renewed = 0
        """Connections made in the place of one that was given up: what had been sent over it and not received is lost."""
        self.breaks = 0
        """Connections that stood, and stand no more."""
        self._stands = False

    def look(self, now: float) -> None:
        """Takes note of what has happened, and connects again where it is time."""
        for event, value in self._monitor.read():
            if event == zmq.EVENT_DISCONNECTED:
                self.breaks += self._stands
                self._stands = False
                continue
            self._stands = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._failed = None
            elif self._failed is None or event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:  # which says less than what is known
                self._failed = (event, value)
            if event in (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL):
                self._again = self._again or now + AGAIN_S
        if self._failed is not None and not self._again and self.own is not None and self.own.changed():
            self._again = now
        if self._again and now >= self._again:
            self._again = 0.0
            self._connect()

    @property
    def refused(self) -> bool:
        """True where the server has said that it does not take this client's key."""
        return self._failed is not None and self._failed[0] == zmq.EVENT_HANDSHAKE_FAILED_AUTH

    @property
    def trouble(self) -> str:
        """Why there is no connection, as a sentence without its end; "" where no handshake has failed since the last that has not."""
        if self._failed is None:
            return ""
        own = self.own
        if own is None:
            return (
                "it ends each connection during the handshake, as a server that expects keys does: give this client a key file of `memsvc keys` "
                "(keys=FILE, or MEMSVC_KEYS)"
            )
        who = f"key {own.name!r} (role {own.role}, {own.path})"
        if self.refused:
            return f"it refuses {who}: its `allowed` does not list that key; add one with `memsvc keys DIR --add`, or use another file"
        if self._failed == (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, _MISMATCH):
            return f"it has no keys, and this client uses {who}: leave the keys out, or set server.keys there"
        # A server without keys says nothing more either, where it ends the handshake before this side has read what it is.
        return (
            f"it ends each connection during the handshake with {who}, as a server of another key does, or one without keys: take the file that was "
            f"made with its server.key, or leave the keys out"
        )

    def close(self) -> None:
        """Before the socket is closed."""
        self._monitor.close()

    def _connect(self) -> None:
        with contextlib.suppress(MemsvcError):  # a file that cannot be read now: with what it said before
            self.own = self._read_own()
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disconnect(self._address)
        curve_client(self._socket, self.own)
        with contextlib.suppress(zmq.ZMQError):
            self._socket.connect(self._address)
            self.renewed += 1
