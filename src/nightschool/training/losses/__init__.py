"""Every loss by the name under which objectives know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from nightschool.training.losses.clipped import clipped
from nightschool.training.losses.distillation import hindsight, reverse_kl, top_divergence, top_pull
from nightschool.training.losses.likelihood import dft, sft
from nightschool.training.losses.log_ratio import bellman, group_variance, rebel, squared_log_ratio
from nightschool.training.losses.preference import apo_zero, bco, dpo, ipo, kto
from nightschool.training.losses.reinforce import reinforce, topr
from nightschool.training.losses.values import ppo

LOSSES: Mapping[str, Callable[..., Tensor]] = {
    "sft": sft,
    "dft": dft,
    "squared_log_ratio": squared_log_ratio,
    "group_variance": group_variance,
    "bellman": bellman,
    "rebel": rebel,
    "reinforce": reinforce,
    "topr": topr,
    "dpo": dpo,
    "ipo": ipo,
    "kto": kto,
    "apo_zero": apo_zero,
    "bco": bco,
    "hindsight": hindsight,
    "reverse_kl": reverse_kl,
    "top_divergence": top_divergence,
    "top_pull": top_pull,
    "clipped": clipped,
    "ppo": ppo,
}
