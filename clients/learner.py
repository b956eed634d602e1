"""Learner: what a training process holds in its hands."""

from __future__ import annotations

import copy
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from memsvc_proto.errors import Closed, ConfigError, PriorityError, SchemaError, UsedAfterFork
from memsvc_proto.parts import WHOLE_BYTES
from memsvc_proto.wire import HEADER_BYTES, MAX_KEYS, MAX_MESSAGE_BYTES, Kind, Message
from numpy.typing import NDArray

from .batch import Batch, Layout
from .conversation import ASK_S, Conversation
from .ended import Ended, watch
from .endpoint import endpoint_of
from .given import keys_of, priorities_of, version_of
from .params import Blob, Params
from .seam import Endpoint
from .waiting import Waiting
from .welcome import unique_name

MAX_PREFETCH = 8

_log = logging.getLogger("memsvc_client")


class Learner:
    """Draws batches of one table, sends priorities back, publishes parameters. No thread of its own: in process a call goes straight into the server.

    `table`: a name, or None where the server has one table only (UnknownTable lists those there are). `prefetch`: batches that are asked for ahead of
    their use, 0 to 8; in process it is 0. `timeout`: seconds for the handshake here (Unreachable), and the default of `sample`. `topic`: of `publish`
    and `params`. `copy`: for who keeps many batches: each gets memory of its own, where it would else be a view of memory shared with a server of the
    same host (a few are; further ones are copied by themselves, so a batch never changes under its owner). `keys`: the key file, for a server that
    asks for one (ZmqEndpoint).

    Threads may share a learner; a waiting call holds up nobody. After a fork every call in the child but `close` raises UsedAfterFork: make a new one
    there. A pickled learner is its address and settings; unpickling connects at once.
    """

    def __init__(
        self,
        address: str | Endpoint,
        table: str | None = None,
        batch_size: int = 256,
        prefetch: int = 2,
        timeout: float = 30.0,
        topic: str = "default",
        copy: bool = False,
        keys: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
            raise ConfigError(f"batch_size: expected a positive integer, got {batch_size!r}")
        if not isinstance(prefetch, (int, np.integer)) or not 0 <= prefetch <= MAX_PREFETCH:
            raise ConfigError(f"prefetch: expected an integer from 0 to {MAX_PREFETCH}, got {prefetch!r}")
        self._endpoint: Endpoint = endpoint_of(address, keys)
        self._settings = {"table": table, "batch_size": batch_size, "prefetch": prefetch, "timeout": timeout, "topic": topic, "copy": copy}
        self._prefetch = prefetch if self._endpoint.ahead else 0
        self._timeout = timeout
        self._copy = copy
        self._topic = topic
        self._closing = threading.Lock()
        self.name = unique_name("learner")
        self.batch_size = batch_size
        self._talk: Any = Conversation(self._endpoint, self.name, table, batch_size, self._prefetch, topic, timeout)
        self.table: str = self._talk.table_name
        self.columns: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = self._talk.layout.columns
        watch(self)

    def sample(self, timeout: float | None = None, min_version: int | None = None) -> Batch:
        """One batch, drawn by the table's rule (DEFINITIONS 7). Waits at most `timeout` seconds (default: the learner's) and logs the reason every 10
        s.

        `min_version`, only where actor.select = "all": draws from the items whose version is at least that; probabilities, N and weights are those
        among them. Asked for anew, never a batch that was prefetched without it: those are kept for later calls.

        Where limits.max_staleness bounds the age of items, a batch that was prefetched before a newer version of the learner's topic, and is too
        stale for that, is not returned.

        Raises NotReady (`reason`, `have`, `need`), Unreachable, Closed, ConfigError where the table's limits do not allow such a batch. The message
        says why none came: "min_items", "stock", "empty", "few", "unread"; "limiter" (learners are ahead of the actors: samples_per_insert),
        "stale" (all items are), "short" (all episodes are), "version" (none has min_version yet). A batch that comes too late is the next call's.
        """
        waiting = Waiting(f"sample() of table {self.table!r}", self._timeout if timeout is None else timeout)
        if min_version is not None:
            min_version = version_of("min_version", min_version)
        ahead = self._prefetch if min_version is None else 0
        talk: Conversation = self._talk
        while True:
            with talk.turn.patient:
                wait = waiting.slice(talk.reason)
                talk.ask(max(1, ahead), waiting.timeout, min_version)
                ready = talk.stock.take(min_version)
                if ready is None:
                    talk.take(wait)
                    ready = talk.stock.take(min_version)
                if ready is not None and talk.grown_stale(ready):
                    continue
                if ready is not None:
                    talk.returned(ready)
                    if ahead:
                        talk.ask(ahead, ASK_S, min_version)
                    return talk.batch_of(ready, self._copy)
                talk.look_around(waiting)
                refused = talk.stock.refused.pop(min_version, None)
            if refused is not None:
                raise refused
            if wait <= 0:
                raise talk.no_batch(waiting)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch, as `sample()`; a closed learner ends the loop."""
        try:
            return self.sample()
        except Closed:
            raise StopIteration from None

    def update_priorities(self, keys: Any, priorities: Any) -> None:
        """New raw priorities p >= 0 (DEFINITIONS 6) for the items `keys` (u64[n]; of duplicates the last counts). Both may be arrays of any framework
        that numpy reads.

        Sent at once, applied asynchronously; items that are gone meanwhile are counted as stale (`stats`). What a broken connection or a server that
        was restarted has not answered is sent again, in the same order, up to 64 MB of it. Raises SchemaError for wrong shapes or
        dtypes, and PriorityError (`.keys`) for NaN, infinite or negative priorities, after the others have been sent. Waits only while nothing can be
        sent (WindowFull).
        """
        keys = keys_of(keys)
        values = priorities_of(priorities, keys)
        bad: NDArray[np.uint64] | None = None
        if len(values) and not (values.min() >= 0 and values.max() < np.inf):
            good = np.isfinite(values) & (values >= 0)
            bad, keys, values = keys[~good], keys[good], values[good]
        talk: Conversation = self._talk
        with talk.turn:
            if len(keys):
                n = len(keys)
                frame = np.empty(HEADER_BYTES + 16 * n, np.uint8)
                frame[HEADER_BYTES : HEADER_BYTES + 8 * n].view(np.uint64)[:] = keys
                frame[HEADER_BYTES + 8 * n :].view(np.float64)[:] = values
                talk.update(frame)
                talk.counts["updates"] += n
            talk.take(0)
        if bad is not None:
            shown = ", ".join(str(int(key)) for key in bad[:8]) + (", ..." if len(bad) > 8 else "")
            total = len(bad) + len(keys)
            raise PriorityError(f"{len(bad)} of {total} priorities are NaN, infinite or negative; only the others were sent. Keys: {shown}", keys=bad)

    def get(self, keys: Any, timeout: float = 10.0) -> Batch:
        """The items `keys` (u64[n], at most 65,536) that the server holds, in the order asked for; `batch.keys` says which those are. They do not
        count as sampled.

        Items that are gone, or of which a table with caches holds no payload, are left out: the batch may be empty. Raises SchemaError, Unreachable,
        and NotReady where too many batches are on their way to this learner.
        """
        talk: Conversation = self._talk
        message = talk.answer(self._by_key(Kind.GET, keys), talk.take, Waiting("get()", timeout))
        return Layout(talk.spec, message.a).read(message)

    def delete(self, keys: Any, timeout: float = 10.0) -> tuple[int, int]:
        """Removes the items `keys` (u64[n], at most 65,536) from the table. Returns (deleted, not there). Raises SchemaError, Unreachable.

        Of caches, whose items live in the actors' memories, the priority becomes 0, there too: they are not drawn again, unless a learner gives them
        another priority.
        """
        talk: Conversation = self._talk
        message = talk.answer(self._by_key(Kind.DELETE, keys), talk.take, Waiting("delete()", timeout))
        return message.a, message.b

    def configure(self, settings: Mapping[str, Any], timeout: float = 10.0) -> dict[str, Any]:
        """Changes settings of the table while everything runs, for all of its clients, as in `configure({"priority.exponent": 0.5})`. Returns the
        table's settings, normalised, with every key. All of them change or, at an error, none.

        Keys are paths inside [[table]]: priority.exponent, importance.beta, item.gamma, returns.gamma, returns.lambda, limits.samples_per_insert,
        limits.tolerance, limits.max_staleness, limits.min_items. Exponent: at once where actor.select = "all", for caches from each actor's next
        report on. Gamma and lambda: for items made from then on. Beta: with the next batch drawn; prefetched ones were drawn before. ConfigError for
        what cannot change, and for values that are wrong; Unreachable.
        """
        talk: Conversation = self._talk
        meta = {str(path): _plain(path, value) for path, value in settings.items()}

        def send(seq: int) -> None:
            talk.send(Message(Kind.CONFIGURE, seq, talk.table, meta=meta))

        message = talk.answer(send, talk.take, Waiting("configure()", timeout))
        with talk.turn:
            return copy.deepcopy(talk.configured(message))

    def publish(self, params: Mapping[str, Any], topic: str | None = None, timeout: float = 30.0) -> int:
        """Publishes a dictionary of arrays (params.py says which) as the newest of `topic`; returns its version, which only grows. One call is one
        version, also where the connection breaks meanwhile; to a server that was restarted it is said again.

        Raises SchemaError, naming the array, and Unreachable.
        """
        blob = Blob(params)
        if blob.size > MAX_MESSAGE_BYTES - (1 << 20):
            raise SchemaError(f"parameters of {blob.size:,} bytes: one publication has at most {MAX_MESSAGE_BYTES >> 30} GiB; use several topics")
        topic = self._topic if topic is None else topic
        talk: Conversation = self._talk
        once = secrets.token_hex(8)  # said again, after a break or by another way, it is still one publication
        version = talk.handover.publish(topic, blob, once)
        if version is None:
            in_parts = blob.size > WHOLE_BYTES and talk.draw.transport != "process"
            body: Any = blob.pieces() if in_parts else blob.joined()

            def send(seq: int) -> None:
                talk.send(Message(Kind.PUBLISH, seq, meta={"topic": topic, "once": once}, body=body))

            version = talk.answer(send, talk.take, Waiting("publish()", timeout)).a
        if topic == self._topic:
            with talk.turn:
                talk.follower.notice(version)
        return version

    def params(self, timeout: float = 10.0) -> Params | None:
        """The newest parameters of the learner's topic, or None when nothing is newer than what was last returned; waits for the very first, and for
        what is there.

        Raises NotReady (nothing published yet), Unreachable.
        """
        waiting = Waiting("params()", timeout)
        talk: Conversation = self._talk
        follower = talk.follower
        while True:
            with talk.turn.patient:
                talk.listen(0)
                blob = follower.take()
                if blob is not None:
                    return follower.read(blob)
                fetch = follower.fetch(talk.next, time.monotonic())
                if fetch is not None:
                    talk.fetch(fetch)
                if follower.held:
                    continue
                if follower.returned and follower.asked_at < 0:
                    return None
                wait = waiting.slice(talk.reason)
                talk.listen(wait)
                talk.look_around(waiting)
            if wait <= 0:
                raise talk.no_params(waiting)

    def stats(self) -> dict[str, Any]:
        """Counts of this learner: batches `sampled`, `ready` and `asked` for; priorities sent (`updates`), `applied`, `stale` and `refused`,
        those without an answer yet (`pending`, with their bytes), and those that were given up since too many had none (`forgotten`): the sum of the
        latter five; `params`; `errors`; `transport`: "shared" (memory, with a server of this host), "socket" or "process".
        """
        talk: Conversation = self._talk
        with talk.turn:
            talk.mend()
            talk.take(0)
            talk.listen(0)
            return {
                "name": self.name,
                "table": self.table,
                "transport": talk.draw.transport,
                "ready": len(talk.stock.ready),
                "ready_bytes": len(talk.stock.ready) * talk.layout.bytes,
                "asked": len(talk.stock.asked),
                **talk.counts,
                "pending": talk.updates.keys,
                "pending_bytes": 16 * talk.updates.keys,
                "forgotten": talk.updates.forgotten,
                "params": {"version": talk.follower.returned, "newest": talk.follower.newest, "held_bytes": talk.follower.held_bytes},
                "malformed": sum(getattr(link, "malformed", 0) for link in (talk.door, talk.draw)),
            }

    def server_stats(self, timeout: float = 10.0) -> dict[str, Any]:
        """The server's own statistics, a JSON object. Raises Unreachable."""
        talk: Conversation = self._talk
        return talk.answer(lambda seq: talk.door.send(Message(Kind.STATS, seq)), talk.listen, Waiting("server_stats()", timeout)).meta

    def close(self, timeout: float = 2.0) -> None:
        """Ends within `timeout` seconds, after what was sent has arrived; idempotent. Calls that wait in other threads end with Closed."""
        with self._closing:
            talk = self._talk
            if isinstance(talk, Ended):
                return
            self._talk = Ended(Closed, f"learner {self.name!r} is closed")
            if not talk.close(timeout):
                _log.warning("learner %s was closed while another thread was busy with it; its links stay open until that thread is done", self.name)

    def __enter__(self) -> Learner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return _reconnect, (self._endpoint, self._settings)

    def _by_key(self, kind: Kind, keys: Any) -> Callable[[int], None]:
        talk: Conversation = self._talk
        wanted = keys_of(keys)
        if len(wanted) > MAX_KEYS:
            raise SchemaError(f"keys: {len(wanted):,} in one call, the most is {MAX_KEYS:,}: ask in parts", field="keys")

        def send(seq: int) -> None:
            talk.send(Message(kind, seq, talk.table, b=len(wanted), body=wanted.tobytes()))

        return send

    def _forked(self) -> None:
        self._talk = Ended(UsedAfterFork, f"learner {self.name!r} was made in the parent process: make a new one in the child", self._talk)
        self._closing = threading.Lock()  # a thread of the parent may hold the old one


def _reconnect(endpoint: Endpoint, settings: dict[str, Any]) -> Learner:
    return Learner(endpoint, **settings)


def _plain(path: Any, value: Any) -> Any:
    # What numpy computed, as the plain numbers of a settings file.
    plain = value.tolist() if isinstance(value, (np.generic, np.ndarray)) else list(value) if isinstance(value, tuple) else value
    try:
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: expected a number, a string or a list, got {value!r:.60} ({error})", path=str(path)) from None
    return plain
