"""MemoryFile: memory without a name that two processes of one host see. One makes it and hands its descriptor over, the other checks and maps it.

The kernel frees it when the last of them has let go or died; nothing of it is ever in a file system.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np
from memsvc_proto.errors import ConfigError, ProtocolError
from numpy.typing import NDArray

_SEALS = ("F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")


def available() -> bool:
    """True where the system has such memory (Linux)."""
    return hasattr(os, "memfd_create") and all(hasattr(fcntl, name) for name in _SEALS)


def sealed(fd: int) -> os.stat_result:
    """What the system says of memory that was handed over. Raises ProtocolError unless nobody can take it away: reading what has gone would kill the
    reader.
    """
    try:
        seals, found = fcntl.fcntl(fd, fcntl.F_GET_SEALS), os.fstat(fd)
    except OSError as error:
        raise ProtocolError(f"the descriptor handed over is no memory to share: {error}") from None
    if not seals & fcntl.F_SEAL_SHRINK:
        raise ProtocolError("the memory handed over is not sealed against shrinking")
    return found


class MemoryFile:
    """Mapped memory. `bytes` is a view of all of it, u8[size]; the mapping lasts as long as that or any view of it, the descriptor until `close`."""

    def __init__(self, fd: int, size: int, writable: bool = True, touch: bool = True) -> None:
        """Maps `size` bytes of the descriptor, which is this object's from now on. Use `make` or `of`. Raises OSError where it cannot be mapped."""
        self.fd = fd
        self.size = size
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        # Populated at once: who uses it later pays for no page that is touched for the first time.
        flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if touch else 0)
        self.bytes: NDArray[np.uint8] = np.frombuffer(mmap.mmap(fd, size, flags, protection), np.uint8)

    @classmethod
    def make(cls, size: int, touch: int | None = None) -> MemoryFile:
        """New memory of zeros whose size nobody can change; its first `touch` bytes (None: all) are taken from the system now, others by `take`.
        Raises ConfigError where there is none to be had.
        """
        try:
            fd = os.memfd_create("memsvc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError) as error:
            raise ConfigError(f"memory to be shared between processes cannot be had here: {error}") from None
        try:
            os.ftruncate(fd, size)
            os.posix_fallocate(fd, 0, size if touch is None else touch)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(fd, size, touch=touch is None)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, (OSError, ValueError)):
                raise ConfigError(f"{size:,} bytes of memory to be shared between processes cannot be had: {error}") from None
            raise

    @classmethod
    def of(cls, fd: int, size: int, writable: bool = True, touch: bool = True) -> MemoryFile:
        """Maps what another process has made and handed over, and all its pages if `touch`; `fd` stays the caller's. Raises ProtocolError where it is
        not `size` bytes of memory whose maker cannot take them away again (that would kill who reads them).
        """
        found = sealed(fd).st_size
        if found != size or size <= 0:
            raise ProtocolError(f"the memory handed over has {found} bytes, {size} were announced")
        own = os.dup(fd)
        try:
            return cls(own, size, writable, touch)
        except BaseException as error:
            os.close(own)
            if isinstance(error, (OSError, ValueError)):
                raise ProtocolError(f"the memory handed over cannot be mapped: {error}") from None
            raise

    def take(self, start: int, size: int) -> None:
        """Takes a part of it from the system, where that has not been done. Raises OSError where there is no memory left."""
        os.posix_fallocate(self.fd, start, size)

    def close(self) -> None:
        """Closes the descriptor; idempotent. What is mapped stays so while it is referenced."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)
