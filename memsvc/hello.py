"""HELLO's meta, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memsvc_proto.errors import ProtocolError

from .parameters import MAX_TOPICS, checked_topic, is_text

ROLES = ("actor", "learner", "viewer")
MAX_ENVS = 1 << 16
DEFAULT_TOPIC = "default"
MAX_PUSHES = (1 << 53) - 1
"""Largest number of a push: ACK tells it as a float64."""
_MAX_VERSION = (1 << 62) - 1
_MAX_STREAM = (1 << 28) - 1
_MAX_BATCH = (1 << 63) - 1


@dataclass(frozen=True)
class Hello:
    """Who says HELLO, and what it has seen."""

    role: str
    name: str
    host: str
    pid: int
    envs: int
    versions: dict[str, int]
    topic: str
    """An actor's."""
    session: int
    """An actor's, 0 where it does not number its pushes."""
    streams: tuple[int, ...]
    """An actor's, of its server of before."""
    first: int
    """Number of the oldest push that the actor can still send."""
    fed: int
    """Number of the newest feedback that the actor has had."""
    table: int | None
    """A learner's on its draw link, and None elsewhere."""
    batch: int


def read_hello(meta: Mapping[str, Any]) -> Hello:
    """Checks every part; ProtocolError names the wrong one."""
    role = meta.get("role")
    if role not in ROLES:
        raise ProtocolError(f"HELLO's role is one of {', '.join(ROLES)}, got {role!r:.60}")
    name = _text(meta, "name")
    if role == "actor" and not name:
        raise ProtocolError("HELLO of an actor needs a name")
    versions = meta.get("versions") or {}
    if not isinstance(versions, dict) or len(versions) > MAX_TOPICS:
        raise ProtocolError(f"HELLO's versions are an object of at most {MAX_TOPICS} topics, got {versions!r:.60}")
    for topic, version in versions.items():
        checked_topic(topic)
        _integer("versions", version, -1, _MAX_VERSION)
    envs = _integer("envs", meta.get("envs", 1), 1, MAX_ENVS) if role == "actor" else 1
    table, batch = None, 0
    if role == "learner" and meta.get("table") is not None:
        table = _integer("table", meta["table"], 0, _MAX_BATCH)
        batch = _integer("batch", meta.get("batch"), 1, _MAX_BATCH)
    return Hello(
        role=str(role),
        name=name,
        host=_text(meta, "host"),
        pid=_integer("pid", meta.get("pid", 0), 0, _MAX_VERSION),
        envs=envs,
        versions=versions,
        topic=checked_topic(meta.get("topic", DEFAULT_TOPIC)),
        session=_session(meta.get("session", "")) if role == "actor" else 0,
        streams=_streams(meta.get("streams", []), envs),
        first=_integer("first", meta.get("first", 1), 1, MAX_PUSHES),
        fed=_integer("fed", meta.get("fed", 0), 0, MAX_PUSHES),
        table=table,
        batch=batch,
    )


def _session(value: Any) -> int:
    if value == "":
        return 0
    if not isinstance(value, str) or len(value) != 16 or not set(value) <= set("0123456789abcdef") or not int(value, 16):
        raise ProtocolError(f"HELLO's session is 16 hex digits, not all 0, got {value!r:.60}")
    return int(value, 16)


def _streams(value: Any, envs: int) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) not in (0, envs):
        raise ProtocolError(f"HELLO's streams are none, or one for each of the {envs} environments, got {value!r:.60}")
    return tuple(_integer("streams", stream, 1, _MAX_STREAM) for stream in value)


def _text(meta: Mapping[str, Any], key: str) -> str:
    value = meta.get(key, "")
    if not isinstance(value, str) or len(value) > 256 or not is_text(value):
        raise ProtocolError(f"HELLO's {key} is a string of at most 256 characters, got {value!r:.60}")
    return value


def _integer(key: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ProtocolError(f"HELLO's {key}: an integer from {low} to {high} is expected, got {value!r:.60}")
    return value
