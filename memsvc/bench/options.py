"""Options: what `memsvc bench` was asked for, checked before anything runs."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from memsvc_client.learner import MAX_PREFETCH
from memsvc_proto.errors import ConfigError

from .workloads import WORKLOADS

TRANSPORTS = ("auto", "inproc", "shm", "ipc", "tcp")


@dataclass(frozen=True)
class Options:
    """As the command's options (cli.py); None is the workload's own number. ConfigError, which begins with the option, for what cannot be."""

    workload: str | None = None
    config: str | None = None
    address: str | None = None
    table: str | None = None
    actors: int = 1
    learners: int = 1
    envs: int | None = None
    batch: int | None = None
    items: int | None = None
    prefetch: int = 2
    update: bool = False
    transport: str = "auto"
    seconds: float = 5.0
    json: str | None = None
    plot: str | None = None
    plain: bool = False
    yes: bool = False

    def __post_init__(self) -> None:
        for option, value, least in (
            ("--actors", self.actors, 0),
            ("--learners", self.learners, 0),
            ("--envs", self.envs, 1),
            ("--batch", self.batch, 1),
            ("--items", self.items, 1),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{option} {value}: expected an integer of at least {least}")
        if not 0 <= self.prefetch <= MAX_PREFETCH:
            raise ConfigError(f"--prefetch {self.prefetch}: expected an integer from 0 to {MAX_PREFETCH}")
        if not 0 < self.seconds < 1e6:
            raise ConfigError(f"--seconds {self.seconds:g}: expected a number above 0")
        if not self.actors and not self.learners:
            raise ConfigError("--actors 0 --learners 0: nothing is left to measure; leave one of them out")
        if self.update and not self.learners:
            raise ConfigError("--update: learners send priorities back, and --learners 0 leaves none")
        self._check_source()
        self._check_files()

    def _check_source(self) -> None:
        given = [what for what, value in (("WORKLOAD", self.workload), ("--config", self.config), ("--address", self.address)) if value is not None]
        if len(given) > 1:
            raise ConfigError(f"{given[0]} and {given[1]}: one alone says what steps and tables are; leave the other out")
        if self.workload is not None and self.workload not in WORKLOADS:
            raise ConfigError(f"WORKLOAD {self.workload!r}: there is {', '.join(WORKLOADS)}; your own steps come by --config memsvc.toml")
        if self.table is not None and not (self.config or self.address):
            raise ConfigError(f"--table {self.table!r}: a built-in workload has one table; it belongs to --config or --address")
        if self.transport not in TRANSPORTS:
            raise ConfigError(f"--transport {self.transport!r}: expected {', '.join(TRANSPORTS)}")
        if self.items is not None and (self.config or self.address):
            raise ConfigError("--items: is for built-in workloads; with --config and --address the table has its own size")
        if self.address is None:
            return
        scheme = self.address.partition(":")[0]
        if self.transport in ("inproc", "ipc", "tcp") and self.transport != scheme:
            raise ConfigError(
                f"--transport {self.transport}: the server of --address is reached by {scheme}; leave it out, or say auto, {scheme} or shm"
            )

    def _check_files(self) -> None:
        for option, name in (("--json", self.json), ("--plot", self.plot)):
            if name is not None and (Path(name).is_dir() or not os.access(Path(name).absolute().parent, os.W_OK)):
                raise ConfigError(f"{option} {name}: cannot be written; name a file in a directory that exists and may be written to")
        if self.plot is not None:
            if Path(self.plot).suffix != ".png":
                raise ConfigError(f"--plot {self.plot}: expected a name that ends in .png")
            if importlib.util.find_spec("matplotlib") is None:
                raise ConfigError("--plot: needs matplotlib; pip install 'memsvc[bench]'")
