"""Reading a request: its body within bounds, its headers, who asks and for whom."""

from __future__ import annotations

import math

from starlette.types import Receive, Scope

from nightschool.access.identity import Access, Identity
from nightschool.access.keys import Role
from nightschool.access.tokens import API_KEY_VARIABLE
from nightschool.gateway.aliases import Route
from nightschool.gateway.replies import RequestRefused, refuse
from nightschool.gateway.sessions import read_names
from nightschool.store.exchanges import Caller
from nightschool.types import Json

CREDENTIALS = frozenset({b"authorization", b"cookie", b"proxy-authorization", b"x-api-key", b"x-nightschool-key"})

# Who may do what. `None` is a program of this machine where no key is needed.
Roles = frozenset[Role | None]
MAY_CHAT: Roles = frozenset({None, Role.DATA, Role.ADMIN})
MAY_JUDGE: Roles = frozenset({Role.DATA, Role.FEEDBACK, Role.ADMIN})  # it changes state: a key on loopback too
MAY_READ_FEEDBACK: Roles = frozenset({None, *Role})


def text_headers(scope: Scope) -> dict[str, str]:
    """The headers by lower-case name, without the credentials."""
    return {name.decode("latin-1"): _text(value) for name, value in scope["headers"] if name not in CREDENTIALS}


def header(scope: Scope, wanted: bytes) -> str | None:
    """One header; the last where it is there twice."""
    found = [value for name, value in scope["headers"] if name == wanted]
    return _text(found[-1]) if found else None


def client_host(scope: Scope) -> str | None:
    client = scope.get("client")
    return client[0] if client else None


def require(scope: Scope, access: Access, roles: Roles) -> Identity:
    """The caller, if its role is one of `roles`; one request is taken from its key's allowance.

    Raises: RequestRefused (401 nothing known was shown, 403 another role is needed, 429 too often).
    """
    identity = access.identify(scope["headers"], client_host(scope))
    if identity is None or (identity.role is None and None not in roles):
        raise _unknown_token()
    if identity.role not in roles:
        raise _wrong_role(identity, roles)
    wait_s = access.wait_s(identity)
    if wait_s > 0:
        raise _too_often(wait_s)
    return identity


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes | None:
    """The whole body; `None` when the client left. Raises: RequestRefused (413) as soon as it is too long."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > max_bytes:
            raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def wait_until_gone(receive: Receive) -> None:
    """Returns when the client has closed its connection (or the reply is complete)."""
    while (await receive())["type"] != "http.disconnect":
        pass


def read_caller(scope: Scope, fields: Json, route: Route, training_allowed: bool, key_id: str | None = None) -> Caller:
    """Who asks, as the request says it. A header can deny training, never allow it."""
    headers = text_headers(scope)
    names = read_names(headers, fields)
    consent = headers.get("x-nightschool-training", "allow").strip().lower() == "allow"
    return Caller(
        agent=route.agent,
        session=names.session,
        header_user=headers.get("x-nightschool-user") or None,
        body_user=names.user,
        external_key=names.external_key,
        purpose=route.purpose,
        exam_id=route.exam_id,
        training_allowed=training_allowed and consent,
        key_id=key_id,
        tags=names.tags,
        parent_session=names.parent_session,
        previous_response=names.previous_response,
        session_hint=names.hint,
        branch=names.branch,
        is_retry=names.is_retry,
    )


def _text(value: bytes) -> str:
    """UTF-8, as programs write names today; else Latin-1, as HTTP once said, which reads any bytes."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _unknown_token() -> RequestRefused:
    return refuse(
        401,
        "invalid_api_key",
        "The request was refused.",
        "It carries no key that is known here, or one that was revoked.",
        f"Send a key made by `nightschool keys add`, {API_KEY_VARIABLE}, or the admin token (the file `token` in the "
        "state folder), as the API key.",
    )


def _wrong_role(identity: Identity, roles: Roles) -> RequestRefused:
    wanted = " or ".join(sorted(role for role in roles if role))
    code = "admin_only" if roles == {Role.ADMIN} else "role_refused"
    why = f"It needs the role {wanted}; this caller's is {identity.role or 'none'}."
    return refuse(
        403,
        code,
        "The request was refused.",
        why,
        f"Make a key with `nightschool keys add NAME --role {wanted.split()[0]}`.",
    )


def _too_often(wait_s: float) -> RequestRefused:
    seconds = math.ceil(wait_s)
    refusal = refuse(
        429,
        "rate_limit_exceeded",
        "The request was not taken.",
        "Its key has used up its requests per minute.",
        f"Try again in {seconds} s, or give the key a higher rate.",
    )
    refusal.headers = [(b"retry-after", str(seconds).encode())]
    return refusal


def _too_large(max_bytes: int) -> RequestRefused:
    return refuse(
        413,
        "body_too_large",
        "The request was not read.",
        f"Its body is larger than {max_bytes} bytes.",
        "Send less, or raise `max_body_bytes` below [gateway] in nightschool.toml.",
    )
