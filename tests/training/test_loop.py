"""The loop on a backend that learns one number, so that every state can be followed by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nightschool.errors import InputError, InterruptedRun, RefusedError
from nightschool.objectives.regression import SQUARED
from nightschool.training.backend import AdamConfig, Identity, LossReport, StepReport
from nightschool.training.drift import DriftRule, choose_watched
from nightschool.training.loop import Course, Inspection, LoopConfig, Now, as_seen, run_loop
from nightschool.training.loop import plan_batches as plan
from nightschool.training.states import find_checkpoint
from nightschool.types import Sample


class OneNumber:
    """Each step adds `rise` to every log-probability, whatever the rate; states are files."""

    outputs = frozenset({"logprobs"})
    identity = Identity("b", "t", "m", ("q_proj",))

    def __init__(self, rise: float = 0.2) -> None:
        self.rise = rise
        self.rates: list[float] = []
        self.value = 0.0
        self.seen: list[tuple[str, ...]] = []

    def open(self, parent: Path | None) -> None:
        self.value = json.loads((parent / "value.json").read_text()) if parent else 0.0

    def forward_backward(self, samples: Sequence[Sample], terms: object) -> LossReport:
        del terms
        self.seen.append(tuple(sample.id for sample in samples))
        return LossReport(1.0, 10 * len(samples), tuple(self.forward(samples)))

    def forward(self, samples: Sequence[Sample]) -> list[tuple[float | None, ...]]:
        return [tuple(self.value - 1 if yes else None for yes in s.completion_mask) for s in samples]

    def optim_step(self, optimizer: AdamConfig, step_id: int) -> StepReport:
        self.value += self.rise
        self.rates.append(optimizer.learning_rate)
        return StepReport(step_id, 1.0, False, True)

    def top(self, samples: Sequence[Sample], k: int) -> list[np.ndarray]:
        raise NotImplementedError

    def forward_top(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        raise NotImplementedError

    def values(self, samples: Sequence[Sample]) -> list[tuple[float | None, ...]]:
        raise NotImplementedError

    def save_weights(self, folder: Path) -> None:
        self.save_adapter(folder)

    def save_adapter(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "value.json").write_text(json.dumps(self.value))

    def save_state(self, folder: Path) -> None:
        self.save_adapter(folder)

    def load_state(self, folder: Path) -> None:
        self.open(folder)


class Notes:
    """Keeps what it was told; asks for a halt after the step `halt_at`."""

    def __init__(self, halt_at: int | None = None) -> None:
        self.told: list[Now] = []
        self.halt_at = halt_at

    def step(self, now: Now) -> None:
        self.told.append(now)

    def wants_halt(self) -> bool:
        return self.halt_at is not None and self.told[-1].step >= self.halt_at


def sample(name: str, reward: float | None = None) -> Sample:
    notes = {"advantage": 0.5, "beta": 0.25} if reward is not None else {}
    number = int(name[1:])
    return Sample(name, (1, 100 + number), (False, True), (False, True), reward=reward, annotations=notes)


def course(windows: int = 1, epochs: int = 2, watched: bool = True, warmup_steps: int = 0) -> Course:
    config = LoopConfig(
        epochs=epochs, windows=windows, batch_size=4, warmup_steps=warmup_steps, checkpoint_every=2,
        optimizer=AdamConfig(learning_rate=1.0),
    )  # fmt: skip
    train = tuple(sample(f"t{i}", 1.0) for i in range(12))
    held_out = (sample("h0", 1.0), sample("h1", 0.0), sample("h2"))
    return Course(train, held_out, {"": SQUARED}, True, None, config, DriftRule() if watched else None)


class Mute(OneNumber):
    outputs = frozenset({"cross_entropy"})


def test_a_backend_that_cannot_give_what_is_needed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no logprobs"):
        run_loop(Mute(), course(), tmp_path / "w", Notes())


def test_every_epoch_sees_every_sample_once_in_its_own_order() -> None:
    batches = plan([None] * 13, LoopConfig(epochs=2, batch_size=4), 0)
    assert [len(batch) for batch in batches] == [5, 4, 4] * 2
    assert sorted(row for batch in batches[:3] for row in batch) == list(range(13))
    assert batches[:3] != batches[3:]
    assert batches == plan([None] * 13, LoopConfig(epochs=2, batch_size=4), 0)
    assert batches != plan([None] * 13, LoopConfig(epochs=2, batch_size=4), 1)
    assert len(plan([None] * 13, LoopConfig(epochs=9, batch_size=4, max_steps=5), 0)) == 5
    assert [sorted(batch) for batch in plan([None] * 2, LoopConfig(epochs=1, batch_size=16), 0)] == [[0, 1]]


def test_a_window_runs_to_its_end_within_the_budget(tmp_path: Path) -> None:
    backend, notes = OneNumber(0.01), Notes()
    outcome = run_loop(backend, course(), tmp_path / "work", notes)
    assert outcome.steps == 6
    assert backend.value == pytest.approx(0.06)
    (window,) = outcome.windows
    assert window["ended"] == "all steps taken"
    assert window["went_back_to_step"] is None
    # three held-out rows moved by 0.06 each: k3 = e^0.06 - 1.06
    assert window["drift"]["kl"] == pytest.approx(0.0018365, abs=1e-6)
    assert window["drift"]["kappa"] == pytest.approx(2 - 0.06)
    told = window["held_out"]  # of the three, those that somebody rated
    assert [row["log_ratio"] for row in told] == pytest.approx([0.06] * len(told))
    assert window["drift"]["rated"] == len(told) > 0
    assert [now.step for now in notes.told] == [1, 2, 3, 4, 5, 6]
    assert {now.num_steps for now in notes.told} == {6}
    assert notes.told[-1].eta_s == 0
    assert notes.told[0].metrics["kl"] == pytest.approx(0.00005, abs=1e-6)
    assert {"loss", "grad_norm", "tokens_per_s", "kappa", "held_out_good", "held_out_bad"} < set(notes.told[0].metrics)


def test_too_much_drift_goes_back_to_the_last_safe_state(tmp_path: Path) -> None:
    # steps of 0.3: k3 = e^x - 1 - x is 0.050, 0.222, 0.560 at 0.3, 0.6, 0.9; the third breaks 0.5
    backend = OneNumber(0.3)
    outcome = run_loop(backend, course(), tmp_path / "work", Notes())
    (window,) = outcome.windows
    assert "exceeds 0.5" in window["ended"]
    assert (window["steps"], window["went_back_to_step"]) == (3, 2)
    assert backend.value == pytest.approx(0.6)
    assert window["drift"]["kl"] == pytest.approx(0.222119, abs=1e-6)


def test_a_first_step_too_far_changes_nothing(tmp_path: Path) -> None:
    backend = OneNumber(2.0)
    outcome = run_loop(backend, course(), tmp_path / "work", Notes())
    assert outcome.windows[0]["went_back_to_step"] == 0
    assert backend.value == 0.0


def test_the_next_window_is_anchored_where_the_last_one_arrived(tmp_path: Path) -> None:
    # each window may take two steps of 0.3 before the third breaks its own budget: 0.6, 1.2, 1.8
    backend, notes = OneNumber(0.3), Notes()
    outcome = run_loop(backend, course(windows=3), tmp_path / "work", notes)
    assert backend.value == pytest.approx(1.8)
    assert [w["went_back_to_step"] for w in outcome.windows] == [2, 5, 8]
    assert outcome.steps == 9
    assert notes.told[3].metrics["kl"] == pytest.approx(0.049859, abs=1e-6)  # 0.3 from the new anchor


class MovesWatched(OneNumber):
    """Moves the rows that are looked at after every step, and no other."""

    def __init__(self, step: float, watched: set[str]) -> None:
        super().__init__(step)
        self.watched = watched

    def forward(self, samples: Sequence[Sample]) -> list[tuple[float | None, ...]]:
        still = [(None, -1.0) for _ in samples]
        moved = super().forward(samples)
        return [m if s.id in self.watched else q for m, q, s in zip(moved, still, samples, strict=True)]


def test_a_stop_is_decided_on_all_held_out_rows(tmp_path: Path) -> None:
    held_out = tuple(sample(f"h{i}") for i in range(96))
    watched = {one.id for one in choose_watched(held_out)}
    plain = replace(course(), held_out=held_out)
    # 0.9 after three steps: k3 0.560 on the 48 watched rows, and half of it, 0.280, on all 96
    outcome = run_loop(MovesWatched(0.3, watched), replace(plain, config=replace(plain.config, max_steps=3)),
                       tmp_path / "half", Notes())  # fmt: skip
    assert outcome.windows[0]["ended"] == "all steps taken"
    assert outcome.windows[0]["drift"]["kl"] == pytest.approx(0.279802, abs=1e-6)
    # 1.2 after four: 1.120 watched, 0.560 on all; the second step was the last below 0.25
    outcome = run_loop(MovesWatched(0.3, watched), plain, tmp_path / "whole", Notes())
    assert outcome.windows[0]["ended"].startswith("drift of 0.56 nats")
    assert outcome.windows[0]["went_back_to_step"] == 2


@pytest.mark.parametrize("halt_at", [1, 2, 3, 4, 5])
def test_halted_and_resumed_is_uninterrupted(tmp_path: Path, halt_at: int) -> None:
    through = OneNumber()
    expected = run_loop(through, course(windows=2), tmp_path / "a", Notes())
    halted = OneNumber()
    with pytest.raises(InterruptedRun):
        run_loop(halted, course(windows=2), tmp_path / "b", Notes(halt_at))
    resumed = OneNumber()
    found = run_loop(resumed, course(windows=2), tmp_path / "b", Notes())
    assert resumed.value == through.value
    assert (found.steps, found.tokens) == (expected.steps, expected.tokens)
    assert found.windows == expected.windows
    assert halted.seen + resumed.seen == through.seen


class Power(Exception):
    """The plug is pulled."""


class Pulled(Notes):
    def step(self, now: Now) -> None:
        super().step(now)
        if now.step == self.halt_at:
            raise Power

    def wants_halt(self) -> bool:
        return False


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 7, 8])
def test_killed_at_any_step_resumes_from_the_last_checkpoint(tmp_path: Path, at: int) -> None:
    through = OneNumber()
    expected = run_loop(through, course(windows=2), tmp_path / "a", Notes())
    if at > expected.steps:
        pytest.skip("the run is shorter")
    with pytest.raises(Power):
        run_loop(OneNumber(), course(windows=2), tmp_path / "b", Pulled(at))
    again = OneNumber()
    found = run_loop(again, course(windows=2), tmp_path / "b", Notes())
    assert again.value == through.value
    assert found.windows == expected.windows


def test_a_half_written_checkpoint_is_not_one(tmp_path: Path) -> None:
    with pytest.raises(InterruptedRun):
        run_loop(OneNumber(), course(), tmp_path / "w", Notes(3))
    (tmp_path / "w" / "checkpoint.part").mkdir(exist_ok=True)
    found = find_checkpoint(tmp_path / "w")
    assert found is not None
    assert found[1].done == 3


def test_without_a_rule_nothing_is_watched(tmp_path: Path) -> None:
    notes = Notes()
    outcome = run_loop(OneNumber(5.0), course(watched=False), tmp_path / "w", notes)
    assert outcome.windows[0]["drift"] is None
    assert "kl" not in notes.told[0].metrics


def test_the_rate_rises_and_falls_in_every_window(tmp_path: Path) -> None:
    backend = OneNumber(0.0)
    run_loop(backend, course(windows=2, warmup_steps=2), tmp_path / "w", Notes())
    # thirds of the way up, times 1/2 + 1/2 cos(pi * step / 6) of six steps
    fall = [1.0, 0.933013, 0.75, 0.5, 0.25, 0.066987]
    assert backend.rates == pytest.approx([fall[0] / 3, fall[1] * 2 / 3, *fall[2:]] * 2, abs=1e-6)


def test_what_a_teacher_says_stands_where_the_sample_has_the_token() -> None:
    student = Sample("s", (1, 2, 8, 9), (False, False, True, True), (False, False, True, True))
    teacher = Sample("s", (1, 8, 9), (False, True, True), (False, True, True))
    other = replace(student, id="t")
    assert as_seen([student, other], [teacher], [(None, -0.5, -0.25)]) == [
        (None, None, -0.5, -0.25),
        (None, None, None, None),
    ]
    with pytest.raises(InputError, match="other tokens"):
        as_seen([student], [replace(teacher, token_ids=(1, 8, 7))], [(None, -0.5, -0.25)])


class Looks:
    """Finds nothing until the step `bad`; looks every second step, and at the end of a window."""

    def __init__(self, bad: int) -> None:
        self.bad = bad
        self.seen: list[int] = []

    def begin(self) -> None:
        self.seen.append(0)

    def after(self, step: int, last: bool, drift: float | None) -> Inspection | None:
        if step % 2 and not last:
            return None
        assert drift is None
        self.seen.append(step)
        return Inspection({"markers": 1.0 / step}, "doubt is lost" if step >= self.bad else None)


def test_a_run_that_is_stopped_by_a_look_goes_back_to_the_last_good_one(tmp_path: Path) -> None:
    backend, notes, looks = OneNumber(), Notes(), Looks(bad=5)
    outcome = run_loop(backend, course(windows=2, watched=False), tmp_path / "w", notes, looks)
    # six steps a window: looked at before 1, after 2, 4 and 6, which ends the run, and no second window begins
    assert looks.seen == [0, 2, 4, 6]
    assert (outcome.steps, len(outcome.windows)) == (6, 1)
    assert outcome.windows[0]["ended"] == "doubt is lost"
    assert outcome.windows[0]["went_back_to_step"] == 4
    assert backend.value == pytest.approx(0.8)  # four steps of 0.2
    assert [now.metrics.get("markers") for now in notes.told] == [None, 0.5, None, 0.25, None, pytest.approx(1 / 6)]
    assert json.loads((tmp_path / "w" / "window-2" / "value.json").read_text()) == pytest.approx(0.8)


def test_the_first_look_may_send_a_run_back_to_its_start(tmp_path: Path) -> None:
    backend = OneNumber()
    outcome = run_loop(backend, course(watched=False), tmp_path / "w", Notes(), Looks(bad=1))
    assert (outcome.steps, outcome.windows[0]["went_back_to_step"], backend.value) == (2, 0, 0.0)
