"""Reel: the pushes of one session of an actor that are not acknowledged, in the files of its spool (volume.py)."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from memsvc_proto.wire import HEADER_BYTES
from numpy.typing import NDArray

from .volume import Note, Record, Volume, record_bytes

_log = logging.getLogger("memsvc_client")


class Reel:
    """Used by one thread at a time; `pending`, `bytes`, `damaged` and `trouble` may be read by any.

    `about` says whose they are: {"name", "session" (hex), "streams", "topic", "wire", "schema", "tables"}. `room(bytes)` is the spool's word on
    whether so many more may be written, `make` gives the next file; `path` and `limit_bytes` are the spool's, for its words.
    """

    def __init__(
        self,
        about: dict[str, Any],
        volumes: list[Volume],
        room: Callable[[int], bool],
        make: Callable[[], Volume],
        file_bytes: int,
        path: str,
        limit_bytes: int,
    ) -> None:
        self.about = about
        self.last = max((volume.numbers[-1] for volume in volumes if volume.numbers), default=0)
        """The largest number in it, 0: there was none."""
        self.pending = sum(len(volume.numbers) for volume in volumes)
        """Records that are not acknowledged."""
        self.bytes = sum(volume.size for volume in volumes)
        """On the disk: files go as wholes, so acknowledged records are still among them."""
        self.damaged = sum(volume.damaged for volume in volumes)
        """Records that were found unreadable."""
        self.trouble = ""
        """Why the last record could not be written, as the system says it; "" where it could."""
        self.known = 0  # acknowledged, with all before
        self._volumes = deque(volumes)
        self._room, self._make, self._file_bytes = room, make, file_bytes
        self._path, self._full = path, f"the spool at {path} is full, which holds {limit_bytes:,} bytes (spool_bytes)"
        self._read: Volume | None = None
        self._unread: set[int] = set()  # records that were found damaged when they were read
        self.acknowledged(max((volume.acknowledged for volume in volumes), default=0))

    @property
    def first(self) -> int:
        """The oldest number that is not acknowledged; the next one where all are."""
        for volume in self._volumes:
            if volume.passed < len(volume.numbers):
                return volume.numbers[volume.passed]
        return max(self.known, self.last) + 1

    @property
    def newest_seq(self) -> int:
        """The largest seq of its pushes, 0 where there are none."""
        return max((volume.note(volume.numbers[-1]).seq for volume in self._volumes if volume.numbers), default=0)

    def append(self, number: int, seq: int, table: int, steps: int, frame: NDArray[Any]) -> bool:
        """Writes the push `number`, larger than all before, whose payload is frame[64:]; it survives the death of this process when the call returns.

        False, with nothing changed: there is no room within the spool's bound, or the file cannot be written (`trouble` says why).
        """
        size = record_bytes(frame.nbytes - HEADER_BYTES)
        if not self._room(size):
            self.trouble = ""
            return False
        try:
            if not self._volumes or self._volumes[-1].size + size > self._file_bytes:
                self._roll()
            self._volumes[-1].append(number, seq, table, steps, frame)
        except OSError as error:
            if not self.trouble:
                _log.warning("a push of actor %s could not be written to its spool: %s", self.about["name"], error)
            self.trouble = str(error)
            return False
        self.trouble = ""
        self.last = number
        self.bytes += size
        self.pending += 1
        return True

    def record(self, number: int) -> Record | None:
        """The push as it was written, in memory of its own; None where it is not here or has been damaged, which is counted."""
        for volume in self._volumes:
            if volume.numbers and volume.numbers[0] <= number <= volume.numbers[-1]:
                if self._read is not volume:
                    self._rest()
                    self._read = volume
                try:
                    found = volume.read(number)
                except OSError as error:
                    _log.warning("push %d of actor %s cannot be read from %s: %s", number, self.about["name"], volume.path, error)
                    found = None
                if found is None and number in volume.numbers and number not in self._unread:
                    self._unread.add(number)
                    self.damaged += 1
                return found
        return None

    def frame(self, number: int) -> NDArray[Any] | None:
        """The same, the frame alone: 64 free bytes, then the payload."""
        found = self.record(number)
        return None if found is None else found.frame

    def notes(self) -> Iterator[Note]:
        """What is not acknowledged, without gaps: a number whose record was damaged says nothing of itself."""
        following = self.first
        seq = 0
        for volume in self._volumes:
            for number in volume.numbers[volume.passed :]:
                for missing in range(following, number):
                    yield Note(missing, seq, 0, 0, 0, 0)
                note = volume.note(number)
                following, seq = number + 1, max(seq, note.seq)
                yield note
            if volume is not self._volumes[-1]:
                volume.rest()

    def acknowledged(self, number: int) -> None:
        """The server has everything up to this number: files of which nothing else is left go."""
        if number <= self.known:
            return
        self.known = number
        for volume in self._volumes:
            before, volume.passed = volume.passed, bisect_right(volume.numbers, number)
            self.pending -= volume.passed - before
            if volume.passed < len(volume.numbers):
                break
        while self._volumes and self._done(self._volumes[0]):
            self._drop()
        if self._volumes and self._volumes[-1].acknowledged < number:
            try:
                self._volumes[-1].mark(number)
            except OSError as error:  # what is sent again after a restart is known to the server by its number
                self.trouble = str(error)

    def why(self) -> str:
        """Why it has no room for more, in words."""
        return f"the spool at {self._path} cannot be written: {self.trouble}" if self.trouble else self._full

    def close(self) -> None:
        """Closes the files. Where something is left in them, waits until it is on the disk; else they go."""
        if self.pending:
            for volume in self._volumes:
                try:
                    volume.sync()
                except OSError as error:
                    _log.warning("the spool of actor %s may not outlive a power failure: %s", self.about["name"], error)
                volume.rest()
        else:
            self.remove()

    def remove(self) -> None:
        """Closes and deletes the files."""
        while self._volumes:
            self._drop()
        self.pending = 0

    def _done(self, volume: Volume) -> bool:
        # The file that is written to goes when it is full, or when the disk is.
        return volume.passed == len(volume.numbers) and (len(self._volumes) > 1 or volume.size >= self._file_bytes or self.trouble != "")

    def _roll(self) -> None:
        made = self._make()
        if self._volumes:
            self._volumes[-1].rest()
        made.mark(self.known)
        self._volumes.append(made)
        self.bytes += made.size
        while len(self._volumes) > 1 and self._done(self._volumes[0]):
            self._drop()

    def _drop(self) -> None:
        volume = self._volumes.popleft()
        if self._read is volume:
            self._read = None
        volume.remove()
        self.bytes -= volume.size

    def _rest(self) -> None:
        if self._read is not None and self._read is not self._volumes[-1]:
            self._read.rest()
