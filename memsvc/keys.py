"""The folder of keys: `server.key`, `allowed` (who may come, as what) and a file for each client; `memsvc keys` makes them, never over others.

`allowed` has a line `NAME ROLE PUBLIC` for each key, lines that begin with # aside. The server reads it again when it changes: take a line out and
that key is refused from then on, change its role and that holds from its next message.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq
from memsvc_client.credentials import secret_file
from memsvc_proto.errors import ConfigError
from zmq.utils import z85

from .roles import ROLES, Holder

if TYPE_CHECKING:
    from .certificates import Authority

SERVER_FILE = "server.key"
AUTHORITY_FILE = "authority.key"
ALLOWED_FILE = "allowed"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEAD = "# name role key: who may come, and as what. Read again when it changes.\n"


def make(folder: Path, hosts: Sequence[str] = ()) -> list[Path]:
    """A folder with keys for a server and a client of each role; returns the clients' files. `hosts`: further names in the server's certificate.

    Raises ConfigError where the folder is there and not empty, or `cryptography` is missing. All of it is there, or nothing.
    """
    authority = _authority()
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(0o700)
        part.chmod(0o700)
        public, secret = _pair()
        private, certificate = authority.server(["localhost", "127.0.0.1", "::1", *hosts])
        _write(part / AUTHORITY_FILE, {"memsvc": "authority", "private": authority.private, "certificate": authority.certificate})
        server = {"memsvc": "server", "name": "server", "role": "server", "public": public, "secret": secret}
        _write(part / SERVER_FILE, server | {"certificate": certificate, "private": private, "authority": authority.certificate})
        lines = [_make_client(part, role, role, public, authority) for role in ROLES]
        _new_file(part / ALLOWED_FILE, _HEAD + "".join(lines))
        os.rename(part, folder)  # over an empty folder too; never over others
    except OSError as error:
        reason = "it is there, and not empty; --add NAME --role ROLE adds a key" if folder.exists() and any(folder.iterdir()) else error.strerror
        raise ConfigError(f"{folder}: keys cannot be made there: {reason}", path=str(folder)) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return [folder / f"{role}.key" for role in ROLES]


def add(folder: Path, name: str, role: str) -> Path:
    """One more key in a folder of `make`; returns the client's file. The server takes it within a second. Raises ConfigError."""
    if not _NAME.fullmatch(name) or name in ("server", "authority"):
        raise ConfigError(f"--add {name!r}: a name has 1 to 64 letters, digits, dots, underscores and dashes, and is not that of the server")
    if role not in ROLES:
        raise ConfigError(f"--role {role!r}: expected one of {', '.join(ROLES)}")
    server = _read(folder / SERVER_FILE)
    signer = _read(folder / AUTHORITY_FILE)
    authority = _authority(str(signer.get("private")), str(signer.get("certificate")))
    with _alone(folder):
        listed = folder / ALLOWED_FILE
        text = _text(listed)
        if any(one.name == name for one in read_allowed(folder).values()):
            raise ConfigError(f"--add {name!r}: {listed} has a key of that name; choose another, or take its line and {name}.key away first")
        path = folder / f"{name}.key"
        try:
            line = _make_client(folder, name, role, str(server.get("public")), authority)
        except FileExistsError:
            raise ConfigError(f"--add {name!r}: {path} exists, and keys are never overwritten; choose another name") from None
        part = folder / f".{ALLOWED_FILE}.{os.getpid()}.part"
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        _new_file(part, text + ("" if text.endswith("\n") or not text else "\n") + line)
        os.replace(part, listed)
    return path


def read_allowed(folder: Path) -> dict[str, Holder]:
    """Whom the server lets in, by public key. Raises ConfigError, which names the line, or who else could write the file."""
    path = folder / ALLOWED_FILE
    holders: dict[str, Holder] = {}
    names: set[str] = set()
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split()
        if len(parts) != 3 or not _NAME.fullmatch(parts[0]) or parts[1] not in ROLES or not _is_key(parts[2]):
            raise ConfigError(f"{path}, line {number}: expected NAME ROLE KEY, with a role of {', '.join(ROLES)}", path=str(path), line=number)
        holder = Holder(*parts)
        if holder.public in holders or holder.name in names:
            raise ConfigError(f"{path}, line {number}: name and key of each line are its own, {holder.name!r} or its key was there before")
        holders[holder.public] = holder
        names.add(holder.name)
    return holders


def check_folder(folder: Path) -> None:
    """Raises ConfigError where others could put files into it, since what lies there says who is let in."""
    try:
        found = folder.stat()
    except OSError as error:
        raise ConfigError(f"server.keys: {folder} cannot be read: {error.strerror}; `memsvc keys {folder}` makes it", path="server.keys") from None
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"server.keys: {folder} is no folder; name the one that `memsvc keys` made", path="server.keys")
    if found.st_uid != os.geteuid() or mode & 0o077:
        raise ConfigError(
            f"server.keys: {folder} has mode {mode:04o} and belongs to user {found.st_uid}; it is to be this user's ({os.geteuid()}) alone: "
            f"chmod 700 {folder}",
            path="server.keys",
            mode=mode,
        )


def _authority(private: str | None = None, certificate: str | None = None) -> Authority:
    try:
        from .certificates import Authority
    except ImportError as error:
        raise ConfigError(f"memsvc keys needs the package cryptography ({error}); pip install 'memsvc[server]'") from error
    try:
        return Authority(private, certificate)
    except ValueError as error:
        raise ConfigError(f"{AUTHORITY_FILE} holds no authority: {error}") from None


def _make_client(folder: Path, name: str, role: str, server: str, authority: Authority) -> str:
    # Returns its line in `allowed`.
    public, secret = _pair()
    private, certificate = authority.client(name, public)
    told = {"memsvc": "client", "name": name, "role": role, "public": public, "secret": secret, "server": server}
    _write(folder / f"{name}.key", told | {"certificate": certificate, "private": private, "authority": authority.certificate})
    return f"{name} {role} {public}\n"


def _pair() -> tuple[str, str]:
    try:
        public, secret = zmq.curve_keypair()
    except zmq.ZMQError as error:
        raise ConfigError(f"this libzmq was built without CURVE ({error}); install a pyzmq that has it (its wheels do)") from None
    return public.decode(), secret.decode()


def _write(path: Path, told: dict[str, str]) -> None:
    _new_file(path, json.dumps(told, indent=1) + "\n")


def _new_file(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> dict[str, Any]:
    raw = secret_file(str(path))
    try:
        told = json.loads(raw)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise ConfigError(f"{path} is none of the files that `memsvc keys` made", path=str(path))
    return told


def _text(path: Path) -> str:
    try:
        return secret_file(str(path)).decode("ascii")  # no secret, but who may write it says who is let in
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: has characters that are not ASCII", path=str(path)) from None


def _is_key(text: str) -> bool:
    try:
        return len(text) == 40 and len(z85.decode(text.encode())) == 32
    except (LookupError, ValueError, struct.error):
        return False


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    # Two that add at once would each lose the other's line.
    fd = os.open(folder / AUTHORITY_FILE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
