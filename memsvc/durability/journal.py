"""The journal's writing thread: records in the order of their reservation, group commit, and what waits until they are on disk."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from .gate import Gate
from .records import Record
from .segments import Segment, SegmentWriter

log = logging.getLogger("memsvc")

BACKLOG_BYTES = 64 << 20
"""Records that may wait for the disk; from then on acknowledgements wait, and so what clients may send is the bound."""
PROGRESS_S = 0.01
"""How often the learners' side is written down at most."""
RETRY_S = 0.25
"""How soon a disk that gave an error is tried again."""
_IDLE_S = 0.05


@dataclass(eq=False)
class Slot:
    """A record's place in the order, taken before its call is made, since what follows from the call must come behind it."""

    record: Record | None = None
    ready: bool = False
    size: int = 0
    mark: threading.Event | None = None
    """A place in the order and no record: set once all before it is on disk."""
    at: int = 0
    """Number of the last record up to here."""
    segments: list[Segment] = field(default_factory=list)
    """Of a mark: SegmentWriter.taken."""


class Journal:
    """Thread-safe. `progress`: what learners have drawn and confirmed, or b"" (Replay.progress). `last`: number of the last record that is there."""

    def __init__(self, writer: SegmentWriter, fsync_ms: int, last: int, gate: Gate, progress: Callable[[], bytes]) -> None:
        self._writer = writer
        self._fsync_s = fsync_ms / 1000
        self._gate = gate
        self._progress = progress
        self._last_progress = b""
        self._next_progress = 0.0
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._slots: deque[Slot] = deque()
        self._reserved = self._committed = 0  # slots, cancelled ones included
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._asked: list[Callable[[], None]] = []
        self._settling: deque[tuple[int, Callable[[], None]]] = deque()
        self._unsynced: list[Slot] = []
        self._unsynced_bytes = 0
        self._first_unsynced = 0.0
        self._number = last
        self._stopping = False
        self._stop = threading.Event()
        self.last = last
        self.backlog = 0
        self.trouble = ""
        """Why nothing can be written now, or ""."""
        self.counts = {"records": 0, "bytes": 0, "syncs": 0, "errors": 0}
        self._thread = threading.Thread(target=self._run, name="memsvc-journal", daemon=True)

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def reserve(self) -> Slot:
        """The next place in the order; `fill` or `cancel` must follow soon."""
        slot = Slot()
        with self._lock:
            self._slots.append(slot)
            self._reserved += 1
        return slot

    def fill(self, slot: Slot, record: Record) -> None:
        """What the call has done. The record's parts belong to the journal from now on."""
        slot.record, slot.size = record, record.bytes
        with self._work:
            self.backlog += slot.size
            slot.ready = True
            self._work.notify()

    def cancel(self, slot: Slot) -> None:
        """The call has changed nothing."""
        with self._work:
            slot.ready = True
            self._work.notify()

    def append(self, record: Record) -> None:
        """A record whose order does not matter."""
        self.fill(self.reserve(), record)

    def note(self, progress: bytes) -> None:
        """What learners have drawn and confirmed, where that is anything new."""
        if progress and progress != self._last_progress:
            self._last_progress = progress
            self.append(Record("progress", parts={"head": progress}))

    def mark(self) -> Slot:
        """A place behind all that was reserved so far; its event is set once that is on disk."""
        slot = Slot(mark=threading.Event(), ready=True)
        with self._work:
            self._slots.append(slot)
            self._reserved += 1
            self._work.notify()
        return slot

    def when_safe(self, callback: Callable[[], None]) -> None:
        """Calls back once all that was reserved so far may be acknowledged: with fsync_ms = 0 when it is on disk, on the writing thread; else
        at once, unless the disk is behind by more than fsync_ms or BACKLOG_BYTES. `callback` must not block or raise."""
        with self._lock:
            wait = self._waits() and self._committed < self._reserved
            if wait:
                self._waiting.append((self._reserved, callback))
        if not wait:
            callback()

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Calls back, on the writing thread, once what learners have confirmed so far is on disk as well; at once while the disk takes nothing, for
        draws go on then. `callback` must not block or raise."""
        with self._work:
            wait = not self.trouble and not self._stopping
            if wait:
                self._asked.append(callback)
                self._work.notify()
        if not wait:
            callback()

    def close(self, timeout_s: float) -> bool:
        """Writes what there is, syncs and ends. False: it was not done in time, or cannot be written."""
        with self._work:
            self._stopping = True
            self._stop.set()
            self._work.notify()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self.trouble and not self._slots and not self._unsynced

    def stats(self) -> dict[str, Any]:
        """Counts, and what waits."""
        return {**self.counts, "record": self.last, "backlog_bytes": self.backlog, "waiting": len(self._waiting), "trouble": self.trouble}

    def _waits(self) -> bool:
        if self._fsync_s == 0 or self.trouble or self.backlog > BACKLOG_BYTES:
            return True
        return self._first_unsynced > 0 and time.monotonic() - self._first_unsynced > self._fsync_s

    def _run(self) -> None:
        while True:
            group = self._group()
            if group is None:
                break
            try:
                self._take(group)
                self._put(group)
                if self._due():
                    self._sync()
            except (OSError, pa.ArrowException) as error:
                if not self._recover(error):
                    break
            except Exception:
                self.counts["errors"] += 1
                log.exception("the journal's thread failed")
        self._end()

    def _end(self) -> None:
        if not self.trouble:
            self._writer.roll()

    def _group(self) -> list[Slot] | None:
        # The learners' side goes behind what it follows from: it is asked for before its place is taken.
        self._note_progress()
        with self._work:
            if not (self._slots and self._slots[0].ready) and not self._asked and not self._stopping:
                self._work.wait(self._pause())
            group = []
            size = 0
            while self._slots and self._slots[0].ready and size < BACKLOG_BYTES:
                group.append(self._slots.popleft())
                size += group[-1].size
            if not group and self._stopping and not self._slots and not self._unsynced:
                return None
            return group

    def _pause(self) -> float:
        if not self._unsynced:
            return _IDLE_S
        return min(_IDLE_S, max(0.0, self._first_unsynced + self._fsync_s / 2 - time.monotonic()))

    def _note_progress(self) -> None:
        now = time.monotonic()
        with self._lock:
            asked, self._asked = self._asked, []
        if now < self._next_progress and not asked:
            return
        self._next_progress = now + PROGRESS_S
        self._gate.enter()
        try:
            self.note(self._progress())
        finally:
            self._gate.leave()
        with self._lock:
            self._settling.extend((self._reserved, callback) for callback in asked)
            calls = self._settled()
        self._call(calls)

    def _take(self, group: list[Slot]) -> None:
        # All of it counts as unsynced before any of it is written, so that an error finds it there.
        if group and not self._unsynced:
            self._first_unsynced = time.monotonic()
        self._unsynced += group
        self._unsynced_bytes += sum(slot.size for slot in group)

    def _put(self, slots: list[Slot]) -> None:
        for slot in slots:
            if slot.record is not None:
                if not slot.record.at:
                    self._number += 1
                    slot.record.at = self._number
                self._writer.append(slot.record)
                self.counts["records"] += 1
            slot.at = self._number

    def _due(self) -> bool:
        if not self._unsynced:
            return False
        if self._fsync_s == 0 or self._stopping or self._unsynced_bytes > BACKLOG_BYTES // 2:
            return True
        if any(slot.mark is not None for slot in self._unsynced):
            return True
        return time.monotonic() - self._first_unsynced >= self._fsync_s / 2  # what is left is for the disk

    def _sync(self) -> None:
        self._writer.sync()
        done, self._unsynced, self._unsynced_bytes, self._first_unsynced = self._unsynced, [], 0, 0.0
        size = sum(slot.size for slot in done)
        self.counts["syncs"] += 1
        self.counts["bytes"] += size
        self.last = self._number
        if self.trouble:
            log.warning("the journal is written again, after %s", self.trouble)
            self.trouble = ""
        with self._lock:
            self._committed += len(done)
            self.backlog -= size
            calls = []
            while self._waiting and self._waiting[0][0] <= self._committed:
                calls.append(self._waiting.popleft()[1])
            calls += self._settled()
        for slot in done:
            if slot.mark is not None:
                slot.segments = self._writer.taken()
                slot.mark.set()
        self._call(calls)

    def _settled(self) -> list[Callable[[], None]]:
        # Under the lock.
        calls = []
        while self._settling and (self._settling[0][0] <= self._committed or self.trouble):
            calls.append(self._settling.popleft()[1])
        return calls

    def _call(self, calls: list[Callable[[], None]]) -> None:
        for call in calls:
            try:
                call()
            except Exception:
                self.counts["errors"] += 1
                log.exception("an acknowledgement failed")

    def _recover(self, error: Exception) -> bool:
        # What was not synced is written again, into another file, as soon as the disk takes it. False: the server ends, and it cannot be.
        while True:
            self.counts["errors"] += 1
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            if not self.trouble:
                log.error("the journal cannot be written: %s; nothing is acknowledged until it can", reason)
            self.trouble = str(reason)
            with self._lock:
                asked, self._asked = self._asked, []
                calls = [*self._settled(), *asked]
            self._call(calls)
            self._writer.forget()
            if self._stop.wait(RETRY_S):
                return False
            try:
                self._put(self._unsynced)
                self._sync()
                return True
            except (OSError, pa.ArrowException) as again:
                error = again
