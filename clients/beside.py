"""Side: a client's connection to the socket beside a server's addresses, over which memory is handed from process to process of one host.

Packets, one each way: a JSON object, with descriptors. A request has "ask"; an answer that refuses it has "error" {code, message}.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

from memsvc_proto.errors import MemsvcError, ProtocolError, Unreachable, from_code

PACKET_BYTES = 1 << 14
MOST_FDS = 8

_UCRED = struct.Struct("3i")


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process at the other end of a unix socket, as the kernel knows them."""
    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


def read_packet(connection: socket.socket) -> tuple[bytes, list[int]]:
    """One packet and its descriptors, which are the caller's; b"" at the end of the connection. ProtocolError (nothing is left open) where the packet
    or its descriptors are too many.
    """
    room = socket.CMSG_SPACE(MOST_FDS * 4)
    data, ancillary, flags, _ = connection.recvmsg(PACKET_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, raw in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += [fd for (fd,) in struct.iter_unpack("i", raw[: len(raw) // 4 * 4])]
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(fds)
        raise ProtocolError(f"a packet has at most {PACKET_BYTES} bytes and {MOST_FDS} descriptors")
    return data, fds


def close_all(fds: Sequence[int]) -> None:
    """Closes descriptors."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


class Side:
    """One connection; one thread at a time uses it. The server knows by its end that this process has gone."""

    def __init__(self, connection: socket.socket, where: str) -> None:
        self.socket = connection
        self._where = where

    @classmethod
    def connect(cls, name: str, timeout: float = 5.0) -> Side | None:
        """The connection to the socket that a WELCOME names `beside`; None where this process cannot reach it, since it is of another host, network
        namespace or user, or not on Linux. Waits at most `timeout` seconds, here and for each answer.
        """
        if not name or not hasattr(socket, "SO_PEERCRED"):
            return None
        connection = None
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
            connection.settimeout(timeout)
            connection.connect(f"\0{name}")
            if peer_of(connection)[1] == os.geteuid():
                return cls(connection, name)
        except OSError:
            pass
        if connection is not None:
            connection.close()
        return None

    def ask(self, meta: dict[str, Any], fds: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        """Sends a request and waits for its answer, whose descriptors are the caller's to close; `fds` stay the caller's.

        Raises the server's refusal, ProtocolError, or Unreachable where no answer comes.
        """
        packet = json.dumps(meta, separators=(",", ":")).encode()
        try:
            socket.send_fds(self.socket, [packet], list(fds))
            raw, got = read_packet(self.socket)
        except OSError as error:
            raise Unreachable(f"the server's side socket {self._where!r} does not answer: {error}", address=self._where, timeout=0) from None
        if not raw:
            raise Unreachable(f"the server has closed the side socket {self._where!r}", address=self._where, timeout=0)
        try:
            answer = json.loads(raw)
            refused = answer.get("error")
            if refused is not None:
                raise from_code(str(refused.get("code")), str(refused.get("message")))
            return answer, got
        except (ValueError, AttributeError):
            close_all(got)
            raise ProtocolError(f"the server's side socket {self._where!r} answered what is no JSON object") from None
        except MemsvcError:
            close_all(got)
            raise

    def fileno(self) -> int:
        """The socket's descriptor; -1 when closed."""
        return self.socket.fileno()

    def close(self) -> None:
        """Ends the connection; idempotent."""
        self.socket.close()
