"""Which of the legal objectives to take. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """Take `name` from `least` rows on, because of `why`."""

    name: str
    least: int
    why: str


# In this order. What the policy itself said comes before what others wrote: only there is its own distribution moved,
# and nothing else forgotten.
TABLE = (
    Advice("oapl_group", 32, "several judged replies to one request are the best baseline there is"),
    Advice("oapl", 40, "single judged replies train without being replayed"),
    Advice("bco", 32, "thumbs up and down on different requests, without exact tokens"),
    Advice("dpo", 32, "corrections and preferences say which of two replies is better"),
    Advice("sft", 12, "demonstrations teach a form that feedback alone would not find"),
)


def advise(num_rows: Mapping[str, int]) -> Advice | None:
    """The first of the table of which there is enough; `num_rows` counts the rows of legal objectives."""
    return next((advice for advice in TABLE if num_rows.get(advice.name, 0) >= advice.least), None)
