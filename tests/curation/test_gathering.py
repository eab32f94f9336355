"""What objectives gather of one store: groups of the serving version, or of all; who is alone is left out."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from traffic import record_turn, release, say

from nightschool.curation.dataset import Dataset, Wanted
from nightschool.curation.gathering import from_file, gather
from nightschool.errors import TooLittleDataError
from nightschool.objectives.catalog import find_objective
from nightschool.releases.aliases import BASE
from nightschool.rendering.renderer import Renderer
from nightschool.store.database import Store
from nightschool.types import FeedbackKind, LedgerState

ASKED = [{"role": "user", "content": "order 7"}]
OTHER = "b" * 64


def judged(store: Store, version: str, prompt: tuple[int, ...], count: int) -> None:
    for number in range(count):
        name = f"{version[:4]} {prompt[-1]} {number}"
        exchange = record_turn(
            store, ASKED, f"reply {number}", prompt, (100 + number, 2), session=name, user=name, version=version
        )
        say(store, FeedbackKind.THUMB, number % 2 == 0, exchange=exchange)


def gathered(store: Store, renderer: Renderer, name: str) -> Dataset:
    with store.read() as conn:
        return gather(conn, store.tenant, Wanted("shop", BASE, time.time() + 1), find_objective(name), renderer)


def test_a_group_value_is_that_of_the_version_that_serves(store: Store, renderer: Renderer) -> None:
    release(store, OTHER, None, 1)
    for version in (BASE, OTHER):
        judged(store, version, (20, 21, 22), 12)
    judged(store, BASE, (20, 21, 23), 1)  # alone, if it trains at all
    mine = gathered(store, renderer, "oapl_group")
    assert {sample.policy_version for sample in mine.train} == {BASE}
    assert len({sample.group_id for sample in mine.train}) == 1
    assert len(mine.train) >= 2
    told = {line.reason for line in mine.lines if line.state == LedgerState.HELD}
    assert "another version drew it" in told
    both = gathered(store, renderer, "rloo_tis")
    assert {sample.policy_version for sample in both.train} == {BASE, OTHER}
    assert len({sample.group_id for sample in both.train}) == 2, "a group is of one version"
    trained = {line.exchange_id for line in both.lines if line.state == LedgerState.TRAINED}
    assert trained == {sample.id for sample in both.train}


def test_without_two_replies_to_a_request_there_are_no_groups(store: Store, renderer: Renderer) -> None:
    for place in range(12):
        judged(store, BASE, (20, 30 + place), 1)
    with pytest.raises(TooLittleDataError, match="two judged replies"):
        gathered(store, renderer, "oapl_group")


def test_rows_of_a_file_count_as_the_anchor_s(tmp_path: Path, renderer: Renderer) -> None:
    row = '{"prompt": [{"role": "user", "content": "7"}], "completion": [{"role": "assistant", "content": "%s"}], '
    lines = [row % text + f'"label": {label}}}' for text, label in (("a", "true"), ("b", "false"))]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines))
    objective = find_objective("oapl_group")
    dataset = from_file(path, Wanted("shop", OTHER, 1.0), objective, renderer)
    assert [sample.policy_version for sample in dataset.train] == [OTHER, OTHER]
    made = objective.annotate(dataset.train, objective.rule())
    # V = log((e + 1) / 2) = 0.620115 at beta1 = 1: advantages 0.379885 and -0.620115
    assert [sample.annotations["advantage"] for sample in made] == pytest.approx([0.379885, -0.620115], abs=1e-6)
