"""Parameters of one client by memory that it shares with a server of its host; None tells its owner to use messages instead."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
from typing import Any

from memsvc_proto.errors import MemsvcError, Unreachable
from memsvc_proto.wire import Kind, Message

from .beside import Side, close_all
from .follower import Follower
from .params import Blob
from .seam import Endpoint
from .segments import SHARED_BYTES, Segments, mapped, numbers

ANSWER_S = 2.0
_AGAIN_S = 30.0

_log = logging.getLogger("memsvc_client")


class Handover:
    """Connects beside the server when something large is first published or fetched, and to another server when a WELCOME has named one. Thread-safe;
    a call waits at most ANSWER_S for the server, and one that did not answer is tried again after half a minute.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._segments = Segments()
        self._side: Side | None = None
        self._name = ""  # of the socket that was tried last
        self._again = 0.0  # when it is tried again
        self._told: set[str] = set()  # what was logged since

    def publish(self, topic: str, blob: Blob, once: str) -> int | None:
        """Writes the parameters where the server and its readers of this host see them; returns their version. None: by a message, since they are
        small, or there is no such server, or no memory, or it refuses them, or does not answer: it may have them, and knows them by `once`.
        """
        if blob.size < SHARED_BYTES or not self._reachable():
            return None
        try:
            with self._segments.lend(topic, blob.size) as segment:
                blob.write(segment.bytes)
                request = {"ask": "publish", "topic": topic, "size": blob.size, "once": once, "token": self._token()}
                answer, fds = self._ask(request, segment.fd)
            close_all(fds)
            return numbers(answer, "version")[0]
        except MemsvcError as error:
            self._tell("parameters of topic %r go to the server by messages: %s", topic, error)
            return None

    def fetch(self, fetch: Message, follower: Follower) -> Message | None:
        """The PARAMS that answers this FETCH of the follower's topic; without a body where nothing is newer than what it has. None: by a message,
        since nothing is published yet, or it is small, or there is no such server, or it has it from elsewhere.
        """
        have = max(follower.returned, follower.held)
        known = follower.newest > have or not (have or follower.newest)  # before the subscription stands, a publication may go by unheard
        if not known or 0 <= follower.newest_bytes < SHARED_BYTES or not self._reachable():
            return None
        fds: list[int] = []
        try:
            answer, fds = self._ask({"ask": "fetch", "topic": follower.topic, "newer_than": have, "token": self._token()})
            (version,) = numbers(answer, "version")
            if not fds and (version > have or not version):
                return None
            body = mapped(fds[0], *numbers(answer, "size")) if fds else b""
            return Message(Kind.PARAMS, fetch.seq, a=version, meta={"topic": follower.topic}, body=body)
        except MemsvcError as error:
            self._tell("parameters of topic %r come from the server by messages: %s", follower.topic, error)
            return None
        finally:
            close_all(fds)

    def close(self) -> None:
        """Ends the connection, and lets go of what was published; idempotent. Arrays that were handed out stay as they are."""
        side = self._side
        if side is not None:
            with contextlib.suppress(OSError):
                side.socket.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer lets go of the lock
        with self._lock:
            self._drop()
            self._again = math.inf
        self._segments.close()

    def _reachable(self) -> bool:
        name = str(getattr(self._endpoint, "beside", ""))
        with self._lock:
            if name != self._name:
                self._drop()
                self._side = Side.connect(name, ANSWER_S)
                if name and self._side is None:
                    _log.info("no memory can be shared with the server at %s: parameters travel by messages", self._endpoint)
                self._name, self._again = name, time.monotonic() + _AGAIN_S
                self._told.clear()
            elif self._side is None and name and time.monotonic() >= self._again:
                self._side = Side.connect(name, ANSWER_S)
                self._again = time.monotonic() + _AGAIN_S
            return self._side is not None

    def _token(self) -> str:
        return str(getattr(self._endpoint, "token", ""))

    def _ask(self, meta: dict[str, Any], *fds: int) -> tuple[dict[str, Any], list[int]]:
        with self._lock:
            if self._side is None:
                raise Unreachable("the connection beside the server's addresses has ended", address=str(self._endpoint), timeout=0)
            done = False
            try:
                answer = self._side.ask(meta, fds)
                done = True
                return answer
            except MemsvcError as error:
                done = not isinstance(error, Unreachable)
                raise
            finally:
                if not done:  # its answer may still come, and would be taken for the next one's
                    self._drop()

    def _tell(self, text: str, topic: str, error: MemsvcError) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.warning(text, topic, error.message)

    def _drop(self) -> None:
        side, self._side = self._side, None
        self._again = time.monotonic() + _AGAIN_S
        if side is not None:
            with contextlib.suppress(OSError):
                side.close()
