"""Volume: one file of a spool (spool.py), and how pushes lie in it.

    file   := head  record ...        each part begins and ends at a multiple of 64, padded with zeros; everything little endian
    head   := magic "MSVSPOOL"  version u32  size u32  crc u32 of the `size` bytes of JSON at 64  zero u32  mark
    mark   := number u64 of the newest push that is acknowledged, and all before it  crc u32 of that number
    record := magic "MSR1"  crc u32 of the 56 bytes behind it  session u64  number u64  seq u64  steps u64  size u64  table u32
              crc u32 of the payload  zero u64  payload

A record is written by one call and never changed. A process that is killed leaves at most its last record short, which is passed over by the next
process (it writes files of its own): what was never whole was never sent. Anything else that is wrong fails a checksum: it is counted, passed over,
and never sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from array import array
from bisect import bisect_left
from typing import Any, NamedTuple

import numpy as np
from memsvc_proto.errors import ConfigError
from memsvc_proto.wire import ALIGN, HEADER_BYTES, align
from numpy.typing import NDArray

from .outlet import HEAD, Head

VERSION = 1
MAX_HEAD_BYTES = 1 << 26  # no description of a session is longer

_FILE_MAGIC = b"MSVSPOOL"
_HEAD = struct.Struct("<8sIIII")
_MARK = struct.Struct("<QI")
_MARK_AT = _HEAD.size
_MAGIC = b"MSR1"
_RECORD = struct.Struct("<QQQQQIIQ")  # behind magic and crc
_CHUNK_BYTES = 1 << 20
_ITEMS = Head._fields.index("items")
RECORD_BYTES = HEADER_BYTES
"""Of a record's head: as many as a message's, so what is read is a frame with its payload where it belongs."""


class Record(NamedTuple):
    """One push: what a PUSH message says, and its frame: 64 bytes that the link will fill, then the payload."""

    number: int
    seq: int
    table: int
    steps: int
    frame: NDArray[np.uint8]


class Note(NamedTuple):
    """What a record says of itself: items and bytes are its payload's."""

    number: int
    seq: int
    table: int
    steps: int
    items: int
    bytes: int


class Volume:
    """An open or resting file. One thread uses it. Raises OSError where the system refuses; whoever owns it says what that means."""

    def __init__(self, path: str, about: dict[str, Any], size: int, fd: int = -1) -> None:
        self.path = path
        self.about = about
        """What its session is: as Spool.begin wrote it."""
        self.size = size
        """Bytes that count; the next record begins here."""
        self.numbers = array("Q")
        self.offsets = array("Q")
        self.passed = 0  # of its records, those that are acknowledged
        self.acknowledged = 0  # as its mark says
        self.damaged = 0
        self._session = int(about["session"], 16)
        self._fd = fd

    @classmethod
    def create(cls, path: str, about: dict[str, Any]) -> Volume:
        """A new file, for its owner's eyes alone."""
        text = json.dumps(about, separators=(",", ":")).encode()
        head = _HEAD.pack(_FILE_MAGIC, VERSION, len(text), zlib.crc32(text), 0) + _MARK.pack(0, zlib.crc32(bytes(8)))
        raw = head.ljust(ALIGN, b"\0") + text.ljust(align(len(text)), b"\0")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, [raw], 0)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return cls(path, about, len(raw), fd)

    @classmethod
    def open(cls, path: str) -> Volume | None:
        """A file that an earlier process has left, its records found and its torn end passed over. None: it ends within its own head, so nothing was
        ever in it. Raises ConfigError for one of another version, and ValueError where its head is damaged.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            end = os.fstat(fd).st_size
            raw = os.pread(fd, ALIGN, 0)
            if len(raw) < ALIGN:
                os.close(fd)
                return None
            magic, version, size, crc, _ = _HEAD.unpack_from(raw)
            if magic == _FILE_MAGIC and version != VERSION:
                raise ConfigError(
                    f"spool: {path} has format {version}, this memsvc reads format {VERSION}: deliver it with the memsvc that wrote it, or name "
                    f"another folder",
                    path=path,
                )
            if magic == _FILE_MAGIC and size <= MAX_HEAD_BYTES and end < ALIGN + align(size):
                os.close(fd)
                return None
            about = _read_about(os.pread(fd, size, ALIGN), crc) if magic == _FILE_MAGIC and size <= MAX_HEAD_BYTES else None
            if about is None:
                raise ValueError(f"the head of {path} is damaged")
            volume = cls(path, about, ALIGN + align(size), fd)
            number, crc = _MARK.unpack_from(raw, _MARK_AT)
            if zlib.crc32(raw[_MARK_AT : _MARK_AT + 8]) == crc:
                volume.acknowledged = number
            volume._find(end)
            return volume
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(fd)
            raise

    def append(self, number: int, seq: int, table: int, steps: int, frame: NDArray[np.uint8]) -> None:
        """Writes a record; where that fails nothing has changed."""
        payload = frame[HEADER_BYTES:]
        rest = _RECORD.pack(self._session, number, seq, steps, payload.nbytes, table, zlib.crc32(payload.data), 0)
        head = _MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest
        try:
            _write(self._open(), [head, payload.data, bytes(-payload.nbytes % ALIGN)], self.size)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size)
            raise
        self.numbers.append(number)
        self.offsets.append(self.size)
        self.size += record_bytes(payload.nbytes)

    def read(self, number: int) -> Record | None:
        """The record of this number; None where it is not here, or is damaged."""
        at = bisect_left(self.numbers, number)
        if at == len(self.numbers) or self.numbers[at] != number:
            return None
        offset = self.offsets[at]
        known = self._head(os.pread(self._open(), RECORD_BYTES, offset))
        if known is None or known[1] != number:
            return None
        frame = np.empty(RECORD_BYTES + known[4], np.uint8)
        if not _read(self._open(), frame, offset) or zlib.crc32(frame[RECORD_BYTES:].data) != known[6]:
            return None
        return Record(number, known[2], known[5], known[3], frame)

    def note(self, number: int) -> Note:
        """What is known of a record that is here without reading all of it."""
        at = bisect_left(self.numbers, number)
        raw = os.pread(self._open(), RECORD_BYTES + HEAD.size, self.offsets[at])
        known = self._head(raw[:RECORD_BYTES])
        items = HEAD.unpack_from(raw, RECORD_BYTES)[_ITEMS] if known is not None and known[4] >= HEAD.size else 0
        return Note(number, 0, 0, 0, 0, 0) if known is None else Note(number, known[2], known[5], known[3], items, known[4])

    def mark(self, number: int) -> None:
        """Everything up to this number is acknowledged."""
        raw = struct.pack("<Q", number)
        os.pwrite(self._open(), raw + struct.pack("<I", zlib.crc32(raw)), _MARK_AT)
        self.acknowledged = number

    def sync(self) -> None:
        """Waits until all of it is on the disk."""
        os.fsync(self._open())

    def rest(self) -> None:
        """Closes the file until it is used again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def remove(self) -> None:
        """Closes and deletes the file."""
        self.rest()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def _open(self) -> int:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self._fd

    def _head(self, raw: bytes) -> tuple[int, ...] | None:
        # (session, number, seq, steps, size, table, crc, 0) of a record's head.
        if len(raw) < RECORD_BYTES or raw[:4] != _MAGIC or zlib.crc32(raw[8:]) != int.from_bytes(raw[4:8], "little"):
            return None
        known = _RECORD.unpack_from(raw, 8)
        return known if known[0] == self._session else None

    def _find(self, end: int) -> None:
        fd = self._fd
        while self.size < end:
            known = self._head(os.pread(fd, RECORD_BYTES, self.size))
            if known is None:
                following = self._following(self.size + ALIGN, end)
                if following < 0:
                    # A head that is not whole is the torn end; a whole one that is wrong is damage, with whatever stood behind it.
                    self.damaged += end - self.size >= RECORD_BYTES
                    break
                self.damaged += 1
                self.size = following
                continue
            if self.size + record_bytes(known[4]) > end:
                break
            if not self.numbers or known[1] > self.numbers[-1]:
                self.numbers.append(known[1])
                self.offsets.append(self.size)
            self.size += record_bytes(known[4])
        self.size = end

    def _following(self, start: int, end: int) -> int:
        # Where the next whole head is; -1: nowhere.
        for at in range(start, end, _CHUNK_BYTES):
            raw = os.pread(self._fd, _CHUNK_BYTES, at)
            words = np.frombuffer(raw, np.uint32, len(raw) // ALIGN * (ALIGN // 4)).reshape(-1, ALIGN // 4)[:, 0]
            for found in np.flatnonzero(words == int.from_bytes(_MAGIC, "little")) * ALIGN:
                if self._head(raw[found : found + RECORD_BYTES]) is not None:
                    return at + int(found)
        return -1


def record_bytes(payload: int) -> int:
    """What a payload of so many bytes takes in a file."""
    return RECORD_BYTES + align(payload)


def _read_about(text: bytes, crc: int) -> dict[str, Any] | None:
    if zlib.crc32(text) != crc:
        return None
    try:
        about = json.loads(text)
        return about if isinstance(about, dict) and int(about["session"], 16) >= 0 else None
    except (ValueError, KeyError, TypeError):
        return None


def _write(fd: int, parts: list[Any], offset: int) -> None:
    # A disk that fills up takes a part and says so only when asked for more.
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    while views:
        done = os.pwritev(fd, views, offset)
        offset += done
        while views and done >= len(views[0]):
            done -= len(views.pop(0))
        if views:
            views[0] = views[0][done:]


def _read(fd: int, frame: NDArray[np.uint8], offset: int) -> bool:
    view = memoryview(frame.data)
    while len(view):
        done = os.preadv(fd, [view], offset)
        if not done:
            return False
        offset += done
        view = view[done:]
    return True
