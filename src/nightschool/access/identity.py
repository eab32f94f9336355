"""Who asks: an admin token, a data token, a key of the table, or this machine where no key is set."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from nightschool.access.keys import Key, KeyRing, Role, Training
from nightschool.access.rates import Rates
from nightschool.access.tokens import is_loopback

Headers = Sequence[tuple[bytes, bytes]]

# Sent by proxies: with one of them the peer's address says nothing about who asks.
FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via"})


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller. `role` is `None` for a program of this machine that shows no key where none is needed.

    `key_id` names the row of a key from the table, `None` for the tokens. `training_allowed` is the consent
    of the key or, where it has none of its own, of the installation: several tenants deny, one allows.
    """

    tenant: str
    role: Role | None
    key_id: str | None
    training_allowed: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """What the headers of a request show of its caller."""

    keys: tuple[bytes, ...] = ()
    named: bool = False  # the key stands in the header that is for it alone
    host: bytes = b""
    forwarded: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """The tokens and keys of one installation, whose own tenant is `tenant`.

    `data_token` is `None` when agents on loopback need none; `keys` is `None` for an installation without the
    table of keys (a gateway inside a test).
    """

    admin_token: str
    data_token: str | None = None
    keys: KeyRing | None = None
    tenant: str = "default"
    rates: Rates = field(default_factory=Rates)

    def identify(self, headers: Headers, client_host: str | None) -> Identity | None:
        """The caller, `None` when nothing it shows is known here.

        The key comes as `X-Nightschool-Key`; without that header as `Authorization: Bearer` or `x-api-key`,
        either of which may also be meant for a provider behind the gateway.

        Units: about 4 µs, whatever the number of keys.
        """
        shown = read_headers(headers)
        for given in shown.keys:
            # Both comparisons always run: how long the answer takes says nothing about either token.
            admin = hmac.compare_digest(given, self.admin_token.encode())
            data = hmac.compare_digest(given, (self.data_token or "").encode())
            if admin or (data and self.data_token):
                return Identity(self.tenant, Role.ADMIN if admin else Role.DATA, None, not self.is_shared)
            key = self.keys.find(given) if self.keys else None
            if key is not None:
                return None if key.revoked_at is not None else self._of(key)
        if self._is_open(shown, client_host):
            return Identity(self.tenant, None, None, not self.is_shared)
        return None

    def is_ours(self, value: bytes) -> bool:
        """Whether the value of a key header is meant for this installation, so that nobody else may see it."""
        scheme, _, rest = value.partition(b" ")
        given = rest.strip() if scheme.lower() == b"bearer" else value.strip()
        tokens = (self.admin_token.encode(), (self.data_token or "").encode())
        return given.startswith(b"ns-") or any(token and hmac.compare_digest(given, token) for token in tokens)

    def wait_s(self, identity: Identity) -> float:
        """Take one request from the caller's allowance: 0, or the seconds after which there is one again."""
        key = self.keys.by_id(identity.key_id) if self.keys and identity.key_id else None
        return 0.0 if key is None or key.rate_per_minute is None else self.rates.take(key.id, key.rate_per_minute)

    def watch(self) -> AbstractAsyncContextManager[None]:
        """Notice new and revoked keys for the length of the block."""
        return self.keys.watch() if self.keys else nullcontext()

    @property
    def is_shared(self) -> bool:
        """Whether agents of more than one tenant have keys here."""
        tenants = self.keys.data_tenants if self.keys else frozenset[str]()
        return len(tenants | {self.tenant} if self.data_token else tenants) > 1

    @property
    def needs_key(self) -> bool:
        """Whether agents need a key on loopback too: once there was one, revoking it opens nothing."""
        return bool(self.data_token) or bool(self.keys and self.keys.had_data_key)

    def _of(self, key: Key) -> Identity:
        by_default = key.training == Training.DEFAULT and not self.is_shared
        return Identity(key.tenant, key.role, key.id, by_default or key.training == Training.ALLOW)

    def _is_open(self, shown: Shown, client_host: str | None) -> bool:
        if self.needs_key or shown.named or shown.forwarded:
            return False
        return is_loopback(client_host) and is_loopback(_name(shown.host.decode("latin-1")))


def read_headers(headers: Iterable[tuple[bytes, bytes]]) -> Shown:
    """What is shown. A header that is there twice counts by its last value."""
    ours = bearer = api_key = host = b""
    forwarded = False
    for name, value in headers:
        if name == b"x-nightschool-key":
            ours = value.strip()
        elif name == b"authorization":
            scheme, _, rest = value.partition(b" ")
            bearer = rest.strip() if scheme.lower() == b"bearer" else b""
        elif name == b"x-api-key":
            api_key = value.strip()
        elif name == b"host":
            host = value
        elif name in FORWARDED:
            forwarded = True
    keys = (ours,) if ours else tuple(key for key in (bearer, api_key) if key)
    return Shown(keys, bool(ours), host, forwarded)


def _name(host: str) -> str:
    """`host` without its port."""
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
