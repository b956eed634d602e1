"""Segments of the journal: Arrow IPC stream files of bounded size. How they are written, and read whatever has happened to them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from .files import sync_folder
from .ranges import Keys, Ranges
from .records import Damaged, Form, Record

SEGMENT_BYTES = 256 << 20
SUFFIX = ".arrow"
_LISTS = 256
"""Pushes whose keys stay as they came."""
_MARK = 0xFFFFFFFF
_MOST_META = 1 << 14  # bytes that describe one batch; 1.5 KB in fact


@dataclass
class Segment:
    """A file of the journal."""

    path: Path
    first: int
    """Number of its first record."""
    last: int
    """Of its last one; first - 1 while there is none."""
    bytes: int = 0
    lists: list[Keys] = field(default_factory=list)
    """Keys of the newest rows in it, as they came."""
    gathered: Ranges | None = None
    """Of those before."""

    @cached_property
    def rows(self) -> Ranges:
        """The set of all of them; made once, when nothing is appended any more. O(n log n) at first."""
        self.gather()
        return self.gathered or Ranges.of(np.zeros(0, np.uint64))

    def gather(self) -> None:
        """Makes ranges of the lists: an array for each push would grow for as long as the file does."""
        lists, self.lists = self.lists, []
        if lists:
            found = Ranges.of(np.concatenate(lists))
            self.gathered = self.gathered.joined(found) if self.gathered else found


class SegmentWriter:
    """Appends records; starts a new file once one has SEGMENT_BYTES. Used by one thread; OSError: nothing of what was not synced counts."""

    def __init__(self, folder: Path, form: Form, opened: Callable[[str], None], most: int = SEGMENT_BYTES) -> None:
        """`opened` is told the name of each new file before anything of it counts."""
        self._folder = folder
        self._opened = opened
        self._form = form
        self._most = most
        self._file: pa.OSFile | None = None
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None
        self._segment: Segment | None = None
        self._safe = (0, 0, 0)  # bytes, last record and lists of keys as of the last sync
        self._closed: list[Segment] = []

    def append(self, record: Record) -> int:
        """Writes a record at its number `at`; returns the bytes written so far in this file."""
        if self._segment is None:
            self._open(record.at)
        segment, file, stream = self._segment, self._file, self._stream
        if segment is None or file is None or stream is None:
            raise OSError("the journal has no file")
        stream.write_batch(self._form.batch(record))
        segment.bytes = file.tell()
        segment.last = record.at
        keys = record.part("row_keys", np.uint64)
        if len(keys):
            segment.lists.append(keys.copy())
        return segment.bytes

    def sync(self) -> None:
        """Returns once all that was appended is on disk; a file that is full is closed."""
        if self._segment is None or self._file is None:
            return
        os.fdatasync(self._file.fileno())
        if len(self._segment.lists) >= _LISTS:
            self._segment.gather()
        self._safe = (self._segment.bytes, self._segment.last, len(self._segment.lists))
        if self._segment.bytes >= self._most:
            self.roll()

    def roll(self) -> None:
        """Closes the file; the next record begins another one. Only after a sync."""
        segment = self._segment
        if segment is None:
            return
        with contextlib.suppress(OSError, pa.ArrowException):  # the end mark is a courtesy: readers take the file's end for one
            if self._stream is not None:
                self._stream.close()
        self._shut()
        self._closed.append(segment)

    def forget(self) -> None:
        """After an error: cuts off what was not synced, and closes the file. What cannot be cut off is written again under its old numbers, and
        readers pass over numbers that they have seen."""
        segment, (size, last, keys) = self._segment, self._safe
        if segment is None:
            return
        self._shut()
        segment.bytes, segment.last, segment.lists = size, last, segment.lists[:keys]
        with contextlib.suppress(OSError):
            if segment.last < segment.first:
                segment.path.unlink(missing_ok=True)
            else:
                os.truncate(segment.path, size)
        if segment.last >= segment.first:
            self._closed.append(segment)

    def taken(self) -> list[Segment]:
        """The files closed since the last call, and a copy of what the one that is being written is now."""
        found, self._closed = self._closed, []
        if (now := self._segment) is not None and now.last >= now.first:
            found.append(Segment(now.path, now.first, now.last, now.bytes, list(now.lists), now.gathered))
        return found

    def _open(self, first: int) -> None:
        path = self._folder / f"{first:016d}{SUFFIX}"
        self._file = pa.OSFile(str(path), "wb")
        self._segment = Segment(path, first, first - 1)
        self._safe = (0, first - 1, 0)
        self._stream = pa.ipc.new_stream(self._file, self._form.schema)
        sync_folder(self._folder)
        self._opened(path.name)

    def _shut(self) -> None:
        file, self._file, self._stream, self._segment = self._file, None, None, None
        with contextlib.suppress(OSError, pa.ArrowException):
            if file is not None:
                file.close()


@dataclass
class Damage:
    """What of a segment does not verify."""

    path: Path
    offset: int
    bytes: int
    what: str
    torn: bool = False
    """The file ends in the middle of a record: it was being written when its server ended."""


class SegmentReader:
    """Reads one file: `records()` gives what has a whole frame, in order; what has not is in `damage` afterwards."""

    def __init__(self, path: Path, form: Form) -> None:
        self._form = form
        self.path = path
        self.damage: list[Damage] = []
        self.end = 0
        """Where the last whole record ends."""

    def records(self) -> Iterator[pa.RecordBatch]:
        """Unverified: see Form.number, Form.rows_of and Form.read. A batch is a view of the file, which stays mapped as long as it lives."""
        size = self.path.stat().st_size
        if not size:
            return
        with pa.memory_map(str(self.path)) as file:
            whole = file.read_buffer(size)
            at = self._after_schema(whole)
            while at < size:
                try:
                    batch, after = self._one(whole, at)
                    if not self._begins(whole, after):  # its length may be what is wrong
                        self._form.read(batch)
                except EOFError:
                    return  # the end mark
                except Damaged as error:
                    found = self._resume(whole, at + 8)
                    torn = found is None and "ends in the middle" in str(error)
                    end = size if found is None else found
                    self.damage.append(Damage(self.path, at, end - at, str(error), torn))
                    at = end
                    continue
                yield batch
                self.end = at = after

    def _after_schema(self, whole: pa.Buffer) -> int:
        try:
            reader = pa.BufferReader(whole)
            message = pa.ipc.read_message(reader)
            if message.type == "schema":
                self.end = reader.tell()
                return int(self.end)
        except (pa.ArrowException, OSError, EOFError):
            pass
        found = self._resume(whole, 0)
        end = whole.size if found is None else found
        self.damage.append(Damage(self.path, 0, end, "its beginning is no Arrow schema", torn=found is None and whole.size < 1 << 16))
        return int(end)

    def _one(self, whole: pa.Buffer, at: int) -> tuple[pa.RecordBatch, int]:
        left = whole.size - at
        if left < 8:
            raise Damaged("ends in the middle of a record")
        mark, length = (int(n) for n in np.frombuffer(whole, np.uint32, 2, at))
        if mark == _MARK and length == 0 and left == 8:
            raise EOFError
        if mark == 0 and not np.frombuffer(whole, np.uint8, left, at).any():
            raise Damaged("ends in the middle of a record: zeros follow")
        if mark != _MARK or not 0 < length < _MOST_META:
            raise Damaged("no record begins where one should")
        if length + 8 > left:
            raise Damaged("ends in the middle of a record")
        reader = pa.BufferReader(whole.slice(at))
        try:
            message = pa.ipc.read_message(reader)
            batch = pa.ipc.read_record_batch(message, self._form.schema)
        except (pa.ArrowException, OSError, EOFError, ValueError) as error:
            short = isinstance(error, (OSError, EOFError)) or "Expected to be able to read" in str(error)
            raise Damaged("ends in the middle of a record" if short else f"a record cannot be read: {error!s:.120}") from None
        return batch, at + reader.tell()

    def _begins(self, whole: pa.Buffer, at: int) -> bool:
        return whole.size - at < 8 or int(np.frombuffer(whole, np.uint32, 1, at)[0]) == _MARK

    def _resume(self, whole: pa.Buffer, start: int) -> int | None:
        # Every record begins at a multiple of 8 with the mark and a small length; the first that verifies is taken.
        start = (start + 7) & ~7
        count = (whole.size - start) // 8
        if count <= 0:
            return None
        words = np.frombuffer(whole, np.uint32, 2 * count, start).reshape(count, 2)
        for place in np.flatnonzero((words[:, 0] == _MARK) & (words[:, 1] > 0) & (words[:, 1] < _MOST_META)):
            at = start + 8 * int(place)
            with contextlib.suppress(Damaged, EOFError):
                self._form.read(self._one(whole, at)[0])
                return at
        return None
