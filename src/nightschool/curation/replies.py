"""What the policy itself said, whatever was said about it: material for objectives that need no judgement."""

from __future__ import annotations

from collections import Counter

import sqlalchemy as sa

from nightschool.curation.dataset import SILENT_ROWS, TRAINED, Dataset, Wanted, drawn_notes, line_of, lines_of
from nightschool.curation.trajectories import load_trajectories
from nightschool.errors import TooLittleDataError
from nightschool.objectives.legality import GATE_SPLIT, SELECT_SPLIT
from nightschool.types import LedgerState, Sample, Split, Trajectory

OTHER_VERSION = "another version drew it"
OTHER_TEMPERATURE = "drawn at a temperature that the teacher does not score at"
ENOUGH = "newer replies are enough"


def own_replies(conn: sa.Connection, tenant: str, wanted: Wanted) -> Dataset:
    """The newest sessions of the policy that the run starts from, each with its whole main branch.

    Raises:
        TooLittleDataError: there are none; the message says why.
    """
    loaded = load_trajectories(conn, tenant, wanted.agent, wanted.as_of, heard=False)
    reasons = [(t, _why_not(t, wanted)) for t in loaded.trajectories]
    own = [t for t, reason in reasons if reason is None]
    kept = own[-wanted.rule.max_replies :]
    select = [t for t, reason in reasons if reason == SELECT_SPLIT][-SILENT_ROWS:]
    lines = [
        *(line_of(left) for left in loaded.left_out),
        *(line for t, reason in reasons if reason for line in lines_of([t], LedgerState.HELD, reason)),
        *lines_of(own[: len(own) - len(kept)], LedgerState.HELD, ENOUGH),
        *lines_of(kept, LedgerState.TRAINED, TRAINED),
    ]
    counted = Counter(f"{line.state.value}: {line.reason}" for line in lines)
    if not kept:
        why = ", ".join(f"{count} {reason}" for reason, count in counted.most_common(3))
        raise TooLittleDataError(
            "There is nothing to study.",
            f"No reply of the version that the run starts from may train ({why or 'nothing is recorded'}).",
            "nightschool explain <exchange> says why a row is out",
        )
    return Dataset(
        wanted.agent,
        wanted.anchor,
        wanted.as_of,
        tuple(map(_sample, kept)),
        tuple(map(_sample, select)),
        tuple(lines),
        {"train": len(kept), "held_out": len(select), "reasons": dict(sorted(counted.items()))},
    )


def _why_not(trajectory: Trajectory, wanted: Wanted) -> str | None:
    if trajectory.split == Split.GATE:
        return GATE_SPLIT
    if trajectory.split == Split.SELECT:
        return SELECT_SPLIT
    if trajectory.policy_versions != (wanted.anchor,):
        return OTHER_VERSION
    return OTHER_TEMPERATURE if wanted.temperature not in (None, trajectory.sampler.temperature) else None


def _sample(trajectory: Trajectory) -> Sample:
    return Sample(
        trajectory.exchange_ids[-1],
        trajectory.token_ids,
        trajectory.completion_mask,
        trajectory.completion_mask,
        policy_version=trajectory.policy_versions[-1],
        annotations=drawn_notes(trajectory),
    )
