"""Learner: what a training process holds in its hands."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from memsvc_proto.errors import Closed, ConfigError, PriorityError, SchemaError, UsedAfterFork
from memsvc_proto.wire import HEADER_BYTES, Kind, Message
from numpy.typing import NDArray

from .batch import Batch
from .conversation import ASK_S, Conversation
from .ended import Ended, watch
from .link import Endpoint, endpoint_of
from .params import Params, encode
from .waiting import SLICE_S, Waiting
from .welcome import unique_name

MAX_PREFETCH = 8

_log = logging.getLogger("memsvc_client")


class Learner:
    """Draws batches of one table, sends priorities back, publishes parameters. No thread of its own: in process a call goes straight into the server.

    `table`: a name, or None where the server has one table only (UnknownTable lists those there are). `prefetch`: batches that are asked for ahead of
    their use, 0 to 8; in process it is 0. `timeout`: seconds for the handshake here (Unreachable), and the default of `sample`. `topic`: of `publish`
    and `params`.

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
    ) -> None:
        if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
            raise ConfigError(f"batch_size: expected a positive integer, got {batch_size!r}")
        if not isinstance(prefetch, (int, np.integer)) or not 0 <= prefetch <= MAX_PREFETCH:
            raise ConfigError(f"prefetch: expected an integer from 0 to {MAX_PREFETCH}, got {prefetch!r}")
        self._endpoint: Endpoint = endpoint_of(address)
        self._settings = {"table": table, "batch_size": batch_size, "prefetch": prefetch, "timeout": timeout, "topic": topic}
        self._prefetch = prefetch if self._endpoint.ahead else 0
        self._timeout = timeout
        self._topic = topic
        self._asked_first = 0.0
        self._closing = threading.Lock()
        self.name = unique_name("learner")
        self.batch_size = batch_size
        self._talk: Any = Conversation(self._endpoint, self.name, table, batch_size, topic, timeout)
        self.table: str = self._talk.table_name
        self.columns: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = self._talk.layout.columns
        watch(self)

    def sample(self, timeout: float | None = None) -> Batch:
        """One batch, drawn by the table's rule (DEFINITIONS 7). Waits at most `timeout` seconds (default: the learner's) and logs the reason every 10
        s.

        Raises NotReady (`reason` "min_items", "stock", "empty" or "unread", `have`, `need`), Unreachable, Closed. A batch that comes too late is the
        next call's.
        """
        waiting = Waiting(f"sample() of table {self.table!r}", self._timeout if timeout is None else timeout)
        talk: Conversation = self._talk
        while True:
            with talk.turn.patient:
                wait = waiting.slice(talk.reason)
                talk.ask(max(1, self._prefetch), waiting.timeout)
                if not talk.ready:
                    talk.take(wait)
                if talk.ready:
                    batch = talk.ready.popleft()
                    talk.counts["sampled"] += 1
                    talk.ask(self._prefetch, ASK_S)
                    return batch
                talk.look_around(waiting)
                refused, talk.refused = talk.refused, None
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

        Sent at once, applied asynchronously; items that are gone meanwhile are counted as stale (`stats`). Raises SchemaError for wrong shapes or
        dtypes, and PriorityError (`.keys`) for NaN, infinite or negative priorities, after the others have been sent. Waits only while nothing can be
        sent (WindowFull).
        """
        keys, values = _keys(keys), _priorities(priorities)
        if keys.shape != values.shape or keys.ndim != 1:
            raise SchemaError(
                f"priorities: shape {list(values.shape)} for keys of shape {list(keys.shape)}; expected one for each key, both one-dimensional"
            )
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
                talk.send(Message(Kind.UPDATE, talk.next(), talk.table, b=n, body=frame[HEADER_BYTES:]), frame)
                talk.counts["updates"] += n
            talk.take(0)
        if bad is not None:
            shown = ", ".join(str(int(key)) for key in bad[:8]) + (", ..." if len(bad) > 8 else "")
            total = len(bad) + len(keys)
            raise PriorityError(f"{len(bad)} of {total} priorities are NaN, infinite or negative; only the others were sent. Keys: {shown}", keys=bad)

    def publish(self, params: Mapping[str, Any], topic: str | None = None, timeout: float = 30.0) -> int:
        """Publishes a dictionary of arrays (params.py says which) as the newest of `topic`; returns its version, which only grows.

        Raises SchemaError, naming the array, and Unreachable.
        """
        blob = encode(params)
        topic = self._topic if topic is None else topic
        talk: Conversation = self._talk

        def send(seq: int) -> None:
            talk.send(Message(Kind.PUBLISH, seq, meta={"topic": topic}, body=blob))

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
                now = time.monotonic()
                # Before the first publication its notice may be missed (the subscription may be younger), so it is asked for; the answer "none" is
                # tiny.
                fetch = follower.fetch(talk.next(), now, anyway=not follower.returned and now - self._asked_first >= SLICE_S)
                if fetch is not None:
                    self._asked_first = now
                    talk.door.send(fetch)
                if follower.returned and follower.asked_at < 0:
                    return None
                wait = waiting.slice(talk.reason)
                talk.listen(wait)
                talk.look_around(waiting)
            if wait <= 0:
                raise talk.no_params(waiting)

    def stats(self) -> dict[str, Any]:
        """Counts of this learner: batches `sampled`, `ready` and `asked` for; priorities sent (`updates`), `applied`, `stale` and `refused`;
        `params`; `errors`.
        """
        talk: Conversation = self._talk
        with talk.turn:
            talk.take(0)
            talk.listen(0)
            return {
                "name": self.name,
                "table": self.table,
                "ready": len(talk.ready),
                "ready_bytes": len(talk.ready) * talk.layout.bytes,
                "asked": len(talk.asked),
                **talk.counts,
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

    def _forked(self) -> None:
        self._talk = Ended(UsedAfterFork, f"learner {self.name!r} was made in the parent process: make a new one in the child", self._talk)
        self._closing = threading.Lock()  # a thread of the parent may hold the old one


def _reconnect(endpoint: Endpoint, settings: dict[str, Any]) -> Learner:
    return Learner(endpoint, **settings)


def _keys(value: Any) -> NDArray[np.uint64]:
    keys = _array("keys", value)
    if not keys.size:
        return keys.astype(np.uint64)
    if keys.dtype not in (np.uint64, np.int64):
        raise SchemaError(f"keys: expected uint64 (batch.keys), or int64 with the same bits, got {keys.dtype}", field="keys")
    return keys.view(np.uint64)


def _priorities(value: Any) -> NDArray[np.float64]:
    values = _array("priorities", value)
    if values.dtype.kind not in "biuf":
        raise SchemaError(f"priorities: expected real numbers, got {values.dtype}", field="priorities")
    return values.astype(np.float64, copy=False)


def _array(name: str, value: Any) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except Exception as error:
        raise SchemaError(f"{name}: {type(value).__name__} is no array for numpy: {error}", field=name) from error
