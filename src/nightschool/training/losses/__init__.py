"""Every loss by the name under which objectives know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from nightschool.training.losses.likelihood import sft
from nightschool.training.losses.log_ratio import squared_log_ratio
from nightschool.training.losses.preference import dpo

LOSSES: Mapping[str, Callable[..., Tensor]] = {
    "sft": sft,
    "squared_log_ratio": squared_log_ratio,
    "dpo": dpo,
}

# Losses in which sequences of the whole batch enter one expression that is not a sum over them.
COUPLED: frozenset[str] = frozenset({"dpo"})
