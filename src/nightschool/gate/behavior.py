"""How an agent behaves, apart from whether it succeeds: numbers of one session, read from its replies."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

from nightschool.gate import rule
from nightschool.gate.sessions import ExamSession, reply_messages
from nightschool.rendering.toolcalls import parse_reply, write_calls
from nightschool.types import Json

# Lower case, straight apostrophes. Listed in docs/gate.md; a refusal in other words is not counted, in either arm.
REFUSAL_PHRASES = (
    "i can't help",
    "i cannot help",
    "i can't assist",
    "i cannot assist",
    "i can't do that",
    "i cannot do that",
    "i'm unable to",
    "i am unable to",
    "i'm not able to",
    "i am not able to",
    "i won't be able to",
    "i must decline",
    "i refuse",
    "as an ai",
)


def valid_share(session: ExamSession) -> float | None:
    """Share of replies without a malformed call, an unknown tool or a missing required argument."""
    replies = reply_messages(session)
    if not replies:
        return None
    return sum(calls_are_valid(message, tools) for message, tools in replies) / len(replies)


def calls_are_valid(message: Json, tools: tuple[Json, ...]) -> bool:
    """Whether every call of one reply can be read, names an offered tool and carries its required arguments.

    Calls are looked for in `tool_calls` and in the text: an engine leaves a call it cannot read in the text.
    """
    try:
        parsed = parse_reply(write_calls(message))
    except (KeyError, TypeError, AttributeError):
        return False
    required = {tool["function"]["name"]: _required(tool) for tool in tools if isinstance(tool.get("function"), dict)}
    return parsed.valid and all(
        name in required and required[name] <= set(json.loads(arguments)) for name, arguments in parsed.calls
    )


def _required(tool: Json) -> set[str]:
    return set((tool["function"].get("parameters") or {}).get("required") or ())


def refused(session: ExamSession) -> float | None:
    """1 if any reply of the session declines to help, else 0."""
    replies = reply_messages(session)
    return float(any(is_refusal(message) for message, _ in replies)) if replies else None


def is_refusal(message: Json) -> bool:
    text = write_calls({"content": message.get("content")}).lower().replace("’", "'")
    return any(phrase in text for phrase in REFUSAL_PHRASES)


def log_length(session: ExamSession) -> float | None:
    """Logarithm of the mean number of characters of a reply, calls included."""
    lengths = [len(write_calls(message)) for message, _ in reply_messages(session)]
    return math.log(max(1.0, sum(lengths) / len(lengths))) if lengths else None


def log_rounds(session: ExamSession) -> float | None:
    """Logarithm of the number of replies in the session."""
    replies = reply_messages(session)
    return math.log(len(replies)) if replies else None


def scored(session: ExamSession) -> float | None:
    """1 if the session says how it went, 0 if it is missing: missing more in one arm is a finding by itself."""
    return float(session.success is not None)


def success(session: ExamSession) -> float | None:
    return session.success


MEASURES: dict[str, Callable[[ExamSession], float | None]] = {
    rule.SUCCESS: success,
    rule.SCORED: scored,
    rule.VALIDITY: valid_share,
    rule.REFUSALS: refused,
    rule.LENGTH: log_length,
    rule.ROUNDS: log_rounds,
}
