"""GRPO and its relatives, each as published: one rule, other settings.

Implements: Shao et al., arXiv:2402.03300 (grpo); Yu et al., arXiv:2503.14476 (dapo); Liu et al., arXiv:2503.20783
    (dr_grpo); Ahmadian et al., arXiv:2402.14740 (rloo; with weights and a wider clip, rloo_tis); Zheng et al.,
    arXiv:2507.18071 (gspo); MiniMax, arXiv:2506.13585 (cispo); Gao et al., arXiv:2511.20347 (sapo); Liu et al.,
    arXiv:2508.08221 (lite_ppo); VESPO, arXiv:2602.10693 (vespo; its constants are read from an implementation). KL
    weights are unverified.
Departs: ratios of whole sequences are geometric means; TRL's rloo takes their product.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from nightschool.objectives.advantages import Baseline, Scale
from nightschool.objectives.clipping import BEHAVIOR, Clip, Penalty, Ratio, Surrogate
from nightschool.objectives.grpo import GrpoRule, after_anchor, annotate, loss
from nightschool.objectives.loss import Aggregation, Material, Objective
from nightschool.objectives.off_policy import CORRECTIONS
from nightschool.objectives.rollouts import Overlong

TOKENS = Aggregation.TOKEN_MEAN
VARIANTS = {
    "grpo": GrpoRule(penalty=Penalty(0.04)),
    "dapo": GrpoRule(
        clip=Clip(0.2, 0.28), aggregation=TOKENS, drop_equal=True, overlong=Overlong(max_length=20_480, cache=4096)
    ),
    "dr_grpo": GrpoRule(scale=Scale.NONE, aggregation=Aggregation.CONSTANT, max_length=3000),
    "rloo": GrpoRule(Baseline.OTHERS, Scale.NONE, aggregation=Aggregation.SEQUENCE_SUM),
    "gspo": GrpoRule(clip=Clip(3e-4, 4e-4, Ratio.SEQUENCE)),
    "cispo": GrpoRule(clip=Clip(surrogate=Surrogate.CAPPED), aggregation=TOKENS),
    "sapo": GrpoRule(clip=Clip(surrogate=Surrogate.SOFT)),
    "lite_ppo": GrpoRule(scale=Scale.BATCH, aggregation=TOKENS),
    "vespo": GrpoRule(clip=Clip(surrogate=Surrogate.GAMMA, against=BEHAVIOR), aggregation=TOKENS),
    "rloo_tis": GrpoRule(
        Baseline.OTHERS, Scale.NONE, drop_equal=True, clip=Clip(0.2, 0.28), aggregation=TOKENS,
        correction=CORRECTIONS["tis-token"],
    ),
}  # fmt: skip

NEEDS = {"anchored": True, "material": Material.GROUPS, "weighs_behavior": True, "after_anchor": after_anchor}
FAMILY = [Objective(name, partial(replace, rule), annotate, loss, **NEEDS) for name, rule in VARIANTS.items()]
