"""The rules of memsvc.toml: every key, its default, and the check that gives its value or a ConfigError with the key's path."""

from __future__ import annotations

import copy
import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memsvc_proto.errors import ConfigError

Check = Callable[[str, Any], Any]
"""(path, value as read) -> value as kept. Raises ConfigError that begins with the path."""


@dataclass(frozen=True)
class Rule:
    """One key: the value it has when absent, and its check. `required` keys have no default."""

    default: Any
    check: Check
    required: bool = False


def shown(value: Any) -> str:
    """A value as it would stand in the file, short enough for one line."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def wrong(path: str, expected: str, got: Any) -> ConfigError:
    """The one sentence that all type and range errors use."""
    return ConfigError(f"{path}: expected {expected}, got {shown(got)}", path=path)


def later(path: str, value: Any, default: Any) -> ConfigError:
    """For settings that are decided but come with a later version."""
    return ConfigError(f"{path}: {shown(value)} is not in this version; leave it out, or write {shown(default)}", path=path)


def unknown(path: str, key: str, known: Iterable[str]) -> ConfigError:
    """An unknown key: names the nearest known one, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else "known here: " + ", ".join(names)
    return ConfigError(f"{join(path, key)}: unknown key; {hint}", path=join(path, key))


def join(path: str, key: str) -> str:
    """`table[0].item` and `gamma` give `table[0].item.gamma`."""
    return f"{path}.{key}" if path else key


def section(rules: Mapping[str, Rule]) -> Check:
    """A TOML table with exactly these keys; absent ones get their defaults."""

    def check(path: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise wrong(path, "a table of settings", value)
        for key in value:
            if key not in rules:
                raise unknown(path, str(key), rules)
        for key, rule in rules.items():
            if rule.required and key not in value:
                raise ConfigError(f"{join(path, key)}: is missing", path=join(path, key))
        return {key: rule.check(join(path, key), value[key]) if key in value else copy.deepcopy(rule.default) for key, rule in rules.items()}

    return check


def nested(rules: Mapping[str, Rule]) -> Rule:
    """A section inside a section; its default is that of all its keys."""
    return Rule({key: rule.default for key, rule in rules.items()}, section(rules))


def integer(minimum: int, maximum: int | None = None) -> Check:
    """An integer in minimum .. maximum (bool is none)."""
    phrase = "a positive integer" if minimum == 1 else f"an integer >= {minimum}"

    def check(path: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise wrong(path, phrase, value)
        if maximum is not None and value > maximum:
            raise wrong(path, f"an integer from {minimum} to {maximum}", value)
        return value

    return check


def number(low: float, high: float = math.inf) -> Check:
    """A finite number in low .. high, kept as float."""
    phrase = f"a number >= {low:g}" if high == math.inf else f"a number from {low:g} to {high:g}"

    def check(path: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not low <= value <= high:
            raise wrong(path, phrase, value)
        return float(value)

    return check


def positive(high: float) -> Check:
    """A number above 0, up to `high`."""

    def check(path: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= high:
            raise wrong(path, f"a number above 0, up to {high:g}", value)
        return float(value)

    return check


def finite(path: str, value: Any) -> float:
    """Any finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise wrong(path, "a finite number", value)
    return float(value)


def boolean(path: str, value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise wrong(path, "true or false", value)
    return value


def text(path: str, value: Any) -> str:
    """A string, perhaps empty."""
    if not isinstance(value, str):
        raise wrong(path, "a string", value)
    return value


def label(path: str, value: Any) -> str:
    """A name: a string that is not empty, has no control characters, and at most 128 characters."""
    if not isinstance(value, str) or not value or len(value) > 128 or not value.isprintable():
        raise wrong(path, "a printable name of 1 to 128 characters", value)
    return value


def choice(*now: str, coming: Sequence[str] = ()) -> Check:
    """One of `now`; those in `coming` are known, but not in this version."""
    phrase = " or ".join(f'"{name}"' for name in now)

    def check(path: str, value: Any) -> str:
        if isinstance(value, str) and value in now:
            return value
        if isinstance(value, str) and value in coming:
            raise ConfigError(f"{path}: {shown(value)} is not in this version; it has {phrase}", path=path)
        near = difflib.get_close_matches(value, [*now, *coming], n=1) if isinstance(value, str) else []
        raise wrong(path, phrase + (f" (did you mean {near[0]!r}?)" if near else ""), value)

    return check


def several(check_one: Check, phrase: str) -> Check:
    """A list whose members pass `check_one`, with path[i] in errors."""

    def check(path: str, value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise wrong(path, phrase, value)
        return [check_one(f"{path}[{i}]", one) for i, one in enumerate(value)]

    return check


def gamma(path: str, value: Any) -> float | list[float] | str:
    """A discount from 0 to 1, a list of them (one per reward dimension), or the name of a step field."""
    discount = number(0.0, 1.0)
    if isinstance(value, str):
        return label(path, value)
    if isinstance(value, (list, tuple)):
        if not value:
            raise wrong(path, "a number from 0 to 1, a list of them, or the name of a step field", value)
        return [discount(f"{path}[{i}]", one) for i, one in enumerate(value)]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong(path, "a number from 0 to 1, a list of them, or the name of a step field", value)
    return float(discount(path, value))


_UNITS = {"": 1, "b": 1} | {f"{p}{b}b": (1024 if b else 1000) ** (i + 1) for i, p in enumerate("kmgt") for b in ("", "i")}


def size(path: str, value: Any) -> int:
    """Bytes: an integer, or a string such as "2GiB", "512 MB", "1.5GiB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _UNITS or float(match[1]) <= 0:
        raise wrong(path, 'a size in bytes such as 1000000 or "2GiB" (B, KB, KiB, MB, MiB, GB, GiB, TB, TiB)', value)
    return int(float(match[1]) * _UNITS[match[2].lower()])


_names = several(label, "a list of field names")

ITEM: dict[str, Rule] = {
    "kind": Rule("step", choice("step", "transition", "sequence")),
    "n_step": Rule(1, integer(1, 65535)),
    "gamma": Rule(0.99, gamma),
    "frame_stack": Rule(1, integer(1, 65535)),
    "stack": Rule([], _names),
    "pad": Rule("repeat", choice("repeat", "zero")),
    "next": Rule([], _names),
    "length": Rule(1, integer(1, 1 << 24)),
    "stride": Rule(1, integer(1, 1 << 24)),
    "burn_in": Rule(0, integer(0, 1 << 24)),
    "tail": Rule("shift", choice("shift", "pad", "drop")),
    "initial": Rule([], _names),
}

_RETURNS: dict[str, Rule] = {"gamma": Rule(0.99, gamma), "lambda": Rule(0.95, number(0.0, 1.0))}


def _returns(path: str, value: Any) -> dict[str, Any] | None:
    checked: dict[str, Any] | None = None if value is None else section(_RETURNS)(path, value)
    return checked


TABLE: dict[str, Rule] = {
    "name": Rule(None, label, required=True),
    "item": nested(ITEM),
    "returns": Rule(None, _returns),
    "priority": nested(
        {
            "source": Rule("max", choice("return", "td", "given", "max")),
            "exponent": Rule(0.6, number(0.0)),
            "coefficients": Rule([1.0], several(finite, "a list of numbers, one per reward dimension")),
            "baseline": Rule("value", label),
            "eta": Rule(0.9, number(0.0, 1.0)),
            "decay": Rule(1.0, positive(1.0)),
        }
    ),
    "actor": nested(
        {
            "select": Rule("prioritized", choice("prioritized", "uniform", "all", "without_replacement")),
            "cache": Rule(64, integer(1, 1 << 20)),
            "every": Rule(64, integer(1)),
            "linger_ms": Rule(20, integer(0, 60_000)),
            "max_steps": Rule(100_000, integer(1)),
            "max_episodes": Rule(0, integer(0)),
            "step_discount": Rule(1.0, positive(1.0)),
            "episode_weights": Rule(False, boolean),
        }
    ),
    "sampler": Rule("prioritized", choice("prioritized", "uniform", "fifo", "lifo", "max", "min")),
    "importance": nested({"beta": Rule(0.4, number(0.0)), "normalize": Rule("table", choice("table", "batch", "none"))}),
    "capacity": nested(
        {
            "items": Rule(0, integer(0)),
            "per_actor_episodes": Rule(0, integer(0)),
            "per_actor_steps": Rule(0, integer(0)),
            "when_full": Rule("evict", choice("evict", "block")),
        }
    ),
    "limits": nested(
        {
            "min_items": Rule(1, integer(1)),
            "samples_per_insert": Rule(0.0, number(0.0)),
            "tolerance": Rule(0.0, number(0.0)),
            "max_times_sampled": Rule(0, integer(0, 65535)),
            "max_staleness": Rule(-1, integer(-1)),
        }
    ),
}

SERVER: dict[str, Rule] = {
    "address": Rule("tcp://127.0.0.1:7700", text),
    "advertise": Rule("", text),
    "insecure": Rule(False, boolean),
    "memory": Rule(2 << 30, size),
    "max_message": Rule(16 << 30, size),
    "control": Rule(None, text),
    "http": Rule(None, text),
    "seed": Rule(0, integer(0, (1 << 64) - 1)),
    "durability": Rule("off", choice("off", "snapshot", "journal")),
    "data": Rule("", text),
    "fsync_ms": Rule(0, integer(0, 1000)),
    "snapshot_s": Rule(300.0, number(1.0, 86_400.0)),
    "keys": Rule("", text),
}
