"""Who reads an agent's texts for rewards: the calibrator of words, or a reader that knows better."""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sa

from nightschool.feedback.reading.verdicts import best_of, calibrate
from nightschool.feedback.reward import RewardRule
from nightschool.types import Json


def better_read(
    conn: sa.Connection, tenant: str, agent: str, as_of: float, rule: RewardRule
) -> tuple[RewardRule, list[Json]]:
    """The rule with the reader that is better than its calibrator, where one is; and what is known of every reader.

    Better is a lower log loss of cross-fitted probabilities, each on the texts that people labelled.
    """
    readers = calibrate(conn, tenant, agent, as_of)
    best, words = best_of(readers), rule.calibrator
    if best is not None and (words is None or best.log_loss < words.report["log_loss"]):
        rule = replace(rule, readings=best)
    return rule, [one.as_json() for one in readers]
