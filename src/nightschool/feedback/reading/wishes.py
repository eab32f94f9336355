"""The wish behind a text: what should have happened, where it says so. English; other languages give none."""

from __future__ import annotations

import re

from nightschool.feedback.reading.clauses import reported
from nightschool.feedback.reading.plain import sentences

MAX_WISH_CHARS = 200
_REST = r"(?P<wish>[^.!?\n]{2,300})"
_ASKED = (
    r"(?:only |just |really |simply |actually |specifically )?(?:wanted(?! you)(?: to)?|asked (?:for|to|you to|that)"
    r"|needed|was looking for|were looking for|expected|(?:was |were )?hop(?:ed|ing) for|meant"
    r"|(?:would|'d) have (?:liked|preferred|wanted))"
)

RULES = (
    re.compile(rf"\b(?:should not have|shouldn't have|should never have) {_REST}", re.I),
    re.compile(
        rf"\b(?:should(?:'ve| have| of)|could (?:at least )?have|ought to have) (?!been (?:a )?joke){_REST}", re.I
    ),
    re.compile(rf"\bwhat (?:i|we) (?:wanted|needed|meant|asked for|expected) was (?:for you )?(?:to )?{_REST}", re.I),
    re.compile(rf"\b(?:i|we) {_ASKED} {_REST}", re.I),
    re.compile(r"^instead of (?P<wish>[^,.!?\n]{2,160}),", re.I),
    re.compile(r"(?P<wish>[^,.!?\n]{2,160}) instead of (?P<other>[^.!?\n]{2,160})", re.I),
    re.compile(rf"\bwhy (?:didn't|did not|couldn't|could not|don't) you (?:just |simply )?{_REST}", re.I),
    re.compile(
        r"^(?:no|nope|nein)[,!.…-]+\s*(?!\s|(?:thanks|thank|problem|worries|idea|one|it|this|that|you|he|she|they|we|i|not?|"
        r"never|sorry|wrong)\b)(?P<wish>[^.!?\n]{2,300})",
        re.I,
    ),
)
NEGATED = RULES[0]
TAKEN_BACK = RULES[5]


def wish_of(text: str) -> str | None:
    """What the first sentence with a wish wishes for, in its own words."""
    for sentence in _whole(text):
        for rule in RULES:
            match = rule.search(sentence)
            wish = None if match is None else _told(rule, match)
            if wish:
                return wish
    return None


def _whole(text: str) -> list[str]:
    """Sentences; a bare `no` belongs to what follows it."""
    found: list[str] = []
    for sentence in sentences(text):
        if found and re.fullmatch(r"(?:no|nope)[.!…]+", found[-1], re.I):
            found[-1] = f"no, {sentence}"
        else:
            found.append(sentence)
    return found


def _told(rule: re.Pattern[str], match: re.Match[str]) -> str | None:
    wish = reported(match["wish"].strip(" ,\"'“”"))[:MAX_WISH_CHARS].strip()
    if len(wish) < 2:
        return None
    if rule is NEGATED:
        return f"not {wish}"
    if rule is TAKEN_BACK:
        other = reported(match["other"].strip(" ,\"'“”"))[:MAX_WISH_CHARS].strip()
        return f"{wish}, not {other}" if other else wish
    return wish
