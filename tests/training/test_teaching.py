"""The audit of a teacher in a run: a tiny model's own shifts, labelled so that they tell replies apart, or do not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import sqlalchemy as sa
from tiny import make_tiny_model
from traffic import fix_splits, record_turn, say

from nightschool.curation.dataset import CurationRule, Rows, Told
from nightschool.curation.hindsight import written_views
from nightschool.curation.influence import InfluenceRule
from nightschool.demo.customers import HAPPY, UNHAPPY
from nightschool.errors import NightschoolError, RefusedError, TooLittleDataError
from nightschool.models.base import load_base
from nightschool.models.lora import LoraConfig
from nightschool.objectives import teacher
from nightschool.objectives.catalog import find_objective
from nightschool.objectives.teacher import AuditRule
from nightschool.rendering.renderer import Renderer
from nightschool.store.database import Store
from nightschool.store.schema import ledger, run_metrics, runs
from nightschool.training.backend import AdamConfig
from nightschool.training.drift import DriftRule
from nightschool.training.epistemic import WatchRule
from nightschool.training.local import LocalBackend
from nightschool.training.loop import LoopConfig, as_seen
from nightschool.training.night import resume, study
from nightschool.training.plans import BackendConfig, NumberFormat, Plan, StudyConfig, default_config
from nightschool.training.runs import load_run, run_folder
from nightschool.training.teaching import Class, audit_teacher, corrected
from nightschool.types import FeedbackKind, Json

FREE = CurationRule(influence=InfluenceRule(trusted=("end_user",)))  # all of them ask the same
WORDS = ("that is right", "wrong tool", "say the order", "thanks", "no", "it should be late")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def backend(model: Path) -> LocalBackend:
    import torch

    made = LocalBackend(load_base(model, torch.float32, "cpu"), LoraConfig(rank=4, alpha=8))
    made.open(None)
    return made


def row(number: int, label: bool | None = None) -> Json:
    told: Json = {
        "prompt": [{"role": "user", "content": f"where is order {number}?"}],
        "completion": [{"role": "assistant", "content": f"the tool {number % 7}"}],
        "feedback": WORDS[number % len(WORDS)],
    }
    return told if label is None else {**told, "label": label}


def shifts(backend: LocalBackend, rows: Sequence[Json]) -> list[tuple[float, float]]:
    """What each row's own words, and another's, change in its reply's mean log-probability."""
    views = written_views([(f"line {n}", one) for n, one in enumerate(rows, start=1)], backend.base.renderer)
    alone = backend.forward(views.students)
    found = []
    for told in (views.teachers, views.placebos):
        scores = as_seen(views.students, told, backend.forward(told))
        found.append(
            [
                fmean(a - b for a, b in zip(one, before, strict=True) if a is not None and b is not None)
                for one, before in zip(scores, alone, strict=True)
            ]
        )
    return list(zip(*found, strict=True))


def read_rows(backend: LocalBackend, count: int = 72) -> list[Json]:
    """Rows of which those are accepted that their own words raise, and more than another's do; half way between, and
    against that order, nobody judged."""
    rows = [row(n) for n in range(count)]
    own, beyond = zip(*((told, told - other) for told, other in shifts(backend, rows)), strict=True)
    middle = sorted(own)[count // 2]
    labels = [
        True if told > middle and more > 0 else False if told < middle and more < 0 else None
        for told, more in zip(own, beyond, strict=True)
    ]
    return [one if label is None else {**one, "label": label} for one, label in zip(rows, labels, strict=True)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.sqlite") as opened:
        fix_splits(opened)
        yield opened


def config(model: Path, name: str = "hindsight", **more: Any) -> StudyConfig:
    return replace(
        default_config(find_objective(name)),
        backend=BackendConfig(model=str(model), dtype=NumberFormat.FLOAT32, rank=4, alpha=8),
        loop=LoopConfig(epochs=1, batch_size=8, optimizer=AdamConfig(learning_rate=1e-4)),
        drift=DriftRule(kl_stop=50.0, kl_restore=50.0),
        watch=WatchRule(every=2, replies=2, draws=1, longest=4),
        rehearsal_weight=0.0,
        **more,
    )


def written(path: Path, rows: Sequence[Json]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


@pytest.mark.parametrize("objective", ["hindsight", "sdpo"])
def test_a_teacher_who_reads_teaches_what_passed(
    store: Store, tmp_path: Path, model: Path, backend: LocalBackend, objective: str
) -> None:
    rows = read_rows(backend)
    plan = Plan("shop", objective, written(tmp_path / "words.jsonl", rows), "base")
    run = study(store, tmp_path, plan, config(model, objective))
    audit, watch = run.summary["teacher_audit"], run.summary["watch"]
    assert audit["passed"]
    assert audit["separation"]["all"]["own"]["area"]["value"] == 1.0  # by how the rows were labelled
    assert audit["admitted"] == run.summary["train"] < len(rows), "another row's words move some of them more"
    assert audit["left_out"][teacher.PLACEBO] == len(rows) - audit["admitted"] - audit["left_out"].get(
        teacher.LOCALITY, 0
    )
    assert audit["sentence"].startswith("The teacher reads the words")
    assert [look["step"] for look in watch["looks"]] == [0, *range(2, run.summary["steps"] + 1, 2)] + (
        [run.summary["steps"]] if run.summary["steps"] % 2 else []
    )
    assert watch["stopped"] is None
    with store.read() as conn:
        names = set(conn.scalars(sa.select(run_metrics.c.name).where(run_metrics.c.run_id == run.id)))
    assert {"markers", "markers_anywhere", "reply_entropy", "reply_tokens", "other_success", "overconfidence"} <= names


def test_a_teacher_who_does_not_read_is_refused_before_a_step(store: Store, tmp_path: Path, model: Path) -> None:
    rows = [row(n, label=(n // 3) % 2 == 0) for n in range(48)]
    plan = Plan("shop", "hindsight", written(tmp_path / "words.jsonl", rows), "base")
    with pytest.raises(RefusedError, match="does not read the words") as refused:
        study(store, tmp_path, plan, config(model))
    assert refused.value.next_step == "nightschool train --objective bco --data FILE --agent shop"
    with store.read() as conn:
        (made,) = conn.execute(sa.select(runs)).all()
        assert conn.scalar(sa.select(sa.func.count()).select_from(run_metrics)) == 0
    assert made.state == "failed"
    assert made.summary["teacher_audit"]["sentence"].startswith("The teacher is refused")
    assert not list((tmp_path / "adapters").glob("*"))
    audited = (run_folder(tmp_path, made.id) / "audit.json").read_text()
    with pytest.raises(RefusedError, match="does not read the words"):
        resume(store, tmp_path, made.id)
    assert (run_folder(tmp_path, made.id) / "audit.json").read_text() == audited


def test_without_labels_nothing_is_audited_and_nothing_taught(store: Store, tmp_path: Path, model: Path) -> None:
    plan = Plan("shop", "sdpo", written(tmp_path / "words.jsonl", [row(n) for n in range(24)]), "base")
    with pytest.raises(TooLittleDataError, match="come from 0 people, rejected ones from 0; 8 of each would do"):
        study(store, tmp_path, plan, config(model, "sdpo"))


def test_every_exchange_learns_what_the_audit_made_of_it(store: Store, tmp_path: Path, model: Path) -> None:
    """From the store: thumbs are labels, words are not, and a refused run leaves its reasons."""
    renderer = Renderer.from_folder(model)
    asked: list[Json] = [{"role": "user", "content": "where is order 7?"}]
    told = []
    for n in range(40):
        ids, reply = tuple(renderer.prompt_ids(tuple(asked))), f"the tool {n % 3}"
        completion = tuple(renderer.completion_ids(reply))
        told.append(record_turn(store, asked, reply, ids, completion, session=f"s{n}", user=f"user {n}"))
        say(store, FeedbackKind.TEXT, (HAPPY + UNHAPPY)[n % 12], exchange=told[-1])
        say(store, FeedbackKind.THUMB, n % 2 == 0, exchange=told[-1])
    with pytest.raises(NightschoolError) as refused:
        study(store, tmp_path, Plan("shop", "hindsight", start="base"), config(model, curation=FREE))
    assert refused.value.next_step == "nightschool train --objective oapl --agent shop"
    with store.read() as conn:
        lines = conn.execute(sa.select(ledger)).all()
        (made,) = conn.execute(sa.select(runs)).all()
    report = load_run(store, made.id).summary["teacher_audit"]
    assert report["accepted"] > 8
    assert report["rejected"] > 8
    assert report["unlabelled"] == 0
    states = Counter(line.state for line in lines)
    assert states["trained"] == 0
    reasons = {line.reason for line in lines if line.exchange_id in told}
    assert reasons <= {
        teacher.REFUSED, teacher.PLACEBO, teacher.LOCALITY, "select split: measures drift", "gate split",
    }  # fmt: skip
    assert teacher.PLACEBO in reasons


def test_corrections_are_judged_by_what_should_have_been(backend: LocalBackend) -> None:
    rows = [(f"line {n}", row(n, label=n % 2 == 0)) for n in range(24)]
    views = written_views(rows, backend.base.renderer)
    told = {one.id: replace(one, wanted="the tool 3") for one in views.told[:12]} | {
        one.id: one for one in views.told[12:]
    }
    spell = backend.base.renderer.tokenizer.decode
    judge = corrected(told, lambda ids: spell(list(ids), skip_special_tokens=True))
    # "the tool 3" and "the tool 5" share two of three words: 2 * 2 / 6
    assert judge("line 0", [backend.base.renderer.completion_ids("the tool 5")]) == [pytest.approx(2 / 3)]
    assert judge("line 20", [[1]]) is None
    lesson = Class(
        Rows(views.students, (), views.teachers, views.placebos), told, AuditRule(draws=2, judged=9), 5.0, judge
    )
    report = audit_teacher(backend, lesson).report
    assert report["judged"] == 9
    assert set(report["lift"]["all"]) == {"own", "placebo"}


def test_views_of_another_template_are_told_apart(backend: LocalBackend) -> None:
    rows = [(f"line {n}", row(n, label=n % 2 == 0)) for n in range(24)]
    views = written_views(rows, backend.base.renderer)
    first = views.teachers[0]
    odd = replace(first, token_ids=(9, *first.token_ids), completion_mask=(False, *first.completion_mask))
    odd = replace(odd, loss_mask=odd.completion_mask)
    told = {one.id: Told(one.id, one.principal, one.slices) for one in views.told}
    # a mark of another template stands before everything, and is no word that somebody said
    lesson = Class(
        Rows(
            views.students, (), (replace(odd, token_ids=(*odd.token_ids[:-1], 7)), *views.teachers[1:]), views.placebos
        ),
        told,
        AuditRule(),
        5.0,
    )
    found = audit_teacher(backend, lesson)
    assert found.left_out["line 0"] == teacher.TEMPLATES
