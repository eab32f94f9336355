"""The exchanges of an agent as training sees them: tokens, sampler, and which one continues which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nightschool.objectives.legality import DENIED, EXAM, INCOMPLETE, MARKS_AGAINST, TEXT_ONLY, reason_against
from nightschool.store.prompts import unfold_prompts, with_first_choice
from nightschool.store.schema import choices, exchanges
from nightschool.store.vectors import unpack_floats, unpack_ids
from nightschool.types import Branch, Fidelity, Purpose, Sampler, Split


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange. `above_id` is the one it continues in the dialogue; `parent_id` is the same, but set only where
    its prompt ids begin with that exchange's prompt and reply.

    `leaf_hash` is the last message of its prompt. Ids are `None` where the engine gave none.
    """

    id: str
    session_id: str
    agent: str
    principal: str
    split: Split
    purpose: Purpose
    policy_version: str
    started_at: float
    status: str
    training_allowed: bool
    fidelity: Fidelity
    sampler: Sampler
    leaf_hash: str | None
    branch: Branch
    above_id: str | None
    parent_id: str | None
    context_complete: bool
    flags: tuple[str, ...]
    prompt_ids: tuple[int, ...] | None
    completion_ids: tuple[int, ...] | None
    behavior_logprobs: tuple[float | None, ...] | None
    finish_reason: str | None

    @property
    def reason_against(self) -> str | None:
        """Why its tokens may not be trained on, whatever was said about it; `None` when they may."""
        barred = self._barred(MARKS_AGAINST)
        if barred is None and (self.prompt_ids is None or not self.completion_ids):
            return TEXT_ONLY
        return barred or reason_against(self.fidelity, self.sampler)

    @property
    def reason_against_text(self) -> str | None:
        """Why not even its text may be. What was cut out of a prompt leaves the reply as it was said."""
        return self._barred(MARKS_AGAINST.keys() - {"redacted"})

    def _barred(self, marks: Container[str]) -> str | None:
        if self.purpose == Purpose.EXAM:
            return EXAM
        if self.status != "ok":
            return self.status
        if not self.training_allowed:
            return DENIED
        if not self.context_complete:
            return INCOMPLETE
        mark = next((flag for flag in self.flags if flag in marks), None)
        return None if mark is None else MARKS_AGAINST[mark]


def load_turns(conn: sa.Connection, tenant: str, agent: str, as_of: float) -> dict[str, list[Turn]]:
    """All exchanges begun by `as_of` in sessions the agent took part in, by session, oldest first."""
    x = exchanges.c
    own = sa.select(x.session_id).where(x.tenant == tenant, x.agent == agent).distinct()
    columns = [column for column in x if column.name not in ("tenant", "request_body", "reply_body", "tools_blob")]
    query = (
        sa.select(*columns, choices.c.completion_ids, choices.c.behavior_logprobs, choices.c.finish_reason)
        .select_from(with_first_choice(tenant))
        .where(x.tenant == tenant, x.started_at <= as_of, x.session_id.in_(own))
        .order_by(x.started_at, x.id)
    )
    rows = conn.execute(query).all()
    prompts = unfold_prompts(rows)
    sessions: dict[str, list[Turn]] = defaultdict(list)
    for row in rows:
        sessions[row.session_id].append(_turn(row, prompts[row.id]))
    return dict(sessions)


def _turn(row: Any, prompt: bytes | None) -> Turn:
    return Turn(
        id=row.id,
        session_id=row.session_id,
        agent=row.agent,
        principal=row.principal,
        split=Split(row.split),
        purpose=Purpose(row.purpose),
        policy_version=row.policy_version,
        started_at=row.started_at,
        status=row.status,
        training_allowed=row.training_allowed,
        fidelity=Fidelity(row.fidelity),
        sampler=Sampler(**row.sampler),
        leaf_hash=row.prompt_message,
        branch=Branch(row.branch),
        above_id=row.parent_exchange_id,
        parent_id=row.parent_exchange_id if row.prompt_prefix_len else None,
        context_complete=row.context_complete,
        flags=tuple(row.flags or ()),
        prompt_ids=None if prompt is None else unpack_ids(prompt),
        completion_ids=None if row.completion_ids is None else unpack_ids(row.completion_ids),
        behavior_logprobs=None if row.behavior_logprobs is None else unpack_floats(row.behavior_logprobs),
        finish_reason=row.finish_reason,
    )
