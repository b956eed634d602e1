"""Beside: the socket beside the server's addresses, where processes of this host hand memory over; its own thread.

It has no name in any file system: an abstract one, random, which WELCOME tells. Who can connect to it runs on this kernel. For the packets see
clients/beside.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from memsvc_client import memory_file
from memsvc_client.beside import close_all, peer_of, read_packet
from memsvc_proto.errors import MemsvcError, ProtocolError, ServerError

from .tally import Tally

log = logging.getLogger("memsvc")

MOST_CALLERS = 16384
_PAUSE_S = 1.0


class Caller:
    """One connection, of a process of this host and user. Belongs to Beside's thread until it is released."""

    def __init__(self, connection: socket.socket, pid: int, pidfd: int, left: Callable[[], None] = lambda: None) -> None:
        self.socket = connection
        self.left = left
        """To be called, by any thread, once a connection that was released is closed: it counts until then."""
        self.pid = pid
        self.pidfd = pidfd
        self.released = False

    def release(self) -> tuple[socket.socket, int]:
        """The connection and the process's pidfd, for a handler that watches and closes them itself from now on; Beside sends the answer and then
        forgets them, and does not call `on_gone`.
        """
        self.released = True
        return self.socket, self.pidfd

    def close(self) -> None:
        """Closes both."""
        self.socket.close()
        close_all([self.pidfd])


Handler: TypeAlias = Callable[[Caller, dict[str, Any], list[int]], tuple[dict[str, Any], Sequence[int]]]
"""(caller, request, its descriptors) -> (answer, descriptors to send). Runs on Beside's thread, so it never blocks long. The request's descriptors
are closed when it returns (map or duplicate what is to stay); those of the answer stay its own. A MemsvcError becomes the answer."""


class Beside:
    """`handlers`, by the request's "ask", and `on_gone`, called when a caller's connection has ended or its process has died (a forked child may keep
    the connection of a dead one open): both to be filled before `start`.
    """

    def __init__(self, counts: Tally) -> None:
        """Listens, but serves from `start` on; `counts`: where "refused" and "malformed" are raised. `name` is "" where there is no such socket."""
        self.handlers: dict[str, Handler] = {}
        self.on_gone: list[Callable[[Caller], None]] = []
        self.name = ""
        self._counts = counts
        self._callers: set[Caller] = set()
        self._handed: set[Caller] = set()  # released, and not closed yet; their handlers' threads take them away
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="memsvc-beside", daemon=True)
        self._listener: socket.socket | None = None
        self._accept_again = 0.0
        try:
            if not memory_file.available():
                raise OSError("this system has no memory without a name")
            os.close(os.pidfd_open(os.getpid()))
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            name = f"memsvc-{secrets.token_hex(16)}"
            self._listener.bind(f"\0{name}")
            self._listener.listen(1024)
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._selector = selectors.DefaultSelector()
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._selector.register(self._wake, selectors.EVENT_READ)
            self.name = name
        except (OSError, AttributeError) as error:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            log.info("no memory is shared with clients of this host, sockets are used: %s", error)

    def start(self) -> None:
        """Begins to serve."""
        if self.name:
            self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the thread and closes what is open; idempotent."""
        self._stopping = True
        if not self.name:
            return
        if self._thread.ident is None:
            self._close()
            return
        with contextlib.suppress(OSError, ValueError):
            os.eventfd_write(self._wake, 1)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping:
                for key, _ in self._selector.select(None if not self._accept_again else _PAUSE_S):
                    if isinstance(key.data, Caller):
                        if key.data in self._callers:
                            self._hear(key.data, key.fd == key.data.pidfd)
                    elif key.fileobj is self._listener:
                        self._accept()
                if self._accept_again and time.monotonic() >= self._accept_again and self._listener is not None:
                    self._accept_again = 0.0
                    self._selector.register(self._listener, selectors.EVENT_READ)
        except Exception:
            log.exception("the beside thread ended")
        finally:
            self._close()

    def _accept(self) -> None:
        assert self._listener is not None
        connection = None
        try:
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            pid, uid = peer_of(connection)
            if uid != os.geteuid() or len(self._callers) + len(self._handed) >= MOST_CALLERS:
                self._counts.add("refused")
                connection.close()
                return
            caller = Caller(connection, pid, os.pidfd_open(pid))
            caller.left = partial(self._handed.discard, caller)
        except BlockingIOError:
            return
        except OSError as error:
            # It has died already, or is of another process namespace; or there are no descriptors left, which passes, and must not be asked all the
            # time meanwhile.
            if connection is not None:
                connection.close()
            elif self._listener is not None:
                log.warning("a connection beside the addresses cannot be taken: %s", error)
                self._selector.unregister(self._listener)
                self._accept_again = time.monotonic() + _PAUSE_S
            return
        self._callers.add(caller)
        self._selector.register(connection, selectors.EVENT_READ, caller)
        self._selector.register(caller.pidfd, selectors.EVENT_READ, caller)

    def _hear(self, caller: Caller, died: bool) -> None:
        try:
            if died:
                raise EOFError
            try:
                raw, fds = read_packet(caller.socket)
            except ProtocolError as error:
                self._counts.add("malformed")
                self._answer(caller, {"error": {"code": error.code, "message": error.message}}, ())
                raise EOFError from None
            if not raw:
                close_all(fds)
                raise EOFError
            try:
                self._serve(caller, raw, fds)
            finally:
                close_all(fds)
        except BlockingIOError:  # of a read: nothing was there
            return
        except (EOFError, OSError):
            self._forget(caller)

    def _serve(self, caller: Caller, raw: bytes, fds: list[int]) -> None:
        outgoing: Sequence[int] = ()
        try:
            try:
                request = json.loads(raw)
            except (ValueError, RecursionError):
                raise ProtocolError("a request is a JSON object, this is no JSON") from None
            ask = request.get("ask") if isinstance(request, dict) else None
            handler = self.handlers.get(ask) if isinstance(ask, str) else None
            if handler is None:
                raise ProtocolError(f"a request asks for one of {', '.join(self.handlers)}, got {ask!r:.60}")
            self._handed.add(caller)  # before its new owner can close it
            answer, outgoing = handler(caller, request, fds)
        except MemsvcError as error:
            self._counts.add("malformed" if isinstance(error, ProtocolError) else "refused")
            answer = {"error": {"code": error.code, "message": error.message}}
        except Exception as error:  # serving goes on whatever one request has met
            log.exception("a request beside the addresses failed")
            answer = {"error": {"code": ServerError.code, "message": f"the server failed: {type(error).__name__}: {error}"}}
        if not caller.released:
            self._handed.discard(caller)
        self._answer(caller, answer, outgoing)
        if caller.released:
            self._unregister(caller)

    def _answer(self, caller: Caller, answer: dict[str, Any], fds: Sequence[int]) -> None:
        try:
            socket.send_fds(caller.socket, [json.dumps(answer, separators=(",", ":")).encode()], list(fds))
        except OSError:  # one that does not read its answers, or has left
            if not caller.released:
                raise EOFError from None

    def _unregister(self, caller: Caller) -> None:
        self._callers.discard(caller)
        for source in (caller.socket, caller.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(source)

    def _forget(self, caller: Caller) -> None:
        self._unregister(caller)
        for gone in self.on_gone:
            try:
                gone(caller)
            except Exception:
                log.exception("what a caller has left behind could not be taken back")
        caller.close()

    def _close(self) -> None:
        for caller in list(self._callers):
            self._forget(caller)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._selector.close()
            wake, self._wake = self._wake, -1
            os.close(wake)
