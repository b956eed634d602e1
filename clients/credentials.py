"""A key file of `memsvc keys`: read and checked, and kept out of everything that is printed, logged or pickled."""

from __future__ import annotations

import json
import os
import stat
import struct
from typing import Any

import zmq
from memsvc_proto.errors import ConfigError
from zmq.utils import z85

KEYS_VARIABLE = "MEMSVC_KEYS"
_MOST_BYTES = 1 << 16


def secret_file(path: str) -> bytes:
    """The bytes of a file that holds secrets. Raises ConfigError (`path`, `mode`) where others could have read it, or nobody can."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe in its place must not stop anybody
    except OSError as error:
        raise ConfigError(f"key file {path}: cannot be read: {error.strerror}; `memsvc keys` makes key files", path=path) from None
    try:
        found = os.fstat(fd)
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"key file {path}: is no file; name the file that `memsvc keys` made for this client", path=path)
        if found.st_uid != os.geteuid():
            raise ConfigError(
                f"key file {path}: belongs to user {found.st_uid}, and this process is user {os.geteuid()}; make a copy of its own, chmod 600",
                path=path,
                owner=found.st_uid,
            )
        if mode & 0o077:
            raise ConfigError(
                f"key file {path}: its mode is {mode:04o}, so others can get at the secret in it; chmod 600 {path}, and make new keys if "
                f"somebody may have read it",
                path=path,
                mode=mode,
            )
        if found.st_size > _MOST_BYTES:
            raise ConfigError(f"key file {path}: has {found.st_size:,} bytes, {_MOST_BYTES:,} at most are expected", path=path)
        return os.read(fd, _MOST_BYTES)
    finally:
        os.close(fd)


class Credentials:
    """What a key file holds. Its representation shows no secret; it is not pickled: send the path."""

    __slots__ = ("authority", "certificate", "name", "path", "private", "public", "role", "secret", "server", "stamp")

    def __init__(self, path: str) -> None:
        """Reads `path`. Raises ConfigError: others may read it, or it is no key file."""
        self.path = path
        self.stamp = _stamp(path)
        raw = secret_file(path)
        try:
            told = json.loads(raw)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict) or told.get("memsvc") not in ("client", "server"):
            raise ConfigError(f"key file {path}: is none that `memsvc keys` made", path=path)
        self.name, self.role = _text(path, told, "name"), _text(path, told, "role")
        self.secret = _text(path, told, "secret").encode()
        """CURVE, in Z85: 40 characters, as `public` and `server`."""
        self.public = _public(path, self.secret)
        self.server = self.public
        """The server's public key."""
        if told["memsvc"] == "client":
            self.server = _text(path, told, "server").encode()
            _key(path, "server", self.server)
        self.certificate, self.private, self.authority = (_text(path, told, one).encode() for one in ("certificate", "private", "authority"))
        """For gRPC: PEM."""

    def __repr__(self) -> str:
        return f"Credentials({self.path!r}: {self.name!r}, {self.role})"

    def __reduce__(self) -> Any:
        raise TypeError(f"the secret in {self.path} is not pickled; send the path of the file")

    def changed(self) -> bool:
        """True when the file is another one by now."""
        return self.stamp != _stamp(self.path)


def keys_path(keys: str | os.PathLike[str] | None) -> str:
    """The path of a key file: as given, or what MEMSVC_KEYS says where that is None; "" is none."""
    return os.fspath(keys) if keys is not None else os.environ.get(KEYS_VARIABLE, "")


def credentials_of(keys: str | os.PathLike[str] | None) -> Credentials | None:
    """What the file of `keys_path` holds now; None without one. Raises ConfigError."""
    path = keys_path(keys)
    return Credentials(path) if path else None


def curve_client(socket: zmq.Socket[bytes], own: Credentials | None) -> None:
    """What a client's socket encrypts with, from its next connection on; does nothing without credentials."""
    if own is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, own.server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, own.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret)


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)


def _text(path: str, told: dict[str, Any], key: str) -> str:
    value = told.get(key)
    if not isinstance(value, str) or not value.isascii():
        raise ConfigError(f"key file {path}: lacks {key!r}; make a new one with `memsvc keys`", path=path)
    return value


def _key(path: str, which: str, text: bytes) -> None:
    try:
        if len(text) == 40 and len(z85.decode(text)) == 32:
            return
    except (LookupError, ValueError, struct.error):  # what the decoder says of other characters, and of too large a number
        pass
    raise ConfigError(f"key file {path}: its {which!r} is no CURVE key; make a new file with `memsvc keys`", path=path)


def _public(path: str, secret: bytes) -> bytes:
    _key(path, "secret", secret)
    if not zmq.has("curve"):
        raise ConfigError(f"key file {path}: this libzmq was built without CURVE; install a pyzmq that has it (its wheels do)", path=path)
    return zmq.curve_public(secret)
