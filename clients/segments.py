"""Memory in which parameters lie on one host: how a reader holds it, and the publisher's pool, which writes again only what nobody holds.

A hold is a shared `flock` on an open file description that the server makes for each publication and hands to every reader. The kernel gives it
up when the last descriptor of it is closed, by whatever end its processes come to. The publisher's own description has no lock but while it looks
whether it could have an exclusive one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memsvc_proto.errors import ProtocolError
from memsvc_proto.wire import MAX_MESSAGE_BYTES

from .memory_file import MemoryFile, sealed

SHARED_BYTES = 1 << 16
"""Smaller parameters travel as messages: that costs less than a descriptor."""
MOST = 4
"""Segments that a publisher keeps of a topic: the newest, older ones that readers still use, and one to write."""


def hold(fd: int, size: int) -> int:
    """A new descriptor, for reading, that holds the segment until it and all its duplicates are closed. Raises ProtocolError where `fd` is not at
    least `size` bytes of memory that are there and cannot be taken away, or where it is being written.
    """
    checked(fd, size)
    own = -1
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(own, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return own
    except OSError as error:
        if own >= 0:
            os.close(own)
        raise ProtocolError(f"the memory handed over cannot be held: {error}") from None


def mapped(fd: int, size: int) -> mmap.mmap:
    """What a held segment has, to read and to write: what is written is this process's own, a copy of the page. The hold lasts as long as the
    mapping, which is as long as any view of it. `fd` stays the caller's. Raises ProtocolError as `hold`.
    """
    checked(fd, size)
    try:
        # The mapping keeps a duplicate of the descriptor, and with it the hold.
        return mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError) as error:
        raise ProtocolError(f"the memory handed over cannot be mapped: {error}") from None


def numbers(packet: Any, *names: str) -> list[int]:
    """These integers of a packet. Raises ProtocolError where one is none."""
    found = packet if isinstance(packet, dict) else {}
    for name in names:
        if isinstance(found.get(name), bool) or not isinstance(found.get(name), int):
            raise ProtocolError(f"{name}: expected an integer, got {found.get(name)!r:.60}")
    return [found[name] for name in names]


def checked(fd: int, size: int) -> None:
    """Raises ProtocolError unless the first `size` bytes of `fd` are memory that is there and that nobody can take away: reading what the system
    cannot give any more would kill the reader.
    """
    if not 0 < size <= MAX_MESSAGE_BYTES:
        raise ProtocolError(f"parameters have 1 to {MAX_MESSAGE_BYTES:,} bytes, {size:,} were announced")
    found = sealed(fd)
    if found.st_size < size or found.st_blocks * 512 < size:
        raise ProtocolError(f"the memory handed over has {min(found.st_size, found.st_blocks * 512):,} bytes, {size:,} were announced")


class Segments:
    """A publisher's pool: at most MOST segments of each topic, touched and written again. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, list[MemoryFile]] = {}
        self._lent: set[MemoryFile] = set()

    @contextmanager
    def lend(self, topic: str, size: int) -> Iterator[MemoryFile]:
        """A segment of at least `size` bytes that nobody holds, to write and to hand over meanwhile. One that is new costs a first touch (about .6 ms
        a MB); where all of the topic's are held, it is not kept. Raises ConfigError where there is no memory.
        """
        segment = self._take(topic, _capacity(size))
        done = False
        try:
            yield segment
            done = True
        finally:
            with self._lock:
                self._lent.discard(segment)
                pool = self._kept.get(topic, [])
                if not done and segment in pool:
                    pool.remove(segment)  # a server that was too slow to answer may take it yet
                kept = segment in pool
            if not kept:
                segment.close()

    def close(self) -> None:
        """Lets go of all; what readers or the server hold stays theirs."""
        with self._lock:
            for segments in self._kept.values():
                for segment in segments:
                    if segment not in self._lent:
                        segment.close()
            self._kept.clear()

    def _take(self, topic: str, capacity: int) -> MemoryFile:
        with self._lock:
            kept = self._kept.setdefault(topic, [])
            for other in [one for one in kept if one.size != capacity and one not in self._lent]:
                kept.remove(other)
                other.close()
            for segment in kept:
                if segment.size == capacity and segment not in self._lent and _unheld(segment.fd):
                    self._lent.add(segment)
                    return segment
            segment = MemoryFile.make(capacity)
            if len(kept) < MOST:
                kept.append(segment)
            self._lent.add(segment)
            return segment


def _unheld(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def _capacity(size: int) -> int:
    # Parameters that grow or shrink a little, by a name or a row, find their segments again; at most an eighth is left unused.
    step = max(mmap.PAGESIZE, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
