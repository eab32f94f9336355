"""Signals in the place of a judgement, for sessions about which nobody said how they went.

Only where the agent's own report allows it (`feedback.implicit.report`): then their probability of success stands for
the unknown outcome. What was said of a session, or of a turn of it, is never overruled, and turns beside the main
branch get nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from nightschool.feedback.implicit.report import Learned, learn
from nightschool.feedback.reward import NO_FEEDBACK, Reward, RewardRule
from nightschool.types import Json, Split, Trajectory


@dataclass(frozen=True, slots=True)
class Unspoken:
    """Probabilities of success by session, for those that nobody judged, with the exchanges of their main branches."""

    chances: Mapping[str, tuple[float, frozenset[str]]] = field(default_factory=dict)
    version: str = ""
    report: Json = field(default_factory=dict)

    def reward(self, trajectory: Trajectory, said: Reward) -> Reward:
        """`said`, unless nothing was said of a row that trains."""
        unsaid = said.value is None and said.reason == NO_FEEDBACK and trajectory.split == Split.TRAIN
        chance, main = self.chances.get(trajectory.session_id, (0.0, frozenset()))
        if not unsaid or not main or not main.issuperset(trajectory.exchange_ids):
            return said
        return Reward(chance, f"signals ({self.version})")


def read_unspoken(conn: sa.Connection, tenant: str, agent: str, as_of: float, rule: RewardRule) -> Unspoken:
    """What signals say of the agent's sessions by then; nothing where they may not train."""
    learned = learn(conn, tenant, agent, as_of, rule)
    if learned.model is None or learned.against is not None:
        return Unspoken(report={"used": False, "why": learned.against})
    rows = learned.rows
    chances = learned.model.predict(rows.values).tolist()
    told = zip(rows.about, chances, strict=True)
    silent = {one.session_id: (chance, one.main) for one, chance in told if one.is_silent}
    version = _version(learned)
    report = {"used": True, "version": version, "sessions": len(silent), **learned.report["model"]}
    return Unspoken(silent, version, report)


def _version(learned: Learned) -> str:
    """Names the rows it was learned from."""
    rows = learned.rows
    judged = rows.judged
    total = hashlib.sha256("\n".join(rows.names).encode())
    total.update(rows.values[judged].tobytes())
    total.update(rows.labels[judged].tobytes())
    return f"signals-1-{total.hexdigest()[:12]}"
