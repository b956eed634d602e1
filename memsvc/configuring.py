"""CONFIGURE: settings of a table changed while it serves. The one way in, for the wire and for gRPC."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from memsvc_core import Schema, TableSpec
from memsvc_proto.errors import ConfigError

from .changes import changed
from .limiter import refuse_batch
from .members import Members
from .table import Table


class Configuring:
    """Thread-safe: one change after the other."""

    def __init__(self, replay: Any, schema: Schema, members: Members, tell: Callable[[Table], None]) -> None:
        """`tell` sends a table's new settings to whoever works with them."""
        self._replay = replay
        self._schema = schema
        self._members = members
        self._tell = tell
        self._lock = threading.Lock()  # before every other lock: two changes reach everybody in one order

    def change(self, table: Table, changes: Mapping[str, Any]) -> dict[str, Any]:
        """All of `changes` ({"priority.exponent": 0.5}, paths inside the table) or none; returns the normalised settings.

        Raises ConfigError, which begins with a path: it cannot be changed, breaks a rule, or would stop a learner that is here.
        """
        with self._lock:
            settings = changed(table.settings, changes)
            for batch in self._members.batches(table.index):
                refuse_batch(settings, batch)
            try:
                spec = TableSpec(self._schema, settings)
            except ValueError as error:
                raise ConfigError(str(error)) from None
            self._replay.configure(table.index, spec)
            table.configure(settings, spec)
            self._tell(table)
            return settings
