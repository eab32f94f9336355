"""Which reply of a session a text is about: the one that it quotes, retells or counts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nightschool.feedback.reading.plain import words
from nightschool.feedback.reading.values import Place, Reply

QUOTED = re.compile(r"\"([^\"\n]{6,400})\"|“([^”\n]{6,400})”|«([^»\n]{6,400})»|„([^“”\n]{6,400})[“”]")
RETOLD = re.compile(
    r"\byou (?:said|told (?:me|us)|wrote|claimed|promised|answered|replied|mentioned|suggested|asked(?: me| for)?)"
    r"(?: that)? (?P<what>[^.!?\n]{4,240})",
    re.I,
)
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
COUNTED = re.compile(
    rf"\b(?:your|the) (?:very )?(?P<which>{'|'.join(ORDINALS)}|last|latest|final) "
    r"(?:answer|reply|message|response|turn)\b",
    re.I,
)
MIN_QUOTED_WORDS = 2
MIN_SHARED, MIN_SHARE, MARGIN = 2, 0.6, 0.2
MIN_ALIKE, ALIKE_MARGIN = 0.4, 0.15
_FILLERS = (
    "the a an and or of to in on for with my your me you i it is was that this be are were not so but at as by from "
    "have has had will would can could we our us they them their its do did"
)
FILLERS = frozenset(_FILLERS.split())


def place_of(text: str, replies: Sequence[Reply]) -> tuple[Place | None, bool]:
    """The reply that is meant, and whether the text fits several of them.

    The only reply there is needs no naming. What is quoted goes before what is retold, that before what is counted.
    """
    if len(replies) == 1:
        return _at(replies[0]), False
    for found in (_quoted(text, replies), _retold(text, replies), _counted(text, replies)):
        if found:
            return (_at(found[0]), False) if len(found) == 1 else (None, True)
    return None, False


def place_of_correction(text: str, replies: Sequence[Reply]) -> tuple[Place | None, bool]:
    """The reply that a correction rewrites: the one most like it, where no other is nearly as much."""
    if len(replies) == 1:
        return _at(replies[0]), False
    mine = _content(text)
    alike = sorted(((_overlap(mine, _content(reply.text)), reply.turn, reply) for reply in replies), reverse=True)
    if not alike or alike[0][0] < MIN_ALIKE:
        return None, False
    return (_at(alike[0][2]), False) if alike[0][0] - alike[1][0] >= ALIKE_MARGIN else (None, True)


def _at(reply: Reply) -> Place:
    return Place(reply.exchange_id, reply.turn)


def _quoted(text: str, replies: Sequence[Reply]) -> list[Reply]:
    quotes = (" ".join(words("".join(filter(None, match)))) for match in QUOTED.findall(text))
    told = [(f" {' '.join(words(reply.text))} ", reply) for reply in replies]
    for quote in quotes:
        found = [reply for spelled, reply in told if f" {quote} " in spelled]
        if found and len(quote.split()) >= MIN_QUOTED_WORDS:
            return found
    return []


def _retold(text: str, replies: Sequence[Reply]) -> list[Reply]:
    for match in RETOLD.finditer(text):
        said = _content(match["what"].partition(",")[0]) or _content(match["what"])
        shared = [(len(said & _content(reply.text)), reply) for reply in replies]
        best = max((count for count, _ in shared), default=0)
        if best >= MIN_SHARED and best >= MIN_SHARE * len(said):
            near = best - MARGIN * len(said)
            return [reply for count, reply in shared if count >= MIN_SHARED and count > near]
    return []


def _counted(text: str, replies: Sequence[Reply]) -> list[Reply]:
    match = COUNTED.search(text)
    if match is None:
        return []
    which = match["which"].casefold()
    number = ORDINALS.index(which) if which in ORDINALS else len(replies) - 1
    return [replies[number]] if number < len(replies) else []


def _content(text: str) -> frozenset[str]:
    return frozenset(_stem(word) for word in words(text) if word not in FILLERS) | frozenset(re.findall(r"\d+", text))


def _stem(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Shared words over all words of both."""
    return len(one & other) / len(one | other) if one | other else 0.0
