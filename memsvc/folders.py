"""What `memsvc check` says of the folders that a configuration names: of its keys, and of the data that a server has left. Nothing changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .config import Config
from .keys import check_folder, read_allowed


def keys(config: Config) -> str:
    """Who may come, in one line. Raises ConfigError as the server does."""
    if not config.server.keys:
        return "none: whoever reaches the addresses may do anything"
    folder = Path(config.server.keys)
    check_folder(folder)
    roles = Counter(holder.role for holder in read_allowed(folder).values())
    return f"{folder}: {', '.join(f'{count} {role}' for role, count in sorted(roles.items())) or 'nobody is allowed'}"


def data(config: Config) -> str:
    """What lies in server.data, in one line. Raises ConfigError where a start asks for --on-mismatch."""
    from .durability import folder, mismatch, snapshots
    from .durability.records import Damaged

    path = config.server.data
    there = Path(path)
    try:
        about = folder.told(there)
    except FileNotFoundError:
        return f"{path}: nothing yet"
    except (Damaged, OSError) as error:
        return f"{path}: server.json cannot be read ({error}); a start says what it can restore"
    stored = about.get("form")
    lines = mismatch.differences(stored, mismatch.form_of(config)) if stored else []
    if lines:
        raise mismatch.refusal(path, lines)
    files = list((there / "journal").glob("*")) + snapshots.there(there / "snapshots")
    size = sum(one.stat().st_size for one in files)
    return f"{path}: {size:,} bytes of a server that {'ended in order' if about.get('clean') else 'runs, or ended without a word'}"
