"""Tokens: the admin token of an installation, and the optional data token of its agents."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nightschool.errors import ConfigError, RefusedError

API_KEY_VARIABLE = "NIGHTSCHOOL_API_KEY"


class Role(StrEnum):
    """What a token allows: `data` sends traffic and feedback, `admin` everything."""

    DATA = "data"
    ADMIN = "admin"


def admin_token(state: Path) -> str:
    """The installation's admin token, from `state/token`; made at first use, readable by its owner alone.

    Raises: ConfigError when other users of the machine may read the file, or when it is empty.
    """
    path = state / "token"
    state.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _create(path)
    if path.stat().st_mode & 0o077:
        raise ConfigError(
            "The admin token is not used.",
            f"Other users of this machine may read {path}, so it may be known.",
            f"Delete {path} (a new one is made at the next start), or `chmod 600 {path}` if nobody could.",
        )
    token = path.read_text(encoding="ascii").strip()
    if not token:
        raise ConfigError("The admin token is empty.", f"{path} holds no token.", f"Delete {path} and start again.")
    return token


def _create(path: Path) -> None:
    """Write a new token so that no other process ever sees half of it, and the first of two writers wins."""
    draft = path.with_name(f"token.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"ns-admin-{secrets.token_urlsafe(32)}\n")
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink()


@dataclass(frozen=True, slots=True)
class Access:
    """The tokens of one installation. `data_token` is `None` when agents on loopback need none."""

    admin_token: str
    data_token: str | None = None

    def role(self, headers: Iterable[tuple[bytes, bytes]]) -> Role | None:
        """The role of the `Authorization: Bearer` header; `None` for a missing or unknown token."""
        given = b""
        for name, value in headers:
            if name == b"authorization":
                scheme, _, rest = value.partition(b" ")
                given = rest.strip() if scheme.lower() == b"bearer" else b""
        # Both comparisons always run: how long the answer takes says nothing about either token.
        admin = hmac.compare_digest(given, self.admin_token.encode())
        data = hmac.compare_digest(given, (self.data_token or "").encode())
        if admin:
            return Role.ADMIN
        return Role.DATA if data and self.data_token else None

    def may_use(self, role: Role | None, client_host: str | None) -> bool:
        """Whether a caller may chat and read: with a token, or from this machine where no data token is set."""
        return role is not None or (self.data_token is None and is_loopback(client_host))


def is_loopback(host: str | None) -> bool:
    """Whether `host` (a name or an address) is this machine and nobody else."""
    if not host:
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refuse_public_bind(host: str, data_token: str | None) -> None:
    """Raises: RefusedError when `host` can be reached from outside and no data token protects it."""
    if is_loopback(host) or data_token:
        return
    raise RefusedError(
        f"Nightschool does not listen on {host}.",
        "Others could reach it, and no key is set.",
        f"Set {API_KEY_VARIABLE} to a long random string, or listen on 127.0.0.1.",
    )
