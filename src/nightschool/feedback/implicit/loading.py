"""Sessions of an agent out of the store, as signals see them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from nightschool.feedback.implicit.seen import Call, Seen, Spot
from nightschool.feedback.record import load_feedback
from nightschool.store.dialogue import num_leading
from nightschool.store.mainline import main_branch
from nightschool.store.prompts import with_first_choice
from nightschool.store.schema import choices, exchanges, import_items, sessions
from nightschool.store.tree import load_branches
from nightschool.types import Branch, Feedback, Json, Purpose, Split

IN_PART = 50  # sessions whose messages are in memory at once
LEARNED_FROM = (Split.TRAIN, Split.SELECT)
TIMELESS = "time of import"


class Visit(NamedTuple):
    """A session's row: whose it is, and when the same principal came again."""

    id: str
    principal: str
    next_at: float | None


class Told(NamedTuple):
    """What sessions are made of, by session; `timeless` are those whose times are an import's."""

    calls: Mapping[str, Sequence[Call]]
    feedback: Mapping[str, Sequence[Feedback]]
    timeless: frozenset[str] = frozenset()


class Texts(NamedTuple):
    """Messages up to each last one, and the last messages of logs, by session."""

    branches: Mapping[str, tuple[Json, ...]]
    tails: Mapping[str, list[str]]


def each_seen(
    conn: sa.Connection, tenant: str, agent: str, as_of: float, newest: int, splits: Sequence[Split] = LEARNED_FROM
) -> Iterator[Seen]:
    """The newest sessions that an agent served, oldest first; those of sub-agents and exams are left out, and what the
    gate alone may look at."""
    s = sessions.c
    query = sa.select(s.id, s.principal, s.first_at).where(
        s.tenant == tenant,
        s.agent == agent,
        s.purpose == Purpose.SERVE.value,
        s.split.in_([split.value for split in splits]),
        s.parent_session_id.is_(None),
        s.first_at <= as_of,
    )
    rows = conn.execute(query.order_by(s.last_at.desc(), s.id.desc()).limit(newest)).all()
    later: dict[str, float] = {}
    visits: list[Visit] = []
    for row in sorted(rows, key=lambda row: (row.first_at, row.id), reverse=True):
        visits.append(Visit(row.id, row.principal, later.get(row.principal)))
        later[row.principal] = row.first_at
    visits.reverse()
    for start in range(0, len(visits), IN_PART):
        part = visits[start : start + IN_PART]
        yield from see(conn, tenant, part, _told(conn, tenant, [visit.id for visit in part], as_of), as_of)


def see(conn: sa.Connection, tenant: str, visits: Sequence[Visit], told: Told, as_of: float) -> Iterator[Seen]:
    """Sessions with their messages. Two queries."""
    mains = {visit.id: main_branch(told.calls.get(visit.id, ())) for visit in visits}
    texts = _texts(conn, tenant, mains)
    for visit in visits:
        main = mains[visit.id]
        messages, spots = _spoken(main, texts.branches, texts.tails.get(visit.id, []))
        yield Seen(
            id=visit.id,
            principal=visit.principal,
            messages=messages,
            spots=spots,
            calls=tuple(told.calls.get(visit.id, ())),
            main=frozenset(call.id for call in main),
            feedback=tuple(told.feedback.get(visit.id, ())),
            next_at=visit.next_at,
            timed=visit.id not in told.timeless,
            as_of=as_of,
        )


def _told(conn: sa.Connection, tenant: str, session_ids: Sequence[str], as_of: float) -> Told:
    x = exchanges.c
    columns = (
        x.id, x.session_id, x.started_at, x.duration_ms, x.status, x.branch, x.parent_exchange_id, x.prompt_message,
        x.retry_of, x.flags, choices.c.message_hash, choices.c.finish_reason,
    )  # fmt: skip
    query = sa.select(*columns).select_from(with_first_choice(tenant))
    query = query.where(x.tenant == tenant, x.session_id.in_(session_ids), x.started_at <= as_of)
    calls: dict[str, list[Call]] = defaultdict(list)
    timeless: set[str] = set()
    for row in conn.execute(query.order_by(x.started_at, x.id)):
        calls[row.session_id].append(_call(row))
        if TIMELESS in (row.flags or ()):
            timeless.add(row.session_id)
    feedback: dict[str, list[Feedback]] = defaultdict(list)
    for item in load_feedback(conn, tenant, session_ids, as_of):
        feedback[str(item.session_id)].append(item)
    return Told(calls, feedback, frozenset(timeless))


def _texts(conn: sa.Connection, tenant: str, mains: Mapping[str, Sequence[Call]]) -> Texts:
    i = import_items.c
    left = sa.select(i.session_id, i.leaf).where(i.tenant == tenant, i.session_id.in_(mains), i.leaf.is_not(None))
    tails: dict[str, list[str]] = defaultdict(list)
    for session_id, leaf in conn.execute(left):
        tails[session_id].append(leaf)
    ends = [end for main in mains.values() for chain in _chains(main) if (end := _end(chain[-1]))]
    leaves = [leaf for found in tails.values() for leaf in found]
    return Texts(load_branches(conn, tenant, [*ends, *leaves]), tails)


def _call(row: Any) -> Call:
    return Call(
        id=row.id,
        started_at=row.started_at,
        ended_at=row.started_at + (row.duration_ms or 0.0) / 1000,
        status=row.status,
        branch=Branch(row.branch),
        above_id=row.parent_exchange_id,
        leaf_hash=row.prompt_message,
        reply_hash=row.message_hash,
        retry_of=row.retry_of,
        finish_reason=row.finish_reason,
    )


def _chains(main: Sequence[Call]) -> list[list[Call]]:
    """The main branch cut where an exchange does not go on from the one before it."""
    chains: list[list[Call]] = []
    for call in main:
        if chains and call.above_id == chains[-1][-1].id:
            chains[-1].append(call)
        else:
            chains.append([call])
    return chains


def _end(call: Call) -> str | None:
    return call.reply_hash or call.leaf_hash


def _spoken(
    main: Sequence[Call], branches: Mapping[str, tuple[Json, ...]], tails: Sequence[str]
) -> tuple[tuple[Json, ...], tuple[Spot, ...]]:
    """The messages of the main branch, each once: a branch begun anew repeats what was said before, and brings what
    stands after the last reply in its first prompt."""
    messages: list[Json] = []
    spots: list[Spot] = []
    for number, chain in enumerate(_chains(main)):
        end = _end(chain[-1])
        path = branches[end] if end else ()
        replied, answered = len(path), [call.id for call in chain if call.reply_hash]
        start = _begins(path, len(answered)) if number else 0
        for leaf in tails:
            tail = branches[leaf]
            path = tail if len(tail) > len(path) and tail[: len(path)] == path else path
        owners = _owners(path, replied, answered, chain[-1].id)
        messages += path[start:]
        spots += [Spot(owners[place], place + 1) for place in range(start, len(path))]
    return tuple(messages), tuple(spots)


def _begins(path: Sequence[Json], num_replies: int) -> int:
    """Where what is new begins in a chain that starts anew: after the last reply before its own ones."""
    replies = [place for place, message in enumerate(path) if message.get("role") == "assistant"]
    earlier = replies[:-num_replies] if num_replies else replies
    return earlier[-1] + 1 if earlier else num_leading(path)


def _owners(path: Sequence[Json], told: int, answered: Sequence[str], last: str) -> list[str]:
    """For each message the exchange that gave it, or whose prompt it is new in; what comes after the first `told`
    messages is counted to the `last` exchange. `answered` are those whose replies end the path."""
    replies = [place for place, message in enumerate(path[:told]) if message.get("role") == "assistant"]
    known = min(len(replies), len(answered))
    ends = dict(zip(replies[len(replies) - known :], answered[len(answered) - known :], strict=True))
    owners = [last] * len(path)
    owner = last
    for place in range(told - 1, -1, -1):
        owner = ends.get(place, owner)
        owners[place] = owner
    return owners
