"""Every signal by name, and what a session says by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nightschool.feedback.implicit import course, users, work
from nightschool.feedback.implicit.seen import Found, Seen, Span
from nightschool.feedback.record import current_view
from nightschool.feedback.values import IMPLICIT
from nightschool.types import FeedbackKind

EVENT = "event "  # before the name of what a client reports: accepted, copied, inserted


@dataclass(frozen=True, slots=True)
class Signal:
    """`about` says in a few words what is counted; `read` gives `None` where that cannot be known."""

    name: str
    about: str
    read: Callable[[Seen], Found | None]


SIGNALS = (
    Signal("retry", "requests sent again since no reply came", course.retry),
    Signal("regenerate", "replies asked for a second time", course.regenerate),
    Signal("edit", "messages of the user that were written anew", course.edit),
    Signal("abort", "replies the client did not wait for", course.abort),
    Signal("no reply", "requests the engine did not answer", course.no_reply),
    Signal("cut off", "replies that reached the limit of tokens", work.cut_off),
    Signal("rephrase", "messages that say again what the user said", users.rephrase),
    Signal("correction", "words that set the agent right, in replies of the user", users.correction),
    Signal("complaint", "words of displeasure in replies of the user", users.complaint),
    Signal("negation", "words of negation in replies of the user", users.negation),
    Signal("clarification", "questions what the agent meant", users.clarification),
    Signal("pushback", "words that do not take the answer, in replies of the user", users.pushback),
    Signal("wants a person", "requests for a person", users.wants_person),
    Signal("language switch", "messages in another language than before", users.language_switch),
    Signal("thanks", "thanks in the last two messages of the user", users.thanks),
    Signal("tool error", "results of tools that are errors", work.tool_error),
    Signal("tool retry", "calls of a tool that had just failed", work.tool_retry),
    Signal("loop", "calls made before with the same arguments", work.loop),
    Signal("escalation", "handovers to a person", work.escalation),
    Signal("refusal", "replies that say it cannot be done", work.refusal),
    Signal("apology", "replies that apologize", work.apology),
    Signal("abandonment", "a question of the agent that stayed open for an hour", course.abandonment),
    Signal("repeat contact", "the same user came again within three days", course.repeat_contact),
    Signal("messages", "messages of the main branch", work.messages),
    Signal("tool calls", "calls of tools", work.calls),
    Signal("user words", "words in a message of the user", work.user_words),
    Signal("reply words", "words in a reply", work.reply_words),
)
AMOUNTS = frozenset({"messages", "tool calls", "user words", "reply words"})  # there in every session, more or less


def read_signals(seen: Seen, signals: Sequence[Signal] = SIGNALS) -> dict[str, Found | None]:
    """What each signal says of a session, then what its client reported."""
    return {**{signal.name: signal.read(seen) for signal in signals}, **events(seen)}


def events(seen: Seen) -> dict[str, Found]:
    """Feedback of the source `implicit` on the session or its main branch, by name: accepted, copied, an edit distance.

    A thumb or an outcome of true is 1, of false 0; a number is itself; a category counts under its own name.
    """
    found: dict[str, Found] = {}
    for item in current_view(seen.feedback):
        if item.source != IMPLICIT or item.exchange_id not in (None, *seen.main):
            continue
        name, value = item.name, item.value
        if item.kind == FeedbackKind.CATEGORY:
            name, value = str(value), True
        if item.kind not in (FeedbackKind.CATEGORY, FeedbackKind.THUMB, FeedbackKind.OUTCOME, FeedbackKind.NUMBER):
            continue
        if not isinstance(value, bool | int | float):
            continue
        before = found.get(EVENT + name, Found(0.0))
        spans = (Span(item.exchange_id),) if item.exchange_id is not None and value else ()
        found[EVENT + name] = Found(before.value + float(value), (*before.spans, *spans))
    return found


def names_of(read: Sequence[Mapping[str, Found | None]]) -> list[str]:
    """The names of all signals, those of events after the others."""
    told = {name for one in read for name in one if name.startswith(EVENT)}
    return [*(signal.name for signal in SIGNALS), *sorted(told)]


def about(name: str) -> str:
    known = {signal.name: signal.about for signal in SIGNALS}
    return known.get(name, "reported by the client")
