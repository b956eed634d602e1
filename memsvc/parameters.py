"""The newest parameters of every topic."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sized
from typing import Any

from memsvc_proto.errors import ProtocolError

MAX_TOPICS = 256
MAX_TOPIC_CHARACTERS = 200
_MOST_REPORTED = 1 << 60
"""No client is believed to have seen a later version: there must be room for those to come below what HELLO may say."""
_REMEMBERED = 1024


def is_text(value: str) -> bool:
    """False for what JSON can say and UTF-8 cannot: half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_topic(value: Any) -> str:
    """A topic as it came on the wire, or ProtocolError."""
    if not isinstance(value, str) or len(value) > MAX_TOPIC_CHARACTERS or not is_text(value):
        raise ProtocolError(f"a topic is a string of at most {MAX_TOPIC_CHARACTERS} characters, got {str(value)[:40]!r}")
    return value


class Whole:
    """A blob that came in a message: as it came, without a copy."""

    def __init__(self, body: memoryview) -> None:
        self._body = body

    def __len__(self) -> int:
        return self._body.nbytes

    def view(self) -> memoryview:
        """Its bytes; not to be written to."""
        return self._body


class Parameters:
    """Per topic the newest version and its blob; older ones are forgotten. Thread-safe.

    Versions only grow, also over a restart: the first is above every version that any client has reported (DEFINITIONS 10).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._floor: dict[str, int] = {}
        self._newest: dict[str, tuple[int, Sized]] = {}
        self._once: dict[tuple[str, str], int] = {}  # versions of the latest publications, by topic and their senders' marks

    def reported(self, versions: Mapping[str, int]) -> None:
        """A client has seen these versions, perhaps of an earlier server."""
        with self._lock:
            for topic, version in versions.items():
                if topic in self._floor or len(self._floor) < MAX_TOPICS:
                    self._floor[topic] = max(self._floor.get(topic, 0), min(version, _MOST_REPORTED))

    def known(self, topic: str, once: str) -> int:
        """The version of an earlier publication that had this mark, or 0: its sender, which has not heard of it, says it again."""
        with self._lock:
            return self._once.get((topic, once), 0)

    def publish(self, topic: str, blob: Sized, once: str = "") -> int:
        """Keeps `blob` (bytes, Whole, or lending.py's Held) as the newest; returns its version. ProtocolError where there are too many topics."""
        with self._lock:
            if topic not in self._newest and len(self._newest) >= MAX_TOPICS:
                raise ProtocolError(f"there are {MAX_TOPICS} topics already; publish to one of them instead of {topic!r}")
            version = self._floor.get(topic, 0) + 1
            self._floor[topic] = version
            self._newest[topic] = (version, blob)
            if once:
                self._once[topic, once] = version
                if len(self._once) > _REMEMBERED:
                    del self._once[next(iter(self._once))]
            return version

    def restored(self, topic: str, version: int, blob: Sized) -> None:
        """What was published before a restart; only before anything is published here."""
        with self._lock:
            self._floor[topic] = max(self._floor.get(topic, 0), version)
            self._newest[topic] = (version, blob)

    def floors(self) -> dict[str, int]:
        """{topic: version that the next one is above}."""
        with self._lock:
            return dict(self._floor)

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
