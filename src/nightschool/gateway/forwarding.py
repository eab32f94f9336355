"""Which headers pass: those of the client's request to a configured upstream, those of its reply to the client."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Scope

from nightschool.gateway.replies import Headers
from nightschool.upstream.connections import Answer
from nightschool.upstream.settings import UpstreamSettings

# Headers of the engine's reply that describe its connection or its server, not the reply.
NOT_PASSED = frozenset(
    {
        b"connection",
        b"content-length",
        b"date",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"server",
        b"set-cookie",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Headers of the client's request that concern its connection to us, or us alone.
NOT_FORWARDED = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "cookie",
        "expect",
        "forwarded",
        "host",
        "keep-alive",
        "origin",
        "proxy-authorization",
        "referer",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
KEY_HEADERS = frozenset({"authorization", "x-api-key", "api-key"})
OURS = ("x-nightschool-", "x-forwarded-", "sec-")


def passed(answer: Answer) -> Headers:
    """The reply's headers for the client."""
    return [header for header in answer.headers if header[0] not in NOT_PASSED]


def forwarded(scope: Scope, upstream: UpstreamSettings, is_ours: Callable[[bytes], bool]) -> dict[str, str]:
    """The request's headers for a configured upstream; no other gets any.

    The client's key goes along only where we have none for the upstream, and a key of ours never.
    """
    if not upstream.passes_headers:
        return {}
    kept: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        is_key = name in KEY_HEADERS
        if is_key and is_ours(value):
            continue
        if (is_key and upstream.passes_key) or not (is_key or name in NOT_FORWARDED or name.startswith(OURS)):
            kept[name] = value.decode("latin-1")
    return kept


def upstream_path(path: str, scope: Scope, upstream: UpstreamSettings) -> str:
    """Where a configured upstream is asked, with the client's query."""
    query = scope.get("query_string", b"")
    return f"{path}?{query.decode('latin-1')}" if query and upstream.passes_headers else path
