"""PUBLISH and FETCH: parameters from learners to whoever follows them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from typing import Any

from memsvc_proto.errors import ProtocolError
from memsvc_proto.parts import WHOLE_BYTES
from memsvc_proto.wire import Kind, Message

from .keeping import WhenKept
from .parameters import Parameters, Whole, checked_topic
from .peer import Peer
from .table import MAX_IN_FLIGHT

Notice = Callable[[str, int, int], None]
"""(topic, version, bytes of the blob): called after each publication, from any thread; must not block."""


class Publishing:
    """Thread-safe. The core learns of a version before anybody is told of it: items are stale from then on (DEFINITIONS 10)."""

    def __init__(self, replay: Any, parameters: Parameters, notices: list[Notice], when_kept: WhenKept) -> None:
        self._replay = replay
        self._parameters = parameters
        self._notices = notices
        self._when_kept = when_kept
        self._lock = threading.Lock()  # versions reach the core in their order

    def publish(self, peer: Peer, message: Message) -> None:
        """Keeps the newest parameters of a topic, and tells everybody their version."""
        topic = checked_topic(message.meta.get("topic", ""))
        once = str(message.meta.get("once") or "")[:64]
        body = message.body
        version = self.keep(topic, Whole(body) if isinstance(body, memoryview) and body.nbytes > WHOLE_BYTES else bytes(body), once)
        self._when_kept(topic, version, lambda: peer.send(Message(Kind.PUBLISHED, message.seq, a=version)))

    def keep(self, topic: str, blob: Sized, once: str = "") -> int:
        """Keeps a blob (bytes, or lending.py's Held) as the newest of its topic, tells everybody, and returns its version; of a
        publication that is said again (`once` is its sender's mark) the version that it has. Raises ProtocolError where there are too many topics.
        """
        with self._lock:
            known = self._parameters.known(topic, once)
            if known:
                return known
            version = self._parameters.publish(topic, blob, once)
            self._replay.publish(topic, version)
        for notice in list(self._notices):
            notice(topic, version, len(blob))
        return version

    def remind(self, topic: str) -> None:
        """Tells the core the newest version of a topic, for an actor that has just joined."""
        with self._lock:
            version = self._parameters.newest(topic)[0]
            if version:
                self._replay.publish(topic, version)

    def fetch(self, peer: Peer, message: Message) -> None:
        """Answers a FETCH, at once or as soon as what was sent before has left. ProtocolError: too many wait."""
        topic = checked_topic(message.meta.get("topic", ""))
        if topic not in peer.fetches and len(peer.fetches) >= MAX_IN_FLIGHT:
            raise ProtocolError(f"{len(peer.fetches)} FETCH requests of this client wait already: read the answers first")
        peer.fetches[topic] = message.seq
        self._answer(peer, topic)

    def answer(self, peer: Peer) -> None:
        """Answers what waits, where it can."""
        for topic in list(peer.fetches):
            self._answer(peer, topic)

    def _answer(self, peer: Peer, topic: str) -> None:
        # Parameters are large: while earlier ones have not left, the request waits, and is answered with what is newest then.
        if peer.in_flight() >= 2:
            return
        seq = peer.fetches.pop(topic, None)
        if seq is None:
            return
        version, blob = self._parameters.newest(topic)
        body = blob if isinstance(blob, bytes) else blob.view()
        peer.send(Message(Kind.PARAMS, seq, a=version, meta={"topic": topic}, body=body))
