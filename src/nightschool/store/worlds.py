"""Which exchanges and sessions a request may belong to at all, and the queries that look there.

What is asked often is compiled once (`prepared.py`). Each query first takes the newest of what one index finds, and
applies the rules to those alone: so SQLite cannot choose to read all exchanges of an agent, and a greeting that a
million sessions begin with takes no longer than one that nobody else gave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from nightschool.store.prepared import Prepared
from nightschool.store.records import Record
from nightschool.store.schema import exchanges, sessions
from nightschool.types import Branch, Purpose

LARGE = {"prompt_ids", "sampler", "flags", "usage", "error", "preview", "tags"}  # columns that nobody here asks for
NUM_LOOKED_AT = 256  # of those that one index finds, newest first
IS_FAILED = exchanges.c.status != sa.literal_column("'ok'")  # as in the index


@dataclass(frozen=True, slots=True)
class World:
    """Rules that rows must meet; `None` where anything goes, but for `exam_id`."""

    tenant: str
    purpose: str
    exam_id: str | None
    agent: str | None
    policy_version: str | None
    session_id: str | None = None
    principal: str | None = None

    def condition(self, table: sa.Table) -> sa.ColumnElement[bool]:
        """For queries that are asked seldom: the rules that apply, as a condition."""
        also = (("agent", self.agent), ("policy_version", self.policy_version), ("principal", self.principal))
        rules = [table.c[name] == value for name, value in also if value is not None]
        if self.session_id is not None:
            rules.append((table.c.id if table is sessions else table.c.session_id) == self.session_id)
        same = (table.c.tenant == self.tenant, table.c.purpose == self.purpose, table.c.exam_id == self.exam_id)
        return sa.and_(*same, *rules)

    def holds(self, row: Any) -> bool:
        """Whether a row meets the rules, one of `foresight.py`; a session's has no session and no principal to meet."""
        return (
            row.purpose == self.purpose
            and row.exam_id == self.exam_id
            and self.agent in (None, row.agent)
            and self.policy_version in (None, row.policy_version)
            and (self.session_id is None or self.session_id == row.session_id)
            and (self.principal is None or self.principal == row.principal)
        )

    def values(self) -> dict[str, Any]:
        """For queries that are asked often."""
        return {name: getattr(self, name) for name in self.__slots__}


def world_of(tenant: str, record: Record, any_agent: bool = False) -> World:
    """Of a request. `any_agent` where it names its session: sub-agents share it."""
    caller = record.caller
    exam = caller.purpose == Purpose.EXAM
    agent = None if any_agent and not exam else caller.agent
    return World(tenant, caller.purpose.value, caller.exam_id, agent, record.policy_version if exam else None)


def within(world: World, session_id: str | None, principal: str | None) -> World:
    return replace(world, session_id=session_id, principal=principal)


def candidates(*more: sa.ColumnElement[Any]) -> sa.Select:
    """Exchanges with what is to be known of one to continue it, and with their session."""
    return _with_sessions(exchanges, *more)


def _with_sessions(table: sa.FromClause, *more: sa.ColumnElement[Any]) -> sa.Select:
    return sa.select(*candidate_columns(table), *more).select_from(table.join(sessions, own_session(table)))


def candidate_columns(table: sa.FromClause) -> tuple[sa.ColumnElement[Any], ...]:
    x, s = table.c, sessions.c
    own = (x.id, x.num_context_tokens, x.context_hash, x.session_id, x.started_at, x.branch, x.parent_exchange_id)
    return (*own, x.context_complete, x.system_hash, s.last_at, s.principal, s.split, s.opening)


def own_session(table: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(sessions.c.tenant == table.c.tenant, sessions.c.id == table.c.session_id)


def home_columns(table: sa.FromClause) -> tuple[sa.ColumnElement[Any], ...]:
    return table.c.id, table.c.principal, table.c.split, table.c.opening


def parent_columns() -> tuple[sa.ColumnElement[Any], ...]:
    return exchanges.c.id, exchanges.c.num_context_tokens, exchanges.c.context_hash


def attempts() -> sa.Select:
    """Exchanges with what is to be known of one that a request may repeat."""
    x = exchanges.c
    own = (x.id, x.session_id, x.principal, x.split, x.status, x.started_at, x.duration_ms)
    return sa.select(*own, x.branch, x.retry_of, x.parent_exchange_id, x.prompt_message, x.context_complete)


def _any(column: Any) -> sa.ColumnElement[bool]:
    value = sa.bindparam(column.name, type_=column.type)
    return sa.or_(value.is_(None), column == value)


def _here(table: sa.FromClause) -> tuple[sa.ColumnElement[bool], ...]:
    """The rules of a `World`, on rows that are few."""
    exam_id = sa.bindparam("exam_id", type_=sa.String())
    own = () if "session_id" not in table.c else (_any(table.c.session_id), _any(table.c.principal))
    return (
        table.c.purpose == sa.bindparam("purpose"),
        table.c.exam_id.is_not_distinct_from(exam_id),
        _any(table.c.agent),
        _any(table.c.policy_version),
        *own,
    )


def _newest(table: sa.Table, by: str, *rules: sa.ColumnElement[bool]) -> sa.Subquery:
    """The newest rows of the tenant that meet `rules`, which one index answers."""
    read = [column for column in table.c if column.name not in LARGE]
    mine = sa.select(*read).where(table.c.tenant == sa.bindparam("tenant"), *rules)
    return mine.order_by(table.c[by].desc()).limit(sa.literal_column(str(NUM_LOOKED_AT))).subquery("newest")


def _answers(*rules: sa.ColumnElement[bool]) -> Prepared:
    found = _newest(exchanges, "started_at", *rules)
    query = _with_sessions(found).where(*_here(found))
    return Prepared(query.order_by(found.c.started_at.desc(), found.c.id.desc()))


def _homes(rule: sa.ColumnElement[bool]) -> Prepared:
    found = _newest(sessions, "first_at", rule)
    query = sa.select(*home_columns(found)).where(*_here(found))
    return Prepared(query.order_by(found.c.first_at.desc(), found.c.id.desc()).limit(sa.literal_column("1")))


def _failures() -> Prepared:
    found = _newest(
        exchanges, "started_at", exchanges.c.prompt_message == _bound("prompt", "prompt_message"), IS_FAILED
    )
    counts = found.c.branch != sa.literal_column(f"'{Branch.RETRY.value}'")
    query = sa.select(*(found.c[column.name] for column in attempts().selected_columns)).where(*_here(found), counts)
    return Prepared(query.order_by(found.c.started_at.desc()).limit(sa.literal_column("1")))


def _bound(name: str, column: str) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=exchanges.c[column].type)


_reply = _bound("reply", "reply_match_hash")
_replied = exchanges.c.reply_match_hash == _reply

# The session called `name`, by its own id or by the name of its client.
HOME_BY_ID = _homes(sessions.c.id == sa.bindparam("name"))
HOME = _homes(sessions.c.external_key == sa.bindparam("name"))
# The attempt at `prompt` that failed last.
FAILED = _failures()
# Exchanges that gave `reply`, newest first: under the system messages `system`, under any, in one session.
REPLIED = _answers(_replied, exchanges.c.system_hash == sa.bindparam("system"))
REPLIED_ANYWHERE = _answers(_replied)
REPLIED_WITHIN = _answers(
    exchanges.c.session_id == sa.bindparam("session_id"),
    sa.func.coalesce(exchanges.c.reply_match_hash, sa.null()) == _reply,  # not by its index: the session is smaller
)
# Whether anybody ever gave `reply`.
GIVEN = Prepared(
    sa.select(exchanges.c.id)
    .where(exchanges.c.tenant == sa.bindparam("tenant"), _replied)
    .limit(sa.literal_column("1"))
)
# The exchange that is called `called`, by its own id or by the upstream's.
CALLED_BY_ID = _answers(exchanges.c.id == sa.bindparam("called"))
CALLED = _answers(exchanges.c.upstream_id == sa.bindparam("called"))
