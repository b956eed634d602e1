"""Addresses as they stand in memsvc.toml: `tcp://host:port` (host a name, IPv4, or IPv6 in brackets), `ipc://path`, and gRPC's `host:port`."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass, replace

from memsvc_proto.errors import ConfigError

_TCP = re.compile(r"(?:tcp://)?(\[[0-9a-fA-F:.%\w]+\]|[^\s:/\[\]]+)(?::(\d{1,5}))?")
_IPC_PATH_BYTES = 100  # sun_path holds 107 and ".params" is appended


@dataclass(frozen=True)
class Address:
    """Where something listens. tcp: host without brackets, and port; ipc: path."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_ipc(self) -> bool:
        """True for ipc://."""
        return bool(self.path)

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can connect."""
        if self.is_ipc or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_ipv6(self) -> bool:
        """True for a numeric IPv6 host."""
        return ":" in self.host

    @property
    def host_port(self) -> str:
        """`host:port`, an IPv6 host in brackets: gRPC's spelling."""
        return f"[{self.host}]:{self.port}" if self.is_ipv6 else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"ipc://{self.path}" if self.is_ipc else f"tcp://{self.host_port}"

    def at(self, port: int) -> Address:
        """The same host, another port."""
        return replace(self, port=port)

    def beside(self, suffix: str) -> Address:
        """A further endpoint of the same server: tcp on a free port of the same host, ipc on path + suffix."""
        return replace(self, path=self.path + suffix) if self.is_ipc else self.at(0)

    def numeric(self) -> Address:
        """The host as a numeric address, which sockets can bind; `*` is every IPv4 interface. Raises OSError when the name is not known."""
        if self.is_ipc:
            return self
        if self.host == "*":
            return replace(self, host="0.0.0.0")
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        found.sort(key=lambda one: one[0] != socket.AF_INET)  # a name with both: IPv4, as clients of zmq try it first
        return replace(self, host=str(found[0][4][0]))


def parse_data(path: str, value: str, need_port: bool = True) -> Address:
    """`tcp://host:port` or `ipc://path`; ConfigError begins with `path`. need_port False: the port may be left out (0)."""
    if value.startswith("ipc://"):
        name = value[len("ipc://") :]
        if not name or len(name.encode()) > _IPC_PATH_BYTES:
            raise ConfigError(f"{path}: an ipc path has 1 to {_IPC_PATH_BYTES} bytes, got {len(name.encode())}: {value!r}", path=path)
        return Address(path=name)
    match = _TCP.fullmatch(value) if value.startswith("tcp://") else None
    if match is None or (need_port and match[2] is None):
        raise ConfigError(f'{path}: expected "tcp://host:port" (port 0 picks a free one) or "ipc://path", got {value!r}', path=path)
    return _tcp(path, match)


def parse_control(path: str, value: str) -> Address:
    """`host:port`; ConfigError begins with `path`."""
    match = None if "://" in value else _TCP.fullmatch(value)
    if match is None or match[2] is None:
        raise ConfigError(f'{path}: expected "host:port" (port 0 picks a free one; "" is off), got {value!r}', path=path)
    return _tcp(path, match)


def _tcp(path: str, match: re.Match[str]) -> Address:
    port = int(match[2] or 0)
    if port > 65535:
        raise ConfigError(f"{path}: expected a port from 0 to 65535, got {port}", path=path)
    return Address(host=match[1].strip("[]"), port=port)
