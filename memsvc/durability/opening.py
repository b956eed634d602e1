"""Start: the folder, what it was written under, and a Replay with what it holds."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from memsvc_core import Replay, Schema, TableSpec
from memsvc_proto.errors import ConfigError

from ..config import Config
from . import mismatch, snapshots
from .folder import Folder
from .records import Form
from .restoring import Restored, Restoring, newest_snapshot
from .snapshots import Snapshot

log = logging.getLogger("memsvc")

_STREAM_BITS = 28
_BURNT = 1 << 16
"""Streams that may have been given away without a record, when a server ended without a word: they are not given again."""


@dataclass
class Opened:
    """What a start has found."""

    folder: Folder
    config: Config
    """To serve with: settings that were changed while it ran hold on."""
    configured: Config
    """The same without such changes: what the next start is compared with."""
    form: Form
    replay: Any
    restored: Restored
    seed: int
    used: bool
    """Whether a server has been here before."""
    changed: bool
    """Whether it differs from the newest snapshot."""
    finish: Callable[[], None]
    """Called once all of it stands in a new snapshot."""


def opened(config: Config, on_mismatch: str | None) -> Opened:
    """See Keeper."""
    if on_mismatch not in (None, *mismatch.CHOICES):
        raise ConfigError(f"on_mismatch: expected one of {', '.join(mismatch.CHOICES)}, got {on_mismatch!r}")
    folder = Folder(config.server.data)
    try:
        return _opened(folder, config, on_mismatch)
    except BaseException:
        folder.close()
        raise


def _opened(folder: Folder, config: Config, on_mismatch: str | None) -> Opened:
    used = folder.used
    damage = [folder.damage] if folder.damage else []
    snapshot = newest_snapshot(folder, damage)
    stored = snapshot.about["form"] if snapshot is not None else folder.about.get("form")
    lines = mismatch.differences(stored, mismatch.form_of(config)) if stored else []
    if lines and on_mismatch is None:
        raise mismatch.refusal(str(folder.path), lines)
    for line in lines:
        log.warning("the configuration differs from what %s was written under: %s", folder.path, line)
    old = mismatch.configured(config, stored) if stored else config
    seed = config.server.seed or folder.about.get("seed") or int.from_bytes(os.urandom(8), "little")
    settings = snapshot.about["settings"] if snapshot is not None else [dict(one) for one in old.tables]
    form, restoring, core = _restore(folder, old, snapshot, settings, seed)
    out = restoring.out
    out.damage[:0] = damage
    finish: Callable[[], None] = restoring.put_aside
    if lines and on_mismatch == "config":
        cores = [core]
        del core  # its memory is needed again
        form, core, out, finish = _migrated(folder, old, config, cores, out, restoring, seed)
        old = config
    if used and not folder.about.get("clean"):
        number, _ = core.join("", _BURNT)
        core.leave(number)
    if snapshot is not None:
        out.versions = {topic: max(version, out.versions.get(topic, 0)) for topic, version in (snapshot.about["versions"] | out.versions).items()}
    held = replace(old, tables=out.settings)
    for line in mismatch.differences(mismatch.form_of(old), mismatch.form_of(held)):
        log.info("a setting that was changed while it ran holds on: %s", line)
    changed = snapshot is None or out.records > 0 or bool(out.damage or out.torn or lines)
    return Opened(folder, held, old, form, core, out, seed, used, changed, finish)


def _restore(folder: Folder, config: Config, snapshot: Snapshot | None, settings: list[dict[str, Any]], seed: int) -> tuple[Form, Restoring, Any]:
    schema, specs = config.specs()
    form = Form(config.schema, schema.row_stride, [(one["name"], spec.item_bytes) for one, spec in zip(config.tables, specs, strict=True)])
    restoring = Restoring(folder, form, schema, snapshot, settings)
    return form, restoring, restoring.run(_maker(schema, config.server.memory, seed))


def _maker(schema: Schema, memory: int, seed: int) -> Callable[[list[dict[str, Any]]], Any]:
    def make(settings: list[dict[str, Any]]) -> Any:
        first_stream = int.from_bytes(os.urandom(4), "little") % (1 << _STREAM_BITS)
        return Replay(schema, [TableSpec(schema, one) for one in settings], memory, seed, first_stream)

    return make


def _migrated(
    folder: Folder, old: Config, new: Config, cores: list[Any], out: Restored, restoring: Restoring, seed: int
) -> tuple[Form, Any, Restored, Callable[[], None]]:
    """What fits of `core`, under the new configuration: items of tables of the same name and form."""
    saved = cores[0].save()
    _, old_specs = old.specs()
    schema, specs = new.specs()
    before = {one["name"]: (i, one, spec) for i, (one, spec) in enumerate(zip(old.tables, old_specs, strict=True))}
    items = {}
    for one, spec in zip(new.tables, specs, strict=True):
        found = before.get(one["name"])
        if found is not None and old.schema == new.schema and _fits(found[1], found[2], one, spec):
            items[one["name"]] = saved.items(found[0])
    for name, (i, _, _) in before.items():
        left = len(saved.items(i)["key"])
        if name not in items and left:
            log.error("table %r starts empty: its %d items have another form than the configuration wants now, and are left behind", name, left)
    snapshot = Snapshot(out.position, {}, saved.state, items, saved.row_keys)
    del saved
    cores.clear()
    again = Restoring(folder, restoring.form, schema, snapshot, [dict(one) for one in new.tables])
    make = _maker(schema, new.server.memory, seed)
    if schema.row_stride == restoring.form.stride:
        core = again.run(make)
    else:
        core, again.out.position = make(again.out.settings), out.position
    again.out.damage = out.damage
    again.out.records, again.out.torn, again.out.versions, again.out.snapshot = out.records, out.torn, out.versions, out.snapshot

    def finish() -> None:
        restoring.put_aside()
        newest = max(snapshots.there(folder.snapshots))
        for path in snapshots.there(folder.snapshots):  # they are of the other configuration
            if path != newest:
                path.unlink(missing_ok=True)

    form = Form(new.schema, schema.row_stride, [(one["name"], spec.item_bytes) for one, spec in zip(new.tables, specs, strict=True)])
    if form.stride != restoring.form.stride:
        _leave_behind(folder, again.out)
    return form, core, again.out, finish


def _fits(old: dict[str, Any], old_spec: Any, new: dict[str, Any], new_spec: Any) -> bool:
    item = [{key: value for key, value in one["item"].items() if key != "gamma"} for one in (old, new)]
    everything = [one["actor"]["select"] == "all" for one in (old, new)]
    return item[0] == item[1] and everything[0] == everything[1] and old_spec.columns == new_spec.columns


def _leave_behind(folder: Folder, out: Restored) -> None:
    # Rows of another length cannot lie in one journal with the new ones.
    to = folder.path / f"left-{out.position}"
    to.mkdir(exist_ok=True)
    for path in [*folder.journal.glob("*.arrow"), *folder.snapshots.glob("*.safetensors")]:
        os.replace(path, to / path.name)
    folder.tell(segments=[], snapshots=[])
    out.segments = []
    log.error("steps have another form now: what was stored before is kept in %s, and not used", to)
