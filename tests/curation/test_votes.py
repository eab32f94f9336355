"""Raters who tick at random weigh little in the dataset they are in."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
from traffic import fix_splits, record_session, say

from nightschool.curation.dataset import CurationRule, Dataset, Wanted, build_dataset
from nightschool.curation.influence import Cap, InfluenceRule
from nightschool.releases.aliases import BASE
from nightschool.store.database import Store
from nightschool.types import FeedbackKind

REQUESTS = ("please cancel it", "where is my parcel")


def month(store: Store, careless: int, users: int = 30, each: int = 6) -> dict[str, str]:
    """Each user comes several times; a reply is right where its first token fits the request. Users by exchange."""
    random, owners, seed = Random(4), {}, 0
    for user in range(users):
        for _ in range(each):
            seed += 1
            wish, act = random.randrange(2), random.randrange(2)
            name = f"user {user}"
            found = record_session(store, REQUESTS[wish], seed, 7 + act, user=name, session=f"s{seed}")
            right = (wish == act) != (random.random() < 0.05)
            say(
                store, FeedbackKind.THUMB, random.random() < 0.5 if user < careless else right, name, session=f"s{seed}"
            )
            owners[found[-1]] = name
    return owners


def build(store: Store) -> Dataset:
    with store.read() as conn:
        everybody = Cap(share=1.0, floor=1000, ceiling=1000)
        limits = InfluenceRule(everybody, everybody, everybody, everybody, quarantine_days=0.0)
        wanted = Wanted("shop", BASE, time.time() + 1, CurationRule(influence=limits))
        return build_dataset(conn, store.tenant, wanted)


def test_they_weigh_little(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        fix_splits(store)
        owners = month(store, careless=12)
        dataset = build(store)
    weights = defaultdict(list)
    for sample in dataset.train:
        weights[int(owners[sample.id].split()[1]) < 12].append(sample.weight)
    assert fmean(weights[True]) < 0.5 * fmean(weights[False])
    told = dataset.summary["raters"]
    assert told["used"]
    assert told["careless"] == pytest.approx(0.4, abs=0.2)
    assert told["outcome_model"]["brier"] < told["outcome_model"]["brier_of_mean"]


def test_with_one_visit_each_nobody_is_told_apart(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        fix_splits(store)
        month(store, careless=20, users=60, each=1)
        dataset = build(store)
    assert dataset.summary["raters"] == {"used": False, "why": "0 raters of 3 votes; 5 would do."}
    assert {sample.weight for sample in dataset.train} == {1.0}
