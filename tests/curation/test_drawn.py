"""Rows of a file that say how they were drawn: their tokens and scores count, and what is wrong with them is named."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from traffic import fix_splits, record_turn, say

from nightschool.curation.dataset import Dataset, Wanted
from nightschool.curation.gathering import from_file, gather
from nightschool.curation.legal import try_all
from nightschool.errors import InputError, TooLittleDataError
from nightschool.objectives.catalog import find_objective
from nightschool.objectives.clipping import BEHAVIOR
from nightschool.objectives.off_policy import ORIGIN
from nightschool.objectives.on_policy_distillation import TEACHER
from nightschool.objectives.rollouts import FAILED, TRUNCATED
from nightschool.releases.aliases import BASE
from nightschool.rendering.renderer import Renderer
from nightschool.store.database import Store
from nightschool.types import FeedbackKind

ASKED = {"role": "user", "content": "order 7"}
TEXT = {"prompt": [ASKED], "completion": [{"role": "assistant", "content": "the tool"}]}
OWN = {"prompt_ids": [20, 21], "completion_ids": [100, 101, 2], "logprobs": [-0.5, -0.25, -1]}


def read(folder: Path, renderer: Renderer, name: str, *rows: dict[str, Any]) -> Dataset:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return from_file(path, Wanted("shop", BASE, 1.0), find_objective(name), renderer)


def test_a_row_s_own_tokens_and_scores_are_taken_as_the_engine_s(tmp_path: Path, renderer: Renderer) -> None:
    row = {**OWN, "label": True, "policy_version": "step 40", "temperature": 0.5, "truncated": True}
    dataset = read(tmp_path, renderer, "topr", row, {**TEXT, "label": False})
    exact, rendered = dataset.train
    assert exact.token_ids == (20, 21, 100, 101, 2), "no text is needed, and nothing is rendered"
    assert exact.completion_mask == exact.loss_mask == (False, False, True, True, True)
    assert exact.token_annotations == {BEHAVIOR: (None, None, -0.5, -0.25, -1.0)}
    assert exact.annotations == {"temperature": 0.5, TRUNCATED: 1.0}
    assert (exact.policy_version, exact.reward) == ("step 40", 1.0)
    assert (rendered.policy_version, rendered.token_annotations, rendered.annotations) == (BASE, {}, {})
    assert dataset.summary[BEHAVIOR] == {"engine": 1, "none": 1}
    blind = read(tmp_path, renderer, "oapl_group", {**row, ORIGIN: [-1, -1, -1]}, {**row, "label": False})
    assert BEHAVIOR not in blind.train[0].token_annotations, "it weighs no behavior"
    assert blind.train[0].token_annotations == {ORIGIN: (None, None, -1.0, -1.0, -1.0)}


def test_with_its_scores_a_file_is_legal_for_ratios(tmp_path: Path, renderer: Renderer) -> None:
    store = Store.open(tmp_path / "store.sqlite")
    path = tmp_path / "rows.jsonl"
    legal = {}
    for kind, row in (("with", OWN), ("without", {k: OWN[k] for k in ("prompt_ids", "completion_ids")})):
        rows = ({**row, "label": good, "policy_version": "v"} for good in (True, False))
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
        with store.read() as conn:
            tried = try_all(conn, store.tenant, Wanted("shop", BASE, time.time()), renderer, path)
            legal[kind] = {one.objective.name for one in tried if one.against is None}
    store.close()
    assert {"topr", "rloo_tis", "vespo", "grpo"} <= legal["with"]
    assert legal["with"] - legal["without"] == {"topr", "rloo_tis", "vespo"}


def test_rollouts_that_failed_are_left_out_before_anything_is_compared(tmp_path: Path, renderer: Renderer) -> None:
    rows = [{**OWN, "label": good} for good in (True, False)]
    dataset = read(tmp_path, renderer, "oapl_group", *rows, {**OWN, FAILED: True})
    assert len(dataset.train) == 2
    assert dataset.summary["left_out"] == {FAILED: 1}
    with pytest.raises(TooLittleDataError, match="two judged replies"):
        read(tmp_path, renderer, "grpo", rows[0], {**OWN, FAILED: True})


def test_a_rendered_reply_that_was_cut_off_has_no_end_of_turn(tmp_path: Path, renderer: Renderer) -> None:
    whole, cut = read(
        tmp_path, renderer, "topr", {**TEXT, "label": True}, {**TEXT, "label": True, "finish_reason": "length"}
    ).train
    assert whole.token_ids[-1] == renderer.end_id
    assert cut.token_ids == whole.token_ids[:-1]
    assert cut.annotations == {TRUNCATED: 1.0}


def test_a_teacher_s_scores_may_come_with_the_rows(tmp_path: Path, renderer: Renderer) -> None:
    (sample,) = read(tmp_path, renderer, "on_policy_distillation", {**OWN, TEACHER: [-1, -2, -3]}).train
    assert sample.token_annotations == {TEACHER: (None, None, -1.0, -2.0, -3.0)}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt_ids": [1], "label": True}, "come together"),
        ({**OWN, "completion_ids": [], "label": True}, "come together"),
        ({**OWN, "completion_ids": [100, True, 2], "label": True}, "are not token ids"),
        ({**OWN, "completion_ids": [100, 999999, 2], "label": True}, "another tokenizer"),
        ({**OWN, "logprobs": [-0.5], "label": True}, "not one for each"),
        ({**OWN, "logprobs": [-0.5, None, -1], "label": True}, "never a number"),
        ({**OWN, "logprobs": [-0.5, 0.7, -1], "label": True}, "no log-probability"),
        ({**TEXT, "logprobs": [-0.5], "label": True}, "tokens that it does not name"),
        ({**OWN, "policy_version": 4, "label": True}, "not a text"),
        ({**OWN, "temperature": 0, "label": True}, "above zero"),
        ({**OWN, "truncated": "yes", "label": True}, "neither true nor false"),
        (OWN, "no 'label'"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, renderer: Renderer, row: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=f"(?i)line 1.*{says}"):
        read(tmp_path, renderer, "topr", row)


def test_the_store_says_which_replies_were_cut_off(tmp_path: Path, renderer: Renderer) -> None:
    with Store.open(tmp_path / "store.sqlite") as store:
        fix_splits(store)
        found = {}
        for name, ids, reason in (("whole", (100, 2), "stop"), ("one", (100,), "length"), ("cut", (9, 8), "length")):
            exchange = record_turn(
                store, [ASKED], name, (20, 21), ids, session=name, user="user-0-1", finish_reason=reason
            )
            say(store, FeedbackKind.THUMB, True, exchange=exchange)
            found[exchange] = name
        for objective in ("topr", "on_policy_distillation"):
            with store.read() as conn:
                wanted = Wanted("shop", BASE, time.time() + 1)
                train = gather(conn, store.tenant, wanted, find_objective(objective), renderer).train
            told = {found[sample.id]: sample.annotations.get(TRUNCATED) for sample in train}
            assert {"cut": 1.0, "one": None}.items() <= told.items(), "one token that was asked for is whole"
