"""Signals in the course of a session: what was sent again, broken off, left, or taken up anew."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from nightschool.feedback.implicit.seen import Call, Found, Seen, Span, counted, quote, spoken
from nightschool.types import Branch

LEFT_S = 3600.0  # without a word from the user, after which an open question counts as left open
AGAIN_S = 3 * 86_400.0  # within which another session of the same principal counts as coming back
ABORTED = ("aborted", "client_closed")
SLACK_S = 0.05
QUESTION = ("?", "？", "؟")


def retry(seen: Seen) -> Found:
    """Requests that were sent again since no reply had come."""
    return counted([Span(call.id) for call in seen.calls if call.retry_of is not None])


def regenerate(seen: Seen) -> Found:
    """Requests that were answered, and sent again afterwards. Several at once are samples, not a second try."""
    return counted([Span(later.id) for _, later in _again(seen, same_prompt=True)])


def edit(seen: Seen) -> Found:
    """Replies that were gone back behind: another message of the user continues what came before them."""
    return counted([Span(earlier.id) for earlier, _ in _again(seen, same_prompt=False)])


def abort(seen: Seen) -> Found:
    """Replies that the client did not wait for."""
    return counted([Span(call.id) for call in _served(seen) if call.status in ABORTED])


def no_reply(seen: Seen) -> Found:
    """Requests that the engine did not answer, or not to the end."""
    return counted([Span(call.id) for call in _served(seen) if call.status not in ("ok", *ABORTED)])


def abandonment(seen: Seen) -> Found | None:
    """The agent asked last, and nothing was said for an hour. Edge: unknown before that, and where no times are."""
    if not seen.messages:
        return None
    place, last = len(seen.messages) - 1, seen.messages[-1]
    said = dict(spoken(seen, "assistant")).get(place, "")
    asked = last.get("role") == "assistant" and said.rstrip().rstrip("*_\"')”").endswith(QUESTION)
    if not asked:
        return Found(0.0)
    if not seen.timed or seen.as_of - seen.last_at < LEFT_S:
        return None
    return counted([quote(seen, place, said, max(0, len(said.rstrip()) - 80), len(said))])


def repeat_contact(seen: Seen) -> Found | None:
    """The same principal came again within three days. Edge: unknown before they are over, where nobody is known by
    name, and where no times are."""
    if not seen.timed or seen.principal == seen.id or not seen.calls:
        return None
    if seen.next_at is not None and seen.next_at - seen.last_at <= AGAIN_S:
        return Found(1.0, (Span(seen.calls[-1].id),))
    return Found(0.0) if seen.as_of - seen.last_at > AGAIN_S else None


def _served(seen: Seen) -> list[Call]:
    """Exchanges that the user waited for."""
    return [call for call in seen.calls if call.branch in (Branch.MAIN, Branch.RETRY)]


def _again(seen: Seen, same_prompt: bool) -> list[tuple[Call, Call]]:
    """Pairs of an exchange and the next one that continues the same history after it had been answered."""
    below: dict[str | None, list[Call]] = defaultdict(list)
    for call in seen.calls:
        if call.branch == Branch.MAIN and call.retry_of is None and call.leaf_hash is not None:
            below[call.leaf_hash if same_prompt else call.above_id].append(call)
    found = []
    for key, calls in below.items():
        if key is None:  # a branch begun anew has no history to go back to
            continue
        for earlier, later in pairwise(calls):
            answered = later.started_at >= earlier.ended_at - SLACK_S and earlier.status == "ok"
            if answered and (earlier.leaf_hash == later.leaf_hash) == same_prompt:
                found.append((earlier, later))
    return found
