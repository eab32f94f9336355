"""Session files of Codex: the items of the Responses format, one a line, with the events around them.

Everything the assistant gives between two inputs is one reply. A `compacted` line replaces what came before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nightschool.gateway.dialects.responses_form import assistant_message, messages_of
from nightschool.gateway.dialects.usage import count_usage
from nightschool.imports.lists import blank_record
from nightschool.imports.reading import Raw
from nightschool.imports.times import seconds_of
from nightschool.imports.values import Conversation, Format, Link, Refused, Turn, digest
from nightschool.store.records import Caller, Record
from nightschool.types import Branch, Choice, Json

NAME = "codex"
KINDS = ("session_meta", "response_item", "turn_context", "event_msg", "compacted")
NOT_SAID = ("ghost_snapshot", "other")  # items that are no part of the conversation
NO_TOOLS = "The log carries no token ids and no tools."


def knows(record: Json) -> bool:
    wrapped = record.get("type") in KINDS and isinstance(record.get("payload"), dict)
    return wrapped or ("instructions" in record and "timestamp" in record and "id" in record)


def group(_record: Json) -> Sequence[str]:
    """A file is one session."""
    return ("session",)


def convert(raws: Sequence[Raw], _group: str) -> Iterator[Conversation]:
    lines = [raw.value for raw in raws]
    meta = next((_payload(line) for line in lines if _kind(line) == "session_meta"), {})
    session = meta.get("id")
    if not isinstance(session, str) or not session:
        raise Refused("no session_meta with an id")
    parent = _parent(meta)
    caller = Caller(agent=NAME, session=session, parent_session=parent, tags=(NAME,))
    blank = replace(
        blank_record(f"import.{NAME}", caller),
        context_complete=False,
        fidelity_reason=NO_TOOLS,
        branch=Branch.SUB_AGENT if parent else Branch.MAIN,
    )
    reading = _Reading(blank, _instructions(meta))
    for line in lines:
        reading.take(line)
    reading.close()
    yield Conversation(
        key=f"{NAME}:{session}",
        digest=digest([NAME, lines]),
        place=f"line {raws[0].line}",
        turns=tuple(reading.turns),
        raw=b"\n".join(raw.data for raw in raws),
        tail=None if reading.ends_with_reply else reading.link,
        left_out=tuple(reading.left_out.elements()),
    )


@dataclass(slots=True)
class _Reading:
    """A session while its lines are read. `run` holds the items of the reply that is being given."""

    blank: Record
    link: Link | None
    turns: list[Turn] = field(default_factory=list)
    run: list[Json] = field(default_factory=list)
    begun: float | None = None
    usage: Json | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    ends_with_reply: bool = True

    def take(self, line: Json) -> None:
        kind, payload = _kind(line), _payload(line)
        if kind == "turn_context" and isinstance(payload.get("model"), str):
            self.blank = replace(self.blank, policy_version=payload["model"])
        elif kind == "event_msg":
            self._event(payload)
        elif kind == "compacted":
            self.close()
            history = payload.get("replacement_history")
            items = history if isinstance(history, list) else [_said("user", payload.get("message") or "")]
            self.link = None
            for message in messages_of({"input": items}):
                self.link = Link(message, self.link)
        elif kind == "response_item":
            self._item(payload, seconds_of(line.get("timestamp")))
        elif kind not in ("session_meta", "turn_context"):
            self.left_out[f"line of type {kind}"] += 1

    def close(self) -> None:
        """The reply is over, if one was being given."""
        if not self.run:
            return
        message = assistant_message(self.run)
        record = replace(self.blank, choices=(Choice(0, message, None),), usage=self.usage)
        self.turns.append(Turn(str(len(self.turns)), self.link, record, self.begun))
        self.link = Link(message, self.link)
        self.run, self.usage, self.begun, self.ends_with_reply = [], None, None, True

    def _event(self, payload: Json) -> None:
        """Counts belong to the reply before them; what else events tell, items tell as well."""
        if payload.get("type") != "token_count":
            self.left_out[f"event {payload.get('type')}"] += 1
            return
        info = payload.get("info")
        usage = _usage(info.get("last_token_usage")) if isinstance(info, dict) else None
        if self.run:
            self.usage = usage
        elif self.turns and self.turns[-1].record.usage is None:
            last = self.turns[-1]
            self.turns[-1] = replace(last, record=replace(last.record, usage=usage))

    def _item(self, item: Json, at: float | None) -> None:
        if item.get("type") in NOT_SAID:
            self.left_out[f"item {item['type']}"] += 1
            return
        (message,) = messages_of({"input": [item]})
        if message["role"] == "assistant":
            self.run.append(item)
            self.begun = at if self.begun is None else self.begun
            return
        self.close()
        self.link, self.ends_with_reply = Link(message, self.link), False


def _kind(line: Json) -> str:
    """The kind of a line; the first versions wrote items and the session's data as they are."""
    if "payload" in line:
        return str(line.get("type"))
    if line.get("record_type"):
        return str(line["record_type"])
    return "session_meta" if "instructions" in line else "response_item"


def _payload(line: Json) -> Json:
    payload = line.get("payload", line)
    return payload if isinstance(payload, dict) else {}


def _instructions(meta: Json) -> Link | None:
    told = meta.get("base_instructions") or meta.get("instructions")
    text = told.get("text") if isinstance(told, dict) else told
    return Link({"role": "system", "content": text}) if isinstance(text, str) and text else None


def _parent(meta: Json) -> str | None:
    """The session that a sub-agent's works for."""
    waiting: list[Any] = [meta.get("source")]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            if isinstance(found.get("parent_thread_id"), str):
                return found["parent_thread_id"]
            waiting += found.values()
    return None


def _usage(told: Any) -> Json | None:
    if not isinstance(told, dict):
        return None
    details = {
        "input_tokens_details": {"cached_tokens": told.get("cached_input_tokens")},
        "output_tokens_details": {"reasoning_tokens": told.get("reasoning_output_tokens")},
    }
    return count_usage(told | details)


def _said(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": text}


FORMAT = Format(NAME, knows, convert, group)
