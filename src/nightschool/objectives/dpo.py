"""DPO: of two replies to one request, the better one gains log-ratio over the other.

Implements: Rafailov et al., arXiv:2305.18290; robust form of Chowdhury et al., arXiv:2403.00409; IPO of Azar et al.,
    arXiv:2310.12036.
Departs: nothing; the reference is the policy that a run starts from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightschool.objectives.legality import (
    refused,
    require_no_anchor,
    require_pairs,
    require_tokens,
    require_whole_trajectories,
)
from nightschool.objectives.loss import Loss, Material, Objective
from nightschool.types import Sample

SETTINGS = "Correct [training.dpo.rule]."


@dataclass(frozen=True, slots=True)
class DpoRule:
    """`beta`: how far a pair may pull. `noise`: the share of pairs that is told the wrong way round, if it is known.
    `smoothing`: counts that share of the other direction, the conservative form. `sft_weight`: counts the preferred
    reply's likelihood as well, where both replies would lose it. `squared`: IPO, which asks for a margin of
    1 / (2 beta) per token and no more."""

    beta: float = 0.1
    noise: float = 0.0
    smoothing: float = 0.0
    sft_weight: float = 0.0
    squared: bool = False


def annotate(samples: Sequence[Sample], rule: DpoRule) -> list[Sample]:
    """Check that rows are pairs: two of a `group_id`, annotated `preferred` 1 and 0.

    Raises:
        RefusedError: the rule contradicts itself, a row stands alone, a pair has no better side, or its two sides
            answer different requests.
    """
    require_tokens(samples)
    require_whole_trajectories(samples)
    require_no_anchor(samples)
    if not 0 <= rule.noise < 0.5:
        raise refused(
            "noise below one half", f"A share of {rule.noise} wrong pairs says nothing of the others.", SETTINGS
        )
    if (rule.noise and rule.smoothing) or (rule.squared and (rule.noise or rule.smoothing or rule.sft_weight)):
        raise refused("one form of the loss", "Noise, smoothing and IPO exclude each other.", SETTINGS)
    for name, pair in require_pairs(samples).items():
        if sorted(one.annotations.get("preferred", -1.0) for one in pair) != [0.0, 1.0]:
            raise refused("a pair has one better reply", f"Group {name} has not.")
    return list(samples)


def loss(rule: DpoRule) -> Loss:
    if rule.squared:
        return Loss("ipo", {"beta": rule.beta})
    settings = {"noise": rule.noise, "smoothing": rule.smoothing, "sft_weight": rule.sft_weight}
    return Loss("dpo", {"beta": rule.beta, **settings})


DPO = Objective("dpo", DpoRule, annotate, loss, anchored=True, material=Material.PAIRS)
