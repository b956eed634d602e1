"""Who may do what: the roles of keys, and the one table of what each may say. Without keys nobody is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memsvc_proto.errors import Forbidden
from memsvc_proto.wire import Kind

ROLES = ("actor", "learner", "viewer", "admin")

_ALL = frozenset(ROLES)
_PLAYERS = frozenset({"actor", "learner", "admin"})
_ACTORS = frozenset({"actor", "admin"})
_LEARNERS = frozenset({"learner", "admin"})
_ADMINS = frozenset({"admin"})

MESSAGES: dict[Kind, frozenset[str]] = {
    Kind.PING: _ALL,
    Kind.STATS: _ALL,
    Kind.BYE: _ALL,
    Kind.FETCH: _PLAYERS,
    Kind.SHARED: _PLAYERS,
    Kind.PUSH: _ACTORS,
    Kind.SAMPLE: _LEARNERS,
    Kind.TAKEN: _LEARNERS,
    Kind.UPDATE: _LEARNERS,
    Kind.GET: _LEARNERS,
    Kind.DELETE: _LEARNERS,
    Kind.PUBLISH: _LEARNERS,
    Kind.CONFIGURE: _ADMINS,
}
"""Roles that may send a kind of message; HELLO below. What stands in neither, an admin alone."""

HELLOS: dict[str, frozenset[str]] = {"viewer": _ALL, "actor": _ACTORS, "learner": _LEARNERS}
"""Roles of keys that may come as this role of HELLO."""

METHODS: dict[str, frozenset[str]] = {"ServerInfo": _ALL, "TableInfo": _ALL, "Configure": _ADMINS, "Checkpoint": _ADMINS}
"""The same for gRPC's methods; those of health and reflection are everybody's who has a certificate."""


@dataclass(frozen=True)
class Holder:
    """Whom a key belongs to: a line of `allowed`."""

    name: str
    role: str
    public: str
    """CURVE, in Z85."""


def check_message(holder: Holder | None, kind: Kind, role: object = None) -> None:
    """Raises Forbidden where the holder may not send this; `role`: a HELLO's. None: a key that is not listed any more."""
    if kind is Kind.HELLO and isinstance(role, str) and role in HELLOS:
        _check(holder, f"HELLO as {role}", HELLOS[role])
    elif kind is Kind.HELLO:
        _check(holder, "HELLO", _ALL)  # what is wrong with it is said by who reads it
    else:
        _check(holder, kind.name, MESSAGES.get(kind, _ADMINS))


def check_method(holder: Holder | None, method: str) -> None:
    """The same for `/package.Service/Method` of gRPC."""
    service, _, name = method.strip("/").partition("/")
    own = service.startswith("memsvc.")
    _check(holder, f"gRPC's {name}", METHODS.get(name, _ADMINS) if own else _ALL)


def _check(holder: Holder | None, asked: str, allowed: frozenset[str]) -> None:
    if holder is not None and holder.role in allowed:
        return
    roles = [role for role in ROLES if role in allowed]
    told: dict[str, Any] = {"asked": asked, "allowed": roles}
    if holder is None:
        raise Forbidden(
            f"{asked}: this key is not among the server's allowed ones any more; `memsvc keys DIR --add NAME --role {roles[0]}` makes another",
            key="",
            role="",
            **told,
        )
    raise Forbidden(
        f"{asked} is not for key {holder.name!r} (role {holder.role}), but for {' or '.join(roles)}: use a key of such a role "
        f"(`memsvc keys DIR --add NAME --role {roles[0]}` makes one), or change the role of this one in the server's `allowed`",
        key=holder.name,
        role=holder.role,
        **told,
    )
