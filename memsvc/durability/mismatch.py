"""What a data folder was written under, against what memsvc.toml says now: field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from memsvc_proto.errors import ConfigError

from ..config import Config
from ..rules import join, shown

CHOICES = ("file", "config")


def form_of(config: Config) -> dict[str, Any]:
    """What of a configuration the stored experience depends on, as JSON: steps and tables. [server] can change freely, its memory too."""
    return {"step": [[name, dtype, list(shape)] for name, dtype, shape in config.schema], "table": config.tables}


def configured(config: Config, form: Mapping[str, Any]) -> Config:
    """`config` with the steps and tables of `form`."""
    schema = [(name, dtype, tuple(shape)) for name, dtype, shape in form["step"]]
    return replace(config, schema=schema, tables=[dict(table) for table in form["table"]])


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line a field, "path: stored -> configured"; tables are found by their names."""
    steps = [{name: {"dtype": dtype, "shape": shape} for name, dtype, shape in form["step"]} for form in (old, new)]
    tables = [{table["name"]: table for table in form["table"]} for form in (old, new)]
    found = [*_compared("step", *steps), *_compared("table", *tables)]
    if not found and (list(steps[0]) != list(steps[1]) or list(tables[0]) != list(tables[1])):
        found = [f"order: {', '.join([*steps[0], *tables[0]])} -> {', '.join([*steps[1], *tables[1]])}"]
    return found


def refusal(path: str, lines: list[str]) -> ConfigError:
    """Raised at start where nothing says what is to hold."""
    return ConfigError(
        f"server.data: {path!r} was written under another configuration ({'; '.join(lines)}): start with --on-mismatch file to serve with the stored "
        f"one, or with --on-mismatch config to serve with this one: tables whose items it changes start empty, and their stored items are dropped",
        path="server.data",
    )


def _compared(path: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            if key not in new:
                yield f"{join(path, key)}: {shown(old[key]) if path == 'step' else 'there'} -> absent"
            elif key not in old:
                yield f"{join(path, key)}: absent -> {shown(new[key]) if path == 'step' else 'there'}"
            else:
                yield from _compared(join(path, key), old[key], new[key])
    elif old != new:
        yield f"{path}: {shown(old)} -> {shown(new)}"
