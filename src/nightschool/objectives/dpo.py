"""DPO: of two replies to one request, the better one gains log-ratio over the other.

Implements: Rafailov et al., arXiv:2305.18290; robust form of Chowdhury et al., arXiv:2403.00409.
Departs: nothing; the reference is the policy that a run starts from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from nightschool.errors import RefusedError
from nightschool.objectives.legality import require_no_anchor, require_tokens, require_whole_trajectories
from nightschool.objectives.loss import Loss, Material, Objective
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class DpoRule:
    """`beta`: how far a pair may pull. `noise`: the share of pairs that is told the wrong way round, if it is known.
    `sft_weight`: counts the preferred reply's likelihood as well, where both replies would lose it."""

    beta: float = 0.1
    noise: float = 0.0
    sft_weight: float = 0.0


def annotate(samples: Sequence[Sample], rule: DpoRule) -> list[Sample]:
    """Check that rows are pairs: two of a `group_id`, annotated `preferred` 1 and 0.

    Raises:
        RefusedError: a row stands alone, a pair has no better side, or its two sides answer different requests.
    """
    require_tokens(samples)
    require_whole_trajectories(samples)
    require_no_anchor(samples)
    if not 0 <= rule.noise < 0.5:
        raise _refused("noise below one half", f"A share of {rule.noise} wrong pairs says nothing of the others.")
    pairs: dict[str | None, list[Sample]] = defaultdict(list)
    for sample in samples:
        pairs[sample.group_id].append(sample)
    for name, pair in pairs.items():
        if name is None or sorted(one.annotations.get("preferred", -1.0) for one in pair) != [0.0, 1.0]:
            raise _refused("a pair has one better reply", f"Group {name} has not.")
        first, second = (one.token_ids[: one.completion_mask.index(True)] for one in pair)
        if first != second:
            raise _refused("a pair answers one request", f"The sides of pair {name} begin differently.")
    return list(samples)


def loss(rule: DpoRule) -> Loss:
    return Loss("dpo", {"beta": rule.beta, "noise": rule.noise, "sft_weight": rule.sft_weight})


DPO = Objective("dpo", DpoRule, annotate, loss, anchored=True, material=Material.PAIRS)


def _refused(rule: str, why: str) -> RefusedError:
    return RefusedError(f"The run is refused: {rule}.", why, "Build the dataset again.")
