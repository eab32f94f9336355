"""What a place that trains must offer. `LocalBackend` is one; a Tinker server by URL is another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from nightschool.errors import NightschoolError
from nightschool.objectives.loss import Terms
from nightschool.types import Sample


class NotFiniteError(NightschoolError):
    """A loss or gradient was NaN or infinite; no step was taken."""


@dataclass(frozen=True, slots=True)
class AdamConfig:
    """Adam without weight decay.

    `clip_factor`: a gradient longer than this multiple of the running median of recent gradient norms is
    scaled down to it. A fixed clip would mean something else for every objective, since their gradients
    differ by orders of magnitude.
    `critic_factor`: the critic's learning rate in units of the policy's.
    """

    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip_factor: float = 3.0
    critic_factor: float = 10.0


@dataclass(frozen=True, slots=True)
class LossReport:
    """Outcome of one forward_backward. `logprobs` are those before the step, per sample as in `forward`."""

    loss: float
    num_tokens: int
    logprobs: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class StepReport:
    """Outcome of one optimizer step. `applied` is False for a step id seen before."""

    step_id: int
    grad_norm: float
    clipped: bool
    applied: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """What an adapter trained here fits: digests of base, tokenizer and template, and the layers it changes."""

    base_digest: str
    tokenizer_digest: str
    template_digest: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A reply that a policy drew: its tokens, the log-probability of each, and the entropy in nats of the distribution
    that it was drawn from. It ends with the end of turn, unless it was cut off."""

    ids: list[int]
    logprobs: list[float]
    entropies: list[float]


class Backend(Protocol):
    """Holds one trainable adapter on one frozen base.

    A sample's temperature is its annotation `temperature` (1 if absent): every log-probability is that of
    the distribution the sampler drew from (design law 2).
    """

    @property
    def outputs(self) -> frozenset[str]: ...

    @property
    def identity(self) -> Identity:
        """Of the adapter that is open."""
        ...

    def open(self, parent: Path | None) -> None:
        """Start from the adapter in `parent`, with its critic if one lies there, or from a fresh one; forget
        optimizer and steps."""
        ...

    def forward_backward(self, samples: Sequence[Sample], terms: Terms) -> LossReport:
        """Add the gradient of the batch's losses to what has been accumulated since the last step.

        Raises:
            NotFiniteError: the loss is NaN or infinite; the accumulated gradient is dropped.
        """
        ...

    def forward(self, samples: Sequence[Sample]) -> list[tuple[float | None, ...]]:
        """Log-probabilities of the completion tokens, (T,) per sample, `None` elsewhere. No gradient."""
        ...

    def values(self, samples: Sequence[Sample]) -> list[tuple[float | None, ...]]:
        """A critic's value of the state before each completion token, (T,) per sample, `None` elsewhere. No gradient.

        Only where `outputs` has "values". The critic is made when it is first asked, and says 0 until it is trained.
        """
        ...

    def top(self, samples: Sequence[Sample], k: int) -> list[np.ndarray]:
        """The ids of the k likeliest tokens in the place of each completion token, (T, k) per sample, -1 elsewhere.

        Only where `outputs` has "top", as `forward_top`.
        """
        ...

    def forward_top(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Log-probabilities of the tokens that samples name as `top_ids` in `token_annotations`, (T, k) per sample, NaN
        where no completion token stands. No gradient."""
        ...

    def draw(self, prompts: Sequence[Sequence[int]], longest: int, seed: int) -> list[Drawn]:
        """A reply of at most `longest` tokens to each prompt, at temperature 1; the same seed gives the same.

        Only where `outputs` has "replies".
        """
        ...

    def optim_step(self, optimizer: AdamConfig, step_id: int) -> StepReport:
        """Apply the accumulated gradient once per `step_id`; a repeated id changes nothing.

        Raises:
            NotFiniteError: a gradient is NaN or infinite; parameters and optimizer are unchanged.
        """
        ...

    def save_state(self, folder: Path) -> None:
        """Write adapter, critic, optimizers and step id for an exact resume."""
        ...

    def load_state(self, folder: Path) -> None: ...

    def save_weights(self, folder: Path) -> None:
        """Write what `open` starts from here: the adapter, and the critic if there is one."""
        ...

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter as a PEFT folder."""
        ...
