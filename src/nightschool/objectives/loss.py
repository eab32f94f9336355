"""What an objective names: a pure loss of `training.losses`, with its settings. No tensors here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from nightschool.types import Sample

# Of the policy's loss tokens; a critic's, of the states before them; the policy's of given tokens in their places; the
# log-sum-exp of its logits in the states before them, (which scores of the logits a log-probability leaves out).
LOGPROBS, VALUES, TOP, NORMALIZERS = "logprobs", "values", "top", "normalizers"
REPLIES = "replies"  # that it draws; no loss reads them


class Aggregation(StrEnum):
    """How token values become one number. Denominators are those of the global batch; a sequence without
    loss tokens counts nowhere. Sum of weighted values, divided by: all loss tokens; the sequence's loss tokens, then
    sequences; sequences; sequences times a constant length."""

    TOKEN_MEAN = "token-mean"
    SEQUENCE_MEAN = "seq-mean-token-mean"
    SEQUENCE_SUM = "seq-mean-token-sum"
    CONSTANT = "seq-sum-const"


class Material(StrEnum):
    """What an objective learns from. The values end the sentence "it learns from ..."."""

    DEMONSTRATIONS = "demonstrations"
    PAIRS = "replies with a better one"
    JUDGED = "judged replies and sessions"
    TEXTS = "judged replies and sessions, with or without exact tokens"
    GROUPS = "groups of judged replies to one request"
    WORDS = "replies and sessions with words about them"
    REPLIES = "replies that the policy itself drew"

    @property
    def shape(self) -> Material:
        """That of a file's rows: a group is rows that answer one request."""
        return Material.JUDGED if self in (Material.GROUPS, Material.TEXTS) else self


@dataclass(frozen=True, slots=True)
class Loss:
    """The name of a function of `training.losses`, its keyword settings, and how much it counts in a mix. `outputs`
    are what it reads of the models; a backend that cannot give one is refused before the run. `num_top`: of how many
    of the likeliest tokens it compares policy and teacher. `scored` are the token annotations, for it or for what is
    annotated for it, that another model gives before the run."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    coefficient: float = 1.0
    outputs: frozenset[str] = frozenset({LOGPROBS})
    num_top: int = 0
    scored: frozenset[str] = frozenset()


Terms = Mapping[str, Loss]  # by `Sample.term`: what serves two losses is in the batch twice


# Losses in which sequences of the whole batch enter one expression that is not a sum over them.
COUPLED: frozenset[str] = frozenset({"group_variance", "rebel", "dpo", "ipo", "kto", "bco"})


def couples(terms: Terms) -> bool:
    """Whether the losses need the whole batch at once."""
    return any(loss.name in COUPLED for loss in terms.values())


def outputs_of(terms: Terms) -> frozenset[str]:
    """What the losses read of the models, together."""
    return frozenset().union(*(loss.outputs for loss in terms.values()))


@dataclass(frozen=True, slots=True)
class Anchored:
    """Samples as annotated from what the anchor says of them, and figures about them for the log."""

    samples: list[Sample]
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Objective:
    """One algorithm: how samples are annotated, and the loss they are annotated for.

    `rule(...)` makes the frozen dataclass of its settings; `annotate(samples, rule)` checks what it requires and
    refuses with the name of the broken rule. `anchored`: the loss reads `reference_logprobs`, those of the policy that
    a window starts from, computed by the trainer. `valued`: rows carry estimates `p_hat` and `p_lo` of the success on
    their request. `weighs_behavior`: rows carry `behavior_logprobs`, those of the engine that sampled. `pessimistic`:
    values leave a margin below what is expected, and held-out rows, annotated as well, tell how much of it is left.
    `one_version`: every row was drawn by the policy that the run starts from.
    `after_anchor(samples, rule)` annotates once a window's anchor has scored the samples (weights of an off-policy
    correction, advantages from a critic); it may leave samples out. `batch_size`: the rows of a step, by default;
    statistics of a batch want more of them.
    """

    name: str
    rule: Callable[..., Any]
    annotate: Callable[[Sequence[Sample], Any], list[Sample]]
    loss: Callable[[Any], Loss]
    anchored: bool = False
    material: Material = Material.JUDGED
    valued: bool = False
    weighs_behavior: bool = False
    pessimistic: bool = False
    one_version: bool = False
    after_anchor: Callable[[Sequence[Sample], Any], Anchored] | None = None
    batch_size: int = 16


def tried(objective: Objective, samples: Sequence[Sample], rule: Any) -> list[Sample]:
    """Annotated as if other models had scored them: what is refused for another reason is so before one is loaded."""
    missing = objective.loss(rule).scored
    rows = (dict.fromkeys(missing - s.token_annotations.keys(), (0.0,) * len(s.token_ids)) for s in samples)
    filled = [
        replace(s, token_annotations={**s.token_annotations, **row}) for s, row in zip(samples, rows, strict=True)
    ]
    return objective.annotate(filled, rule)
