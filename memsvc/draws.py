"""The draw ROUTER, where learners ask for batches, and the XPUB of parameter notices; one thread serves both and gives the engine its ticks."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from typing import TYPE_CHECKING

import zmq
from memsvc_proto import wire
from memsvc_proto.errors import ConfigError
from memsvc_proto.wire import Kind, Message

from .address import Address
from .binding import bind, remove_ipc
from .engine import TICK_S, Engine
from .router import Router
from .turned import Turned

if TYPE_CHECKING:
    from .guard import Guard

log = logging.getLogger("memsvc")

MOST_TOPICS = 1000
"""Different subscriptions of all that listen. Clients have one, to everything; others cost memory that only the end of their connections frees."""
_HEARD = 4096
_TELL_AGAIN_S = 3.0


class Draws(Router):
    """Learners' side. Notices are queued by `notice` from any thread and sent by this one."""

    turn_s = TICK_S

    def __init__(self, engine: Engine, context: zmq.Context[zmq.Socket[bytes]], draw: Address, params: Address, guard: Guard | None = None) -> None:
        """Raises ConfigError when an address cannot be bound."""
        self._notices: deque[tuple[str, int, int]] = deque(maxlen=1024)
        self._context, self._private = context, not (guard or engine.config.server.insecure)
        self._topics = 0
        self._tell_again = math.inf
        self.params = self._listen(engine, params, guard)
        try:
            super().__init__(engine, context, "draw", draw, "server.address (draws)", guard)
        except BaseException:
            self._deafen()
            raise
        engine.notices.append(self.notice)

    def _listen(self, engine: Engine, where: Address, guard: Guard | None) -> Address:
        self._xpub = self._context.socket(zmq.XPUB)
        self._xpub.setsockopt(zmq.LINGER, 0)
        # A subscriber that does not read misses notices; the newest version is told again by every WELCOME, and fetched by number.
        self._xpub.setsockopt(zmq.SNDHWM, 1000)
        self._xpub.setsockopt(zmq.MAXMSGSIZE, 1024)
        self._subscribers = Turned(self._xpub, engine.counts, guard is not None)
        try:
            if guard is not None:
                guard.dress(self._xpub)
            return bind(self._xpub, where, "server.address (parameter notices)", private=self._private)
        except BaseException:
            self._deafen()
            raise

    def _deafen(self) -> None:
        self._subscribers.close()
        self._xpub.close(0)

    def notice(self, topic: str, version: int, size: int) -> None:
        """Tells all subscribers of a new version."""
        self._notices.append((topic, version, size))
        self.wake()

    def beside(self) -> None:
        """Sends queued notices."""
        while self._notices and not self._xpub.closed:
            topic, version, size = self._notices.popleft()
            with contextlib.suppress(zmq.Again):
                frame = wire.pack(Message(Kind.NOTICE, a=version, b=size, meta={"topic": topic}))
                self._xpub.send_multipart([topic.encode(), frame], zmq.NOBLOCK)

    def _turn(self, now: float) -> None:
        if self._xpub.closed:
            self._listen_again(now)
        else:
            self._subscribers.look(self.params)
            self._hear()
        if now >= self._tell_again:
            self._tell_again = math.inf
            for topic, newest in self._engine.parameters.stats().items():
                self.notice(topic, newest["version"], newest["bytes"])
        self._engine.tick()
        super()._turn(now)

    def _hear(self) -> None:
        with contextlib.suppress(zmq.Again):
            for _ in range(_HEARD):
                told = self._xpub.recv(zmq.NOBLOCK)
                self._topics += 1 if told[:1] == b"\1" else -1 if told[:1] == b"\0" else 0
        if self._topics > MOST_TOPICS:
            log.warning(
                "somebody subscribes to %d topics of parameter notices: all subscribers are cut off, and those that are clients return", self._topics
            )
            self._engine.counts.add("malformed")
            self._deafen()

    def _listen_again(self, now: float) -> None:
        # libzmq gives the port back a moment later.
        with contextlib.suppress(ConfigError):
            self._listen(self._engine, self.params, self._guard)
            self._topics, self._tell_again = 0, now + _TELL_AGAIN_S

    def _close(self) -> None:
        self._deafen()
        remove_ipc(self.params)
        super()._close()
