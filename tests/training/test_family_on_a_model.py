"""The clipped family on a tiny model and on several ranks: how a batch is cut changes nothing; what an anchor says is
annotated once a window, for rows of its term alone."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from ratios import POLICY, batch_of, golden_rows
from small_backend import gathered, small_backend
from tiny import make_tiny_model

from nightschool.errors import InterruptedRun
from nightschool.objectives.clipping import BEHAVIOR
from nightschool.objectives.family import VARIANTS
from nightschool.objectives.grpo import GrpoRule, after_anchor, annotate, loss
from nightschool.objectives.loss import Loss
from nightschool.objectives.off_policy import CORRECTIONS, WEIGHT
from nightschool.training.backend import AdamConfig
from nightschool.training.local import POLICY as ADAPTER
from nightschool.training.local import LocalBackend
from nightschool.training.loop import Course, LoopConfig, Now, run_loop
from nightschool.training.losses.clipped import clipped
from nightschool.types import Sample


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def rollouts() -> list[Sample]:
    """Two groups of three, with tools' tokens in between, sampled near the model's own policy."""
    rng, rows = random.Random(5), []
    for number in range(6):
        prompt = (7, 8, 9, 10 + number // 3)
        ids = (*prompt, *(rng.randrange(3, 250) for _ in range(rng.randrange(4, 12))))
        mask = tuple(place >= 4 and place % 4 != 2 for place in range(len(ids)))
        rows.append(Sample(str(number), ids, mask, mask, reward=rng.random(), group_id=f"g{number // 3}"))
    return rows


def studied(made: LocalBackend, rule: GrpoRule) -> list[Sample]:
    """Annotated rows, anchored at a policy a little away from the one that is studied, weighed."""
    rng = random.Random(9)
    scored = made.forward(rollouts())

    def near(row: tuple[float | None, ...]) -> tuple[float | None, ...]:
        return tuple(None if x is None else x + rng.gauss(0, 0.1) for x in row)

    known = [replace(one, token_annotations={BEHAVIOR: near(row)}) for one, row in zip(rollouts(), scored, strict=True)]
    ready = annotate(known, rule)
    by_id = dict(zip((one.id for one in known), scored, strict=True))
    return after_anchor([replace(one, reference_logprobs=near(by_id[one.id])) for one in ready], rule).samples


def gradient(made: LocalBackend, rows: list[Sample], rule: GrpoRule) -> torch.Tensor:
    made.forward_backward(rows, {"": loss(rule)})
    return gathered(made)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_depend_on_neither_split_nor_order(folder: Path, name: str) -> None:
    rule, whole = VARIANTS[name], small_backend(folder)
    rows = studied(whole, rule)
    expected = gradient(whole, rows, rule)
    assert expected.norm() > 0
    cut = small_backend(folder, 1)  # a pack for each row
    assert len(cut._packs(rows)) == len(rows)
    for made, order in ((cut, rows), (whole, rows[::-1])):
        assert (gradient(made, order, rule) - expected).abs().max() < 1e-4 * expected.abs().max()


def test_a_row_without_loss_tokens_counts_nowhere(folder: Path) -> None:
    """Divided by one sequence more, every gradient would be a seventh shorter."""
    rule, made = VARIANTS["grpo"], small_backend(folder)
    rows = studied(made, rule)
    silent = replace(rows[0], id="silent", loss_mask=(False,) * len(rows[0].token_ids))
    torch.testing.assert_close(gradient(made, [*rows, silent], rule), gradient(made, rows, rule))


RANK = """
import os, sys
import torch, torch.distributed as dist
from dataclasses import replace
from ratios import POLICY, batch_of, golden_rows
from nightschool.objectives.family import VARIANTS
from nightschool.objectives.grpo import loss
from nightschool.objectives.off_policy import weigh
from nightschool.training.losses import LOSSES
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
for name, rule in VARIANTS.items():
    rows = weigh(golden_rows(), rule.correction).samples
    counts = torch.tensor([sum(rows[rank].loss_mask), 1])
    dist.all_reduce(counts)
    mine = batch_of([rows[rank]], [POLICY[rank]], torch.float64)
    mine = replace(mine, num_tokens=int(counts[0]), num_sequences=int(counts[1]))
    named = loss(rule)
    value = LOSSES[named.name](mine, **named.settings)
    (slope,) = torch.autograd.grad(value, mine.logprobs)
    theta = torch.stack([value.detach(), slope.sum(), slope.square().sum()])  # what a shared parameter would sum
    dist.all_reduce(theta)
    if rank == 0:
        print(name, *theta.tolist())
dist.destroy_process_group()
"""


def test_two_ranks_give_the_loss_of_one(tmp_path: Path) -> None:
    paths = [str(Path(__file__).parents[1]), *sys.path]
    code = f"import sys; sys.path[:0] = {paths!r}\n{RANK}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(tmp_path / "meet")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [process.communicate(timeout=200) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], ended
    found = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in ended[0][0].splitlines()}
    assert found.keys() == VARIANTS.keys()
    for name, rule in VARIANTS.items():
        batch = batch_of(after_anchor(golden_rows(), rule).samples, POLICY, torch.float64)
        whole = clipped(batch, **loss(rule).settings)
        (slope,) = torch.autograd.grad(whole, batch.logprobs)
        assert found[name] == pytest.approx([whole.item(), slope.sum().item(), slope.square().sum().item()]), name


class Notes:
    """Keeps what it was told; asks for a halt after the step `halt_at`."""

    def __init__(self, halt_at: int | None = None) -> None:
        self.told: list[Now] = []
        self.halt_at = halt_at

    def step(self, now: Now) -> None:
        self.told.append(now)

    def wants_halt(self) -> bool:
        return self.told[-1].step == self.halt_at


def course(seen: list[list[Sample]], **config: Any) -> Course:
    """GRPO under token weights, beside imitation that knows of no behavior."""
    rule = replace(VARIANTS["rloo_tis"], correction=CORRECTIONS["icepop"])
    behavior = [tuple(-4.0 if used else None for used in one.loss_mask) for one in rollouts()]
    known = [
        replace(one, token_annotations={BEHAVIOR: row}, policy_version="ab"[int(one.id) % 2])
        for one, row in zip(rollouts(), behavior, strict=True)
    ]
    imitated = [replace(one, id=f"sft {one.id}", group_id=None, term="sft") for one in rollouts()[:2]]

    def weighed(rows: Any) -> Any:
        made = after_anchor(rows, rule)
        seen.append(made.samples)
        return made

    return Course(
        (*annotate(known, rule), *imitated), (), {"": loss(rule), "sft": Loss("sft")}, True, None,
        LoopConfig(batch_size=4, optimizer=AdamConfig(learning_rate=1e-3), **config), after_anchor={"": weighed},
    )  # fmt: skip


def test_what_the_anchor_says_is_annotated_for_rows_of_the_term_alone_and_logged_once(
    folder: Path, tmp_path: Path
) -> None:
    seen: list[list[Sample]] = []
    notes = Notes()
    outcome = run_loop(small_backend(folder), course(seen, epochs=1, windows=2), tmp_path / "work", notes)
    first, second = seen
    assert {one.term for one in (*first, *second)} == {""}
    assert all(WEIGHT in one.token_annotations for one in first)
    assert first[0].token_annotations[WEIGHT] != second[0].token_annotations[WEIGHT], "a window's anchor is its own"
    assert [window["versions"] for window in outcome.windows] == [{"a": 3, "b": 3, "unknown": 2}] * 2
    logged = ["weight_mean" in now.metrics for now in notes.told]
    assert logged == [place in (0, len(logged) // 2) for place in range(len(logged))]


def test_a_resumed_run_weighs_as_before(folder: Path, tmp_path: Path) -> None:
    through, halted = small_backend(folder), small_backend(folder)
    run_loop(through, course([], epochs=2), tmp_path / "through", Notes())
    with pytest.raises(InterruptedRun):
        run_loop(halted, course([], epochs=2), tmp_path / "halted", Notes(halt_at=2))
    resumed = small_backend(folder)
    run_loop(resumed, course([], epochs=2), tmp_path / "halted", Notes())
    for one, two in zip(through.lora.parameters(ADAPTER), resumed.lora.parameters(ADAPTER), strict=True):
        assert torch.equal(one, two)


def test_a_temperature_that_the_trainer_forgets_looks_like_staleness(folder: Path) -> None:
    """The engine scored at 0.7: so does the trainer, and every weight is 1. At 1 they are not."""
    made = small_backend(folder)
    warm = [replace(one, annotations={"temperature": 0.7}) for one in rollouts()]
    known = [replace(one, token_annotations={BEHAVIOR: row}) for one, row in zip(warm, made.forward(warm), strict=True)]
    rule, clips = replace(VARIANTS["rloo_tis"], drop_equal=False), []
    for rows in (known, [replace(one, annotations={}) for one in known]):
        anchored = [replace(one, reference_logprobs=row) for one, row in zip(rows, made.forward(rows), strict=True)]
        clips.append(after_anchor(anchored, rule).figures)
    assert clips[0]["weight_max"] == pytest.approx(1.0, abs=1e-5)
    assert clips[1]["behavior_kl"] > 0.01


@pytest.mark.parametrize("name", VARIANTS)
def test_a_few_steps_raise_what_was_better_than_its_group(folder: Path, name: str) -> None:
    """Rows share an adapter of rank 4: a bad one may rise a little with the good ones (under CISPO one does, whose
    capped ratio holds the good ones back least), but never above any of them."""
    made, rule = small_backend(folder), VARIANTS[name]
    made.open(None)
    scored = made.forward(rollouts())
    known = [replace(one, token_annotations={BEHAVIOR: row}) for one, row in zip(rollouts(), scored, strict=True)]
    rows = [
        replace(one, reference_logprobs=one.token_annotations[BEHAVIOR])
        for one in annotate([replace(one, reward=float(place % 3 == 0)) for place, one in enumerate(known)], rule)
    ]
    rows = after_anchor(rows, rule).samples
    for step in range(6):
        made.forward_backward(rows, {"": loss(rule)})
        made.optim_step(AdamConfig(learning_rate=2e-3), step)
    moved = [
        sum(x - y for x, y in zip(now, one.reference_logprobs or (), strict=True) if x is not None and y is not None)
        for now, one in zip(made.forward(rows), rows, strict=True)
    ]
    good, bad = moved[::3], [ratio for place, ratio in enumerate(moved) if place % 3]
    assert min(good) > max(bad)
    assert fmean(good) > 0 > fmean(bad)
