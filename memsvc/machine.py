"""What this process may use of its machine."""

from __future__ import annotations

import contextlib
import ctypes
import resource
from pathlib import Path

from memsvc_proto.errors import ConfigError

from .config import Config

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def memory_limit(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> tuple[int, str]:
    """(bytes, whose limit): the machine's memory, or the smallest limit of the control groups (v2 or v1) that this process is in."""
    limit, whose = _machine_bytes(proc), "the machine's memory"
    for file in _limit_files(proc, cgroups):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit there
            value = int(file.read_text())
            if 0 < value < limit:
                limit, whose = value, "the container's memory limit (cgroup)"
    return limit, whose


def _machine_bytes(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def _limit_files(proc: Path, cgroups: Path) -> list[Path]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers in ("", "memory"):
            root, name = (cgroups, "memory.max") if controllers == "" else (cgroups / "memory", "memory.limit_in_bytes")
            # Every level above limits too; in a container the path may name a group that is not visible there, so the root is read in any case.
            here = root / group.lstrip("/")
            files += [one / name for one in (here, *here.parents) if one == root or root in one.parents]
    return files


def keep_freed_memory() -> None:
    """Lets malloc keep up to 256 MiB that were freed: messages of 1 MB come again at once, and pages touched anew cost 20 times a reuse."""
    with contextlib.suppress(OSError, AttributeError):  # another libc: it goes without
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 256 << 20)


def return_freed_memory() -> None:
    """Gives the system what malloc keeps now: after work that takes much memory once in a while, and more each time."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def checked_footprint(config: Config) -> dict[str, int]:
    """The footprint (memsvc_core.Replay.footprint) of this configuration; ConfigError when it is too small to serve, or exceeds what this process
    may use.
    """
    from memsvc_core import Replay

    schema, specs = config.specs()
    footprint = Replay.footprint(schema, specs, config.server.memory)
    items = footprint.pop("items")
    if footprint["bytes"] < footprint["least_bytes"]:
        raise ConfigError(
            f"server.memory: {config.server.memory:,} bytes hold {footprint['steps']:,} steps; expected at least {footprint['least_bytes']:,} bytes",
            path="server.memory",
            need=footprint["least_bytes"],
            have=config.server.memory,
        )
    for i, (table, most) in enumerate(zip(config.tables, items, strict=True)):
        needed = {
            "capacity.items": table["capacity"]["items"] if table["capacity"]["when_full"] == "block" else 0,
            "limits.min_items": table["limits"]["min_items"] if table["actor"]["select"] == "all" else 0,
        }
        for key, need in needed.items():
            if need > most:
                raise ConfigError(
                    f"table[{i}].{key}: {need:,} items are never there, since server.memory holds {most:,} of this table with all their steps; "
                    f"lower it, or raise server.memory",
                    path=f"table[{i}].{key}",
                    need=need,
                    have=most,
                )
    limit, whose = memory_limit()
    if footprint["bytes"] > limit:
        raise ConfigError(
            f"server.memory: {config.server.memory:,} bytes take {footprint['bytes']:,} in all, which exceeds {whose}, {limit:,} bytes; "
            f"use less, or a machine with more",
            path="server.memory",
            need=footprint["bytes"],
            have=limit,
        )
    return footprint


def footprint_on_disk(config: Config) -> int:
    """Bytes that server.data may take with durability, parameters aside: segments of which half lives, what the journal has taken since the older of
    two snapshots (each at the latest after as much as the memory, or 1 GiB), its slack, and the snapshots.
    """
    memory = config.server.memory
    journal = 2 * max(memory, 1 << 30) if config.server.durability == "journal" else 0
    return 2 * memory + journal + (512 << 20) + memory // 4


def raise_file_limit() -> int:
    """Lifts the soft limit of open files to the hard one; returns it. Each connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
