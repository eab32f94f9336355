"""What a row of a file says of how its reply was drawn: its exact tokens, their scores, by whom, how it ended.

All of it is optional. With `prompt_ids` and `completion_ids` nothing is rendered; only then can anything be said of
single tokens: `logprobs` of the engine that sampled, scores of other models.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from nightschool.errors import InputError
from nightschool.objectives.clipping import BEHAVIOR
from nightschool.objectives.off_policy import ORIGIN
from nightschool.objectives.on_policy_distillation import TEACHER
from nightschool.objectives.rollouts import FAILED, TRUNCATED
from nightschool.rendering.renderer import Renderer
from nightschool.types import Json, Sample

PROMPT_IDS, COMPLETION_IDS = "prompt_ids", "completion_ids"
SCORES = {"logprobs": BEHAVIOR, ORIGIN: ORIGIN, TEACHER: TEACHER}  # of a row, and what they are to a sample


def with_own_tokens(row: Json) -> bool:
    return PROMPT_IDS in row or COMPLETION_IDS in row


def exact(row: Json, renderer: Renderer, name: str) -> Sample:
    """The sample of a row that brings its token ids. Raises: InputError."""
    prompt, reply = (_ids(row, key, renderer, name) for key in (PROMPT_IDS, COMPLETION_IDS))
    sampled = (False,) * len(prompt) + (True,) * len(reply)
    return Sample(name, (*prompt, *reply), sampled, sampled)


def as_drawn(sample: Sample, row: Json, name: str) -> Sample:
    """The sample with what its row says of its drawing.

    A reply that was cut off and is rendered has no end of turn: nobody drew it.

    Raises: InputError where something is not what it should be.
    """
    annotations, tokens, version = dict(sample.annotations), dict(sample.token_annotations), row.get("policy_version")
    if version is not None and not isinstance(version, str):
        raise wrong(name, "its policy_version is not a text")
    for key, note in SCORES.items():
        if row.get(key) is not None:
            tokens[note] = _scores(row, key, name)
    if row.get("temperature") is not None:
        annotations["temperature"] = _temperature(row["temperature"], name)
    truncated = _flag(row, TRUNCATED, name) or row.get("finish_reason") == "length"
    annotations |= {TRUNCATED: 1.0} if truncated else {}
    annotations |= {FAILED: 1.0} if _flag(row, FAILED, name) else {}
    if truncated and not with_own_tokens(row):
        sample = without_end(sample)
    version = version or sample.policy_version
    return replace(sample, annotations=annotations, token_annotations=tokens, policy_version=version)


def without_end(sample: Sample) -> Sample:
    """The sample without its last token, where it has a reply without it."""
    if sum(sample.completion_mask) < 2:
        return sample
    return replace(
        sample,
        token_ids=sample.token_ids[:-1],
        completion_mask=sample.completion_mask[:-1],
        loss_mask=sample.loss_mask[:-1],
    )


def wrong(where: str, why: str) -> InputError:
    return InputError(f"The data cannot be used: {where}.", f"{why[0].upper()}{why[1:]}.", "Correct it.")


def _ids(row: Json, key: str, renderer: Renderer, name: str) -> tuple[int, ...]:
    ids = row.get(key)
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise wrong(name, f"its {key} are not token ids; {PROMPT_IDS} and {COMPLETION_IDS} come together")
    size = renderer.tokenizer.get_vocab_size()
    if not all(0 <= token < size for token in ids):
        raise wrong(name, f"its {key} are those of another tokenizer: this one's go to {size - 1}")
    return tuple(ids)


def _scores(row: Json, key: str, name: str) -> tuple[float | None, ...]:
    """Scores of the sampled tokens, where these stand."""
    values: Any = row[key]
    if not with_own_tokens(row):
        raise wrong(name, f"its {key} are of tokens that it does not name; {PROMPT_IDS} and {COMPLETION_IDS} do")
    if not isinstance(values, list) or len(values) != len(row[COMPLETION_IDS]):
        raise wrong(name, f"its {key} are not one for each of its {COMPLETION_IDS}")
    if not all(_is_number(value) and value <= 0 for value in values):
        raise wrong(name, f"one of its {key} is no log-probability; a missing one is never a number")
    return (*[None] * len(row[PROMPT_IDS]), *map(float, values))


def _temperature(value: Any, name: str) -> float:
    if not _is_number(value) or value <= 0:
        raise wrong(name, "its temperature is not above zero")
    return float(value)


def _flag(row: Json, key: str, name: str) -> bool:
    if not isinstance(row.get(key, False), bool):
        raise wrong(name, f"its {key} is neither true nor false")
    return row.get(key, False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
