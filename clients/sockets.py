"""The ZMQ sockets of a client: one context a process, and how they are set."""

from __future__ import annotations

import os

import zmq
from memsvc_proto.errors import ConfigError

from .credentials import Credentials, curve_client

HEARTBEAT_MS, SILENT_MS = 5000, 20000
"""How often a peer is asked whether it is there, and the silence after which its connection is opened anew."""

_NOTICES = 1000  # parameter notices that may wait for a client that does not listen
_PROBE_S = 5  # TCP's own probes, and
_PROBES = 3  # how many may be lost

_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}


def _context() -> zmq.Context[zmq.Socket[bytes]]:
    # One per process: an I/O thread does not survive a fork, and the context of a parent is never touched in its child.
    context = _contexts.get(os.getpid())
    if context is None:
        context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, min(65535, context.get(zmq.SOCKET_LIMIT)))
        _contexts[os.getpid()] = context
    return context


def zmq_socket(kind: int, identity: bytes) -> zmq.Socket[bytes]:
    """A socket that connects to nothing yet: a DEALER known by `identity`, or a SUB of everything. What was not sent is dropped when it is closed."""
    made = _context().socket(kind)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.RECONNECT_IVL, 100)
    made.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
    # A socket with heartbeats must never have its queue full: libzmq 4.3.5 stops reading then, misses the heartbeats, opens the connection anew, and
    # ends the process when the queue is read (its issue 3937).
    if kind == zmq.DEALER:
        made.setsockopt(zmq.ROUTING_ID, identity)
        made.setsockopt(zmq.RCVHWM, 0)  # what comes was asked for, or is small and rare
        # The I/O thread answers heartbeats, so a client that is busy for minutes is no dead client, and a dead connection is opened anew.
        made.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        made.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENT_MS)
    else:
        made.setsockopt(zmq.RCVHWM, _NOTICES)
        for option, value in ((zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, _PROBE_S), (zmq.TCP_KEEPALIVE_INTVL, _PROBE_S)):
            made.setsockopt(option, value)
        made.setsockopt(zmq.TCP_KEEPALIVE_CNT, _PROBES)
        made.setsockopt(zmq.SUBSCRIBE, b"")
    return made


def connect(made: zmq.Socket[bytes], address: str, own: Credentials | None) -> None:
    """Connects behind the scenes, encrypted where there are credentials. Never waits. Raises ConfigError for what is no address."""
    if "[" in address:
        made.setsockopt(zmq.IPV6, 1)
    curve_client(made, own)
    try:
        made.connect(address)
    except zmq.ZMQError as error:
        made.close(0)
        raise ConfigError(f"address {address!r} cannot be used: {error}", address=address) from None
