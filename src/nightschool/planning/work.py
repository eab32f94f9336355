"""How many tokens a run sends through its model: the loop gone through with the real packer, without a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nightschool.objectives.loss import LOGPROBS, NORMALIZERS, TOP, VALUES, couples, outputs_of
from nightschool.planning.memory import Largest
from nightschool.planning.operations import Tokens
from nightschool.training.drift import choose_watched
from nightschool.training.loop import Course, plan_batches
from nightschool.training.packing import Pack, pack
from nightschool.types import Sample

MOST_BATCHES = 48  # of a long run: evenly spaced ones stand for all


@dataclass(frozen=True, slots=True)
class Work:
    """A run's passes. `trained` with gradient, `read` without, both in its steps; `between`: read before a window's
    first step and after its last. `drawn` are tokens generated one at a time.

    `padded`: what one row a sequence, padded to the batch's longest, would send through with gradient. `unique`: what
    an unlimited token budget would send. `longest`: tokens of the longest sequence. `decode_steps`: forwards of the
    engine, one token of every running sequence each, and `running` tokens held by them.
    """

    steps: float
    trained: Tokens
    read: Tokens
    between: Tokens
    padded: float
    unique: float
    largest: Largest
    longest: int
    drawn: Tokens = field(default_factory=Tokens)
    decode_steps: float = 0.0
    running: float = 0.0

    def times(self, factor: float) -> Work:
        """A run of `factor` times as many steps of the same kind."""
        return replace(
            self,
            steps=self.steps * factor,
            trained=self.trained.times(factor),
            read=self.read.times(factor),
            between=self.between.times(factor),
            padded=self.padded * factor,
            unique=self.unique * factor,
            drawn=self.drawn.times(factor),
            decode_steps=self.decode_steps * factor,
        )


def work_of(course: Course, token_budget: int) -> Work:
    """Count a course's passes if no window ends early.

    Of more than `MOST_BATCHES` batches that many are packed, and stand for all of them.
    """
    outputs = outputs_of(course.terms)
    batches = [
        [course.train[row] for row in rows]
        for window in range(course.config.windows)
        for rows in plan_batches([sample.group_id for sample in course.train], course.config, window)
    ]
    spaced = np.linspace(0, len(batches) - 1, min(len(batches), MOST_BATCHES)).round().astype(int)
    chosen = [batches[place] for place in spaced]
    packed = [_packs(batch, token_budget) for batch in chosen]
    share = len(batches) / len(chosen)
    step = _total(_counted(packs, batch, "loss_mask") for packs, batch in zip(packed, chosen, strict=True))
    trained = step + _unscored(step) if VALUES in outputs else step
    read = Tokens()
    if couples(course.terms):
        several = _total(
            _counted(packs, batch, "loss_mask") for packs, batch in zip(packed, chosen, strict=True) if len(packs) > 1
        )
        read += several.times(len(outputs & {LOGPROBS, TOP, NORMALIZERS})) + _unscored(several).times(VALUES in outputs)
    read = read.times(share)
    watched = choose_watched(course.held_out) if course.drift is not None else []
    read += _read(watched, token_budget).times(len(batches))
    return Work(
        steps=len(batches),
        trained=trained.times(share),
        read=read,
        between=_of_windows(course, token_budget).times(course.config.windows) + _scored(course, token_budget),
        padded=share * sum(len(batch) * max(len(sample.token_ids) for sample in batch) for batch in chosen),
        unique=share * sum(one.num_tokens for batch in chosen for one in _packs(batch, 2**62)),
        largest=_largest(packed, chosen, 2 if VALUES in outputs else 1),
        longest=max(len(sample.token_ids) for sample in course.train),
    )


def _of_windows(course: Course, token_budget: int) -> Tokens:
    """What one window reads before its first step and after its last."""
    everything = [*course.train, *course.held_out]
    total = Tokens()
    if course.anchored:
        outputs = outputs_of(course.terms)
        once = _read(everything, token_budget)
        total += once + _unscored(once).times(VALUES in outputs)
        if course.teachers:
            taught = _read(course.teachers, token_budget)
            total += taught + (once + taught).times(TOP in outputs)
    if course.drift is not None:
        total += _read(course.held_out, token_budget)
    return total


def _scored(course: Course, token_budget: int) -> Tokens:
    """What other models read of the rows before the run, as if each were as large as the one that learns."""
    asked = frozenset[str]().union(*(loss.scored for loss in course.terms.values()))
    return _read(course.train, token_budget).times(len(asked)) if asked else Tokens()


def _read(samples: Sequence[Sample], token_budget: int) -> Tokens:
    return _counted(_packs(samples, token_budget), samples, "completion_mask")


def _packs(samples: Sequence[Sample], token_budget: int) -> list[Pack]:
    return pack([sample.token_ids for sample in samples], token_budget)


def _counted(packs: Sequence[Pack], samples: Sequence[Sample], masks: str) -> Tokens:
    return _total(
        Tokens(one.num_tokens, float((one.position_ids + 1).sum()), _num_scored(one, samples, masks), 1)
        for one in packs
    )


def _num_scored(one: Pack, samples: Sequence[Sample], masks: str) -> int:
    """Places of a pack that some sample's mask asks for; one that samples share counts once."""
    places = zip(one.rows, one.places, strict=True)
    asked = [nodes[np.asarray(getattr(samples[row], masks), dtype=bool)] for row, nodes in places]
    return len(np.unique(np.concatenate(asked)))


def _largest(packed: Sequence[Sequence[Pack]], batches: Sequence[Sequence[Sample]], num_models: int) -> Largest:
    everything = [(one, batch) for packs, batch in zip(packed, batches, strict=True) for one in packs]
    one, batch = max(everything, key=lambda found: found[0].num_tokens)
    return Largest(one.num_tokens, _num_scored(one, batch, "loss_mask"), num_models)


def _unscored(tokens: Tokens) -> Tokens:
    """The same pass where no output layer is computed: a critic's head is one number a place."""
    return replace(tokens, scored=0.0)


def _total(parts: Iterable[Tokens]) -> Tokens:
    return sum(parts, Tokens())
