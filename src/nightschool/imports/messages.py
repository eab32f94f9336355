"""Chat messages as JSON lines: one conversation, or one request with its response, a record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from nightschool.gateway.dialects.chat_parse import parse_plain
from nightschool.gateway.dialects.dialect import ParsedReply
from nightschool.gateway.dialects.sampler import resolve_sampler
from nightschool.imports.lists import blank_record, checked_messages, turns_of
from nightschool.imports.reading import Raw
from nightschool.imports.values import Conversation, Format, Link, Refused, Turn, digest
from nightschool.store.records import Caller, Record
from nightschool.types import Fidelity, Json, LogprobProvenance

NAME = "messages"
SESSION_KEYS = ("session", "session_id", "conversation_id", "thread_id", "custom_id", "id")


def knows(record: Json) -> bool:
    request, response = _pair(record)
    return isinstance(record.get("messages"), list) or (
        isinstance(request, dict) and isinstance(request.get("messages"), list) and isinstance(response, dict)
    )


def convert(raws: Sequence[Raw], _group: str) -> Iterator[Conversation]:
    for raw in raws:
        pair = not isinstance(raw.value.get("messages"), list)
        yield _exchange(raw) if pair else _conversation(raw)


def _conversation(raw: Raw) -> Conversation:
    record = raw.value
    messages = checked_messages(record["messages"])
    own = digest(record)
    name = _name(record)
    session = name or f"{NAME}:{own[:16]}"
    caller = Caller(agent=_text(record.get("agent")) or "", session=session, body_user=_text(record.get("user")))
    blank = blank_record(f"import.{NAME}", caller, _text(record.get("model")))
    turns, tail = turns_of(messages, replace(blank, tools=_tools(record)))
    return Conversation(
        key=f"{NAME}:{session}",
        digest=own,
        place=f"line {raw.line}",
        turns=turns,
        named=name is not None,
        raw=raw.data,
        tail=tail,
    )


def _exchange(raw: Raw) -> Conversation:
    """A request and its response: ids and log-probabilities count where the response carries them."""
    request, response = _pair(raw.value)
    messages = checked_messages(request["messages"])
    parsed = parse_plain(orjson.dumps(response, default=str))
    if not parsed.choices:
        raise Refused("a response without a reply")
    own = digest(raw.value)
    name = _name(raw.value)
    link: Link | None = None
    for message in messages:
        link = Link(message, link)
    caller = Caller(agent=_text(raw.value.get("agent")) or "", session=name, body_user=_text(request.get("user")))
    record = _replied(blank_record(f"import.{NAME}", caller, _text(request.get("model"))), parsed)
    record = replace(record, tools=_tools(request), sampler=resolve_sampler(request))
    created = response.get("created")
    at = float(created) if isinstance(created, int | float) and not isinstance(created, bool) and created > 0 else None
    return Conversation(
        key=f"{NAME}:{own[:32]}",
        digest=own,
        place=f"line {raw.line}",
        turns=(Turn("0", link, record, at),),
        named=parsed.upstream_id is not None,
        raw=raw.data,
    )


def _replied(blank: Record, parsed: ParsedReply) -> Record:
    exact = parsed.ending == "ok" and parsed.tokens_missing is None
    scored = any(choice.behavior_logprobs is not None for choice in parsed.choices)
    return replace(
        blank,
        choices=parsed.choices,
        prompt_ids=parsed.prompt_ids,
        upstream_id=parsed.upstream_id,
        fidelity=Fidelity.EXACT if exact else Fidelity.TEXT,
        fidelity_reason=None if exact else parsed.tokens_missing,
        logprob_provenance=LogprobProvenance.ENGINE if scored else LogprobProvenance.NONE,
        status=parsed.ending,
        error=parsed.error,
        usage=parsed.usage,
    )


def _pair(record: Json) -> tuple[Any, Any]:
    """Request and response, also as batch files nest them."""
    request, response = record.get("request"), record.get("response")
    if isinstance(request, dict) and isinstance(request.get("body"), dict):
        request = request["body"]
    if isinstance(response, dict) and isinstance(response.get("body"), dict):
        response = response["body"]
    return request, response


def _tools(fields: Json) -> tuple[Any, ...]:
    """The tool schemas; a file may hold them as the text of a JSON array, so that their types stay as they are."""
    tools = fields.get("tools")
    if isinstance(tools, str):
        try:
            tools = orjson.loads(tools)
        except orjson.JSONDecodeError:
            raise Refused("tools are no JSON") from None
    if tools is not None and not isinstance(tools, list):
        raise Refused("tools are no list")
    return tuple(tools or ())


def _name(record: Json) -> str | None:
    return next((record[key] for key in SESSION_KEYS if isinstance(record.get(key), str) and record[key]), None)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


FORMAT = Format(NAME, knows, convert)
