"""The distribution that a chat or completions request asks the engine to draw from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nightschool.types import Sampler

# Request fields that shape the sampled distribution in ways a trainer cannot apply again.
CONSTRAINTS = (
    "repetition_penalty",
    "logit_bias",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "bad_words",
    "allowed_token_ids",
    "min_tokens",
    "ignore_eos",
    "typical_p",
    "use_beam_search",
)


def resolve_sampler(fields: Mapping[str, Any]) -> Sampler:
    """The distribution the request asks for, with the defaults of the API where it is silent."""
    constraints = [name for name in CONSTRAINTS if _constrains(name, fields.get(name))]
    if fields.get("tool_choice") not in (None, "auto", "none"):
        constraints.append("tool_choice")
    top_k = _number(fields, "top_k")
    seed = _number(fields, "seed")
    return Sampler(
        temperature=_or(_number(fields, "temperature"), 1.0),
        top_p=_or(_number(fields, "top_p"), 1.0),
        top_k=int(top_k) if top_k is not None and top_k > 0 else None,
        min_p=_number(fields, "min_p") or None,
        presence_penalty=_or(_number(fields, "presence_penalty"), 0.0),
        frequency_penalty=_or(_number(fields, "frequency_penalty"), 0.0),
        seed=int(seed) if seed is not None else None,
        constraints=",".join(constraints) or None,
    )


def _constrains(name: str, value: object) -> bool:
    if name == "repetition_penalty":
        return value is not None and value != 1
    if name == "response_format":
        return isinstance(value, dict) and value.get("type") != "text"
    if name == "typical_p":
        return value is not None and value != 1
    return bool(value)


def _number(fields: Mapping[str, Any], name: str) -> float | int | None:
    value = fields.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)
