"""What a request's messages say about where it belongs: what it continues, who speaks, and what it is for. Pure.

A harness may change the system message between two turns (a date, a memory, another agent taking over), so
the dialogue is hashed without it and the system message beside it. What a request is for shows in its
instruction: harnesses ask for titles and for summaries of the conversation in long, set phrases.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from nightschool.store.matching import content_text
from nightschool.store.tree import Node, rolling_match
from nightschool.types import Branch, Json

SYSTEM_ROLES = ("system", "developer")
OPENING_CHARS = 64  # of the system message: what comes later in it is what harnesses change
INSTRUCTION_CHARS = 200  # an instruction of a harness is at least this long; what a person asks is shorter
SYSTEM_CHARS = 600
PROBE_CHARS = 12

_TALK = re.compile(
    r"\b(?:conversation|chat|session|thread|dialogue|transcript)s?\b|\bcontext (?:checkpoint|window)\b", re.IGNORECASE
)
_TITLE = re.compile(
    r"\btitle generator\b|\b(?:thread|chat|conversation|session) title\b|\bnew conversation topic\b"
    r"|\b(?:generate|create|write|provide|give|suggest|extract|craft)\b.{0,60}?\b(?:title|tags|follow-up questions)\b"
    r".{0,120}?\b(?:conversation|chat|session|thread)\b",
    re.IGNORECASE | re.DOTALL,
)
_SUMMARY = re.compile(
    r"\b(?:summary|summari[sz]e[sd]?|summari[sz]ing|compact(?:ion)?|condense|distill|handoff|extract)\b"
    r"|\bprompt for continuing\b",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"\bcontinu(?:e|es|ed|ing)\b|\bresum(?:e|es|ing)\b|\bso far\b|\bhand-?off\b|\btake over\b|\bpick up\b|\breplaced?\b"
    r"|\bcontext (?:window|limit|length|checkpoint)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A request as placement sees it.

    `replies` are the dialogue's hashes up to each of its assistant messages, latest first; `end` the hash of
    all of it. `system_hash` names the leading system messages, `opening` their first words, or the tools
    where there are none: requests with one opening come from one agent.
    """

    replies: tuple[str, ...]
    end: str | None
    system_hash: str
    opening: str

    def reply_hash(self, reply: Node) -> str:
        """The hash under which `reply` is found when it comes back in a later request's history."""
        return rolling_match(self.end, reply.key)


def read_dialogue(nodes: Sequence[Node], messages: Sequence[Json], tools: Sequence[Json]) -> Dialogue:
    """`nodes` are those of `messages`."""
    first = num_leading(messages)
    replies = [node.dialogue for node in nodes[first:] if node.role == "assistant" and node.dialogue]
    end = nodes[-1].dialogue if nodes else None
    system = _short_hash(b"\0".join([node.key for node in nodes[:first]]))
    text = "".join(content_text(message.get("content")) for message in messages[:first])[:OPENING_CHARS]
    spoken = text or "\0".join(sorted(_tool_name(tool) for tool in tools))
    opening = _short_hash(spoken.encode("utf-8", "replace"))
    return Dialogue(tuple(reversed(replies)), end, system, opening)


@lru_cache(maxsize=512)  # an agent's system messages come with every request
def _short_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def num_leading(messages: Sequence[Json]) -> int:
    """How many system messages stand before the dialogue."""
    return next((place for place, m in enumerate(messages) if m.get("role") not in SYSTEM_ROLES), len(messages))


def side_task(messages: Sequence[Json], tools: Sequence[Json]) -> Branch | None:
    """`TITLE` or `COMPACTION` where the request asks for one on a harness's behalf, else `None`.

    Titles are asked for without tools and without a dialogue; a summary of the conversation either by the
    system message or by the last message.
    """
    first = num_leading(messages)
    dialogue = messages[first:]
    system = "" if tools else "\n".join(content_text(m.get("content")) for m in messages[:first])[:SYSTEM_CHARS]
    last = content_text(dialogue[-1].get("content")) if dialogue and dialogue[-1].get("role") == "user" else ""
    last = last if len(last) >= INSTRUCTION_CHARS else ""
    brief = not tools and len(dialogue) <= 2
    told = _asked_for(system, brief) if system else None
    return told or (_asked_for(f"{last[:2000]}\n{last[-1000:]}", brief) if last else None)


@lru_cache(maxsize=512)  # an agent's instructions are few, and come with every request
def _asked_for(text: str, may_be_title: bool) -> Branch | None:
    if may_be_title and _TITLE.search(text):
        return Branch.TITLE
    return Branch.COMPACTION if _TALK.search(text) and _SUMMARY.search(text) and _GOES_ON.search(text) else None


def is_probe(messages: Sequence[Json], tools: Sequence[Json], reply: Json, finish_reason: str | None) -> bool:
    """Whether a program only tried whether it is served: one word without anything, answered by a token or two."""
    if tools or len(messages) != 1 or finish_reason != "length":
        return False
    asked, answered = content_text(messages[0].get("content")), content_text(reply.get("content"))
    return max(len(asked), len(answered)) <= PROBE_CHARS and len(asked.split()) <= 1


def carries_summary(messages: Sequence[Json], summary: Json) -> bool:
    """Whether the longest line of a summary stands in these messages: the conversation goes on from it."""
    lines = content_text(summary.get("content")).splitlines()
    longest = max((line.strip() for line in lines), key=len, default="")
    return len(longest) >= 16 and any(longest in content_text(message.get("content")) for message in messages)


def _tool_name(tool: object) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""
