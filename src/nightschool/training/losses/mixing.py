"""A batch's samples and the losses they are annotated for, as one number.

Each sample belongs to one term (`Sample.term`); a term is a named loss with denominators of its own. What serves two
terms stands in the batch twice, and its tokens go through the model once all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nightschool.errors import InputError
from nightschool.objectives.loss import LOGPROBS, Terms
from nightschool.training.losses import LOSSES
from nightschool.training.losses.batch import TokenBatch
from nightschool.types import Sample

REFERENCE, TOP_IDS = "reference_logprobs", "top_ids"


@dataclass(frozen=True, slots=True)
class Totals:
    """Loss tokens, and sequences with any of them, of one term in the whole batch."""

    num_tokens: int
    num_sequences: int


def count(samples: Sequence[Sample]) -> dict[str, Totals]:
    """The denominators of the whole batch, by term.

    Raises:
        InputError: no token of the batch enters the loss (a template without assistant spans, usually).
    """
    found: dict[str, Totals] = {}
    for sample in samples:
        num = sum(sample.loss_mask)
        old = found.get(sample.term, Totals(0, 0))
        found[sample.term] = Totals(old.num_tokens + num, old.num_sequences + (num > 0))
    if not any(total.num_tokens for total in found.values()):
        raise InputError("No token of the batch enters the loss.", "Every loss mask is empty.", "Check the dataset.")
    return found


def total_loss(
    terms: Terms,
    samples: Sequence[Sample],
    outputs: Mapping[str, Tensor],
    totals: Mapping[str, Totals],
) -> Tensor:
    """The share of `samples` in the loss of the batch that `totals` counts.

    `outputs` are what the models say, by the names of `objectives.loss`.

    Shapes: (N, ...), of the loss tokens of `samples` in their order.

    Raises:
        InputError: a sample belongs to no term, or a value that its loss reads is missing.
    """
    lengths = [sum(sample.loss_mask) for sample in samples]
    parts = {name: out.split(lengths) for name, out in outputs.items()}
    loss = outputs[LOGPROBS].new_zeros(())
    for name, term in terms.items():
        chosen = [place for place, sample in enumerate(samples) if sample.term == name and lengths[place]]
        if not chosen:
            continue
        own = {kind: torch.cat([out[place] for place in chosen]) for kind, out in parts.items()}
        batch = token_batch([samples[place] for place in chosen], own[LOGPROBS], totals[name])
        batch = replace(batch, outputs=own)
        loss = loss + term.coefficient * LOSSES[term.name](batch, **term.settings)
    unknown = {sample.term for sample in samples} - terms.keys()
    if unknown:
        raise InputError("A sample belongs to no loss.", f"No term is called {min(unknown)!r}.", "")
    return loss


def token_batch(samples: Sequence[Sample], logprobs: Tensor, totals: Totals) -> TokenBatch:
    """What a loss sees of samples with loss tokens, scored by the policy."""
    device, lengths = logprobs.device, [sum(sample.loss_mask) for sample in samples]
    names = set(samples[0].annotations).intersection(*(sample.annotations for sample in samples))
    numbers: dict[str, int] = {}
    groups = [-1 if s.group_id is None else numbers.setdefault(s.group_id, len(numbers)) for s in samples]
    return TokenBatch(
        logprobs,
        torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(lengths)).to(device),
        torch.tensor([sample.weight for sample in samples], dtype=logprobs.dtype, device=device),
        totals.num_tokens,
        totals.num_sequences,
        annotations={
            name: torch.tensor([s.annotations[name] for s in samples], dtype=logprobs.dtype, device=device)
            for name in names
        },
        tokens=_given(samples, logprobs),
        groups=torch.tensor(groups, device=device),
    )


def _given(samples: Sequence[Sample], like: Tensor) -> dict[str, Tensor]:
    """Values per loss token that all samples carry."""
    rows = [
        {**sample.token_annotations, **({REFERENCE: sample.reference_logprobs} if sample.reference_logprobs else {})}
        for sample in samples
    ]
    found: dict[str, Tensor] = {}
    for name in set(rows[0]).intersection(*rows) - {TOP_IDS}:
        if isinstance(rows[0][name], np.ndarray):  # (T, K), values for given tokens in each place
            used = [np.asarray(row[name])[list(sample.loss_mask)] for sample, row in zip(samples, rows, strict=True)]
            found[name] = torch.tensor(np.concatenate(used), dtype=like.dtype, device=like.device)
            continue
        values = [
            value
            for sample, row in zip(samples, rows, strict=True)
            for value, used in zip(row[name], sample.loss_mask, strict=True)
            if used
        ]
        if None in values:
            raise InputError(f"A loss token has no value of {name}.", "A missing value is never a number.", "")
        found[name] = torch.tensor(values, dtype=like.dtype, device=like.device)
    return found
