"""Texts become rewards by the reader that knows best of them."""

from __future__ import annotations

import time

import numpy as np
import pytest
from traffic import fix_splits, record_words

from nightschool.curation.dataset import CurationRule, Wanted, build_dataset
from nightschool.curation.gathering import gather
from nightschool.curation.influence import InfluenceRule
from nightschool.curation.readers import better_read
from nightschool.feedback.reading.calibration import hear_texts
from nightschool.feedback.reading.stored import insert_readings
from nightschool.feedback.reading.values import Polarity, Reading
from nightschool.feedback.reward import RewardRule
from nightschool.feedback.text import TextCalibrator
from nightschool.objectives.catalog import find_objective
from nightschool.releases.aliases import BASE
from nightschool.store.database import Store

FREE = CurationRule(influence=InfluenceRule(trusted=("end_user",)))  # all of them say the same to the same request


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Every text reads alike by its words; only a judge tells the good ones. Half of them have a thumb."""
    with Store.open(tmp_path_factory.mktemp("store") / "store.sqlite") as opened:
        fix_splits(opened)
        said = []
        for number in range(120):
            ids = ((20, 21, 100 + number % 2), (30 + number % 2, 2))
            said.append((f"user {number}", "I got it.", number % 2 == 0 if number % 4 < 2 else None, {"ids": ids}))
        record_words(opened, said)
        with opened.read() as conn:
            heard = hear_texts(conn, opened.tenant, "shop")
        votes = ({"raw": "", "polarity": "good"},)
        found = []
        for item in heard.texts:
            good = int(heard.sessions[item.session_id or ""].principal.split()[1]) % 2 == 0
            found.append(Reading(item.id, "judge-1", Polarity.GOOD, 1.9 if good else -1.9, votes=votes))
        opened.write(lambda conn: insert_readings(conn, opened.tenant, found, time.time()))
        yield opened


def test_a_judge_that_knows_better_makes_the_rewards(store):
    with store.read() as conn:
        dataset = build_dataset(conn, store.tenant, Wanted("shop", BASE, time.time() + 1, FREE, valued=False))
    told = {one["reader"]: one for one in dataset.summary["readers"]}
    assert told["judge-1"]["used"]
    soft = [sample for sample in dataset.train if sample.reward not in (0.0, 1.0)]
    assert len(soft) > 25, "those without a thumb"
    for sample in soft:
        good = sample.token_ids[2] == 100
        assert sample.reward is not None
        assert (sample.reward > 0.85) if good else (sample.reward < 0.15)


def test_thumbs_and_read_texts_train_kto_and_bco(store, tmp_path):
    for name in ("kto", "bco"):
        objective = find_objective(name)
        with store.read() as conn:
            dataset = gather(conn, store.tenant, Wanted("shop", BASE, time.time() + 1, FREE), objective, None)  # type: ignore
        rule = objective.rule(calibrated=True)
        made = objective.annotate(dataset.train, rule)
        assert {sample.annotations["desirable"] for sample in made} == {0.0, 1.0}


def test_words_that_cost_less_stay(store):
    words = TextCalibrator(None, np.zeros(0), "text-1-x", {"log_loss": 0.0})  # type: ignore[arg-type]
    with store.read() as conn:
        rule, _ = better_read(conn, store.tenant, "shop", time.time() + 1, RewardRule(calibrator=words))
        other, told = better_read(conn, store.tenant, "shop", time.time() + 1, RewardRule())
    assert rule.readings is None
    assert other.readings is not None
    assert other.readings.reader == "judge-1"
    assert [one["used"] for one in told] == [False, True], "the rules read nothing in these"
