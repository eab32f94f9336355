"""Every objective by its name."""

from __future__ import annotations

from collections.abc import Mapping

from nightschool.errors import InputError
from nightschool.objectives.apo import APO
from nightschool.objectives.bco import BCO
from nightschool.objectives.dpo import DPO
from nightschool.objectives.dro import DRO
from nightschool.objectives.family import FAMILY
from nightschool.objectives.hindsight import HINDSIGHT
from nightschool.objectives.kto import KTO
from nightschool.objectives.loss import Objective
from nightschool.objectives.mirror import MIRROR, OPMD
from nightschool.objectives.oapl import OAPL
from nightschool.objectives.oapl_group import OAPL_GROUP
from nightschool.objectives.on_policy_distillation import ON_POLICY_DISTILLATION
from nightschool.objectives.ppo import PPO
from nightschool.objectives.qrpo import QRPO
from nightschool.objectives.rebel import REBEL
from nightschool.objectives.sdpo import SDPO
from nightschool.objectives.sft import RFT, SFT
from nightschool.objectives.spo import SPO, SPO_PLUS
from nightschool.objectives.tbrm import TBRM
from nightschool.objectives.topr import TOPR
from nightschool.objectives.var_grad import VAR_GRAD

LIKELIHOOD = (SFT, RFT)
PREFERENCE = (DPO, KTO, BCO)
REGRESSION = (OAPL, DRO, APO, OAPL_GROUP, MIRROR, OPMD, VAR_GRAD, REBEL, QRPO, TBRM)
DISTILLATION = (HINDSIGHT, SDPO, ON_POLICY_DISTILLATION)
GRADIENT = (TOPR, SPO, SPO_PLUS, PPO, *FAMILY)

OBJECTIVES: Mapping[str, Objective] = {
    objective.name: objective for objective in (*LIKELIHOOD, *PREFERENCE, *REGRESSION, *GRADIENT, *DISTILLATION)
}


def find_objective(name: str) -> Objective:
    """Raises: InputError when there is none of that name."""
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise InputError(f"There is no objective {name!r}.", f"Known are {known}.", "nightschool objectives")
    return OBJECTIVES[name]
