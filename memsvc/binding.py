"""Binding: sockets to addresses, and errors that say what is in the way."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

import zmq
from memsvc_proto.errors import ConfigError

from .address import Address


def bind(socket: zmq.Socket[bytes], address: Address, setting: str, private: bool = False) -> Address:
    """Binds and returns the address with its real port. ConfigError says what is in the way and what to do.

    `private`: nobody but this user can connect to an ipc address, whatever the umask; else the umask says who can.
    """
    try:
        if address.is_ipc:
            _refuse_other_file(address, setting)
            _refuse_living_ipc(address)
        numeric = address.numeric()
        if numeric.is_ipv6:
            socket.setsockopt(zmq.IPV6, 1)
        if address.is_ipc and private:
            before = os.umask(0o177)  # of the whole process, for a moment: a mode that is set afterwards comes too late for who connects at once
            try:
                socket.bind(str(numeric))
            finally:
                os.umask(before)
        else:
            socket.bind(str(numeric))
    except (zmq.ZMQError, OSError) as error:
        raise ConfigError(f"{setting}: {address} cannot be bound: {_reason(address, error)}", path=setting) from None
    if address.is_ipc:
        return address
    return address.at(int(str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rsplit(":", 1)[1]))


def _reason(address: Address, error: zmq.ZMQError | OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "it is in use by another process; stop that one, or choose another" + (
            "" if address.is_ipc else f" port than {address.port} (0 picks a free one)"
        )
    if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):
        return f"this machine has no interface with the address {address.host!r}; bind 127.0.0.1, or 0.0.0.0 for all, and set server.advertise"
    if error.errno == errno.EACCES:
        return "permission denied; choose " + ("a path in a directory that you may write to" if address.is_ipc else "a port from 1024 on")
    if error.errno == errno.ENOENT and address.is_ipc:
        return f"there is no directory {os.path.dirname(address.path)!r}"
    return str(error)


def _refuse_other_file(address: Address, setting: str) -> None:
    # zmq would remove whatever lies there.
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.lstat(address.path).st_mode):
            raise ConfigError(f"{setting}: {address} cannot be bound: {address.path!r} exists and is no socket; choose another path", path=setting)


def _refuse_living_ipc(address: Address) -> None:
    # zmq would remove the file of a server that lives, and take its clients' place over.
    import socket

    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(1.0)
        probe.connect(address.path)
    except (FileNotFoundError, ConnectionRefusedError):
        return
    finally:
        probe.close()
    raise OSError(errno.EADDRINUSE, "in use")


def remove_ipc(address: Address) -> None:
    """Removes the socket file that an ipc address leaves behind; leaves alone what is no socket."""
    if address.is_ipc:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.stat(address.path).st_mode):
                os.unlink(address.path)
