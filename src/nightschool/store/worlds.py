"""Which exchanges and sessions a request may belong to at all, and the queries that look there.

What every exchange asks is compiled once (`prepared.py`). In those a rule that does not apply is a null; that
also keeps SQLite from reading all exchanges of an agent where a handful have the hash that is looked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from nightschool.store.prepared import Prepared
from nightschool.store.records import Record
from nightschool.store.schema import exchanges, sessions
from nightschool.types import Branch, Purpose

NUM_CANDIDATES = 32  # exchanges with one and the same history that are weighed against each other


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

    def values(self) -> dict[str, Any]:
        """For those that every exchange asks."""
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
    of_session = sa.and_(sessions.c.tenant == exchanges.c.tenant, sessions.c.id == exchanges.c.session_id)
    x, s = exchanges.c, sessions.c
    own = (x.session_id, x.started_at, x.branch, x.parent_exchange_id, x.context_complete)
    return sa.select(*parent_columns(), *own, s.last_at, s.principal, s.split, s.opening, *more).select_from(
        exchanges.join(sessions, of_session)
    )


def parent_columns() -> tuple[sa.ColumnElement[Any], ...]:
    return exchanges.c.id, exchanges.c.num_context_tokens, exchanges.c.context_hash


def attempts() -> sa.Select:
    """Exchanges with what is to be known of one that a request may repeat."""
    x = exchanges.c
    own = (x.id, x.session_id, x.principal, x.split, x.status, x.started_at, x.duration_ms)
    return sa.select(*own, x.branch, x.retry_of, x.parent_exchange_id, x.prompt_message, x.context_complete)


def _any(column: sa.Column[Any]) -> sa.ColumnElement[bool]:
    value = sa.bindparam(column.name, type_=column.type)
    return sa.or_(value.is_(None), column == value)


def _here(table: sa.Table) -> tuple[sa.ColumnElement[bool], ...]:
    exam_id = sa.bindparam("exam_id", type_=sa.String())
    own = () if table is sessions else (_any(table.c.session_id), _any(table.c.principal))
    return (
        table.c.tenant == sa.bindparam("tenant"),
        table.c.purpose == sa.bindparam("purpose"),
        table.c.exam_id.is_not_distinct_from(exam_id),
        _any(table.c.agent),
        _any(table.c.policy_version),
        *own,
    )


_newest = exchanges.c.started_at.desc()
_answers = candidates().where(*_here(exchanges), exchanges.c.reply_match_hash == sa.bindparam("reply"))
_home = sa.select(
    sessions.c.id, sessions.c.principal, sessions.c.split, sessions.c.opening, sessions.c.external_key
).where(
    *_here(sessions), sa.or_(sessions.c.id == sa.bindparam("name"), sessions.c.external_key == sa.bindparam("name"))
)
_failed = attempts().where(
    *_here(exchanges),
    exchanges.c.prompt_message == sa.bindparam("prompt"),
    exchanges.c.status != sa.literal_column("'ok'"),  # as in the index
    exchanges.c.branch != sa.literal_column(f"'{Branch.RETRY.value}'"),
)

# The session called `name`.
HOME = Prepared(_home.order_by(sessions.c.last_at.desc()).limit(sa.literal_column("1")))
# The attempt at `prompt` that failed last.
FAILED = Prepared(_failed.order_by(_newest).limit(sa.literal_column("1")))
# Exchanges that gave `reply`: under the same system messages, newest first; under any.
REPLIED = Prepared(
    _answers.where(exchanges.c.system_hash == sa.bindparam("system"))
    .order_by(_newest)
    .limit(sa.literal_column(str(NUM_CANDIDATES)))
)
REPLIED_ANYWHERE = Prepared(_answers.limit(sa.literal_column(str(NUM_CANDIDATES))))
