"""From scores to probabilities by labels of people; and whether a reader still agrees with them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from scipy import special
from traffic import fix_splits, record_turn, record_words, release, say

from nightschool.errors import TooLittleDataError
from nightschool.feedback.reading.calibration import MANY, Labelled, fit_calibration, hear_texts
from nightschool.feedback.reading.drift import State, drift_of
from nightschool.feedback.reading.local import LOCAL
from nightschool.feedback.reading.stored import insert_readings
from nightschool.feedback.reading.values import Polarity, Reading
from nightschool.feedback.reading.verdicts import DRIFTED, Calibrated, best_of, calibrate
from nightschool.feedback.reward import RewardRule, combine
from nightschool.types import Feedback, FeedbackKind, TargetKind


def rows(count: int, chance, seed: int = 0) -> list[Labelled]:
    """Scores of a judge with three votes, and labels that are good with `chance(score)`."""
    rng = Random(seed)
    found = []
    for number in range(count):
        score = rng.choice([-1.9459, -0.5108, 0.5108, 1.9459])
        found.append(Labelled(f"f{number}", score, rng.random() < chance(score), f"user {number}", "base"))
    return found


def test_a_score_becomes_the_share_of_labels_that_are_good():
    found = fit_calibration("judge-1", rows(900, lambda s: special.expit(2 * s)), "base")
    for score in (-1.9459, -0.5108, 0.5108, 1.9459):
        assert found.probability(score) == pytest.approx(special.expit(2 * score), abs=0.06)
    assert found.version.startswith("judge-1+")
    assert found.report["brier_low"] < found.report["brier"] < found.report["brier_of_mean"]
    assert (found.report["good"] + found.report["bad"]) == 900
    assert found.drift.state == State.TOO_LITTLE, "there is but one version"


def test_a_judge_that_knows_nothing_says_the_mean():
    found = fit_calibration("judge-1", rows(600, lambda s: 0.3), "base")
    assert found.probability(1.9459) - found.probability(-1.9459) < 0.15
    assert found.probability(0.5108) == pytest.approx(0.3, abs=0.06)


def test_with_many_labels_the_map_is_any_that_rises():
    # Levels 0.1, 0.1, 0.9, 0.9: no logistic map of these scores has that step.
    found = fit_calibration("judge-1", rows(4 * MANY, lambda s: 0.9 if s > 0 else 0.1), "base")
    p = [found.probability(score) for score in (-1.9459, -0.5108, 0.5108, 1.9459)]
    assert p == pytest.approx([0.1, 0.1, 0.9, 0.9], abs=0.03)
    assert p == sorted(p)


def test_other_labels_make_another_version():
    made = rows(100, lambda s: special.expit(s))
    assert fit_calibration("j", made, "base").version == fit_calibration("j", made[::-1], "base").version
    assert fit_calibration("j", made, "base").version != fit_calibration("j", made[1:], "base").version
    assert fit_calibration("k", made, "base").version != fit_calibration("j", made, "base").version


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (rows(29, lambda s: 0.5), "29 texts"),
        (rows(60, lambda s: 1.0), "0 of them are thumbs down"),
        ([Labelled(r.feedback_id, r.score, r.is_good, "one", "base") for r in rows(60, lambda s: 0.5)], "1 users"),
    ],
)
def test_too_few_labels_make_no_probability(made, why):
    with pytest.raises(TooLittleDataError, match=why):
        fit_calibration("judge-1", made, "base")


def test_drift_is_the_gap_that_moved():
    # Before: predicted 0.8, all good, gap -0.2. Now: predicted 0.8, none good, gap 0.8. Moved by 1.0, without spread.
    off = np.array([-0.2] * 20 + [0.8] * 20)
    people = [f"u{number}" for number in range(40)]
    found = drift_of(off, people, [False] * 20 + [True] * 20)
    assert (found.state, found.rows_now, found.rows_before) == (State.ALARM, 20, 20)
    assert (found.now, found.before, found.moved) == pytest.approx((0.8, -0.2, 1.0))
    assert (found.low, found.high) == pytest.approx((1.0, 1.0))
    steady = drift_of(np.tile([0.5, -0.5], 20), people, [False] * 20 + [True] * 20)
    assert steady.state == State.STEADY
    assert drift_of(off, people, [False] * 21 + [True] * 19).state == State.TOO_LITTLE
    assert drift_of(off, ["one"] * 40, [False] * 20 + [True] * 20).state == State.TOO_LITTLE


def test_one_loud_person_makes_no_alarm():
    """Sixteen of twenty gaps are one person's 0.3: without that one the mean is 0, with it 0.24. The means without each
    person in turn are 0 and about 0.25 four times: the error is 0.2."""
    off = np.array([0.0, 0.1, -0.1, 0.0] * 5 + [0.3] * 16 + [0.0, 0.1, -0.1, 0.0])
    people = [f"u{number}" for number in range(20)] + ["loud"] * 16 + ["a", "b", "c", "d"]
    assert drift_of(off, people, [False] * 20 + [True] * 20).state == State.STEADY


DIGEST = "b" * 64
ASKED = [{"role": "user", "content": "Where is it?"}]


def labelled_store(store, good_now: bool = True) -> None:
    """Texts that sound as they are meant on replies of the base; on those of the release only where `good_now`."""
    fix_splits(store)
    release(store, DIGEST, None, 1)
    said = []
    for number in range(100):
        good, now = number % 2 == 0, number >= 50
        text = "Great, thanks." if good else "Useless answer."
        version = {"version": DIGEST if now else "base"}
        said.append((f"user {number}", text, good and (good_now or not now), version))
    record_words(store, said)


def test_the_rules_are_calibrated_on_what_people_left_beside_their_texts(store):
    labelled_store(store)
    with store.read() as conn:
        [found] = calibrate(conn, store.tenant, "shop")
        heard = hear_texts(conn, store.tenant, "shop")
        assert calibrate(conn, "other", "shop")[0].calibration is None
    assert found.reader == LOCAL
    assert found.is_used
    assert found.calibration is not None
    assert len(heard.texts) == found.calibration.report["rows"] < 100, "the gate's split is left out"
    assert {round(p, 1) for p in found.probabilities.values()} == {0.0, 1.0}
    assert best_of([found]) is found
    assert found.as_json()["drift"]["state"] == "steady"
    # Every label agrees with the rules (sensitivity and specificity 1): the corrected share is the share itself.
    good = found.as_json()["good"]
    share = sum(p > 0.5 for p in found.probabilities.values()) / len(found.probabilities)
    assert good["value"] == pytest.approx(share)
    assert good["low"] < share < good["high"]


def test_a_reader_that_no_longer_agrees_with_people_gives_no_rewards(store):
    labelled_store(store, good_now=False)
    with store.read() as conn:
        [found] = calibrate(conn, store.tenant, "shop")
    assert not found.is_used
    assert best_of([found]) is None
    # Praise was right on the base and never is on the release.
    assert found.why == DRIFTED or found.calibration is None


def test_a_judge_has_a_map_of_its_own_and_may_know_better(store):
    labelled_store(store)
    with store.read() as conn:
        texts = hear_texts(conn, store.tenant, "shop").texts
    rng = Random(1)
    guesses = [Reading(t.id, "judge-old", Polarity.BAD, rng.choice([-1.0, 1.0]), votes=({"raw": ""},)) for t in texts]
    knows = [
        Reading(t.id, "judge-new", Polarity.BAD, 5.0 if t.value.startswith("Great") else -5.0, votes=({"raw": ""},))
        for t in texts
    ]
    store.write(lambda conn: insert_readings(conn, store.tenant, guesses, 1.0))
    store.write(lambda conn: insert_readings(conn, store.tenant, knows, 2.0))
    with store.read() as conn:
        found = calibrate(conn, store.tenant, "shop")
        before = calibrate(conn, store.tenant, "shop", as_of=1.5)
    assert [one.reader for one in found] == [LOCAL, "judge-new"], "the newest judge of each text"
    assert before[0].calibration is None, "nothing was said by then"
    best = best_of(found)
    assert best is not None
    assert best.reader in (LOCAL, "judge-new")


def test_who_is_sure_of_what_is_good_goes_first(store):
    fix_splits(store)
    record_turn(store, ASKED, "Here.", (), None, session="s", user="user 1")
    say(store, FeedbackKind.TEXT, "Great.", author="ann", session="s")
    say(store, FeedbackKind.THUMB, True, author="ann", session="s")
    say(store, FeedbackKind.THUMB, False, author="bob", session="s")
    with store.read() as conn:
        heard = hear_texts(conn, store.tenant, "shop")
    assert len(heard.texts) == 1
    assert heard.labels == {}, "two users say two things"


def test_a_reader_that_is_wrong_throughout_tells_nothing():
    rng = Random(0)
    made = []
    for number in range(3000):
        score = rng.choice([-2.0, 2.0])
        made.append(Labelled(f"f{number}", score, score < 0, f"user {number}", "base"))
    found = fit_calibration("judge-1", made, "base")
    assert found.probability(2.0) == pytest.approx(found.probability(-2.0), abs=0.02), "it ranks the wrong way round"


def by(probabilities: dict[str, float]) -> Calibrated:
    return Calibrated("judge-1", None, "", probabilities)


def test_texts_that_contradict_each_other_say_little():
    # Log-odds of 0.9 and 0.1 are 2.197 and -2.197: their mean is even. Of 0.9 and 0.8: (2.197 + 1.386) / 2 = 1.792.
    known = by({"a": 0.9, "b": 0.1, "c": 0.8})
    assert known.of(["a", "b"]) == pytest.approx(0.5)
    assert known.of(["a", "c"]) == pytest.approx(special.expit(1.7918), abs=1e-4)
    assert known.of(["a"]) == pytest.approx(0.9)
    assert known.of([]) is None
    assert known.of(["a", "never read"]) is None, "what was not read is not passed over"


def test_a_reader_s_probability_is_the_reward_of_a_text():
    said = Feedback("a", TargetKind.SESSION, "s", FeedbackKind.TEXT, "Useless.", "text", session_id="s")
    found = combine([said], RewardRule(readings=by({"a": 0.2})))
    assert (found.value, found.reason) == (pytest.approx(0.2), "text (judge-1)")
    assert combine([said], RewardRule(readings=by({}))).value is None
    thumb = Feedback("t", TargetKind.SESSION, "s", FeedbackKind.THUMB, True, "thumb", session_id="s")
    assert combine([said, thumb], RewardRule(readings=by({"a": 0.2}))).value == 1.0, "a thumb goes before words"
