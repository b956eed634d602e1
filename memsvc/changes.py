"""The settings of a table that can be changed while the server runs, and from when a change holds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from memsvc_proto.errors import ConfigError

from . import rules
from .coherence import check_coherence
from .rules import join

CHANGEABLE: dict[str, str] = {
    "priority.exponent": 'at once where actor.select = "all" (p is stored), else from each actor\'s next report on',
    "importance.beta": "from the next batch on",
    "item.gamma": "for items made from then on",
    "returns.gamma": "for items made from then on; priorities in the actors' memories are computed anew",
    "returns.lambda": "for items made from then on; priorities in the actors' memories are computed anew",
    "limits.samples_per_insert": "at once",
    "limits.tolerance": "at once",
    "limits.max_staleness": "at once at the server, from each actor's next draw on at the actors",
    "limits.min_items": "at once",
}
"""Path inside the table -> from when a change holds (DEFINITIONS 7)."""


def changed(settings: Mapping[str, Any], changes: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """New normalised settings: `settings` with the paths of `changes` ({"priority.exponent": 0.5}) at their new values, all of them or none.

    They pass the rules of memsvc.toml; a gamma keeps its shape (one number, or as many as before), since the batches' columns depend on it.
    Raises ConfigError that begins with `path` and the key's path.
    """
    if not isinstance(changes, Mapping):
        raise rules.wrong(path or "changes", 'an object such as {"priority.exponent": 0.5}', changes)
    new = {key: copy.deepcopy(value) for key, value in settings.items()}
    for key, value in changes.items():
        if key not in CHANGEABLE:
            raise _fixed(settings, str(key), path)
        section, _, name = key.partition(".")
        if new[section] is None:
            raise ConfigError(f"{join(path, key)}: this table has no {section}, and they cannot be added while the server runs", path=join(path, key))
        if name == "gamma":
            _check_shape(join(path, key), new[section][name], value)
        new[section][name] = value
    checked: dict[str, Any] = rules.section(rules.TABLE)(path, new)
    check_coherence(path, checked)
    return checked


def _fixed(settings: Mapping[str, Any], key: str, path: str) -> ConfigError:
    known = []
    for name, value in settings.items():
        known += [f"{name}.{inner}" for inner in value] if isinstance(value, Mapping) else [name]
    if key not in known:
        return rules.unknown(path, key[:80], [*CHANGEABLE, *known])
    return ConfigError(
        f"{join(path, key)}: cannot be changed while the server runs, only in memsvc.toml; what can: {', '.join(CHANGEABLE)}",
        path=join(path, key),
    )


def _check_shape(path: str, old: Any, new: Any) -> None:
    if isinstance(old, str):
        raise ConfigError(f"{path}: comes from the step field {old!r}, so it is the actors' to change, with every step", path=path)
    count = len(old) if isinstance(old, list) else None
    if count != (len(new) if isinstance(new, (list, tuple)) else None) or isinstance(new, str):
        expected = "one number" if count is None else f"a list of {count} number{'s' if count > 1 else ''}"
        raise rules.wrong(path, f"{expected} as before, since batches keep their columns while the server runs", new)
