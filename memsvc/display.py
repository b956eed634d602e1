"""A command's live display: a table that refreshes in a terminal, or a line every few seconds."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

LINE_EVERY_S = 3.0


class State(Protocol):
    """What can be shown."""

    def rows(self) -> list[tuple[str, str]]:
        """(what, how much), in order."""


class Display:
    """Shows a State under a title; a context manager. Lines where `plain`, or where standard output is no terminal. Not thread-safe."""

    def __init__(self, title: str, plain: bool) -> None:
        self._title = title
        self._console = Console(soft_wrap=True, highlight=False)
        self._live = None if plain or not self._console.is_terminal else Live(console=self._console, refresh_per_second=4)
        self._written_s = 0.0

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, state: State, time_s: float) -> None:
        """The state `time_s` seconds after the start."""
        rows = state.rows()
        if self._live is not None:
            table = Table(title=f"{self._title}, {time_s:.0f} s", show_header=False, min_width=40)
            table.add_column()
            table.add_column(justify="right")
            for row in rows:
                table.add_row(*row)
            self._live.update(table)
        elif time_s - self._written_s >= LINE_EVERY_S:
            self._written_s = time_s
            print(f"{time_s:4.0f} s  " + "  ".join(f"{what} {value}" for what, value in rows), flush=True)

    def say(self, text: str) -> None:
        """One line above the table, or among the lines."""
        self._console.print(text, markup=False) if self._live is not None else print(text, flush=True)
