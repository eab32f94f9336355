"""Judgements without secrets, and without the personal data that a policy keeps out."""

from __future__ import annotations

from dataclasses import replace

from nightschool.access.privacy import Privacy
from nightschool.access.redaction import redactor
from nightschool.feedback.values import NewFeedback


def hidden(item: NewFeedback, privacy: Privacy) -> NewFeedback:
    """`item` as it may be stored; itself when nothing has to go.

    Its author, and a target that it names by somebody's address, become the same pseudonyms that exchanges carry.
    """
    clean = redactor(privacy)
    changed = {
        "value": clean.value(item.value),
        "evidence": clean.value(item.evidence),
        "author": clean.name(item.author),
        "target_id": clean.name(item.target_id),
    }
    changed = {name: new for name, new in changed.items() if new is not getattr(item, name)}
    return replace(item, **changed) if changed else item
