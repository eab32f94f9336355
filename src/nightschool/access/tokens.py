"""Secrets in the state folder, the admin token among them, and who may be reached from outside."""

from __future__ import annotations

import ipaddress
import os
import secrets
from functools import lru_cache
from pathlib import Path

from nightschool.errors import ConfigError, RefusedError

API_KEY_VARIABLE = "NIGHTSCHOOL_API_KEY"


def admin_token(state: Path) -> str:
    """The installation's admin token, from `state/token`; made at first use, readable by its owner alone.

    Raises: ConfigError when other users of the machine may read the file, or when it is empty.
    """
    return own_secret(state / "token", "ns-admin-")


def own_secret(path: Path, prefix: str) -> str:
    """The secret in the file `path`, of 256 random bits behind `prefix`; made at first use.

    Raises: ConfigError when other users of the machine may read the file, or when it is empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        _create(path, f"{prefix}{secrets.token_urlsafe(32)}\n")
    if path.stat().st_mode & 0o077:
        raise ConfigError(
            f"{path.name} is not used.",
            f"Other users of this machine may read {path}, so it may be known.",
            f"Delete {path} (a new one is made at the next start), or `chmod 600 {path}` if nobody could.",
        )
    secret = path.read_text(encoding="ascii").strip()
    if not secret:
        raise ConfigError(f"{path.name} is empty.", f"{path} holds no token.", f"Delete {path} and start again.")
    return secret


def _create(path: Path, content: str) -> None:
    """Write a new secret so that no other process ever sees half of it, and the first of two writers wins."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(content)
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink()


@lru_cache(maxsize=1024)
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


def refuse_public_bind(host: str, needs_key: bool) -> None:
    """Raises: RefusedError when `host` can be reached from outside and agents need no key."""
    if is_loopback(host) or needs_key:
        return
    raise RefusedError(
        f"Nightschool does not listen on {host}.",
        "Others could reach it, and no key is set.",
        f"Make one with `nightschool keys add NAME`, set {API_KEY_VARIABLE} to a long random string, "
        "or listen on 127.0.0.1.",
    )
