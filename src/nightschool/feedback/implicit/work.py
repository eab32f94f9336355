"""Signals in what the agent does: its calls, their results, what it says."""

from __future__ import annotations

import re

import orjson

from nightschool.feedback.implicit.seen import Found, Seen, Span, counted, quote, spoken, tool_calls
from nightschool.feedback.implicit.words import APOLOGY, HANDOFF, HANDOFF_TOOL, REFUSAL, is_read, matches
from nightschool.store.matching import content_text, sorted_json

FAILED = re.compile(
    r"\s*(?:error\b|exception\b|traceback \(most recent|failed\b|fatal\b|http (?:error )?[45]\d\d)", re.IGNORECASE
)
SAYS_STATE = re.compile(r'"(?:error|status|success|is_?error)"', re.IGNORECASE)
LOOKED_AT = 500  # first characters of a result
FAILED_STATES = ("error", "failed", "failure")


def tool_error(seen: Seen) -> Found:
    """Results that say that the call failed."""
    return counted([quote(seen, place, text, 0, LOOKED_AT) for place, text in _failed(seen)])


def tool_retry(seen: Seen) -> Found:
    """Calls of a tool whose last result was an error."""
    failing: dict[str, bool] = {}
    failed = {place for place, _ in _failed(seen)}
    again: list[Span] = []
    names: list[str] = []
    for place, message in enumerate(seen.messages):
        if message.get("role") == "assistant":
            names = [name for at, name, _ in tool_calls(seen) if at == place] if message.get("tool_calls") else []
            again += [quote(seen, place, name) for name in names if failing.get(name)]
        elif message.get("role") == "tool" and names:
            failing[names.pop(0)] = place in failed
    return counted(again)


def loop(seen: Seen) -> Found:
    """Calls that were made before with the same arguments."""
    known: set[tuple[str, bytes]] = set()
    again: list[Span] = []
    for place, name, arguments in tool_calls(seen):
        call = (name, _canonical(arguments))
        if call in known:
            again.append(quote(seen, place, name))
        known.add(call)
    return counted(again)


def escalation(seen: Seen) -> Found:
    """The agent hands over to a person: by a call, else in words."""
    called = [quote(seen, place, name) for place, name, _ in tool_calls(seen) if HANDOFF_TOOL.search(name)]
    return counted(called or _said(seen, HANDOFF))


def refusal(seen: Seen) -> Found | None:
    return _known(seen, REFUSAL)


def apology(seen: Seen) -> Found | None:
    return _known(seen, APOLOGY)


def cut_off(seen: Seen) -> Found:
    """Replies that ended where the limit of tokens lay."""
    return counted([Span(call.id) for call in seen.calls if call.id in seen.main and call.finish_reason == "length"])


def messages(seen: Seen) -> Found:
    return Found(float(len(seen.messages)))


def calls(seen: Seen) -> Found:
    return Found(float(sum(1 for _ in tool_calls(seen))))


def user_words(seen: Seen) -> Found | None:
    """Words in a message of the user, on average."""
    return _words(seen, "user")


def reply_words(seen: Seen) -> Found | None:
    return _words(seen, "assistant")


def _words(seen: Seen, role: str) -> Found | None:
    told = [len(text.split()) for _, text in spoken(seen, role)]
    return Found(sum(told) / len(told)) if told else None


def _failed(seen: Seen) -> list[tuple[int, str]]:
    """Results of tools that are errors, by place."""
    found = []
    for place, message in enumerate(seen.messages):
        if message.get("role") not in ("tool", "function"):
            continue
        text = content_text(message.get("content"))
        if message.get("is_error") is True or FAILED.match(text) or _says_error(text):
            found.append((place, text))
    return found


def _says_error(text: str) -> bool:
    """Whether a JSON object calls itself an error."""
    start = text.lstrip()[:1]
    if start != "{" or len(text) > 10_000 or not SAYS_STATE.search(text):
        return False
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(value, dict):
        return False
    state = value.get("status")
    named = isinstance(state, str) and state.lower() in FAILED_STATES
    return bool(value.get("error")) or named or value.get("success") is False or value.get("is_error") is True


def _canonical(arguments: object) -> bytes:
    if isinstance(arguments, str):
        try:
            return sorted_json(orjson.loads(arguments))
        except orjson.JSONDecodeError:
            return arguments.encode("utf-8", "replace")
    return sorted_json(arguments)


def _known(seen: Seen, pattern: re.Pattern[str]) -> Found | None:
    said = [text for _, text in spoken(seen, "assistant")]
    return None if said and not any(map(is_read, said)) else counted(_said(seen, pattern))


def _said(seen: Seen, pattern: re.Pattern[str]) -> list[Span]:
    told = spoken(seen, "assistant")
    return [quote(seen, place, text, *at) for place, text in told if (at := next(matches(pattern, text), None))]
