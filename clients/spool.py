"""Spool: a folder in which an actor keeps what it has pushed until the server has acknowledged it, over long outages and the actor's own restart.

What was appended is in the page cache: it survives the death of the process at once. A power failure may take what the system had not written yet (it
is asked to only at `close`). The folder holds files `memsvc-N.spool` (volume.py), of mode 0600, and `memsvc.lock`; others in it are left alone.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Mapping
from typing import Any

from memsvc_proto.errors import ConfigError
from memsvc_proto.wire import VERSION

from .reel import Reel
from .volume import Volume

_MOST_FILE_BYTES = 16 << 20
_FILES = 8  # at least so many make up the bound, so that room is given back in parts
_NAME = re.compile(r"memsvc-(\d{8,})\.spool")
_SHOWN = 5  # differences that an error lists

_log = logging.getLogger("memsvc_client")
_taken: set[tuple[int, str]] = set()  # (process, folder): the system's locks do not keep a process from itself
_taking = threading.Lock()


class Spool:
    """`path`: the folder, made if it is missing (mode 0700). `limit_bytes`: bound of all its files; at the bound Reel.append takes no more.

    Raises ConfigError where the folder cannot be made or written to, where another actor uses it, and where a file has another format. Threads may
    share a spool; each Reel of it is one thread's.
    """

    def __init__(self, path: str | os.PathLike[str], limit_bytes: int, name: str) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.limit_bytes = limit_bytes
        self.delivered = 0
        """Pushes of earlier sessions that were acknowledged; whoever delivers them counts."""
        self.earlier: list[Reel] = []
        """What earlier sessions have left, oldest first."""
        self._own: list[Reel] = []
        self._damaged = 0  # files whose heads were, and records of reels that are finished
        self._key = (os.getpid(), os.path.realpath(self.path))
        self._file_bytes = min(_MOST_FILE_BYTES, limit_bytes // _FILES)
        self._serial = 0
        self._serials = threading.Lock()
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            self._lock = self._take(name)
        except OSError as error:
            raise _unusable(self.path, error) from None
        try:
            self._find()
        except BaseException as error:
            self._let_go()
            if isinstance(error, OSError):
                raise _unusable(self.path, error) from None
            raise

    def begin(self, name: str, session: str, streams: list[int], topic: str, lasting: Mapping[str, Any]) -> Reel:
        """A reel for what this process pushes. `session`: hex; `lasting`: Welcome.lasting()."""
        reel = self._reel({"name": name, "session": session, "streams": streams, "topic": topic, "wire": VERSION, **lasting}, [])
        self._own.append(reel)
        return reel

    def check(self, lasting: Mapping[str, Any], where: str) -> None:
        """Raises ConfigError, with nothing changed, where what earlier sessions have left does not fit the server's schema and tables."""
        for reel in self.earlier:
            was = {key: reel.about.get(key) for key in ("wire", *lasting)}
            differing = differences(was, json.loads(json.dumps({"wire": VERSION, **lasting})))
            if differing:
                shown = "; ".join(differing[:_SHOWN]) + (f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else "")
                raise ConfigError(
                    f"spool: {self.path} holds {reel.pending} pushes of actor {reel.about['name']!r} that do not fit the server at {where}: {shown}. "
                    f"Nothing was deleted: name another folder, or move this one aside (mv {self.path} {self.path}.old) and deliver it to a server "
                    f"with the old settings by an actor with that spool",
                    path=self.path,
                    differences=differing,
                )

    def finish(self, reel: Reel) -> None:
        """Everything in this reel was acknowledged, or cannot be delivered: its files go."""
        reel.remove()
        self._damaged += reel.damaged
        self.earlier = [other for other in self.earlier if other is not reel]
        self._own = [other for other in self._own if other is not reel]

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(reel.bytes for reel in (*self.earlier, *self._own))

    def stats(self) -> dict[str, int]:
        """Bytes of the files and their bound, records without an acknowledgement, pushes of earlier sessions that were delivered, records that were
        found damaged.
        """
        reels = (*self.earlier, *self._own)
        return {
            "bytes": self.bytes,
            "limit_bytes": self.limit_bytes,
            "records": sum(reel.pending for reel in reels),
            "delivered_of_earlier_session": self.delivered,
            "damaged": self._damaged + sum(reel.damaged for reel in reels),
        }

    def close(self) -> None:
        """Lets another actor have it. What is not acknowledged stays, written to the disk; without that only the lock's file does. Idempotent; does
        nothing in a forked child.
        """
        if self._key in _taken and self._key[0] == os.getpid():
            for reel in (*self.earlier, *self._own):
                reel.close()
            self._let_go()

    def _room(self, size: int) -> bool:
        # As with a window: one push has room wherever nothing else waits.
        return self.bytes + size <= self.limit_bytes or not any(reel.pending for reel in (*self.earlier, *self._own))

    def _reel(self, about: dict[str, Any], volumes: list[Volume]) -> Reel:
        return Reel(about, volumes, self._room, lambda: self._volume(about), self._file_bytes, self.path, self.limit_bytes)

    def _volume(self, about: dict[str, Any]) -> Volume:
        with self._serials:
            self._serial += 1
            return Volume.create(os.path.join(self.path, f"memsvc-{self._serial:08d}.spool"), about)

    def _find(self) -> None:
        found: dict[str, list[Volume]] = {}
        for serial, path in sorted((int(match[1]), entry.path) for entry in os.scandir(self.path) if (match := _NAME.fullmatch(entry.name))):
            self._serial = max(self._serial, serial)
            try:
                volume = Volume.open(path)
            except ValueError as error:
                if isinstance(error, ConfigError):
                    raise
                self._damaged += 1
                os.rename(path, path + ".damaged")
                _log.warning("%s: what it holds cannot be delivered; it is kept as %s.damaged", error, path)
                continue
            if volume is None:
                os.unlink(path)
                continue
            volume.rest()
            # One session with other streams is another reel: a server takes a push by its streams.
            found.setdefault(f"{volume.about['session']} {volume.about['streams']}", []).append(volume)
        for volumes in found.values():
            reel = self._reel(volumes[0].about, volumes)
            if reel.pending:
                self.earlier.append(reel)
            else:
                self._damaged += reel.damaged
                reel.remove()

    def _take(self, name: str) -> int:
        path = os.path.join(self.path, "memsvc.lock")
        with _taking:
            if self._key in _taken:
                raise self._in_use(f"an actor of this process ({self._key[0]})")
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Of the process: flock would be held by its children too, and outlive it in them.
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 1000, 0).decode(errors="replace").strip()
                os.close(fd)
                raise self._in_use(holder or "another process") from None
            except BaseException:
                os.close(fd)
                raise
            _taken.add(self._key)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"actor {name!r}, process {self._key[0]} on {socket.gethostname()}\n".encode(), 0)
        return fd

    def _let_go(self) -> None:
        with _taking:
            os.close(self._lock)
            _taken.discard(self._key)

    def _in_use(self, holder: str) -> ConfigError:
        return ConfigError(
            f"spool: {self.path} is used by {holder}: give each actor a folder of its own, or end that one first", path=self.path, holder=holder
        )


def differences(was: Any, now: Any, path: str = "") -> list[str]:
    """Where two values of JSON differ, each as `path: one in the spool, other at the server`."""
    if isinstance(was, dict) and isinstance(now, dict):
        keys = [*was, *(key for key in now if key not in was)]
        return [line for key in keys for line in differences(was.get(key), now.get(key), f"{path}.{key}" if path else str(key))]
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [line for i, (a, b) in enumerate(zip(was, now, strict=True)) for line in differences(a, b, f"{path}[{i}]")]
    return [] if was == now else [f"{path}: {json.dumps(was):.200} in the spool, {json.dumps(now):.200} at the server"]


def _unusable(path: str, error: OSError) -> ConfigError:
    return ConfigError(f"spool: {path} cannot be used: {error}; name a folder that this process may write to", path=path)
