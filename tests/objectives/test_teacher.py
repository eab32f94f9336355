"""The audit of a teacher, on shifts that are given."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from nightschool.objectives import teacher
from nightschool.objectives.hindsight import HINDSIGHT, HindsightRule
from nightschool.objectives.oapl import OAPL
from nightschool.objectives.on_policy_distillation import ON_POLICY_DISTILLATION
from nightschool.objectives.teacher import AuditRule, Item, Judged, audit, distills, same_but_words, sentence
from nightschool.types import Sample

TEN = 10


def item(name: str, accepted: bool | None, told: float, placebo: float = 0.0, **more: object) -> Item:
    """A reply of ten tokens of which two are moved by `told` nats each, and one by `placebo`."""
    alone = (-1.0,) * TEN
    made = Item(
        name,
        name,
        ("texts",),
        accepted,
        alone,
        (-1.0 + told, -1.0 + told, *alone[2:]),
        (-1.0 + placebo, *alone[1:]),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def heard(rng: Random, **more: object) -> list[Item]:
    """Twelve accepted replies that their words raise, and twelve rejected ones that theirs lower."""
    return [
        item(f"{side}{n}", side == "up", (1 if side == "up" else -1) * rng.uniform(0.6, 1.2), 0.0, **more)
        for side in ("up", "down")
        for n in range(12)
    ]


def test_a_teacher_who_reads_may_teach() -> None:
    found = audit(heard(Random(0)), AuditRule(), clip=5.0)
    assert found.against is None
    assert found.left_out == {}
    assert found.report["separation"]["all"]["own"]["area"]["value"] == 1.0
    assert found.report["lift"] == found.report["judged"] == teacher.NO_JUDGE
    assert sentence(found.report).startswith("The teacher reads the words: they tell 12 accepted and 12 rejected")


def test_a_teacher_who_shifts_all_alike_is_refused() -> None:
    rng = Random(1)
    deaf = [item(f"{n}", n % 2 == 0, rng.gauss(-0.5, 0.3)) for n in range(40)]
    found = audit(deaf, AuditRule(), clip=5.0)
    assert found.against is not None
    assert "by chance" in found.against
    assert found.enough
    assert found.report["admitted"] == 0
    assert sentence(found.report).startswith("The teacher is refused: ")


def test_what_any_words_would_do_is_not_read() -> None:
    """Bad replies lose behind whatever is said: they are told apart, but not by their own words."""
    rng = Random(2)
    rows = [item(f"{n}", n % 2 == 0, -0.1 if n % 2 == 0 else -0.8) for n in range(40)]
    rows = [replace(row, placebo=tuple(x + rng.gauss(0, 0.1) for x in row.told)) for row in rows]
    found = audit(rows, AuditRule(), clip=5.0)
    assert found.against is not None
    assert found.against.startswith("beside another reply's words")
    assert found.report["separation"]["all"]["own"]["area"]["value"] == 1.0


def test_too_few_people_audit_nothing() -> None:
    rows = heard(Random(0))
    found = audit(rows[:7] + rows[12:], AuditRule(), clip=5.0)
    assert (found.against is not None, found.enough) == (True, False)
    assert "come from 7 people, rejected ones from 12; 8 of each would do" in str(found.against)
    one = [replace(row, cluster="ann") if row.accepted else row for row in rows]
    assert not audit(one, AuditRule(), clip=5.0).enough


def test_a_slice_that_is_not_read_is_left_out() -> None:
    rng = Random(3)
    calls = [item(f"c{n}", n % 2 == 0, rng.gauss(0, 0.5), slices=("calls",)) for n in range(20)]
    found = audit([*heard(rng), *calls], AuditRule(), clip=5.0)
    assert found.against is None
    assert found.report["separation"]["texts"]["passed"]
    assert not found.report["separation"]["calls"]["passed"]
    reasons = {name: why for name, why in found.left_out.items() if name.startswith("c")}
    assert reasons == {f"c{n}": teacher.SLICE.format(name="calls") for n in range(20)}
    # a slice with too few of a kind goes with the whole
    few = audit([*heard(rng), *calls[:10]], AuditRule(), clip=5.0)
    assert "calls" not in few.report["separation"]


def test_replies_are_checked_one_by_one() -> None:
    rows = heard(Random(4))
    rewritten = replace(item("rewritten", True, 0.0), told=(-0.2,) * 4 + (-1.0,) * 6)  # 4 of 10 tokens move by 0.8
    another = item("another", True, 0.6, placebo=1.5)  # 1.2 nats by its own words, 1.5 by another's
    idle = item("idle", False, -0.1, placebo=-0.5)  # 0.2 nats by its own words, 0.5 by another's
    silent = item("silent", None, -1.0)
    found = audit([*rows, rewritten, another, idle, silent], AuditRule(), clip=5.0)
    assert found.left_out == {
        "rewritten": teacher.LOCALITY,
        "another": teacher.PLACEBO,
        "idle": teacher.PLACEBO,
    }
    assert found.report["admitted"] == 25  # 24 and the one nobody judged
    assert found.report["left_out"] == {teacher.PLACEBO: 2, teacher.LOCALITY: 1}


def test_what_is_drawn_must_do_what_was_said_and_be_better_for_it() -> None:
    better = Judged(alone=(0.0, 0.2, 0.0, 0.2), told=(1.0, 0.9, 1.0, 0.1), placebo=(0.0,) * 4)
    rows = heard(Random(5), judged=better)
    split = replace(rows[0], judged=replace(better, told=(1.0, 1.0, 0.0, 0.0)))  # 2 of 4
    found = audit([split, *rows[1:]], AuditRule(), clip=5.0)
    assert found.against is None
    assert found.left_out == {split.id: teacher.CONSENSUS}
    assert found.report["judged"] == 24
    assert found.report["lift"]["all"]["own"]["value"] > 0.5
    worse = [replace(row, judged=Judged((0.9,) * 4, (0.6, 0.6, 0.6, 0.6), (0.1,) * 4)) for row in rows]
    refused = audit(worse, AuditRule(), clip=5.0)
    assert str(refused.against).startswith("what it draws behind the words is no better: -0.30")


def test_a_shift_counts_no_further_than_the_clip() -> None:
    """One huge shift among the rejected would be the mean of all the others."""
    rows = heard(Random(6))
    found = audit(rows, AuditRule(), clip=0.5)
    # two of ten tokens at the clip of 0.5: 0.1 a token, up and down
    assert found.report["separation"]["all"]["own"]["difference"]["value"] - 0.2 < 1e-9


def test_both_prompts_are_one_template() -> None:
    def row(prompt: list[int], reply: list[int]) -> Sample:
        sampled = (False,) * len(prompt) + (True,) * len(reply)
        return Sample("a", (*prompt, *reply), sampled, sampled)

    student = row([1, 5, 6, 7, 2, 3], [8, 9])
    assert same_but_words(student, row([1, 5, 6, 7, 40, 41, 42, 2, 3], [8, 9]))
    assert same_but_words(student, row([1, 5, 6, 70, 40, 41, 42, 2, 3], [8, 9])), "the seam is spelled otherwise"
    assert not same_but_words(student, row([1, 50, 60, 70, 40, 41, 2, 3], [8, 9])), "another beginning"
    assert not same_but_words(student, row([1, 5, 6, 7, 40, 41, 2, 3, 99], [8, 9])), "a mark before the reply"
    assert not same_but_words(student, row([1, 5, 6, 7, 40, 2, 3], [8, 8])), "another reply"


def test_which_objectives_are_taught() -> None:
    assert distills(HINDSIGHT, HINDSIGHT.loss(HindsightRule()))
    assert distills(ON_POLICY_DISTILLATION, ON_POLICY_DISTILLATION.loss(ON_POLICY_DISTILLATION.rule()))
    assert not distills(OAPL, OAPL.loss(OAPL.rule()))
