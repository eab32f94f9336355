"""Who may look. On this machine where no key is needed everybody; otherwise whoever has an admin key.

A browser cannot send a bearer token by itself, so the key is also taken as the password of HTTP Basic.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from starlette.requests import Request

from nightschool.access.identity import Access, Identity
from nightschool.access.keys import Role

CHALLENGE = {"www-authenticate": 'Basic realm="Nightschool", charset="UTF-8"'}


def tenant_shown(request: Request, own: str) -> str | None:
    """Whose pages this request may see, `None` for nobody's. An application without `state.access` is somebody's
    own: it shows the tenant `own`."""
    access: Access | None = getattr(request.app.state, "access", None)
    if access is None:
        return own
    host = request.client.host if request.client else None
    identity: Identity | None = access.identify(_as_bearer(request.headers.raw), host)
    return identity.tenant if identity and identity.role in (None, Role.ADMIN) else None


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
