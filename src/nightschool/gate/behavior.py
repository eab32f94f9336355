"""How an agent behaves, apart from whether it succeeds: numbers of one session, read from its replies."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

from nightschool.gate import rule
from nightschool.gate.sessions import ExamSession, replies, reply_text
from nightschool.rendering.toolcalls import parse_reply
from nightschool.store.matching import content_text
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
    given = replies(session)
    return sum(calls_are_valid(message, tools) for message, tools in given) / len(given) if given else None


def calls_are_valid(message: Json, tools: tuple[Json, ...]) -> bool:
    """Whether every call of one reply can be read, names an offered tool and carries its required arguments.

    Calls are looked for in `tool_calls` and in the text: an engine leaves a call it cannot read in the text.
    """
    text = reply_text(message)
    if text is None:
        return False
    parsed = parse_reply(text)
    required = {tool["function"]["name"]: _required(tool) for tool in tools if isinstance(tool.get("function"), dict)}
    return parsed.valid and all(
        name in required and required[name] <= set(json.loads(arguments)) for name, arguments in parsed.calls
    )


def _required(tool: Json) -> set[str]:
    return set((tool["function"].get("parameters") or {}).get("required") or ())


def refused(session: ExamSession) -> float | None:
    """1 if any reply of the session declines to help, else 0."""
    given = replies(session)
    return float(any(is_refusal(message) for message, _ in given)) if given else None


def is_refusal(message: Json) -> bool:
    text = content_text(message.get("content")).lower().replace("’", "'")
    return any(phrase in text for phrase in REFUSAL_PHRASES)


def log_length(session: ExamSession) -> float | None:
    """Logarithm of the mean number of characters of a reply, calls included."""
    lengths = [len(reply_text(message) or "") for message, _ in replies(session)]
    return math.log(max(1.0, sum(lengths) / len(lengths))) if lengths else None


def log_rounds(session: ExamSession) -> float | None:
    """Logarithm of the number of replies in the session."""
    given = replies(session)
    return math.log(len(given)) if given else None


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
