"""Signals in what the user says."""

from __future__ import annotations

import re

from nightschool.feedback.implicit.seen import Found, Seen, Span, answers, counted, quote, spoken
from nightschool.feedback.implicit.words import (
    CLARIFICATION,
    COMPLAINT,
    CORRECTION,
    NEGATION,
    PERSON,
    PUSHBACK,
    THANKS,
    content_words,
    is_read,
    language_of,
    likeness,
    matches,
)

ALIKE = 0.6  # likeness from which two messages say the same
MOST_COMPARED = 200  # messages of one session


def thanks(seen: Seen) -> Found | None:
    """Thanks in one of the user's last two messages."""
    last = spoken(seen, "user")[-2:]
    return _said(seen, THANKS, last)


def complaint(seen: Seen) -> Found | None:
    return _said(seen, COMPLAINT, answers(seen))


def correction(seen: Seen) -> Found | None:
    return _said(seen, CORRECTION, answers(seen))


def negation(seen: Seen) -> Found | None:
    return _said(seen, NEGATION, answers(seen))


def clarification(seen: Seen) -> Found | None:
    return _said(seen, CLARIFICATION, answers(seen))


def pushback(seen: Seen) -> Found | None:
    return _said(seen, PUSHBACK, answers(seen))


def wants_person(seen: Seen) -> Found | None:
    return _said(seen, PERSON, spoken(seen, "user"))


def rephrase(seen: Seen) -> Found:
    """Messages that say again what the user had said before."""
    told = [(place, text, content_words(text)) for place, text in spoken(seen, "user")[:MOST_COMPARED]]
    told = [item for item in told if len(item[2]) >= 3]
    again = [
        quote(seen, place, text)
        for number, (place, text, words) in enumerate(told)
        if any(likeness(words, earlier) >= ALIKE for _, _, earlier in told[:number])
    ]
    return counted(again)


def language_switch(seen: Seen) -> Found:
    """Messages in another language than the one before, where both languages are clear."""
    switches: list[Span] = []
    before = None
    for place, text in spoken(seen, "user"):
        language = language_of(text)
        if language is None:
            continue
        if before not in (None, language):
            switches.append(quote(seen, place, text))
        before = language
    return counted(switches)


def _said(seen: Seen, pattern: re.Pattern[str], texts: list[tuple[int, str]]) -> Found | None:
    """How often one of the phrases stands in these messages. Edge: unknown where none of them can be read."""
    read = [(place, text) for place, text in texts if is_read(text)]
    if texts and not read:
        return None
    return counted([quote(seen, place, text, *at) for place, text in read for at in matches(pattern, text)])
