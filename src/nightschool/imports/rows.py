"""Rows to train from: demonstrations, preferences and judged replies, in the shape that TRL reads.

Arguments of calls stay texts and tool schemas are one text, so that rows of different types share one schema and
nothing is filled in. Only what may train goes in: the train split, consent given, complete and unharmed.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from nightschool.feedback.reading.places import place_of_correction
from nightschool.feedback.reading.plain import plain
from nightschool.feedback.reading.stored import replies_of, text_of
from nightschool.feedback.record import current_view
from nightschool.feedback.reward import RewardRule, combine
from nightschool.imports.calls import with_own_ids
from nightschool.imports.paths import Path, Session, why_not
from nightschool.store.tree import canonical
from nightschool.types import Exchange, Feedback, FeedbackKind, Json

GOOD = 0.5
NO_FEEDBACK = "no feedback"
NO_REPLY = "correction: nothing says of which reply"


def conversations(session: Session, left_out: Counter[str]) -> Iterator[Json]:
    """Everything that was said, one row a path; further replies to one request have rows of their own."""
    for path in session.paths:
        tools = {"tools": list(path.leaf.tools)} if path.leaf.tools else {}
        yield {"messages": with_own_ids(path.messages)} | tools
    for exchange in session.exchanges:
        if not exchange.choices:
            left_out["no reply"] += 1
        tools = {"tools": list(exchange.tools)} if exchange.tools else {}
        for choice in exchange.choices[1:]:
            yield {"messages": with_own_ids([*exchange.messages, choice.message])} | tools


def demonstrations(session: Session, left_out: Counter[str], unjudged: bool = False) -> Iterator[Json]:
    """Sessions that were judged well, and what people wrote instead of a reply."""
    path = session.main
    reason = _why_no_demonstration(session, path, unjudged)
    if reason or path is None:
        left_out[reason or "no main branch"] += 1
    else:
        end = max(path.calls) + 1
        yield {"messages": with_own_ids(path.messages[:end]), "tools": _schemas(path.leaf)}
    for exchange, better in _corrections(session, left_out):
        reason = why_not(session, exchange)
        if reason:
            left_out[f"correction: {reason}"] += 1
        else:
            yield {"messages": with_own_ids([*exchange.messages, better]), "tools": _schemas(exchange)}


def preferences(session: Session, left_out: Counter[str]) -> Iterator[Json]:
    """Two answers to one request, the better one known: corrections, preferences, and replies judged apart."""
    pairs = [(exchange, better, exchange.choices[0].message) for exchange, better in _corrections(session, left_out)]
    pairs += [pair for item in current_view(session.feedback) for pair in _preferred(session, item, left_out)]
    pairs += _judged_apart(session)
    for exchange, chosen, rejected in pairs:
        reason = why_not(session, exchange)
        if reason:
            left_out[reason] += 1
        elif canonical(chosen) != canonical(rejected):
            *prompt, better = with_own_ids([*exchange.messages, chosen])
            worse = with_own_ids([*exchange.messages, rejected])[-1]
            yield {"prompt": prompt, "chosen": [better], "rejected": [worse], "tools": _schemas(exchange)}


def judged(session: Session, left_out: Counter[str]) -> Iterator[Json]:
    """Single replies with a good or a bad judgement of their own.

    A judgement on a session is about all of it, and stands for a reply only where there is but one.
    """
    whole = session.main
    for exchange in session.exchanges:
        items = session.about(exchange.id)
        if not items and whole is not None and list(whole.calls.values()) == [exchange]:
            items = session.about(None)
        value = combine(items, RewardRule()).value
        reason = why_not(session, exchange)
        if value is None or value == GOOD:
            reason = reason or ("judged as a whole" if not items and session.about(None) else NO_FEEDBACK)
        if reason:
            left_out[reason] += 1
            continue
        *prompt, reply = with_own_ids([*exchange.messages, exchange.choices[0].message])
        row = {"prompt": prompt, "completion": [reply], "label": (value or 0.0) > GOOD}
        yield row | {"tools": _schemas(exchange)}


def _why_no_demonstration(session: Session, path: Path | None, unjudged: bool) -> str | None:
    if path is None:
        return "no main branch"
    reason = next((found for exchange in path.calls.values() if (found := why_not(session, exchange))), None)
    if reason or unjudged:
        return reason
    told = session.about(None) or [item for call in path.calls.values() for item in session.about(call.id)]
    value = combine(told, RewardRule()).value
    if value is None:
        return NO_FEEDBACK
    return None if value > GOOD else "judged badly"


def _corrections(session: Session, left_out: Counter[str]) -> Iterator[tuple[Exchange, Json]]:
    """Replies that somebody wrote anew, with what they wrote; one that was sent for a session rewrites the reply that
    is most like it."""
    by_id = {exchange.id: exchange for exchange in session.exchanges if exchange.choices}
    for item in current_view(session.feedback):
        better = _message(item.value) if item.kind == FeedbackKind.CORRECTION else None
        if better is None:
            continue
        meant = item.exchange_id or _rewritten(session, item)
        if meant is None:
            left_out[NO_REPLY] += 1
        elif meant in by_id:
            yield by_id[meant], better


def _rewritten(session: Session, item: Feedback) -> str | None:
    """The exchange whose reply a correction of a session rewrites."""
    place, _ = place_of_correction(plain(text_of(item) or ""), replies_of(session.exchanges))
    return None if place is None else place.exchange_id


def _preferred(session: Session, item: Feedback, left_out: Counter[str]) -> Iterator[tuple[Exchange, Json, Json]]:
    if item.kind != FeedbackKind.PREFERENCE or not isinstance(item.value, dict):
        return
    exchange, chosen, rejected = _compared(session, item), None, None
    if exchange is not None:
        chosen, rejected = (_answer(session, exchange, item.value.get(side)) for side in ("chosen", "rejected"))
    if exchange is None or chosen is None or rejected is None:
        left_out["preference: an answer that is not there"] += 1
    else:
        yield exchange, chosen, rejected


def _compared(session: Session, item: Feedback) -> Exchange | None:
    """The exchange whose request both answers are to: the one that is named, else the one of an answer that is."""
    names = [item.exchange_id]
    if item.exchange_id is None:
        names = [answer.get("exchange") for answer in item.value.values() if isinstance(answer, dict)]
    found = [e for e in session.exchanges if e.choices and {e.id, e.upstream_id} & {name for name in names if name}]
    return found[0] if found else None


def _answer(session: Session, exchange: Exchange, answer: Any) -> Json | None:
    """The message that one side of a preference names."""
    if not isinstance(answer, dict):
        return None
    if "choice" in answer:
        return next((c.message for c in exchange.choices if c.index == answer["choice"]), None)
    if "exchange" in answer:
        named = [e for e in session.exchanges if answer["exchange"] in (e.id, e.upstream_id) and e.choices]
        same = [e for e in named if canonical(e.messages) == canonical(exchange.messages)]
        return same[0].choices[0].message if same else None
    return _message(answer.get("message", answer.get("text")))


def _judged_apart(session: Session) -> Iterator[tuple[Exchange, Json, Json]]:
    """Replies to one request, one judged well and one badly."""
    same: dict[bytes, list[Exchange]] = defaultdict(list)
    for exchange in session.exchanges:
        if exchange.choices:
            same[canonical(exchange.messages)].append(exchange)
    for replies in same.values():
        values = {e.id: combine(session.about(e.id), RewardRule()).value for e in replies}
        good = [e for e in replies if (value := values[e.id]) is not None and value > GOOD]
        bad = [e for e in replies if (value := values[e.id]) is not None and value < GOOD]
        for better, worse in zip(good, bad, strict=False):  # each reply once
            if why_not(session, worse) is None:
                yield better, better.choices[0].message, worse.choices[0].message


def _message(value: Any) -> Json | None:
    """A reply that somebody wrote: its text, or a message."""
    if isinstance(value, str) and value.strip():
        return {"role": "assistant", "content": value}
    if isinstance(value, dict) and (value.keys() & {"content", "tool_calls"}):
        return {"role": "assistant"} | value | {"role": "assistant"}
    return None


def _schemas(exchange: Exchange) -> str:
    return json.dumps(list(exchange.tools), ensure_ascii=False)
