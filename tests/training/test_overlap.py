"""Drawing and studying side by side: what overlaps with what, who drew a batch, and how either side ends both."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest

from nightschool.errors import ConfigError, NightschoolError, RefusedError
from nightschool.training.overlap import Batch, run_steps
from nightschool.types import Sample


def row(step: int, name: str | None) -> Sample:
    return Sample(f"s{step}", (1, 2), (False, True), (False, True), policy_version=name)


@dataclass
class School:
    """A policy that is a number. Drawing reads the number that is served, studying adds to it what was drawn; both take
    their time and tell what they do."""

    draw_s: float = 0.0
    study_s: float = 0.0
    policy: float = 1.0
    saved: list[float] = field(default_factory=list)
    served: str = ""
    told: list[str] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    drawn: dict[int, float] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)

    def save(self) -> str:
        self.saved.append(self.policy)
        return f"v{len(self.saved) - 1}"

    async def serve(self, name: str) -> None:
        self.served = name

    async def close(self) -> None:
        self.told.append("closed")

    async def draw(self, step: int, name: str) -> Sequence[Sample]:
        assert name == self.served
        self.told.append(f"draw {step} with {name}")
        try:
            await asyncio.sleep(self.draw_s)
        except asyncio.CancelledError:
            self.cancelled.append(step)
            raise
        self.drawn[step] = self.saved[int(name[1:])] + step
        return [row(step, name)]

    def study(self, batch: Batch) -> None:
        self.told.append(f"study {batch.step}")
        time.sleep(self.study_s)
        self.batches.append(batch)
        self.policy = self.policy * 0.9 + self.drawn[batch.step]

    def run(self, num_steps: int, max_staleness: int, **sides: object) -> float:
        """Seconds."""
        started = time.perf_counter()
        draw, study = sides.get("draw", self.draw), sides.get("study", self.study)
        asyncio.run(run_steps(draw, study, self, num_steps, max_staleness))
        return time.perf_counter() - started


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def shared_s(num_steps: int, max_staleness: int) -> float:
    """Seconds that belong to both sides: by so much less passes than in turns. Side by side each study waits for the
    next drawing to have begun and the other way round, so that the machine's pace does not decide."""
    school = School(0.1, 0.1)
    begun = {side: [threading.Event() for _ in range(num_steps)] for side in ("draw", "study")}
    spans: dict[str, list[tuple[float, float]]] = {"draw": [], "study": []}

    async def draw(step: int, name: str) -> Sequence[Sample]:
        started = time.perf_counter()
        begun["draw"][step].set()
        if max_staleness and step:
            assert await asyncio.to_thread(begun["study"][step - 1].wait, 60)
        found = await school.draw(step, name)
        spans["draw"].append((started, time.perf_counter()))
        return found

    def study(batch: Batch) -> None:
        started = time.perf_counter()
        begun["study"][batch.step].set()
        if max_staleness and batch.step + 1 < num_steps:
            assert begun["draw"][batch.step + 1].wait(60)
        school.study(batch)
        spans["study"].append((started, time.perf_counter()))

    school.run(num_steps, max_staleness, draw=draw, study=study)
    pairs = itertools.product(spans["draw"], spans["study"])
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in pairs)


def test_overlap_shortens_the_time():
    """Each of 4 studies goes on for 0.1 s at least beside the drawing of the next batch."""
    assert shared_s(5, 0) == 0.0
    assert shared_s(5, 1) > 0.39


@pytest.mark.parametrize(
    ("max_staleness", "expected"),
    [(0, [0, 0, 0, 0, 0]), (1, [0, 1, 1, 1, 1]), (2, [0, 1, 2, 2, 2])],  # a quick drawer waits at the bound
)
def test_batches_come_in_order_and_no_staler_than_the_bound(max_staleness: int, expected: list[int]):
    school = School(study_s=0.05)
    school.run(5, max_staleness)
    assert [batch.step for batch in school.batches] == [0, 1, 2, 3, 4]
    assert [batch.staleness for batch in school.batches] == expected
    versions = [batch.samples[0].policy_version for batch in school.batches]
    assert versions == [f"v{step - behind}" for step, behind in enumerate(expected)]
    assert school.told[-1] == "closed"


def test_without_staleness_it_is_the_plain_loop():
    """The same calls in the same order, and the same number to the last bit."""
    school, plain = School(), School()
    school.run(20, 0)
    plain.save()
    for step in range(20):
        plain.served = f"v{step}"
        asyncio.run(plain.draw(step, f"v{step}"))
        plain.study(Batch(step, (row(step, f"v{step}"),), 0))
        plain.save()
    assert school.saved == plain.saved
    assert school.batches == plain.batches
    assert school.told == [*plain.told, "closed"]


def test_what_is_too_stale_is_refused_and_not_studied():
    """A drawer that keeps what version 0 drew: fresh in step 0, one version behind in step 1, too old in step 2."""
    school = School()

    async def draw(step: int, name: str) -> Sequence[Sample]:
        school.drawn[step] = 0.0
        return [row(step, name), row(step, "v0")]

    with pytest.raises(RefusedError, match=r"at most 1 versions behind.*step 2 was drawn by version 0"):
        school.run(5, 1, draw=draw)
    assert [batch.step for batch in school.batches] == [0, 1]


@pytest.mark.parametrize("name", [None, "somebody"])
def test_who_does_not_say_who_drew_it_is_refused(name: str | None):
    school = School()

    async def draw(step: int, _name: str) -> Sequence[Sample]:
        return [row(step, name)]

    with pytest.raises(RefusedError, match="names the policy that drew it"):
        school.run(2, 1, draw=draw)
    assert school.batches == []


def test_a_negative_bound_is_refused():
    with pytest.raises(ConfigError):
        School().run(1, -1)


class BrokenError(NightschoolError):
    """Raised by one of the sides."""


def test_a_failure_to_draw_ends_both_and_is_raised():
    """Batch 2 cannot be drawn. That is known while step 0 is studied, and step 1 is not begun, though its batch is
    there."""
    school, failed = School(), threading.Event()

    async def draw(step: int, name: str) -> Sequence[Sample]:
        if step == 2:
            failed.set()
            raise BrokenError("The engine is gone.")
        return await school.draw(step, name)

    def study(batch: Batch) -> None:
        assert failed.wait(60)
        school.study(batch)

    with pytest.raises(BrokenError) as caught:
        school.run(9, 2, draw=draw, study=study)
    assert caught.traceback[-1].name == "draw"  # raised where it happened
    assert [batch.step for batch in school.batches] == [0]
    assert school.told[-1] == "closed"


def test_a_failure_to_study_ends_both_and_is_raised():
    school = School()
    drawing = threading.Event()

    async def draw(step: int, name: str) -> Sequence[Sample]:
        if step == 2:
            drawing.set()
            school.draw_s = 60.0
        return await school.draw(step, name)

    def study(batch: Batch) -> None:
        if batch.step == 1:
            assert drawing.wait(30)
            raise BrokenError("The loss is no number.")
        school.study(batch)

    with pytest.raises(BrokenError) as caught:
        school.run(9, 1, draw=draw, study=study)
    assert caught.traceback[-1].name == "study"
    assert school.cancelled == [2]  # what was being drawn is no longer
    assert school.told[-1] == "closed"


@pytest.mark.parametrize("part", ["save", "serve"])
def test_a_failure_to_hand_over_ends_both(part: str, monkeypatch: pytest.MonkeyPatch):
    school = School()
    calls, whole = itertools.count(), getattr(school, part)

    def breaks(*args: str) -> object:
        if next(calls) == 2:
            raise BrokenError("No space left.")
        return whole(*args)

    monkeypatch.setattr(school, part, breaks)
    with pytest.raises(BrokenError):
        school.run(9, 1)
    assert len(school.batches) <= 2
    assert school.told[-1] == "closed"


def test_ctrl_c_finishes_the_step_and_ends_both():
    school = School(study_s=0.2)

    async def draw(step: int, name: str) -> Sequence[Sample]:
        if step == 1:
            asyncio.get_running_loop().call_later(0.05, partial(os.kill, os.getpid(), signal.SIGINT))
            school.draw_s = 60.0
        return await school.draw(step, name)

    with pytest.raises(KeyboardInterrupt):
        school.run(9, 1, draw=draw)
    assert [batch.step for batch in school.batches] == [0]
    assert school.cancelled == [1]
