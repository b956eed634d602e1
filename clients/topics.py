"""The topics of parameters that one actor follows: its own, and those of other policies (self-play). No thread, no socket: its owner guards it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memsvc_proto.errors import ConfigError
from memsvc_proto.wire import Message

from .follower import Follower

MAX_CHARACTERS = 200
_MAX_FETCHES = 4  # at once: the server keeps no more than 8 of one client


class Topics:
    """A Follower for each topic. What is published on the actor's own topic is always listened for: its versions decide which items are stale."""

    def __init__(self, own: str, versions: dict[str, int]) -> None:
        self.own = Follower(checked(own))
        self._all = {own: self.own}
        self._followed: list[Follower] = []  # those whose parameters are fetched
        self.restarted(versions)

    def follow(self, topic: str) -> Follower:
        """The follower of `topic`, whose parameters are fetched from now on. Raises ConfigError for what is no topic."""
        follower = self._all.setdefault(checked(topic), Follower(topic))
        if follower not in self._followed:
            self._followed.append(follower)
        return follower

    def heard(self, message: Message) -> None:
        """Takes a NOTICE or PARAMS of any topic."""
        follower = self._all.get(str(message.meta.get("topic")))
        if follower is not None:
            follower.heard(message)

    def restarted(self, versions: dict[str, int]) -> None:
        """A server that has these versions answers from now on."""
        for follower in self._all.values():
            follower.restarted(versions)

    def broken(self) -> None:
        """A connection has broken: what was asked over it is asked again."""
        for follower in self._all.values():
            follower.asked_at = -1.0

    def seen(self) -> dict[str, int]:
        """{topic: newest version that is known of}, for HELLO."""
        return {topic: follower.seen for topic, follower in self._all.items()}

    def fetch(self, next_seq: Callable[[], int], now: float) -> Message | None:
        """The FETCH to send now, or None; called until it is None."""
        if sum(follower.asked_at >= 0 for follower in self._followed) >= _MAX_FETCHES:
            return None
        for follower in self._followed:
            message = follower.fetch(next_seq, now)
            if message is not None:
                return message
        return None

    def of(self, fetch: Message) -> Follower:
        """Whose FETCH this is."""
        return self._all[fetch.meta["topic"]]

    def unsent(self, fetch: Message) -> None:
        """This FETCH could not be sent."""
        self.of(fetch).asked_at = -1.0

    def stats(self) -> dict[str, Any]:
        """{topic: version last returned, newest that exists, bytes in hand}."""
        return {
            topic: {"version": follower.returned, "newest": follower.newest, "held_bytes": follower.held_bytes}
            for topic, follower in self._all.items()
        }


def checked(topic: Any) -> str:
    """The topic, or ConfigError for what is none."""
    if not isinstance(topic, str) or len(topic) > MAX_CHARACTERS:
        raise ConfigError(f"topic: expected a string of at most {MAX_CHARACTERS} characters, got {topic!r:.60}")
    return topic
