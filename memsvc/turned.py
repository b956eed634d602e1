"""Who was turned away while it connected: counted, and logged once a minute."""

from __future__ import annotations

import logging

import zmq
from memsvc_client.handshakes import Monitor

from .address import Address
from .seldom import Seldom
from .tally import Tally

log = logging.getLogger("memsvc")


class Turned:
    """The failed handshakes of one socket, for its thread. An unknown key is the guard's to tell of (guard.py), so it is not told of here."""

    def __init__(self, socket: zmq.Socket[bytes], counts: Tally, keyed: bool) -> None:
        """Before the socket is bound. `keyed`: its clients must show a key."""
        self._monitor = Monitor(socket)
        self._counts, self._keyed = counts, keyed
        self._seldom = Seldom()

    def look(self, where: Address) -> None:
        """Takes note of what has happened since the last time; `where`: what the socket is bound to."""
        for event, value in self._monitor.read():
            if event not in (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL):
                continue
            self._counts.add("broken_handshakes")
            more = self._seldom.due((event, value))
            if more is not None:
                log.warning("a connection to %s ended in its handshake: %s%s", where, self._why(event, value), more)

    def close(self) -> None:
        """Before the socket is closed; idempotent."""
        self._monitor.close()

    def _why(self, event: int, value: int) -> str:
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return "the client has no key, and this server wants one" if self._keyed else "the client expects keys, and this server has none"
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            return "the client has the key of another server"
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            also = ", as of a session that was recorded and is played again" if self._keyed else ""
            return f"what it sent is no part of this handshake{also} (libzmq's {value:#x})"
        return "it left, or was too slow" if self._keyed else "it left, was too slow, or expects keys, which this server has not"
