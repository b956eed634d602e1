"""The newest parameters of every topic, in files of their own: written by a thread, whole or not at all, with a checksum."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import zlib
from collections.abc import Callable
from typing import Any

from . import files
from .folder import Folder

log = logging.getLogger("memsvc")

_RETRY_S = 0.25
_INDEX = "index.json"


class Blobs:
    """Thread-safe. What is published faster than the disk writes is passed over."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._newest: Callable[[str], tuple[int, Any]] = lambda topic: (0, b"")
        self._index: dict[str, dict[str, Any]] = {}
        self._news = threading.Condition(threading.Lock())
        self._changed: dict[str, None] = {}
        self._kept: dict[str, int] = {}
        self._waiting: list[tuple[str, int, Callable[[], None]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memsvc-blobs", daemon=True)
        self.trouble = ""
        """Why nothing can be written now, or ""."""

    def load(self) -> tuple[dict[str, tuple[int, bytes]], list[str]]:
        """({topic: (version, blob)} of what verifies, what does not)."""
        where, found, damage = self._folder.parameters, {}, []
        try:
            told = json.loads((where / _INDEX).read_bytes())
        except FileNotFoundError:
            there = [one for one in where.iterdir() if one.suffix == ".safetensors"]
            return {}, [f"{where.name}/{_INDEX} is missing, so parameters are not restored"] if there else []
        except ValueError:
            return {}, [f"{where.name}/{_INDEX} cannot be read, so parameters are not restored; kept as {self._folder.aside(where / _INDEX).name}"]
        for topic, one in told.items():
            path = where / one["file"]
            try:
                blob = path.read_bytes()
            except OSError as error:
                damage.append(f"version {one['version']} of topic {topic!r} cannot be read: {error.strerror}: {path.name}")
                continue
            if zlib.crc32(blob) != one["crc"]:
                damage.append(f"version {one['version']} of topic {topic!r} fails its checksum; kept as {self._folder.aside(path).name}")
                continue
            found[topic] = (one["version"], blob)
            self._index[topic] = one
            self._kept[topic] = one["version"]
        return found, damage

    def start(self, newest: Callable[[str], tuple[int, Any]]) -> None:
        """Begins to write what is published; `newest(topic)` gives (version, blob) as it is now."""
        self._newest = newest
        self._thread.start()

    def published(self, topic: str, version: int, size: int) -> None:
        """There is a new version; returns at once."""
        with self._news:
            self._changed[topic] = None
            self._news.notify()

    def when_kept(self, topic: str, version: int, callback: Callable[[], None]) -> None:
        """Calls back, on the writing thread, once this version or a newer one is on disk."""
        with self._news:
            if self._kept.get(topic, 0) < version:
                self._waiting.append((topic, version, callback))
                return
        callback()

    def close(self, timeout_s: float) -> None:
        """Ends, with what was published before on disk where that takes no longer than `timeout_s`."""
        self._stop.set()
        with self._news:
            self._news.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._changed and not self._stop.is_set():
                    self._news.wait()
                if not self._changed:
                    return
                topic = next(iter(self._changed))
                del self._changed[topic]
            try:
                self._keep(topic)
            except OSError as error:
                if not self.trouble:
                    log.error("parameters of topic %r cannot be written: %s", topic, error.strerror)
                self.trouble = str(error.strerror)
                with self._news:
                    self._changed[topic] = None
                if self._stop.wait(_RETRY_S):
                    return
            except Exception:
                log.exception("parameters of topic %r were not written", topic)

    def _keep(self, topic: str) -> None:
        where = self._folder.parameters
        version, blob = self._newest(topic)
        body = blob if isinstance(blob, bytes) else blob.view()
        name = f"{hashlib.sha256(topic.encode()).hexdigest()[:16]}.{version}.safetensors"
        files.write(where / name, body)
        before = self._index.get(topic)
        index = {**self._index, topic: {"version": version, "bytes": len(body), "crc": zlib.crc32(body), "file": name}}
        files.write(where / _INDEX, json.dumps(index).encode())
        self._index = index
        if before is not None and before["file"] != name:
            (where / before["file"]).unlink(missing_ok=True)
        if self.trouble:
            log.warning("parameters are written again, after %s", self.trouble)
            self.trouble = ""
        with self._news:
            self._kept[topic] = version
            due = [one for one in self._waiting if one[0] == topic and one[1] <= version]
            self._waiting = [one for one in self._waiting if one not in due]
        for _, _, callback in due:
            callback()
