"""What a reader makes of one text, and what it is given to read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from nightschool.types import FeedbackKind, Json

TRUSTED = ("operator", "annotator")  # sources whose instructions are meant for the agent
READ_KINDS = (FeedbackKind.TEXT, FeedbackKind.CORRECTION)


class Polarity(StrEnum):
    GOOD = "good"
    BAD = "bad"
    UNCLEAR = "unclear"


class Note(StrEnum):
    """Why a reading says less than its text. The values are told to people."""

    STEERS = "it gives orders to whoever reads it"
    UNREAD = "its language is not read here"
    SARCASM = "its praise is not meant"
    SILENT = "it says nothing about the reply"
    NOTHING_FIT = "nothing in it is fit for a teacher"
    CUT = "it is long; its middle was not read"
    AMBIGUOUS = "it fits several replies"
    NO_ANSWER = "the judge gave no answer that can be read"
    SPLIT = "the judge's votes disagree"


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of a session's main branch. `turn` counts from 1, as feedback does that names a turn."""

    exchange_id: str
    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """A text, or the words of a correction, with what it may be about.

    `exchange_id` is the reply that its sender named, `None` where it speaks of the whole session, whose `replies`
    these are, in order.
    """

    feedback_id: str
    kind: FeedbackKind
    text: str
    source: str = "end_user"
    exchange_id: str | None = None
    replies: tuple[Reply, ...] = ()

    @property
    def is_trusted(self) -> bool:
        return self.source in TRUSTED


@dataclass(frozen=True, slots=True)
class Place:
    """The reply that is meant."""

    exchange_id: str
    turn: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """What `reader`, a name with its version, made of one text.

    `score` is in log-odds before any calibration, `None` where nothing could be read; `probability` is that of success
    once labels have calibrated the reader, `None` until then. `wish` is what should have happened, in the words of who
    said it; `hint` what a teacher may see. `votes` are a judge's raw ones, `made` says how it was asked.
    """

    feedback_id: str
    reader: str
    polarity: Polarity
    score: float | None = None
    probability: float | None = None
    wish: str | None = None
    hint: str | None = None
    place: Place | None = None
    notes: tuple[str, ...] = ()
    votes: tuple[Json, ...] = ()
    made: Json = field(default_factory=dict)


def polarity_of(score: float | None) -> Polarity:
    if score is None or score == 0:
        return Polarity.UNCLEAR
    return Polarity.GOOD if score > 0 else Polarity.BAD
