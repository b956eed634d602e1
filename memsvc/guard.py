"""The guard of a server with keys: lets in whom `allowed` lists, says who has sent a frame, and tells and counts who was turned away."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from pathlib import Path
from typing import Any

import zmq
from memsvc_client.credentials import Credentials
from memsvc_proto.errors import ConfigError, Forbidden
from memsvc_proto.wire import Kind
from zmq.auth.thread import ThreadAuthenticator

from .keys import ALLOWED_FILE, SERVER_FILE, check_folder, read_allowed
from .roles import Holder, check_message
from .seldom import Seldom
from .tally import Tally

log = logging.getLogger("memsvc")

_DOMAIN = "memsvc"


class _Authenticator(ThreadAuthenticator):
    """pyzmq's answer to libzmq's questions (ZAP), from a thread of its own, with the guard's list."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], guard: Guard) -> None:
        super().__init__(context, log=logging.getLogger("memsvc.zap"))
        self._guard = guard
        self._pid = os.getpid()
        self._address = ""
        self.configure_curve_callback(_DOMAIN, self)

    async def handle_zap_message(self, msg: list[bytes]) -> None:
        """Keeps where the question comes from, for the log."""
        self._address = msg[3].decode("ascii", "replace") if len(msg) > 3 else ""
        await super().handle_zap_message(msg)

    def stop(self) -> None:
        """Nothing in a forked child, where this object may end too: its sockets are the parent's, who would be woken by them."""
        if os.getpid() == self._pid:
            super().stop()

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the holder of this public key is let in."""
        try:
            return self._guard.admits(key.decode("ascii", "replace"), self._address)
        except Exception:  # each question must be answered, else no other is
            log.exception("a handshake could not be judged")
            return False


class Guard:
    """Thread-safe. Fails closed: with its thread gone nobody is let in."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: str, counts: Tally) -> None:
        """Raises ConfigError where the keys cannot be read, or others could have."""
        self._folder = Path(folder).absolute()
        check_folder(self._folder)
        self.own = Credentials(str(self._folder / SERVER_FILE))
        if self.own.role != "server":
            raise ConfigError(f"server.keys: {self.own.path} is a client's key file; name the folder that `memsvc keys` made", path="server.keys")
        self._stamp = self._look()
        self._holders = read_allowed(self._folder)
        self._tokens: dict[str, str] = {}  # token -> public key
        self._lock = threading.Lock()
        self._counts = counts
        self._seldom = Seldom()
        self._zap = _Authenticator(context, self)
        self._zap.start()

    def dress(self, socket: zmq.Socket[bytes]) -> None:
        """Before it is bound: its clients must show a key."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.own.secret)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.own.public)
        socket.setsockopt_string(zmq.ZAP_DOMAIN, _DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # else libzmq lets everybody in where nobody answers its questions

    def admits(self, public: str, address: str) -> bool:
        """A connection shows this key."""
        self.refresh()
        if public in self._holders:
            return True
        self._counts.add("unknown_keys")
        more = self._seldom.due(("unknown", address))
        if more is not None:
            log.warning("refused a connection from %s: its key is not among the allowed ones%s", address or "this host", more)
        return False

    def holder(self, public: str) -> Holder | None:
        """Who has this key now; None for nobody any more."""
        return self._holders.get(public)

    def check(self, public: str, kind: Kind, role: object = None, where: str = "") -> None:
        """Raises Forbidden, counted and logged, where the holder of this key may not send such a message (`role`: of a HELLO)."""
        try:
            check_message(self._holders.get(public), kind, role)
        except Forbidden as error:
            self.forbid(error, where)
            raise

    def forbid(self, error: Forbidden, where: str) -> None:
        """Counts and logs what was refused; once a minute for each client and thing."""
        self._counts.add("forbidden")
        more = self._seldom.due((error.key, error.asked, where))
        if more is not None:
            log.warning("refused %s%s: %s%s", error.key or "a key that is not allowed any more", f" ({where})" if where else "", error.message, more)

    def token(self, public: str) -> str:
        """What WELCOME tells the holder of this key for the socket beside the addresses."""
        with self._lock:
            for token, owner in self._tokens.items():
                if owner == public:
                    return token
            token = secrets.token_hex(16)
            self._tokens[token] = public
            return token

    def bearer(self, token: object, kind: Kind) -> str:
        """The public key to which this token was told, if it may do what `kind` does. Raises Forbidden, counted and logged."""
        public = self._tokens.get(token) if isinstance(token, str) else None
        if public is None:
            error = Forbidden(
                "beside its addresses this server hears who tells the token of its WELCOME: connect to its address with a key", key="", role="",
                asked=f"{kind.name} beside the addresses", allowed=[],
            )  # fmt: skip
            self.forbid(error, "beside")
            raise error
        self.check(public, kind, where="beside")
        return public

    def refresh(self) -> None:
        """Reads `allowed` again if it has changed; one that cannot be used is told of, and the last one stays."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        with self._lock:
            if stamp == self._stamp:
                return
            self._stamp = stamp
            try:
                check_folder(self._folder)
                holders = read_allowed(self._folder)
            except (ConfigError, OSError) as error:
                log.error("the keys as they were before are used on: %s", error)
                return
            self._holders = holders
            self._tokens = {token: public for token, public in self._tokens.items() if public in holders}
        log.info("read %s again: %d keys are allowed", self._folder / ALLOWED_FILE, len(holders))

    def stats(self) -> dict[str, Any]:
        """{"allowed": {role: number of keys}}."""
        roles = [holder.role for holder in self._holders.values()]
        return {"allowed": {role: roles.count(role) for role in sorted(set(roles))}}

    def close(self) -> None:
        """Ends its thread; idempotent. From then on nobody is let in."""
        self._zap.stop()

    def _look(self) -> tuple[int, int, int, int]:
        try:
            found = os.stat(self._folder / ALLOWED_FILE)
        except OSError:
            return (0, 0, 0, 0)
        return (found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size)
