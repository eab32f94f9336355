"""Who may look, and who may act. On this machine where no key is needed everybody may look; otherwise whoever has an
admin key. Acting takes a key everywhere: an admin's, or one of the role `feedback`.

A browser cannot send a bearer token by itself, so the key is also taken as the password of HTTP Basic. Browsers keep it
apart by host and port, which they do not do with cookies.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from starlette.requests import Request

from nightschool.access.identity import Access, Identity
from nightschool.access.keys import Role
from nightschool.feedback.inbox import Person

CHALLENGE = {"www-authenticate": 'Basic realm="Nightschool", charset="UTF-8"'}
MAY_LOOK = (None, Role.ADMIN)
MAY_SEE_INBOX = (None, Role.ADMIN, Role.FEEDBACK)
MAY_ACT = (Role.ADMIN, Role.FEEDBACK)


@dataclass(frozen=True, slots=True)
class Acting:
    """Somebody who may act on the rows of `tenant`. `form_token` stands in every form that was drawn for them."""

    person: Person
    tenant: str
    form_token: str
    wait_s: float = 0.0


def tenant_shown(request: Request, own: str, roles: Collection[Role | None] = MAY_LOOK) -> str | None:
    """Whose pages this request may see, `None` for nobody's. An application without `state.access` is somebody's
    own: it shows the tenant `own`."""
    access: Access | None = getattr(request.app.state, "access", None)
    if access is None:
        return own
    identity = _identity(request, access)
    return identity.tenant if identity and identity.role in roles else None


def who_acts(request: Request, take: bool = False) -> Acting | None:
    """Who may act, `None` for whoever showed no key that allows it. `take`: it counts as one of the key's requests.

    What a key of the role `feedback` says counts as the word of one person, by the limits of a run; an admin's is the
    operator's own.
    """
    access: Access | None = getattr(request.app.state, "access", None)
    identity = _identity(request, access) if access else None
    if access is None or identity is None or identity.role not in MAY_ACT:
        return None
    is_admin = identity.role == Role.ADMIN
    key = access.keys.by_id(identity.key_id) if access.keys and identity.key_id else None
    person = Person(key.name if key else "admin", "operator" if is_admin else "annotator", identity.key_id, is_admin)
    said = "\0".join(("inbox", identity.tenant, str(identity.role), identity.key_id or ""))
    token = hmac.digest(access.admin_token.encode(), said.encode(), "sha256").hex()
    return Acting(person, identity.tenant, token, access.wait_s(identity) if take else 0.0)


def _identity(request: Request, access: Access) -> Identity | None:
    host = request.client.host if request.client else None
    return access.identify(_as_bearer(request.headers.raw), host)


def _as_bearer(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers in which a Basic password stands as a bearer token."""
    found = []
    for name, value in headers:
        scheme, _, rest = value.partition(b" ")
        if name == b"authorization" and scheme.lower() == b"basic":
            try:
                password = base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                password = b""
            value = b"Bearer " + password
        found.append((name, value))
    return found
