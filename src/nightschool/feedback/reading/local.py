"""The reader that is always there: rules, in this process, without a model."""

from __future__ import annotations

from nightschool.feedback.reading.hints import hint_of, told_correction, without_personal
from nightschool.feedback.reading.places import place_of, place_of_correction
from nightschool.feedback.reading.plain import language_of, plain, read_part, words
from nightschool.feedback.reading.polarity import BLAME, PRAISE, score_of
from nightschool.feedback.reading.steering import steers
from nightschool.feedback.reading.values import Note, Place, Polarity, Reading, Said, polarity_of
from nightschool.feedback.reading.wishes import MAX_WISH_CHARS, wish_of
from nightschool.types import FeedbackKind

LOCAL = "local-1"  # a change of any rule is a new version
ENGLISH = frozenset(f"{PRAISE['en']} {BLAME['en']}".split())
REMARK_WORDS = 12  # texts of so few words are English where one of them tells


def read_locally(said: Said) -> Reading:
    """What the rules make of a text. Pure; linear in its length.

    Edge: a text that steers its reader has neither score nor wish nor hint; one in a language that is not read has a
    hint only where its writer may give orders.
    """
    text = plain(said.text)
    place, fits_several = placed(said, text)
    notes = [Note.AMBIGUOUS] if fits_several else []
    if steers(text):
        return Reading(said.feedback_id, LOCAL, Polarity.UNCLEAR, place=place, notes=(*notes, Note.STEERS))
    part, cut = read_part(text)
    notes += [Note.CUT] if cut else []
    language = known_language(part)
    if language is None:
        notes.append(Note.UNREAD)
    may_hint = language is not None or said.is_trusted
    if said.kind == FeedbackKind.CORRECTION:
        wish, hint = without_personal(part)[:MAX_WISH_CHARS] or None, told_correction(part) if may_hint else None
        return Reading(said.feedback_id, LOCAL, Polarity.BAD, None, None, wish, hint, place, tuple(notes))
    score, sarcasm = (None, False) if language is None else score_of(part, language)
    wish = wish_of(without_personal(part)) if language == "en" else None
    hint = hint_of(part, said.is_trusted) if language == "en" or said.is_trusted else None
    notes += [Note.SARCASM] if sarcasm else []
    notes += [Note.SILENT] if score is None and wish is None and language is not None else []
    notes += [Note.NOTHING_FIT] if hint is None else []
    return Reading(said.feedback_id, LOCAL, polarity_of(score), score, None, wish, hint, place, tuple(notes))


def placed(said: Said, text: str) -> tuple[Place | None, bool]:
    """The reply that is meant: the one that the sender named, else the one that the text shows; whether several fit."""
    if said.exchange_id is not None:
        turn = next((reply.turn for reply in said.replies if reply.exchange_id == said.exchange_id), None)
        return Place(said.exchange_id, turn), False
    find = place_of_correction if said.kind == FeedbackKind.CORRECTION else place_of
    return find(text, said.replies)


def known_language(text: str) -> str | None:
    """As `plain.language_of`; a short remark is English where a word of praise or blame is."""
    language = language_of(text)
    if language is None and all(char.isascii() for char in text if char.isalpha()):
        found = words(text)
        return "en" if len(found) <= REMARK_WORDS and ENGLISH.intersection(found) else None
    return language
