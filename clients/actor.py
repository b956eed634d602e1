"""Actor: what a process that plays holds in its hands."""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from memsvc_core import Memory
from memsvc_proto.errors import Closed, ConfigError, MemsvcError, SchemaError, UsedAfterFork, WindowFull
from numpy.typing import NDArray

from .ended import Ended, watch
from .endpoint import endpoint_of
from .follower import Follower
from .given import version_of
from .handover import Handover
from .params import Params
from .pusher import Pusher, Unsent
from .seam import Endpoint, Link
from .spool import Spool
from .topics import checked
from .welcome import greet, hello_message, unique_name


class Actor:
    """Records steps in a local memory (DEFINITIONS 1 to 7, stage one), from which a background thread sends what the server wants.

    Schema and table settings come from the server. `name`: a new actor of the same name replaces its predecessor; default: host, pid and a counter.
    `envs`: environments, each a stream of its own. `timeout`: seconds for the handshake here (Unreachable), and the longest that `add` waits for room
    (WindowFull). `window_bytes`: most that is sent without an acknowledgement; `message_bytes`: size of a full message; `topic`: of the parameters
    that choose its actions (`params` can follow others too): by its newest version the staleness of this actor's steps is judged (DEFINITIONS 10).
    `seed`: of the draws, by default from the system. `keys`: the key file, for a server that asks for one (ZmqEndpoint).

    `spool`: a folder of this actor alone, made if it is missing, in which its pushes lie until they are acknowledged, at most `spool_bytes` of them
    (then `add` waits as with a full window): so outages of the server, and this process's death, cost nothing that was pushed. What an earlier actor
    has left there is sent first, in the background, under its own name and session. ConfigError where another actor uses the folder, where it cannot
    be written to, or where what is in it does not fit the server's schema and tables (nothing is deleted).

    Threads may share an actor. After a fork every call in the child but `close` raises UsedAfterFork: make a new one there. A pickled actor is its
    address and settings; unpickling connects at once, under a name of its own.
    """

    def __init__(
        self,
        address: str | Endpoint,
        name: str | None = None,
        envs: int = 1,
        timeout: float = 30.0,
        window_bytes: int = 32 << 20,
        message_bytes: int = 1_000_000,
        topic: str = "default",
        seed: int | None = None,
        keys: str | os.PathLike[str] | None = None,
        spool: str | os.PathLike[str] | None = None,
        spool_bytes: int = 1 << 30,
    ) -> None:
        sizes = (("window_bytes", window_bytes, 1), ("message_bytes", message_bytes, 1024), ("spool_bytes", spool_bytes, 1 << 16))
        for setting, value, least in (("envs", envs, 1), *sizes):
            if not isinstance(value, (int, np.integer)) or value < least:
                raise ConfigError(f"{setting}: expected an integer of at least {least}, got {value!r}")
        self._endpoint: Endpoint = endpoint_of(address, keys)
        self._settings = {"envs": envs, "timeout": timeout, "window_bytes": window_bytes, "message_bytes": message_bytes, "topic": topic}
        self._settings |= {"spool": spool, "spool_bytes": spool_bytes}
        self._named = name
        if name is not None and (not isinstance(name, str) or not 0 < len(name) <= 256):
            raise ConfigError(f"name: expected a string of 1 to 256 characters, got {name!r:.60}")
        self.name = unique_name("actor") if name is None else name
        self._timeout = timeout
        self._version = -1
        self._closing = threading.Lock()
        self._unsent: Unsent | None = None
        kept = None if spool is None else Spool(spool, spool_bytes, self.name)
        link: Link | None = None
        try:
            link = self._endpoint.connect("door")
            session = f"{secrets.randbits(64) or 1:016x}"
            hello = hello_message(1, "actor", self.name, envs, topic=checked(topic), session=session, streams=[], first=1, fed=0)
            welcome = greet(link, hello, timeout, str(self._endpoint))
            if kept is not None:
                kept.check(welcome.lasting(), str(self._endpoint))
            self._weighted = any(settings["actor"].get("episode_weights") for settings in welcome.tables)
            memory = Memory(welcome.schema, welcome.specs, welcome.streams, int.from_bytes(os.urandom(8), "little") if seed is None else seed)
        except BaseException:
            if link is not None:
                link.close()
            if kept is not None:
                kept.close()
            raise
        this = weakref.ref(self)

        def failed(error: MemsvcError) -> None:
            actor = this()
            if actor is not None:
                actor._end(type(error), error.message)

        self._memory: Any = memory
        self._pusher: Any = Pusher(
            link,
            memory,
            welcome,
            Handover(self._endpoint),
            name=self.name,
            envs=envs,
            where=str(self._endpoint),
            topic=topic,
            window_bytes=window_bytes,
            message_bytes=message_bytes,
            on_failure=failed,
            session=session,
            spool=kept,
        )
        # An actor that is dropped, or left open at the end of the program, still sends what it has.
        self._finalizer = weakref.finalize(self, self._pusher.close, 2.0)
        watch(self)

    def add(self, *, env: int = 0, priority: float | None = None, version: int | None = None, **step: Any) -> None:
        """Appends one step to the episode of `env`. Keywords are the schema's fields: arrays of its dtype and shape, or scalars for 0-d fields;
        copied here.

        `priority` is that of the item which begins at this step (priority.source = "given"). `version`: of the parameters that chose the action, by
        default the one of the actor's own topic that was last returned by `params`; -1 before the first. Raises SchemaError, PriorityError,
        WindowFull (after the actor's timeout), Closed; a refused step changes nothing.

        Costs a few microseconds. Waits only while the memory is full of steps that the server has not taken (`select = "all"`), while actors are
        further ahead of the learners than the rate limiter lets them (DEFINITIONS 9), or while a full table with when_full = "block" has no room:
        WindowFull then tells `table`, `ahead` (items by which actors are ahead) and `setting`.
        """
        known = self._version if version is None else version_of("version", version)
        try:
            self._memory.add(env, step, priority, known)
        except WindowFull as full:
            memory = self._memory
            self._pusher.wait_room(self._timeout, lambda: memory.add(env, step, priority, known), full)
        pusher = self._pusher
        pusher.count += 1
        if pusher.count >= pusher.due:
            pusher.wake()

    def add_batch(
        self,
        *,
        env: Sequence[int] | NDArray[Any] | None = None,
        active: Sequence[bool] | NDArray[np.bool_] | None = None,
        terminated: Sequence[bool] | NDArray[np.bool_] | None = None,
        truncated: Sequence[bool] | NDArray[np.bool_] | None = None,
        final: Mapping[str, Any] | None = None,
        priority: Any = None,
        version: int | None = None,
        **step: Any,
    ) -> None:
        """One step of each of n environments: arrays [n, ...]; then ends the episodes of those that are `terminated` or `truncated` (bool[n]).

        `env`: ids of the n environments, default 0 .. n-1. `active` (bool[n]): rows that are False are left out (Gymnasium's next-step autoreset
        gives one after each end). `final`: arrays [n, ...] with the final observation (and value) of the rows that are done; other rows are not read.
        `priority`: float64[n]. Errors and waiting as in `add`; all rows are checked before the first is stored, and one call may add its n steps
        where one is allowed. An episode with a weight of its own ends by `end_episode`.
        """
        arguments = (
            _integers("env", env),
            _booleans("active", active),
            step,
            None if priority is None else np.asarray(priority, np.float64),
            self._version if version is None else version_of("version", version),
            _booleans("terminated", terminated),
            _booleans("truncated", truncated),
            final,
        )
        try:
            self._memory.add_batch(*arguments)
        except WindowFull as full:
            memory = self._memory
            self._pusher.wait_room(self._timeout, lambda: memory.add_batch(*arguments), full)
        self._pusher.count += len(next(iter(step.values()))) - 1
        self._pusher.ended()

    def end_episode(self, terminated: bool, env: int = 0, final: Mapping[str, Any] | None = None, weight: float = 1.0) -> None:
        """Ends the episode of `env`: terminated, else truncated (DEFINITIONS 1). `final`: the fields known of the observation after the last step.

        A truncated episode needs those that are used (`next`, and `value` for returns): SchemaError says which. An episode without a step: nothing
        happens. Never waits.

        `weight`: g >= 0, for tables with actor.episode_weights (ConfigError where there is none). An item that begins at step t of the episode, and
        has been drawn n times, is drawn in proportion to w = g * kappa^t * decay^n * p^alpha, with kappa = actor.step_discount, decay =
        priority.decay, p its priority and alpha = priority.exponent. Until its end an episode has g = 1.
        """
        if weight != 1.0 and not self._weighted:
            raise ConfigError(f"weight = {weight!r}: no table has actor.episode_weights = true; set it there, or leave the weight out", weight=weight)
        self._memory.end(env, bool(terminated), final, weight)
        self._pusher.ended()

    def flush(self, timeout: float = 30.0) -> None:
        """Waits until the server has acknowledged everything that is final (`select = "all"`), and the current totals of tables with caches; with a
        spool, also what earlier actors have left there.

        Raises Unreachable, Closed, and WindowFull where a table with when_full = "block" has had no room for it. What is not final yet (the last n-1
        steps of an unfinished episode) is sent when it is.
        """
        self._pusher.flush(timeout)

    def params(self, timeout: float = 10.0, topic: str | None = None) -> Params | None:
        """The newest parameters published on `topic`, or None at once when nothing is newer than what was last returned of it (to any thread).

        `topic`: None is the actor's own. Others are those of further policies (self-play: "opponent"), each followed for itself. Steps added from
        now on carry the version returned of the actor's own topic; other topics' versions never do, unless `add(..., version=v)` says so.

        Only before the first parameters of a topic have come it waits: then NotReady (nothing published yet) or Unreachable end it. After the first
        call new parameters of the topic are fetched in the background, so later calls do not wait. Raises ConfigError for what is no topic.
        """
        blob = self._pusher.newest(timeout, topic)
        if blob is None:
            return None
        if topic is None or topic == self._settings["topic"]:
            self._version = max(self._version, blob[0])
        return Follower.read(blob)

    def stats(self) -> dict[str, Any]:
        """Bytes and counts of every queue: `memory` (memsvc_core.Memory.stats), `window`, `pushes` by table, `outbox` (its pushes:
        sent = acknowledged + pending + refused + lost, and `gone` of those acknowledged), `params` (of the own topic), `topics` (of others),
        `silent_s` since the server was heard, `transport` as in Learner.stats; `spool` where there is one (Spool.stats).
        """
        return {"name": self.name, "memory": self._memory.stats(), **self._pusher.stats()}

    def close(self, timeout: float = 2.0) -> Unsent:
        """Sends what is left within `timeout` seconds, then ends; idempotent. Returns, and logs, what was not sent or not acknowledged.

        Steps of unfinished episodes whose items are not final yet are no items: they are not counted. Calls that wait in other threads end with
        Closed. In a forked child it only lets go.
        """
        with self._closing:
            if self._unsent is None:
                self._finalizer.detach()
                pusher = self._pusher
                self._end(Closed, f"actor {self.name!r} is closed")
                self._pusher = Ended(Closed, f"actor {self.name!r} is closed")
                self._unsent = Unsent(0, 0) if isinstance(pusher, Ended) else pusher.close(timeout)
            return self._unsent

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return _reconnect, (self._endpoint, self._named, self._settings)

    def _end(self, error: type[MemsvcError], message: str) -> None:
        self._memory = Ended(error, message, (self._memory, self._pusher))

    def _forked(self) -> None:
        message = f"actor {self.name!r} was made in the parent process: make a new one in the child"
        self._end(UsedAfterFork, message)
        self._pusher = Ended(UsedAfterFork, message)
        self._closing = threading.Lock()  # a thread of the parent may hold the old one


def _reconnect(endpoint: Endpoint, name: str | None, settings: dict[str, Any]) -> Actor:
    # Two actors of one name would replace each other in turn.
    return Actor(endpoint, name=None if name is None else unique_name(name), **settings)


def _booleans(name: str, value: Any) -> NDArray[np.bool_] | None:
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype != np.bool_:
        raise SchemaError(f"{name}: expected bool, got {array.dtype}", field=name)
    return array


def _integers(name: str, value: Any) -> NDArray[np.int64] | None:
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise SchemaError(f"{name}: expected integers, got {array.dtype}", field=name)
    return array.astype(np.int64)
