"""Who may look. On this machine without a data token everybody; otherwise whoever has the admin token.

A browser cannot send a bearer token by itself, so the admin token is also taken as the password of HTTP Basic.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from starlette.requests import Request

from nightschool.access.tokens import Access, Role

CHALLENGE = {"www-authenticate": 'Basic realm="Nightschool", charset="UTF-8"'}


def may_look(request: Request) -> bool:
    """Whether this request may see pages. An application without `state.access` is somebody's own: it decides."""
    access: Access | None = getattr(request.app.state, "access", None)
    if access is None:
        return True
    host = request.client.host if request.client else None
    return access.may_use(None, host) or access.role(_as_bearer(request.headers.raw)) is Role.ADMIN


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
