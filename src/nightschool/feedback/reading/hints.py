"""What of a text a teacher may see: statements about what happened, without orders and without personal data."""

from __future__ import annotations

import re

from nightschool.access.personal import KINDS
from nightschool.access.privacy import Privacy
from nightschool.access.redaction import redactor
from nightschool.feedback.reading.clauses import statement
from nightschool.feedback.reading.plain import read_part, sentences
from nightschool.feedback.reading.steering import LINK

MAX_HINT_CHARS = 600
MAX_SAID_CHARS = 2000  # of a correction, which is an answer and not a remark about one
EVERYTHING = Privacy(tuple(KINDS))
ANY_QUOTE = re.compile(r"[\"“”«»„]")


def without_personal(text: str) -> str:
    """`text` with marks in place of secrets, addresses and numbers of people, and without links."""
    return redactor(EVERYTHING).text(LINK.sub("[link]", text))


def hint_of(text: str, trusted: bool) -> str | None:
    """The statements in an English text that steers nobody; all of its sentences where its writer may give orders.

    `None` where nothing is left.
    """
    shown = ANY_QUOTE.sub('"', without_personal(read_part(text)[0]))
    kept: list[str] = []
    for sentence in sentences(shown):
        said = sentence if trusted else statement(sentence)
        if len(" ".join([*kept, said])) > MAX_HINT_CHARS:
            break
        if said:
            kept.append(said if said[-1] in '.!?"' else f"{said}.")
    return " ".join(kept) or None


def told_correction(text: str) -> str | None:
    """The words of a correction that steers nobody: an answer, whose orders are to the user."""
    return without_personal(text)[:MAX_SAID_CHARS].strip() or None
