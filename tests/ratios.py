"""Rows with given log-probabilities, and the batch that a loss sees of them; golden G5 of the clipped family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.mixing import count, token_batch
from nightschool.types import Sample

PROMPT = (5, 6)

# G5: two replies, what the policy says of their tokens, and by how much that is above the anchor.
POLICY = ((-0.5, -1.0), (-2.0, -0.7, -1.2, -0.3))
DRIFT = ((0.3, -0.1), (-0.3, 0.1, 0.0, 0.5))
STALENESS = ((0.05, -0.02), (0.9, -0.9, -0.4, 0.1))  # log(anchor / behavior)
ADVANTAGES = (1.0, -1.0)


def row(name: str, length: int, tools: Sequence[int] = (), **more: Any) -> Sample:
    """A reply of `length` tokens to one request; `tools` are places in it that a tool wrote.

    Values in `reference` and those of `token_annotations` stand for its loss tokens.
    """
    mask = (*(False for _ in PROMPT), *(place not in tools for place in range(length)))
    ids = (*PROMPT, *(10 + place for place in range(length)))
    reference = more.pop("reference", None)
    per_token = {key: spread(mask, values) for key, values in more.pop("token_annotations", {}).items()}
    anchored = None if reference is None else spread(mask, reference)
    return Sample(name, ids, mask, mask, reference_logprobs=anchored, token_annotations=per_token, **more)


def spread(mask: Sequence[bool], values: Sequence[float]) -> tuple[float | None, ...]:
    """One value per loss token, in its place."""
    found = iter(values)
    return tuple(next(found) if used else None for used in mask)


def golden_rows(advantages: Sequence[float] = ADVANTAGES) -> list[Sample]:
    rows = []
    for place, (policy, drift, stale) in enumerate(zip(POLICY, DRIFT, STALENESS, strict=True)):
        anchor = [p - d for p, d in zip(policy, drift, strict=True)]
        behavior = [a - s for a, s in zip(anchor, stale, strict=True)]
        rows.append(
            row(
                f"y{place + 1}",
                len(policy),
                reference=anchor,
                annotations={"advantage": advantages[place]},
                token_annotations={"behavior_logprobs": behavior},
                group_id="g",
            )
        )
    return rows


def batch_of(
    samples: Sequence[Sample], policy: Sequence[Sequence[float]], dtype: torch.dtype = torch.float32
) -> TokenBatch:
    """What a loss sees, with a gradient to take by `logprobs`."""
    flat = torch.tensor([value for one in policy for value in one], dtype=dtype, requires_grad=True)
    return token_batch(samples, flat, count(samples)[""])
