"""A dataset asks the value model that its rule names, and hands on what the model has earned."""

from __future__ import annotations

from collections.abc import Iterator
from time import time
from types import SimpleNamespace

import numpy as np
import pytest
from traffic import busy_day, fix_splits

from nightschool.curation import dataset as curation
from nightschool.curation.dataset import CurationRule, Wanted, build_dataset
from nightschool.errors import InputError
from nightschool.store.database import Store
from nightschool.types import Sample
from nightschool.valuation.reliability import Outcomes, report
from nightschool.valuation.words import cluster_of


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("lived") / "store.sqlite") as opened:
        fix_splits(opened)
        busy_day(opened, 80)
        yield opened


def train(store: Store, name: str) -> tuple[Sample, ...]:
    with store.read() as conn:
        return build_dataset(conn, store.tenant, Wanted("shop", "base", time(), CurationRule(value_model=name))).train


@pytest.mark.parametrize("name", ["success", "tracker", "learned"])
def test_every_model_gives_a_row_its_estimates(store: Store, name: str) -> None:
    rows = train(store, name)
    assert len(rows) > 40
    assert all(0 <= row.annotations["p_lo"] < row.annotations["p_hat"] <= 1 for row in rows)
    assert not any("margin" in row.annotations for row in rows), "too few rows to earn that"


def test_a_tracker_counts_requests_that_differ_in_numbers_alone(store: Store) -> None:
    assert cluster_of("Please refund my order 17!") == cluster_of("please refund my order 4")
    # two kinds of requests, every user another, his own judgement left out: two estimates of each kind, which the
    # seconds between the sessions hardly move
    found = {round(row.annotations["p_hat"], 4) for row in train(store, "tracker")}
    assert len(found) == 4


def test_an_unknown_model_is_an_error(store: Store) -> None:
    with pytest.raises(InputError, match="Known are success, tracker, learned"):
        train(store, "oracle")


def test_what_serves_is_a_slice_and_an_earned_margin_reaches_the_rows(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def fit(requests, rewards, weights, ages, principals, slices):
        seen.extend(slices)
        p, y = np.repeat([0.0, 1.0], 50), np.repeat([0.0, 1.0], 50)
        known = report(p, Outcomes(y, np.ones(100), [str(row) for row in range(100)]))
        return SimpleNamespace(p_hat=np.full(len(requests), 0.5), p_lo=np.full(len(requests), 0.4), report=known)

    monkeypatch.setattr(curation, "find_value_model", lambda name: fit)
    assert {row.annotations["margin"] for row in train(store, "success")} == {0.0}
    assert set(seen) == {"serving version"}
