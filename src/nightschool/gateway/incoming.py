"""Reading a request: its body within bounds, its headers, who asks and for whom."""

from __future__ import annotations

from starlette.types import Receive, Scope

from nightschool.access.tokens import API_KEY_VARIABLE, Access, Role
from nightschool.gateway.aliases import Route
from nightschool.gateway.replies import RequestRefused, refuse
from nightschool.store.exchanges import Caller
from nightschool.types import Json

# Ours first; the others are what agent programs in use send on their own.
SESSION_HEADERS = (
    "x-nightschool-session",
    "x-claude-code-session-id",
    "x-opencode-session",
    "x-session-id",
    "session-id",
    "session_id",
)


def text_headers(scope: Scope) -> dict[str, str]:
    """The headers by lower-case name, without the credentials."""
    return {name.decode("latin-1"): _text(value) for name, value in scope["headers"] if name != b"authorization"}


def client_host(scope: Scope) -> str | None:
    client = scope.get("client")
    return client[0] if client else None


def require_use(scope: Scope, access: Access) -> Role | None:
    """The caller's role, if it may chat and read. Raises: RequestRefused (401)."""
    role = access.role(scope["headers"])
    if access.may_use(role, client_host(scope)):
        return role
    raise _unknown_token()


def require_token(scope: Scope, access: Access, least: Role = Role.DATA) -> Role:
    """The caller's role, of which at least `least` is needed. Raises: RequestRefused (401, 403)."""
    role = access.role(scope["headers"])
    if role is None:
        raise _unknown_token()
    if least == Role.ADMIN and role != Role.ADMIN:
        raise refuse(
            403, "admin_only", "The request was refused.", "It needs the admin token.", "Send the admin token."
        )
    return role


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


def read_caller(headers: dict[str, str], fields: Json, route: Route, training_allowed: bool) -> Caller:
    """Who asks, as the request says it. A header can deny training, never allow it."""
    session = next((headers[name] for name in SESSION_HEADERS if headers.get(name)), None)
    consent = headers.get("x-nightschool-training", "allow").strip().lower() == "allow"
    return Caller(
        agent=route.agent,
        session=session,
        header_user=headers.get("x-nightschool-user") or None,
        body_user=_name(fields.get("user")) or _name(fields.get("safety_identifier")),
        external_key=headers.get("x-nightschool-external-key") or None,
        purpose=route.purpose,
        exam_id=route.exam_id,
        training_allowed=training_allowed and consent,
    )


def _text(value: bytes) -> str:
    """UTF-8, as programs write names today; else Latin-1, as HTTP once said, which reads any bytes."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _unknown_token() -> RequestRefused:
    return refuse(
        401,
        "invalid_api_key",
        "The request was refused.",
        "It carries no token that is known here.",
        f"Send {API_KEY_VARIABLE}, or the admin token (the file `token` in the state folder), as the API key.",
    )


def _too_large(max_bytes: int) -> RequestRefused:
    return refuse(
        413,
        "body_too_large",
        "The request was not read.",
        f"Its body is larger than {max_bytes} bytes.",
        "Send less, or raise `max_body_bytes` below [gateway] in nightschool.toml.",
    )
