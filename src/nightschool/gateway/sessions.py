"""Which conversation a request says it belongs to: our own headers, and what agent programs send on their own.

The first name found in `NAMES` is the session. A hint is weaker, since many conversations may share it or each
request may bring a new one; the store weighs it against the messages (`store.sessions`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from nightschool.store.tree import well_formed
from nightschool.types import Branch, Json

MAX_NAME_CHARS = 512
MAX_TAGS = 32

_OLD_USER_ID = re.compile(r"(?P<user>.+?)_session_(?P<session>[0-9A-Fa-f-]{8,64})")
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")

Headers = Mapping[str, str]  # by lower-case name


@dataclass(frozen=True, slots=True)
class Names:
    """What a request says of its place. `None` where it says nothing; see `store.records.Caller`."""

    session: str | None
    hint: str | None
    parent_session: str | None
    previous_response: str | None
    user: str | None
    external_key: str | None
    tags: tuple[str, ...]
    branch: Branch | None
    is_retry: bool


def read_names(headers: Headers, fields: Json) -> Names:
    """Everything that the headers and the body's fields say."""
    session = _first(NAMES, headers, fields)
    parent = _header("x-nightschool-parent")(headers, fields) or _header("x-parent-session-id")(headers, fields)
    inside = parent is not None and session == parent
    return Names(
        session=session,
        hint=_first(HINTS, headers, fields),
        parent_session=None if inside else parent,
        previous_response=_name(fields.get("previous_response_id")),
        user=_first(USERS, headers, fields),
        external_key=_first(KEYS, headers, fields),
        tags=tuple(dict.fromkeys(_tags(headers, fields)))[:MAX_TAGS],
        branch=Branch.SUB_AGENT if inside else _told_branch(headers),
        is_retry=headers.get("x-stainless-retry-count", "0").strip() not in ("", "0"),
    )


def _name(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    name = well_formed(value.replace("\0", "")).strip()
    return name if 0 < len(name) <= MAX_NAME_CHARS else None


Source = Callable[[Headers, Json], str | None]


def _header(header: str) -> Source:
    return lambda headers, fields: _name(headers.get(header))


def _field(field: str) -> Source:
    return lambda headers, fields: _name(fields.get(field))


def _metadata(key: str) -> Source:
    return lambda headers, fields: _name(_table(fields.get("metadata")).get(key))


def _baggage(key: str) -> Source:
    """An entry of W3C baggage: `key=value;property, key=value`."""

    def read(headers: Headers, fields: Json) -> str | None:
        for entry in headers.get("baggage", "").split(","):
            name, _, value = entry.partition(";")[0].partition("=")
            if name.strip() == key:
                return _name(unquote(value))
        return None

    return read


def _conversation(headers: Headers, fields: Json) -> str | None:
    """The Responses API writes an id or an object with one."""
    value = fields.get("conversation")
    return _name(_table(value).get("id") if isinstance(value, dict) else value) or _name(fields.get("conversation_id"))


def _claude_session(headers: Headers, fields: Json) -> str | None:
    return _claude_user(fields)[0]


def _plain_user(headers: Headers, fields: Json) -> str | None:
    return _claude_user(fields)[1]


def _claude_user(fields: Json) -> tuple[str | None, str | None]:
    """Session and user of `metadata.user_id`: one text with both in it, a JSON text, or the user alone."""
    text = _metadata("user_id")({}, fields)
    if text is None:
        return None, None
    old = _OLD_USER_ID.fullmatch(text)
    if old is not None:
        return old["session"], old["user"]
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None, text
    if not isinstance(told, dict):
        return None, text
    user = _name(told.get("account_uuid")) or _name(told.get("device_id")) or _name(told.get("user_id"))
    return _name(told.get("session_id")), user


def _trace(headers: Headers, fields: Json) -> str | None:
    found = _TRACE_PARENT.fullmatch(headers.get("traceparent", "").strip().lower())
    return found["trace"] if found is not None and found["trace"].strip("0") else None


NAMES: tuple[Source, ...] = (
    _header("x-nightschool-session"),
    _header("x-claude-code-session-id"),
    _claude_session,
    _header("session-id"),
    _header("session_id"),
    _header("x-opencode-session"),
    _header("x-session-id"),
    _header("x-session-affinity"),
    _conversation,
    _header("helicone-session-id"),
    _metadata("session_id"),
    _baggage("session.id"),
)
HINTS: tuple[Source, ...] = (
    _header("x-client-request-id"),
    _field("prompt_cache_key"),
    _metadata("trace_id"),
    _trace,
)
USERS: tuple[Source, ...] = (
    _field("user"),
    _field("safety_identifier"),
    _plain_user,
    _header("helicone-user-id"),
    _metadata("trace_user_id"),
    _baggage("user.id"),
    _baggage("enduser.id"),
)
KEYS: tuple[Source, ...] = (
    _header("x-nightschool-external-key"),
    _header("helicone-request-id"),
    _metadata("generation_id"),
)


def _first(sources: tuple[Source, ...], headers: Headers, fields: Json) -> str | None:
    return next((found for source in sources if (found := source(headers, fields)) is not None), None)


def _tags(headers: Headers, fields: Json) -> Iterator[str]:
    told = _table(fields.get("metadata")).get("tags")
    listed = told if isinstance(told, list) else ()
    for tag in (*headers.get("x-nightschool-tags", "").split(","), *listed):
        name = _name(tag)
        if name is not None:
            yield name
    for header, value in headers.items():
        label = header.removeprefix("helicone-property-")
        if label != header and _name(value) is not None:
            yield f"{label}={_name(value)}"


def _told_branch(headers: Headers) -> Branch | None:
    """Claude Code and Codex say when a sub-agent speaks, Codex also when it compacts."""
    said = headers.get("x-openai-subagent", "").strip().lower()
    if said == "compact":
        return Branch.COMPACTION
    agent = headers.get("x-claude-code-agent-id", "").strip().lower()
    threads = headers.get("x-codex-parent-thread-id", "").strip()
    is_child = said not in ("", "0", "false") or agent not in ("", "main") or threads
    return Branch.SUB_AGENT if is_child else None


def _table(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
