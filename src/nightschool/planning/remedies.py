"""What would make a run fit that does not: each knob alone, with the value that would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nightschool.models.shapes import KNOWN
from nightschool.planning.devices import CARDS
from nightschool.planning.forecast import Forecast, Setting, memory_of, with_budget
from nightschool.planning.speed import FITS

LEAST_BUDGET = 64
RANKS = (64, 32, 16, 8, 4)


@dataclass(frozen=True, slots=True)
class Remedy:
    """A knob, the value that would fit, and the bytes that would then be needed."""

    knob: str
    value: str
    needed_bytes: float


def remedies(planned: Forecast) -> list[Remedy]:
    """Cheapest first: what costs time, then what costs quality, then what costs money."""
    found = [_budget(planned), _format(planned), _rank(planned), _model(planned), _card(planned)]
    return [one for one in found if one is not None]


def _budget(planned: Forecast) -> Remedy | None:
    budget = planned.work.largest.num_tokens // LEAST_BUDGET * LEAST_BUDGET
    while budget >= max(LEAST_BUDGET, planned.work.longest):
        needed = _needed(planned, planned.setting, budget)
        if needed <= _room(planned.setting):
            return Remedy("token_budget", str(budget), needed)
        budget = min(int(budget * 0.9), budget - LEAST_BUDGET) // LEAST_BUDGET * LEAST_BUDGET
    return None


def _format(planned: Forecast) -> Remedy | None:
    if planned.setting.dtype == "bfloat16":
        return None
    return _first(planned, [("bfloat16", replace(planned.setting, dtype="bfloat16"))], "dtype")


def _rank(planned: Forecast) -> Remedy | None:
    ranks = (rank for rank in RANKS if rank < planned.setting.rank)
    return _first(planned, ((str(rank), replace(planned.setting, rank=rank)) for rank in ranks), "rank")


def _model(planned: Forecast) -> Remedy | None:
    smaller = [shape for shape in KNOWN if shape.num_parameters < planned.setting.shape.num_parameters]
    smaller.sort(key=lambda shape: -shape.num_parameters)
    return _first(planned, ((shape.name, replace(planned.setting, shape=shape)) for shape in smaller), "model")


def _card(planned: Forecast) -> Remedy | None:
    bigger = sorted((card for card in CARDS), key=lambda card: card.memory_bytes)
    return _first(planned, ((card.name, replace(planned.setting, device=card)) for card in bigger), "device")


def _first(
    planned: Forecast, settings: Iterator[tuple[str, Setting]] | list[tuple[str, Setting]], knob: str
) -> Remedy | None:
    for value, setting in settings:
        needed = _needed(planned, setting, planned.work.largest.num_tokens)
        if needed <= _room(setting):
            return Remedy(knob, value, needed)
    return None


def _needed(planned: Forecast, setting: Setting, token_budget: int) -> float:
    largest = with_budget(planned.work.largest, token_budget, planned.work.longest)
    return memory_of(setting, largest, planned.work.running).total


def _room(setting: Setting) -> float:
    return FITS * setting.device.memory_bytes
