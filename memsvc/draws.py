"""The draw ROUTER, where learners ask for batches, and the XPUB of parameter notices; one thread serves both and gives the engine its ticks."""

from __future__ import annotations

import contextlib
import logging
from collections import deque

import zmq
from memsvc_proto import wire
from memsvc_proto.wire import Kind, Message

from .address import Address
from .binding import bind, remove_ipc
from .engine import TICK_S, Engine
from .router import Router

log = logging.getLogger("memsvc")


class Draws(Router):
    """Learners' side. Notices are queued by `notice` from any thread and sent by this one."""

    turn_s = TICK_S

    def __init__(self, engine: Engine, context: zmq.Context[zmq.Socket[bytes]], draw: Address, params: Address) -> None:
        """Raises ConfigError when an address cannot be bound."""
        self._notices: deque[tuple[str, int, int]] = deque(maxlen=1024)
        self._xpub = context.socket(zmq.XPUB)
        self._xpub.setsockopt(zmq.LINGER, 0)
        # A subscriber that does not read misses notices; the newest version is told again by every WELCOME, and fetched by number.
        self._xpub.setsockopt(zmq.SNDHWM, 1000)
        try:
            self.params = bind(self._xpub, params, "server.address (parameter notices)")
            super().__init__(engine, context, "draw", draw, "server.address (draws)")
        except BaseException:
            self._xpub.close(0)
            raise
        engine.notices.append(self.notice)

    def notice(self, topic: str, version: int, size: int) -> None:
        """Tells all subscribers of a new version."""
        self._notices.append((topic, version, size))
        self.wake()

    def beside(self) -> None:
        """Sends queued notices."""
        while self._notices:
            topic, version, size = self._notices.popleft()
            with contextlib.suppress(zmq.Again):
                frame = wire.pack(Message(Kind.NOTICE, a=version, b=size, meta={"topic": topic}))
                self._xpub.send_multipart([topic.encode(), frame], zmq.NOBLOCK)

    def _turn(self, now: float) -> None:
        with contextlib.suppress(zmq.Again):
            while True:  # subscriptions
                self._xpub.recv(zmq.NOBLOCK)
        self._engine.tick()
        super()._turn(now)

    def _close(self) -> None:
        self._xpub.close(0)
        remove_ipc(self.params)
        super()._close()
