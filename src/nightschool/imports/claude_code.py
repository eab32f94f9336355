"""Session files of Claude Code: one line a block of a message, linked to the line before by `parentUuid`.

The lines of one reply share its message id. What answers its tool calls hangs below different lines of it and
belongs to it all the same. The files hold neither the system prompt nor the tools, so no context is complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from nightschool.gateway.dialects.messages_form import messages_of
from nightschool.gateway.dialects.messages_parse import parse_plain
from nightschool.imports.lists import blank_record
from nightschool.imports.reading import Raw
from nightschool.imports.times import seconds_of
from nightschool.imports.values import Conversation, Format, Link, Turn, digest
from nightschool.store.records import Caller, Record
from nightschool.types import Branch, Json

NAME = "claude_code"
AGENT = "claude-code"
SYNTHETIC = "<synthetic>"
NO_PROMPT = "The log carries no token ids, system prompt or tools."


def knows(record: Json) -> bool:
    return all(key in record for key in ("sessionId", "uuid", "type")) and "payload" not in record


def group(record: Json) -> Sequence[str]:
    session = record.get("sessionId")
    return (session,) if isinstance(session, str) and session and "uuid" in record else ()


def convert(raws: Sequence[Raw], _group: str) -> Iterator[Conversation]:
    lines = [raw.value for raw in raws]
    tree = _Tree()
    left_out: Counter[str] = Counter()
    refused: list[str] = []
    for line in lines:
        kind = _kind_of(line)
        if kind in ("user", "assistant"):
            tree.add(line)
        elif kind == "broken":
            refused.append(f"a line of type {line.get('type')} without a message")
            tree.links_up[line["uuid"]] = line.get("parentUuid")
        else:
            left_out[kind] += 1
            tree.links_up[line["uuid"]] = line.get("parentUuid")
    session = lines[0]["sessionId"]
    blank = replace(
        blank_record(f"import.{NAME}", Caller(agent=AGENT, session=session, tags=(AGENT,))),
        context_complete=False,
        fidelity_reason=NO_PROMPT,
    )
    turns = [_turn(tree, reply, blank) for reply in tree.replies.values()]
    yield Conversation(
        key=f"{NAME}:{session}",
        digest=digest([NAME, lines]),
        place=f"line {raws[0].line}",
        turns=tuple(turn for turn in turns if turn is not None),
        raw=b"\n".join(raw.data for raw in raws),
        left_out=tuple(left_out.elements()),
        refused=tuple(refused),
    )


def _kind_of(line: Json) -> str:
    """user, assistant, broken, or why the line is no part of the conversation."""
    kind = line.get("type")
    if kind not in ("user", "assistant"):
        return f"line of type {kind}"
    message = line.get("message")
    if not isinstance(message, dict) or not isinstance(message.get("content"), str | list):
        return "broken"
    if message.get("model") == SYNTHETIC or line.get("isApiErrorMessage"):
        return "error shown as a reply"
    return str(kind)


@dataclass(slots=True)
class _Tree:
    """The lines of a session. `replies` holds the lines of each reply by its message id, `answers` what was
    given to its tools."""

    lines: dict[str, Json] = field(default_factory=dict)
    links_up: dict[str, str | None] = field(default_factory=dict)
    replies: dict[str, list[Json]] = field(default_factory=dict)
    answers: dict[str, list[Json]] = field(default_factory=dict)
    caller_of: dict[str, str] = field(default_factory=dict)  # the latest reply with a call of this id
    reply_of: dict[str, str] = field(default_factory=dict)  # reply that a line is a part of, or an answer to
    known: dict[str, Link | None] = field(default_factory=dict)

    def add(self, line: Json) -> None:
        uuid = line["uuid"]
        if uuid in self.lines:  # a resumed session repeats what it continues
            return
        self.lines[uuid] = line
        above = self.lines.get(line.get("parentUuid") or "")
        begins = line.get("isSidechain") and above is not None and not above.get("isSidechain")
        self.links_up[uuid] = None if begins else line.get("parentUuid")  # a sub-agent sees nothing of its caller's
        blocks = line["message"]["content"]
        if line["type"] == "assistant":
            reply = reply_id(line)
            self.reply_of[uuid] = reply
            self.replies.setdefault(reply, []).append(line)
            self.caller_of |= {block["id"]: reply for block in _blocks(blocks, "tool_use") if block.get("id")}
            return
        for block in _blocks(blocks, "tool_result"):
            asked = self.caller_of.get(block.get("tool_use_id", ""))
            if asked is not None:
                self.reply_of[uuid] = asked
                self.answers.setdefault(asked, []).append(line)
                break

    def above(self, uuid: str | None) -> Link | None:
        """What the model sees up to and including the line `uuid`."""
        waiting: list[str] = []
        seen: set[str] = set()
        while uuid is not None and uuid not in self.known and uuid in self.links_up and uuid not in seen:
            seen.add(uuid)
            waiting.append(uuid)
            uuid = self._before(uuid)
        link = self.known.get(uuid) if uuid is not None else None
        for at in reversed(waiting):
            link = self._after(at, link)
            self.known[at] = link
        return link

    def _before(self, uuid: str) -> str | None:
        """The line above a line; above a reply, and what answers it, that of the reply's first line."""
        reply = self.reply_of.get(uuid)
        return self.links_up.get(self.replies[reply][0]["uuid"] if reply else uuid)

    def _after(self, uuid: str, link: Link | None) -> Link | None:
        reply = self.reply_of.get(uuid)
        if reply is not None:
            message = parse_plain(orjson.dumps(whole(self.replies[reply]))).choices[0].message
            link = Link(message, link)
            lines = self.answers.get(reply, [])
        else:
            line = self.lines.get(uuid)
            lines = [] if line is None else [line]
        for line in lines:
            for message in messages_of({"messages": [line["message"]]}):
                link = Link(message, link)
        return link


def reply_id(line: Json) -> str:
    return line["message"].get("id") or line["uuid"]


def whole(lines: Sequence[Json]) -> Json:
    """The message that its lines make together; counts and the reason to stop come last."""
    blocks: list[Any] = []
    for line in lines:
        content = line["message"]["content"]
        blocks += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return lines[-1]["message"] | {"content": blocks}


def _turn(tree: _Tree, lines: Sequence[Json], blank: Record) -> Turn | None:
    first = lines[0]
    parsed = parse_plain(orjson.dumps(whole(lines)))
    record = replace(
        blank,
        choices=parsed.choices,
        policy_version=first["message"].get("model") or blank.policy_version,
        upstream_id=first["message"].get("id"),
        usage=parsed.usage,
        branch=Branch.SUB_AGENT if first.get("isSidechain") else Branch.MAIN,
    )
    return Turn(reply_id(first), tree.above(first.get("parentUuid")), record, seconds_of(first.get("timestamp")))


def _blocks(content: Any, kind: str) -> list[Json]:
    blocks = content if isinstance(content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") == kind]


FORMAT = Format(NAME, knows, convert, group)
