"""Durability as the engine sees it: opened, and restored from, before it; attached to it; checkpoints while it serves; closed behind it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memsvc_proto.errors import ConfigError, ServerError

from ..config import Config
from ..machine import return_freed_memory
from . import snapshots
from .blobs import Blobs
from .gate import Gate
from .journal import Journal
from .mismatch import form_of
from .opening import Opened, opened
from .pruning import Pruning
from .ranges import Ranges
from .recording import Recorder
from .records import Record
from .segments import SegmentWriter
from .snapshots import Snapshot

if TYPE_CHECKING:
    from ..engine import Engine

log = logging.getLogger("memsvc")

_WAIT_S = 60.0
"""For the disk, of a checkpoint."""


class Keeper:
    """Thread-safe. `replay` is what the engine works with, `config` what it serves."""

    def __init__(self, config: Config, on_mismatch: str | None = None) -> None:
        """Restores what server.data holds. ConfigError: the folder cannot be used, or was written under another configuration and `on_mismatch`
        ("file", "config") does not say which is to hold."""
        self._gate = Gate()
        self._blobs: Blobs | None = None
        self._opened = opened(config, on_mismatch)
        try:
            self._start(self._opened)
        except BaseException:
            self._opened.folder.close()
            raise

    def _start(self, found: Opened) -> None:
        server = found.config.server
        self.config = found.config
        self.mode = server.durability
        self._folder = found.folder
        self._core = found.replay
        self.epoch: str = self._folder.about.get("epoch") or os.urandom(8).hex()
        self.seed = found.seed
        self._settings: Callable[[], list[dict[str, Any]]] = lambda: self.config.tables
        self._versions: Callable[[], dict[str, int]] = lambda: found.restored.versions
        self._interval_s = server.snapshot_s
        self._most_bytes = max(server.memory, 1 << 30)
        recording = self.mode == "journal"
        writer = SegmentWriter(self._folder.journal, found.form, self._folder.opened)
        self._journal = Journal(writer, server.fsync_ms, found.restored.position, self._gate, self._core.progress if recording else bytes)
        self.replay: Any = Recorder(self._core, self._journal, self._gate, found.form) if recording else self._core
        self._pruning = Pruning(self._folder, self._journal, self._core, found.form.stride, found.restored.segments)
        self._taking = threading.Lock()
        self._ending = threading.Event()
        self._last: dict[str, Any] = {}
        self._taken_at = time.monotonic()
        self._bytes_then = 0
        self.trouble = ""
        """Why no snapshot could be taken, or ""."""
        self._blobs = Blobs(self._folder)
        self._parameters, damage = self._blobs.load()
        self.damage = [*found.restored.damage, *damage]
        self._folder.tell(epoch=self.epoch, seed=self.seed, clean=False)
        self._journal.start()
        if found.changed or self.damage:
            self._first(found)
        self._report(found)
        self._timer = threading.Thread(target=self._run, name="memsvc-snapshots", daemon=True)

    def attach(self, engine: Engine) -> None:
        """The engine that works with `replay`: parameters go to it, and come from it. Starts what runs beside it."""
        engine.parameters.reported(self._opened.restored.versions)
        for topic, (version, blob) in self._parameters.items():
            engine.parameters.restored(topic, version, blob)
            self.replay.publish(topic, version)
        self._parameters = {}
        self._settings = lambda: [table.settings for table in engine.tables]
        self._versions = engine.parameters.floors
        blobs = self._blobs
        if blobs is not None:
            engine.notices.append(blobs.published)
            blobs.start(engine.parameters.newest)
        self._timer.start()

    def when_safe(self, callback: Callable[[], None]) -> None:
        """Calls back, now or on another thread, once what was done so far may be acknowledged. `callback` must not block or raise."""
        if self.mode == "journal":
            self._journal.when_safe(callback)
        else:
            callback()

    @property
    def settles(self) -> Callable[[Callable[[], None]], None] | None:
        """See Keeping."""
        return self._journal.when_settled if self.mode == "journal" and self.config.server.fsync_ms == 0 else None

    def when_kept(self, topic: str, version: int, callback: Callable[[], None]) -> None:
        """The same for published parameters: once this version, or a newer one, is on disk (fsync_ms > 0: at once)."""
        if self._blobs is not None and self.mode == "journal" and self.config.server.fsync_ms == 0:
            self._blobs.when_kept(topic, version, lambda: self._journal.when_safe(callback))
        else:
            callback()

    def safe(self, stored: int, known: int) -> int:
        """Number of the newest push that may be told as stored: what the actor does not know of may not be on disk yet."""
        return min(stored, known) if self.mode == "journal" and self.config.server.fsync_ms == 0 else stored

    def configured(self, table: int, settings: dict[str, Any]) -> None:
        """Settings were changed while it serves: they hold after a restart too."""
        if self.mode == "journal":
            self._journal.append(Record("configure", table=table, meta=settings))

    @property
    def waits(self) -> str:
        """Why nothing is acknowledged now, or ""."""
        return f"its disk does not take the journal: {self._journal.trouble}" if self._journal.trouble else ""

    def checkpoint(self) -> dict[str, Any]:
        """Takes a snapshot, while traffic goes on, and removes what it makes needless. Returns {"path", "position", "bytes", "seconds", "pause_ms",
        "items"}. ServerError: the disk does not take it; the ones before stay."""
        with self._taking:
            try:
                return self._checkpoint()
            except OSError as error:
                raise self._failed(error.strerror or str(error)) from None
            finally:
                return_freed_memory()

    def settle(self) -> None:
        """Returns once all that was done so far is on disk, what learners have drawn included. ServerError: the disk does not take it."""
        with self._taking:
            try:
                if self.mode == "journal":
                    with self._gate.alone():
                        self._journal.note(self._core.progress())
                self._pruning.wait(self._journal.mark())
            except OSError as error:
                raise ServerError(f"the journal cannot be written: {error.strerror}") from None

    def stats(self) -> dict[str, Any]:
        """What lies where, what waits, what was restored and what was not."""
        restored = self._opened.restored
        return {
            "mode": self.mode,
            "data": str(self._folder.path),
            "fsync_ms": self.config.server.fsync_ms,
            "journal": self._journal.stats(),
            "segments": self._pruning.stats(),
            "snapshot": {**self._last, "age_s": round(time.monotonic() - self._taken_at, 3), "trouble": self.trouble},
            "blobs": self._blobs.trouble if self._blobs is not None else "",
            "restored": {key: getattr(restored, key) for key in ("snapshot", "items", "dropped", "bytes", "records", "refused", "torn", "seconds")},
            "damage": len(self.damage),
            "damages": self.damage[:16],
        }

    def close(self, timeout_s: float) -> None:
        """A last snapshot, and the journal's end, within `timeout_s`; what takes longer goes on until the process ends, and the folder stays locked
        meanwhile. With "journal" nothing acknowledged is lost either way."""
        self._ending.set()
        thread = threading.Thread(target=self._close, args=(timeout_s,), name="memsvc-closing", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():
            log.warning("the last snapshot is not done within %.1f s; the one before it holds", timeout_s)

    def _close(self, timeout_s: float) -> None:
        done = False
        try:
            if not self.waits:
                self.checkpoint()
                done = True
        except ServerError as error:
            log.error("%s", error)
        except Exception:
            log.exception("the last snapshot failed")
        finally:
            if self._journal.close(timeout_s) and done:
                try:
                    self._folder.tell(clean=True)
                except OSError as error:
                    log.error("server.json cannot be written: %s", error.strerror)
            if self._blobs is not None:
                self._blobs.close(timeout_s)
            self._folder.close()

    def _first(self, found: Opened) -> None:
        # What was restored stands in one snapshot before anything else happens; what verifies of damaged files is written anew for it.
        try:
            with self._taking:
                self._checkpoint()
            found.finish()
            self._folder.tell(form=form_of(self._opened.configured))
        except OSError as error:
            if not self._folder.about.get("form"):
                raise ConfigError(f"server.data: {str(self._folder.path)!r} cannot be written to: {error.strerror}", path="server.data") from None
            self._failed(error.strerror or str(error))

    def _failed(self, why: str) -> ServerError:
        if not self.trouble:
            log.error("no snapshot can be taken: %s; the ones before stay", why)
        self.trouble = why
        return ServerError(f"no snapshot can be taken: {why}; the ones before stay")

    def _checkpoint(self) -> dict[str, Any]:
        began = time.monotonic()
        copied = False
        while not copied:
            capture = self._core.prepare()
            with self._gate.alone():
                shut = time.monotonic()
                if self.mode == "journal":
                    self._journal.note(self._core.progress())  # should this snapshot be damaged one day, the one before goes on from here
                mark, copied = self._journal.mark(), capture.copy()
                settings, versions = self._settings(), self._versions()
            pause = time.monotonic() - shut
        saved = capture.saved()
        self._bytes_then = self._journal.counts["bytes"]
        self._pruning.wait(mark)
        live = Ranges.of(saved.row_keys)
        left_out = self._pruning.complete(live)
        items = {one["name"]: saved.items(i) for i, one in enumerate(settings)}
        about = {
            "form": form_of(self._opened.configured),
            "settings": settings,
            "versions": versions,
            "rows_left_out": left_out,
            "segments": self._pruning.names(),
            "time": time.time(),
        }
        path, size = snapshots.write(self._folder.snapshots, Snapshot(mark.at, about, saved.state, items, saved.row_keys))
        self._pruning.snapshot(path, mark.at, live)
        self.trouble = ""
        self._taken_at = time.monotonic()
        self._last = {
            "path": path.name,
            "position": mark.at,
            "bytes": size,
            "seconds": round(self._taken_at - began, 3),
            "pause_ms": round(pause * 1000, 3),
            "items": {name: len(columns["key"]) for name, columns in items.items()},
        }
        return dict(self._last)

    def _run(self) -> None:
        while not self._ending.wait(min(1.0, self._interval_s)):
            due = time.monotonic() - self._taken_at >= self._interval_s
            if self.waits or not (due or self._journal.counts["bytes"] - self._bytes_then > self._most_bytes):
                continue
            try:
                self.checkpoint()
            except ServerError:
                self._taken_at = time.monotonic()  # not at once again
            except Exception:
                self._taken_at = time.monotonic()
                log.exception("a snapshot failed")

    def _report(self, found: Opened) -> None:
        out = found.restored
        if not found.used:
            return
        items = ", ".join(f"{count:,} items of {name!r}" for name, count in out.items.items()) or "no items"
        log.info("restored %s (%d bytes, %d records done again) from %s in %.2f s, snapshot %s", items, out.bytes, out.records,
                 self._folder.path, out.seconds, out.snapshot or "none")  # fmt: skip
        for name, dropped in out.dropped.items():
            if dropped:
                why = "their steps are missing" if out.missing else "server.memory, or the table, is smaller than it was, and has the newest"
                log.error("%d items of table %r were not restored: %s", dropped, name, why)
        for line in self.damage:
            log.error("damaged: %s", line)
