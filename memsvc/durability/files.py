"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def write(path: Path, *parts: Any) -> None:
    """Writes the bytes of `parts` one after the other, and returns once they are on disk under that name. OSError: what was there before is."""
    part = path.with_name(f"{path.name}.part")
    try:
        with open(part, "wb") as file:
            for one in parts:
                file.write(one)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes what was created, renamed and removed in it last."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
