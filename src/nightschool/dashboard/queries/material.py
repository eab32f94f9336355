"""What the recorded exchanges are good for: counted by what decides, judged by `objectives.legality`.

Everything is read from one index, newest sessions first, at most `CAP` exchanges and as many judged targets:
a page costs the same however large the store is. What was not counted is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from nightschool.dashboard.queries.scope import Scope
from nightschool.objectives.legality import NO_GROUP, OBJECTIVES, SAYS, Facts, Heard, Objective, legal
from nightschool.store.schema import exchanges, feedback
from nightschool.types import MARKS, Branch, Fidelity, Json, LogprobProvenance, Purpose, Split, Support

CAP = 200_000
GROUP_CAP = 2_000
E = exchanges.c
# What decides, with its possible values. A database groups by one number many times faster than by nine texts.
FACETS: dict[str, Sequence[Any]] = {
    "purpose": tuple(Purpose),
    "split": tuple(Split),
    "branch": tuple(Branch),
    "training_allowed": (False, True),
    "context_complete": (False, True),
    "fidelity": tuple(Fidelity),
    "support": tuple(Support),
    "logprob_provenance": tuple(LogprobProvenance),
    "mark": (None, *MARKS),
}


def material(conn: sa.Connection, scope: Scope, agent: str | None) -> Json:
    """How many exchanges and judged targets each objective could learn from, and the reasons against the rest.

    An agent of `None` is all of them. `counted_at` tells when this was counted. At most 3 queries.
    """
    return scope.counts.get(("material", scope.tenant, agent), scope.now, lambda: _count(conn, scope.tenant, agent))


def _count(conn: sa.Connection, tenant: str, agent: str | None) -> Json:
    recorded = _counted(conn.execute(_exchanges(tenant, agent)).mappings())
    judged = _counted(conn.execute(_targets(tenant, agent)).mappings())
    found = [_objective(objective, recorded if objective.needs is None else judged) for objective in OBJECTIVES]
    _count_groups(conn, tenant, agent, found[-1])
    total, targets = sum(recorded.values()), sum(judged.values())
    return {"exchanges": total, "judged": targets, "capped": max(total, targets) >= CAP, "objectives": found}


def newest_exchanges(tenant: str, agent: str | None) -> sa.Select:
    """Id, session, branch, status and code of the newest sessions' exchanges, from one index."""
    query = sa.select(E.id, E.session_id, E.branch, E.status, code_of(E).label("code")).where(E.tenant == tenant)
    if agent is not None:
        query = query.where(E.agent == agent)
    return query.order_by(E.session_id.desc(), E.started_at.desc()).limit(CAP)


def code_of(columns: Any) -> sa.ColumnElement[int]:
    """Every facet but the status as one number: a digit for each."""
    code: Any = sa.literal(0)
    for name, values in FACETS.items():
        places = {getattr(value, "value", value): place for place, value in enumerate(values) if value is not None}
        digit = sa.case(places, value=columns[name], else_=0)
        code = code * len(values) + digit
    return code


def decoded(code: int, status: str, heard: frozenset[Heard] = frozenset()) -> Facts:
    """The facts behind a code."""
    found: Json = {}
    for name, values in reversed(FACETS.items()):
        code, place = divmod(code, len(values))
        found[name] = values[place]
    return Facts(status=status, heard=heard, **found)


def facts_of(row: Mapping[str, Any], heard: frozenset[Heard] = frozenset()) -> Facts:
    """The facts of an exchange from its columns."""
    found = {name: next(value for value in values if value == row[name]) for name, values in FACETS.items()}
    return Facts(status=row["status"], heard=heard, **found)


def says(heard: Heard) -> sa.ColumnElement[bool]:
    """Whether a row of feedback says this."""
    return feedback.c.kind.in_([kind.value for kind, said in SAYS.items() if heard in said])


def _exchanges(tenant: str, agent: str | None) -> sa.Select:
    newest = newest_exchanges(tenant, agent).subquery()
    key = (newest.c.code, newest.c.status)
    return sa.select(*key, sa.func.count().label("number")).group_by(*key)


def _said(tenant: str) -> sa.Subquery:
    """(session, exchange or nothing, what was said) of the newest judged sessions' targets."""
    f = feedback.c
    heard = [_any(says(name)).label(_mark(name)) for name in Heard]
    query = sa.select(f.session_id, f.exchange_id, *heard)
    query = query.where(f.tenant == tenant, f.state == "matched", f.session_id.is_not(None))
    return query.group_by(f.session_id, f.exchange_id).order_by(f.session_id.desc()).limit(CAP).subquery("said")


def _about(tenant: str, agent: str | None, said: sa.Subquery) -> sa.ColumnElement[bool]:
    """Exchanges that a judgement is about: its own, or the finished ones of its session's main branch."""
    whole = sa.and_(said.c.exchange_id.is_(None), E.branch == Branch.MAIN.value, E.status == "ok")
    mine = sa.true() if agent is None else E.agent == agent
    own = sa.or_(E.id == said.c.exchange_id, whole)
    return sa.and_(E.tenant == tenant, E.session_id == said.c.session_id, own, mine)


def _targets(tenant: str, agent: str | None) -> sa.Select:
    """Judged targets by what was said and by the least fit of their exchanges, facet by facet."""
    said = _said(tenant)
    worst = (
        _other_than("ok", E.status),
        sa.func.max(E.purpose).label("purpose"),
        sa.func.max(E.split).label("split"),
        _other_than(Branch.MAIN.value, E.branch),
        (sa.func.min(sa.cast(E.training_allowed, sa.Integer)) == 1).label("training_allowed"),
        (sa.func.min(sa.cast(E.context_complete, sa.Integer)) == 1).label("context_complete"),
        sa.func.max(E.fidelity).label("fidelity"),  # the names happen to stand in the order of trust
        _other_than(Support.FULL.value, E.support),
        _other_than(LogprobProvenance.ENGINE.value, E.logprob_provenance),
        sa.func.max(E.mark).label("mark"),
    )
    marks = [said.c[_mark(name)] for name in Heard]
    target = (
        sa.select(*worst, *marks)
        .select_from(said.outerjoin(exchanges, _about(tenant, agent, said)))  # outer: from the few to the many
        .group_by(said.c.session_id, said.c.exchange_id, *marks)
        .having(sa.func.count(E.id) > 0)
        .subquery("target")
    )
    coded = sa.select(code_of(target.c).label("code"), *(target.c[name] for name in ("status", *map(_mark, Heard))))
    key = coded.subquery("coded").c
    return sa.select(*key, sa.func.count().label("number")).group_by(*key)


def _group_members(tenant: str, agent: str | None) -> sa.Select:
    """Judged targets of one exchange each, with the request it answered and the policy that did."""
    said = _said(tenant)
    x = exchanges.alias("single")
    single = (
        sa.select(sa.func.min(E.id).label("id"))
        .select_from(said.outerjoin(exchanges, _about(tenant, agent, said)))
        .where(said.c[_mark(Heard.VERDICT)] == 1)
        .group_by(said.c.session_id, said.c.exchange_id)
        .having(sa.func.count(E.id) == 1)
        .order_by(said.c.session_id.desc())
        .limit(GROUP_CAP)
        .subquery("single_id")
    )
    query = sa.select(x.c.prompt_message, x.c.policy_version, x.c.status, code_of(x.c).label("code"))
    return query.select_from(single.join(x, sa.and_(x.c.tenant == tenant, x.c.id == single.c.id)))


def _other_than(good: str, column: sa.Column[Any]) -> sa.Label[Any]:
    """The value that is not `good`, where there is one among the rows."""
    return sa.func.coalesce(sa.func.max(sa.case((column != good, column))), good).label(column.name)


def _mark(heard: Heard) -> str:
    return heard.name.lower()


def _any(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.max(sa.case((condition, 1), else_=0))


def _counted(rows: Iterable[Mapping[Any, Any]]) -> Counter[Facts]:
    counts: Counter[Facts] = Counter()
    for row in rows:
        heard = frozenset(name for name in Heard if row.get(_mark(name)))
        counts[decoded(row["code"], row["status"], heard)] += row["number"]
    return counts


def _objective(objective: Objective, counts: Counter[Facts]) -> Json:
    against: Counter[str | None] = Counter()
    for facts, number in counts.items():
        against[legal(facts)[objective.name]] += number
    usable = against.pop(None, 0)
    return {
        "name": objective.name,
        "title": objective.title,
        "learns_from": objective.learns_from,
        "lacks": objective.lacks,
        "usable": usable,
        "of": sum(counts.values()),
        "refused": [{"reason": reason, "number": number} for reason, number in against.most_common()],
    }


def _count_groups(conn: sa.Connection, tenant: str, agent: str | None, found: Json) -> None:
    """Of the replies that lack nothing but a group, those that have one: a request judged twice or more."""
    alone = next((line for line in found["refused"] if line["reason"] == NO_GROUP), None)
    if alone is None:
        return
    groups: Counter[tuple[str, str]] = Counter()
    for row in conn.execute(_group_members(tenant, agent)).mappings():
        facts = replace(decoded(row["code"], row["status"], frozenset({Heard.VERDICT})), group_size=2)
        if legal(facts)[found["name"]] is None:
            groups[row["prompt_message"], row["policy_version"]] += 1
    found["usable"] = sum(size for size in groups.values() if size > 1)
    alone["number"] -= found["usable"]
    found["refused"] = [line for line in found["refused"] if line["number"]]
