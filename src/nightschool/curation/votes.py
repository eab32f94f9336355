"""Who can be believed: thumbs of everybody, weighed against what the outcome model says of the same replies."""

from __future__ import annotations

from collections.abc import Sequence

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.feedback.record import current_view
from nightschool.feedback.values import IMPLICIT
from nightschool.types import FeedbackKind, Json, Trajectory
from nightschool.valuation.outcome import Said, fit_outcome_model
from nightschool.valuation.raters import Raters, Vote, fit_raters


def believe(trajectories: Sequence[Trajectory]) -> tuple[Raters | None, Json]:
    """How far each rater can be believed, by the thumbs on these; `None` and why, where that cannot be told.

    A thumb without an author is its principal's. Rows that share a judgement count once.
    """
    thumbs = [
        (t, item.author or t.principal, bool(item.value))
        for t in {t.vote: t for t in trajectories}.values()
        for item in current_view(t.feedback)
        if item.kind == FeedbackKind.THUMB and item.source != IMPLICIT
    ]
    said = [Said(t.request, _sampled(t)) for t, _, _ in thumbs]
    names = [rater for _, rater, _ in thumbs]
    try:
        model = fit_outcome_model(said, [float(good) for _, _, good in thumbs], [1.0] * len(thumbs), names)
        votes = [
            Vote(" ".join(t.vote), rater, good, expected)
            for (t, rater, good), expected in zip(thumbs, model.probabilities.tolist(), strict=True)
        ]
        found = fit_raters(votes)
    except (TooLittleDataError, RefusedError) as error:
        return None, {"used": False, "why": error.why}
    return found, {"used": True, **found.report, "outcome_model": model.report}


def _sampled(t: Trajectory) -> tuple[int, ...]:
    return tuple(token for token, used in zip(t.token_ids, t.completion_mask, strict=True) if used)
