"""The data folder: who may use it, what lies where, and the small file that says what should be there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import zlib
from pathlib import Path
from typing import Any

from memsvc_proto.errors import ConfigError

from . import files
from .records import Damaged

_ABOUT = "server.json"
_LOCK = "lock"


def told(path: Path) -> dict[str, Any]:
    """What a data folder's server.json says. Damaged, OSError."""
    try:
        told = json.loads((path / _ABOUT).read_bytes())
        if zlib.crc32(told["about"].encode()) != told["crc"]:
            raise Damaged("it fails its checksum")
        return dict(json.loads(told["about"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(str(error)) from None


class Folder:
    """`journal/` segments, `snapshots/`, `parameters/`, `server.json`. Locked until close. `about` is server.json: change it by `tell` alone."""

    def __init__(self, path: str) -> None:
        """Makes what is not there. ConfigError: it cannot be written to, or another server uses it."""
        self.path = Path(path)
        self.journal, self.snapshots, self.parameters = (self.path / name for name in ("journal", "snapshots", "parameters"))
        self._changing = threading.Lock()
        self._fd = -1
        try:
            for one in (self.path, self.journal, self.snapshots, self.parameters):
                one.mkdir(parents=True, exist_ok=True)
            self._lock()
            for part in self.path.glob("*/*.part"):  # a server ended while it wrote them
                part.unlink()
            probe = self.journal / "probe.part"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            self.close()
            raise ConfigError(
                f"server.data: {path!r} cannot be used: {error.strerror} ({error.filename}); name a folder that this user may write to",
                path="server.data",
            ) from None
        self.about: dict[str, Any] = {"segments": [], "snapshots": []}
        self.damage = self._read()
        """What is wrong with server.json, or ""."""

    @property
    def used(self) -> bool:
        """Whether a server has written here before."""
        return "epoch" in self.about or any(self.journal.iterdir()) or any(self.snapshots.iterdir())

    def tell(self, **changes: Any) -> None:
        """Writes changes of server.json, whole or not at all. OSError. Any thread."""
        with self._changing:
            self.about |= changes
            self._write()

    def opened(self, segment: str) -> None:
        """A segment of this name is begun."""
        with self._changing:
            self.about["segments"].append(segment)
            self._write()

    def gone(self, *segments: str) -> None:
        """Segments of these names are no longer looked for."""
        with self._changing:
            self.about["segments"] = [name for name in self.about["segments"] if name not in segments]
            self._write()

    def aside(self, path: Path) -> Path:
        """Keeps a damaged file under a new name, which nobody reads; returns it."""
        for number in range(1, 1 << 16):
            to = path.with_name(f"{path.name}.damaged" + (f"-{number}" if number > 1 else ""))
            if not to.exists():
                with contextlib.suppress(OSError):
                    os.replace(path, to)
                    return to
                break
        return path

    def close(self) -> None:
        """Lets another server use it; idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _lock(self) -> None:
        self._fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            raise ConfigError(
                f"server.data: {str(self.path)!r} is in use by another server (process {holder or 'unknown'}); stop that one, or name another folder",
                path="server.data",
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def _read(self) -> str:
        try:
            self.about |= told(self.path)
        except FileNotFoundError:
            return f"{_ABOUT} is missing" if any(self.journal.iterdir()) or any(self.snapshots.iterdir()) else ""
        except Damaged as error:
            return f"{_ABOUT} cannot be read ({error}); kept as {self.aside(self.path / _ABOUT).name}"
        return ""

    def _write(self) -> None:
        text = json.dumps(self.about)
        files.write(self.path / _ABOUT, json.dumps({"about": text, "crc": zlib.crc32(text.encode())}).encode())
