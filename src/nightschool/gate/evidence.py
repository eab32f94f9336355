"""What an exam has gathered: both arms' sessions, put side by side by principal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from nightschool.gate import rule
from nightschool.gate.behavior import MEASURES
from nightschool.gate.sessions import ExamSession, exam_sessions
from nightschool.gate.suites import Pairs, pair_sessions
from nightschool.types import Json

NUM_EXTREMES = 10


@dataclass(frozen=True, slots=True)
class Evidence:
    """The sessions of both arms of one exam, as they stood at one time."""

    candidate: tuple[ExamSession, ...]
    incumbent: tuple[ExamSession, ...]

    def pairs(self, name: str) -> Pairs:
        """Paired values of one of the exam's own suites."""
        return pair_sessions(name, MEASURES[name], self.candidate, self.incumbent)

    @property
    def num_pairs(self) -> int:
        """Principals whose success is known under both policies."""
        return len(self.pairs(rule.SUCCESS).values)

    def missing(self) -> dict[str, int]:
        """Sessions that say nothing about their agent, by reason, both arms together."""
        lost = Counter(s.reason for s in (*self.candidate, *self.incumbent) if s.success is None and s.reason)
        return dict(sorted(lost.items()))

    def counts(self) -> Json:
        """What was found in each arm: sessions, scored, and the reasons of the rest."""
        return {"candidate": _count(self.candidate), "incumbent": _count(self.incumbent)}

    def extremes(self) -> Json:
        """The pairs that speak loudest against and for the candidate, by the ids of their sessions."""
        values = sorted(self.pairs(rule.SUCCESS).values, key=lambda value: value[1] - value[2])
        lost = [self._pair(*value) for value in values if value[1] < value[2]][:NUM_EXTREMES]
        won = [self._pair(*value) for value in reversed(values) if value[1] > value[2]][:NUM_EXTREMES]
        return {"worst": lost, "best": won}

    def _pair(self, principal: str, candidate: float, incumbent: float) -> Json:
        return {
            "difference": candidate - incumbent,
            "candidate": [session.id for session in self.candidate if session.principal == principal],
            "incumbent": [session.id for session in self.incumbent if session.principal == principal],
        }


def gather(conn: sa.Connection, tenant: str, exam: sa.RowMapping, as_of: float, running: bool = False) -> Evidence:
    """Read an exam's evidence from the store. `running`: sessions may still go on (see `exam_sessions`)."""
    arms: dict[str, list[ExamSession]] = defaultdict(list)
    for session in exam_sessions(conn, tenant, exam["id"], as_of, running):
        arms[session.policy_version].append(session)
    return Evidence(tuple(arms[exam["candidate"]]), tuple(arms[exam["incumbent"]]))


def _count(sessions: Sequence[ExamSession]) -> Json:
    missing = Counter(s.reason for s in sessions if s.success is None and s.reason)
    failed = Counter(s.reason for s in sessions if s.success is not None and s.reason)
    return {
        "sessions": len(sessions),
        "customers": len({session.principal for session in sessions}),
        "scored": sum(session.success is not None for session in sessions),
        "missing": dict(sorted(missing.items())),
        "failed_without_report": dict(sorted(failed.items())),
    }
