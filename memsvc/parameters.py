"""The newest parameters of every topic."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sized
from typing import Any

from memsvc_proto.errors import ProtocolError

MAX_TOPICS = 256
MAX_TOPIC_CHARACTERS = 200


def checked_topic(value: Any) -> str:
    """A topic as it came on the wire, or ProtocolError."""
    if not isinstance(value, str) or len(value) > MAX_TOPIC_CHARACTERS:
        raise ProtocolError(f"a topic is a string of at most {MAX_TOPIC_CHARACTERS} characters, got {str(value)[:40]!r}")
    return value


class Parameters:
    """Per topic the newest version and its blob; older ones are forgotten. Thread-safe.

    Versions only grow, also over a restart: the first is above every version that any client has reported (DEFINITIONS 10).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._floor: dict[str, int] = {}
        self._newest: dict[str, tuple[int, Sized]] = {}

    def reported(self, versions: Mapping[str, int]) -> None:
        """A client has seen these versions, perhaps of an earlier server."""
        with self._lock:
            for topic, version in versions.items():
                if topic in self._floor or len(self._floor) < MAX_TOPICS:
                    self._floor[topic] = max(self._floor.get(topic, 0), version)

    def publish(self, topic: str, blob: Sized) -> int:
        """Keeps `blob` (bytes, or lending.py's Held) as the newest; returns its version. ProtocolError where there are too many topics already."""
        with self._lock:
            if topic not in self._newest and len(self._newest) >= MAX_TOPICS:
                raise ProtocolError(f"there are {MAX_TOPICS} topics already; publish to one of them instead of {topic!r}")
            version = self._floor.get(topic, 0) + 1
            self._floor[topic] = version
            self._newest[topic] = (version, blob)
            return version

    def newest(self, topic: str) -> tuple[int, Any]:
        """(version, blob); (0, b"") before the first publication."""
        with self._lock:
            return self._newest.get(topic, (0, b""))

    def versions(self) -> dict[str, int]:
        """{topic: newest version} of what can be fetched here."""
        with self._lock:
            return {topic: version for topic, (version, _) in self._newest.items()}

    def stats(self) -> dict[str, dict[str, int]]:
        """{topic: {"version", "bytes"}}."""
        with self._lock:
            return {topic: {"version": version, "bytes": len(blob)} for topic, (version, blob) in self._newest.items()}
