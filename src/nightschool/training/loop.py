"""The training loop: windows of steps on one buffer, watched on held-out rows, resumable at any step.

It does not know which objective runs: samples come annotated, the losses are pure functions, and whether
there is an anchor is one flag. A window fixes the anchor; the next one takes what the last one arrived at
as its anchor, with the values kept.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nightschool.errors import InputError, InterruptedRun, RefusedError
from nightschool.objectives.loss import VALUES, Anchored, Terms, outputs_of
from nightschool.training.backend import AdamConfig, Backend
from nightschool.training.drift import Drift, DriftRule, choose_watched, measure, rated_rows
from nightschool.training.states import (
    TEACHER_TOP,
    TOP_IDS,
    Position,
    find_checkpoint,
    load_anchor,
    safe_folder,
    save_anchor,
    save_checkpoint,
    save_safe,
    save_start,
    start_folder,
)
from nightschool.types import Json, Sample


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """How a buffer is gone through.

    `epochs` passes per window, cut off at `max_steps` if given; batches of about `batch_size` samples.
    `warmup_steps`: the learning rate rises over them, once per window, and falls to zero towards its end.
    """

    epochs: int = 3
    windows: int = 1
    batch_size: int = 16
    max_steps: int | None = None
    warmup_steps: int = 2
    checkpoint_every: int = 5
    seed: int = 0
    optimizer: AdamConfig = field(default_factory=AdamConfig)


@dataclass(frozen=True, slots=True)
class Course:
    """What one run goes through. `parent` is the adapter it starts from, `None` for a fresh one.

    `anchored`: a loss needs log-probabilities under the policy each window starts from. `drift`: when a
    window ends early; `None` where nothing is watched. `teachers` are views of train rows, by their ids, that the
    policy of the window's start scores. `after_anchor`, by term, annotates train rows once that policy has scored them.
    """

    train: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    terms: Terms
    anchored: bool
    parent: Path | None
    config: LoopConfig
    drift: DriftRule | None = None
    teachers: tuple[Sample, ...] = ()
    after_anchor: Mapping[str, Callable[[Sequence[Sample]], Anchored]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Now:
    """A moment of a run, for people who watch it. `eta_s` is to the last step of the last window."""

    step: int
    num_steps: int
    tokens_per_s: float
    eta_s: float
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a look at the policy found: figures for the log, and why it should go no further, if so."""

    metrics: Mapping[str, float]
    stop: str | None = None


class Inspector(Protocol):
    """Who looks at the policy itself at some steps, beside its drift."""

    def begin(self) -> None:
        """Before the first step of a run, and again where one is resumed; the run's start is open the first time."""
        ...

    def after(self, step: int, last: bool, drift: float | None) -> Inspection | None:
        """After a step; `last` of its window. `drift` in nats a sequence, where it is measured."""
        ...


class Watch(Protocol):
    """Who is told about each step, and may ask for a halt after it."""

    def step(self, now: Now) -> None: ...

    def wants_halt(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """`seconds` of the steps, and `processor_s` over all cores. `windows`: per window its steps, why it ended, whether
    it went back, the drift on all held-out rows, and how many rows each policy version gave."""

    steps: int
    tokens: int
    seconds: float
    processor_s: float
    windows: tuple[Json, ...]


def run_loop(
    backend: Backend, course: Course, folder: Path, watch: Watch, inspector: Inspector | None = None
) -> Outcome:
    """Go through the course, or through what is left of it if `folder` holds a checkpoint.

    Where the inspector says stop, the run ends with the last state that it found nothing against.

    Afterwards the backend holds the result. Interrupted and resumed, the result is bit for bit that of a
    run without interruption (same machine, same number of threads).

    Raises:
        RefusedError: the backend cannot give what the losses need.
        InterruptedRun: the watch asked for a halt; the step was finished and saved.
        NotFiniteError: a loss or gradient is NaN or infinite.
    """
    absent = outputs_of(course.terms) - backend.outputs
    if absent:
        raise RefusedError("The run is refused.", f"The backend gives no {min(absent)}.", "Use another backend.")
    folder.mkdir(parents=True, exist_ok=True)
    found = find_checkpoint(folder)
    position = Position() if found is None else found[1]
    while position.window < course.config.windows:
        if position.step:
            assert found is not None
            backend.load_state(found[0])
        else:
            backend.open(start_folder(folder, position.window) or course.parent)
        if inspector is not None:
            inspector.begin()
        position = _Window(backend, course, folder, watch, inspector).run(position)
    return Outcome(position.done, position.tokens, position.seconds, position.processor_s, position.windows)


class _Window:
    """One window: a fixed anchor, a fixed order of batches."""

    def __init__(
        self, backend: Backend, course: Course, folder: Path, watch: Watch, inspector: Inspector | None
    ) -> None:
        self.backend = backend
        self.course = course
        self.folder = folder
        self.watch = watch
        self.inspector = inspector
        self.ended = False  # and with this window the run
        self.figures: Mapping[str, float] = {}  # of the window's samples, once its anchor has scored them

    def run(self, position: Position) -> Position:
        train, held_out = self._anchored(position)
        batches = plan_batches([sample.group_id for sample in train], self.course.config, position.window)
        watched = choose_watched(held_out) if self._watches(held_out) else []
        reason = "all steps taken"
        while position.step < len(batches):
            batch = [train[row] for row in batches[position.step]]
            position, drift, seen = self._step(position, batch, watched, len(batches))
            if seen is not None and seen.stop is not None:
                reason, self.ended = seen.stop, True
                position = replace(position, safe=position.sound)
                break
            stop = self._reason_to_stop(drift, position.step, len(batches))
            if stop and len(watched) < len(held_out):  # what a part of the rows says is checked on all of them
                drift = measure(held_out, self.backend.forward(held_out))
                stop = self._reason_to_stop(drift, position.step, len(batches))
            if stop:
                reason = stop
                break
            position = self._keep(position, drift, seen)
            if position.step < len(batches):
                self._pause(position)
        versions = Counter(sample.policy_version or "unknown" for sample in train)
        return self._close(position, reason, held_out, versions)

    def _step(
        self, position: Position, batch: Sequence[Sample], watched: Sequence[Sample], total: int
    ) -> tuple[Position, Drift | None, Inspection | None]:
        started, worked = time.perf_counter(), time.process_time()
        report = self.backend.forward_backward(batch, self.course.terms)
        stepped = self.backend.optim_step(self._optimizer(position.step, total), position.done)
        drift = measure(watched, self.backend.forward(watched)) if watched else None
        took = time.perf_counter() - started
        position = replace(
            position,
            step=position.step + 1,
            done=position.done + 1,
            tokens=position.tokens + report.num_tokens,
            seconds=position.seconds + took,
            processor_s=position.processor_s + time.process_time() - worked,
        )
        seen = None
        if self.inspector is not None:
            kl = None if drift is None else drift.kl
            seen = self.inspector.after(position.done, position.step == total, kl)
        self._tell(position, {"loss": report.loss, "grad_norm": stepped.grad_norm}, (drift, seen), total)
        return position, drift, seen

    def _keep(self, position: Position, drift: Drift | None, seen: Inspection | None) -> Position:
        """Keep the state where a later stop may come back to it."""
        safe = drift is not None and self.course.drift is not None and self.course.drift.is_safe(drift)
        if safe or seen is not None:
            save_safe(self.folder, self.backend, position.done)
        return replace(
            position,
            safe=position.done if safe else position.safe,
            sound=position.done if seen is not None else position.sound,
        )

    def _tell(
        self,
        position: Position,
        figures: Mapping[str, float],
        seen: tuple[Drift | None, Inspection | None],
        total: int,
    ) -> None:
        speed, (drift, look) = position.tokens / position.seconds, seen
        metrics = {**figures, "tokens_per_s": speed}
        metrics |= {} if drift is None else drift.metrics()
        metrics |= {} if look is None else look.metrics
        metrics |= self.figures if position.step == 1 else {}
        num_steps = position.done + total - position.step + total * (self.course.config.windows - position.window - 1)
        eta_s = (num_steps - position.done) * position.seconds / position.done
        self.watch.step(Now(position.done, num_steps, speed, eta_s, metrics))

    def _pause(self, position: Position) -> None:
        """Checkpoint where one is due, and give way to whoever wants the run to halt."""
        halt = self.watch.wants_halt()
        if halt or position.step % self.course.config.checkpoint_every == 0:
            save_checkpoint(self.folder, self.backend, position)
        if halt:
            raise InterruptedRun(f"The run halted after step {position.done}.", "You asked for it.", "")

    def _close(
        self, position: Position, reason: str, held_out: Sequence[Sample], versions: Mapping[str, int]
    ) -> Position:
        went_back = reason != "all steps taken"
        if went_back:
            self.backend.open(safe_folder(self.folder, position.window, position) or self.course.parent)
        scores = self.backend.forward(held_out) if self._watches(held_out) else None
        final = None if scores is None else measure(held_out, scores)
        summary: Json = {
            "steps": position.step,
            "ended": reason,
            "went_back_to_step": position.safe or 0 if went_back else None,
            "versions": dict(versions),
            "drift": None if final is None else {**final.metrics(), "rows": len(held_out), "rated": final.num_labelled},
            "held_out": [] if scores is None else rated_rows(held_out, scores),
        }
        following = self.course.config.windows if self.ended else position.window + 1
        save_start(self.folder, self.backend, following)
        windows = (*position.windows, summary)
        return replace(position, window=following, step=0, safe=None, sound=None, windows=windows)

    def _anchored(self, position: Position) -> tuple[list[Sample], list[Sample]]:
        """Train and held-out rows, scored once under the policy the window starts from."""
        course = self.course
        everything = [*course.train, *course.held_out]
        if not course.anchored:
            return list(course.train), list(course.held_out)
        scored = load_anchor(self.folder, position.window, everything)
        if scored is None:
            scores = {"logprobs": self.backend.forward(everything)}
            if VALUES in outputs_of(course.terms):
                scores["values"] = self.backend.values(everything)
            if course.teachers:
                scores |= self._taught(everything)
            save_anchor(self.folder, position.window, scores)
            scored = load_anchor(self.folder, position.window, everything)
            assert scored is not None
        train, held_out = scored[: len(course.train)], scored[len(course.train) :]
        for term, annotate in course.after_anchor.items():
            made = annotate([sample for sample in train if sample.term == term])
            train = [*made.samples, *(sample for sample in train if sample.term != term)]
            self.figures = {**self.figures, **made.figures}
        return train, held_out

    def _taught(self, samples: Sequence[Sample]) -> dict[str, Sequence[Any]]:
        """What teachers say of samples: of their tokens, and of the likeliest in their places where a loss asks."""
        teachers, backend = self.course.teachers, self.backend
        found: dict[str, Sequence[Any]] = {"teacher": as_seen(samples, teachers, backend.forward(teachers))}
        k = max(loss.num_top for loss in self.course.terms.values())
        if k:
            ids = backend.top(samples, k)
            by_id = {sample.id: row[list(sample.completion_mask)] for sample, row in zip(samples, ids, strict=True)}
            asking = [
                replace(view, token_annotations={TOP_IDS: spread(by_id[view.id], view.completion_mask, 0)})
                for view in teachers
            ]
            told = zip(teachers, backend.forward_top(asking), strict=True)
            views = {view.id: row[list(view.completion_mask)] for view, row in told}
            nothing = np.full((0, k), np.nan, dtype=np.float32)
            found[TOP_IDS] = ids
            found[TEACHER_TOP] = [spread(views.get(s.id, nothing), s.completion_mask, np.nan) for s in samples]
        return found

    def _reason_to_stop(self, drift: Drift | None, done: int, total: int) -> str | None:
        return self.course.drift.reason_to_stop(drift, done, total) if self.course.drift and drift else None

    def _watches(self, held_out: Sequence[Sample]) -> bool:
        return self.course.drift is not None and bool(held_out)

    def _optimizer(self, step: int, total: int) -> AdamConfig:
        """Settings of one step: the rate rises over the warm-up, then falls along a cosine to zero.

        Adam's steps are as long as the rate, however sure the gradient is: at a constant rate the policy ends
        wherever the last few batches pushed it, and rare decisions miss the data's frequencies by 20 points.
        """
        config = self.course.config
        rise = min(1.0, (step + 1) / (config.warmup_steps + 1))
        fall = 0.5 + 0.5 * math.cos(math.pi * step / total)
        return replace(config.optimizer, learning_rate=config.optimizer.learning_rate * rise * fall)


def as_seen(
    samples: Sequence[Sample], teachers: Sequence[Sample], scores: Sequence[Sequence[float | None]]
) -> list[tuple[float | None, ...]]:
    """What the teachers' views of samples say of their tokens, where these stand in the samples; (T,) per sample.

    Raises:
        InputError: a view does not end in the tokens of the sample whose id it has.
    """
    views = {view.id: (view, row) for view, row in zip(teachers, scores, strict=True)}
    found: list[tuple[float | None, ...]] = []
    for sample in samples:
        view, row = views.get(sample.id, (None, ()))
        if view is not None and sampled_tokens(view) != sampled_tokens(sample):
            raise InputError(f"The teacher of {sample.id} scored other tokens.", "Both must end in one reply.", "")
        told = iter([value for value in row if value is not None])
        found.append(tuple(next(told) if used and view else None for used in sample.completion_mask))
    return found


def spread(values: np.ndarray, completion_mask: Sequence[bool], missing: float) -> np.ndarray:
    """Rows (N, K) of the sampled tokens where these stand: (T, K); all missing where there is not one."""
    out = np.full((len(completion_mask), values.shape[1]), missing, dtype=values.dtype)
    if len(values):
        out[list(completion_mask)] = values
    return out


def sampled_tokens(sample: Sample) -> list[int]:
    return [token for token, used in zip(sample.token_ids, sample.completion_mask, strict=True) if used]


def plan_batches(groups: Sequence[str | None], config: LoopConfig, window: int) -> list[list[int]]:
    """Which samples each step of a window sees: shuffled per epoch, batches of nearly equal size.

    `groups` names the group of each sample: those of one group stay together, `None` belongs to no other.
    """
    units: dict[object, list[int]] = {}
    for row, group in enumerate(groups):
        units.setdefault(row if group is None else group, []).append(row)
    whole = list(units.values())
    batches: list[list[int]] = []
    for epoch in range(config.epochs):
        order = list(range(len(whole)))
        random.Random(f"{config.seed} {window} {epoch}").shuffle(order)
        count = max(1, min(len(whole), round(len(groups) / config.batch_size)))
        parts = np.array_split(np.array(order), count)
        batches += [[row for unit in part for row in whole[unit]] for part in parts]
    return batches[: config.max_steps]
