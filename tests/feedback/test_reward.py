from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nightschool.errors import TooLittleDataError
from nightschool.feedback.reward import Reward, RewardRule, combine, judges, outcome, pair
from nightschool.feedback.text import TextCalibrator, fit_text_calibrator
from nightschool.types import Feedback, FeedbackKind, TargetKind
from nightschool.valuation.raters import Raters


def said(kind: FeedbackKind, value: object, at: float = 1.0, author: str = "ann") -> Feedback:
    return Feedback(
        f"{kind}-{at}-{author}", TargetKind.SESSION, "s", kind, value, name=kind.value, author=author,
        observed_at=at, received_at=at, session_id="s",
    )  # fmt: skip


THUMB, TEXT, OUTCOME = FeedbackKind.THUMB, FeedbackKind.TEXT, FeedbackKind.OUTCOME


def pairs(count: int) -> tuple[list[str], list[bool], list[str]]:
    rng = np.random.default_rng(0)
    thumbs = [bool(x) for x in rng.random(count) < 0.5]
    good, bad = ["thanks, solved it", "great help"], ["this did not help", "still waiting, useless"]
    texts = [(good if up else bad)[int(rng.integers(2))] for up in thumbs]
    return texts, thumbs, [f"u{i}" for i in range(count)]


@pytest.fixture(scope="module")
def calibrator() -> TextCalibrator:
    return fit_text_calibrator(*pairs(80))


def test_silence_is_not_a_reward() -> None:
    assert combine([], RewardRule()).value is None
    assert combine([], RewardRule()).reason == "no feedback"


def test_a_thumb_is_taken_at_its_word_and_the_last_one_holds() -> None:
    assert combine([said(THUMB, True)], RewardRule()).value == 1.0
    assert combine([said(THUMB, True, 1.0), said(THUMB, False, 2.0)], RewardRule()).value == 0.0


def test_a_thumb_weighs_what_its_rater_is_worth() -> None:
    rule = RewardRule(raters=Raters({"ann": 0.9, "bob": 0.5, "eve": 0.6}, 0.7, {}))
    # |2 * 0.9 - 1|, whichever way it points; of a coin, nothing
    assert combine([said(THUMB, False, author="ann")], rule) == Reward(0.0, "thumb", pytest.approx(0.8))
    assert combine([said(THUMB, True, author="bob")], rule) == Reward(None, "a thumb that says nothing")
    # odds 9 against 1.5: P(good) = 1.5 / 10.5
    both = combine([said(THUMB, False, author="ann"), said(THUMB, True, author="eve")], rule)
    assert both == Reward(0.0, "thumb", pytest.approx(1 - 2 * 1.5 / 10.5))
    # whoever is not named is the session's user; whoever is not known, the crowd
    nameless = replace(said(THUMB, True), author=None)
    assert combine([nameless], rule, "ann").confidence == pytest.approx(0.8)
    assert combine([nameless], rule, "zoe").confidence == pytest.approx(0.4)


def checklist(*criteria: object) -> dict[str, object]:
    return {"criteria": [{"met": met, "weight": weight} for met, weight in criteria]}  # type: ignore[misc]


def test_a_checklist_is_the_share_that_was_met() -> None:
    # golden G8a: weights 1, 0.7, 0.3, 0.9, all met but the third: 2.6 / 2.9
    found = outcome(checklist((True, 1), (True, 0.7), (False, 0.3), (True, 0.9)))
    assert found == pytest.approx(0.896552, abs=1e-6)
    assert outcome({"criteria": [{"met": True}, {"met": False}]}) == 0.5
    assert outcome({"criteria": [{"met": False}], "success": True}) == 1.0


@pytest.mark.parametrize("criteria", [[], "x", ["x"], [{}], [{"met": 1}], [{"met": True, "weight": 0}],
    [{"met": True, "weight": "2"}], [{"met": True, "weight": float("nan")}],
    [{"met": True, "weight": True}]])  # fmt: skip
def test_a_checklist_that_cannot_be_read_says_nothing(criteria: object) -> None:
    assert outcome({"criteria": criteria}) is None


def test_votes_of_measured_accuracy_add_up() -> None:
    votes = [said(THUMB, True, author="a"), said(THUMB, True, author="b"), said(THUMB, False, author="c")]
    # golden G8a: {+1, +1, -1} at accuracy 0.8 and prior 0.5: 0.8, not 0.667
    assert combine(votes, RewardRule(noise_rate=0.2)).value == pytest.approx(0.8)
    assert combine(votes, RewardRule()).reason == "judgements disagree"
    assert combine(votes, RewardRule()).value is None


def test_an_outcome_outweighs_a_thumb_and_a_thumb_a_text(calibrator: TextCalibrator) -> None:
    items = [said(TEXT, "great help"), said(THUMB, False)]
    assert combine(items, RewardRule(calibrator=calibrator)).value == 0.0
    assert combine([*items, said(OUTCOME, {"success": True})], RewardRule()).value == 1.0


def test_text_alone_needs_the_calibrator(calibrator: TextCalibrator) -> None:
    bad, good = [said(TEXT, "this did not help")], [said(TEXT, "great help")]
    assert combine(bad, RewardRule()).reason == "text not calibrated"
    low, high = (combine(items, RewardRule(calibrator=calibrator)) for items in (bad, good))
    assert low.value is not None
    assert high.value is not None
    assert 0 < low.value < 0.3
    assert 0.7 < high.value < 1
    assert calibrator.version in low.reason


def test_numbers_and_corrections_give_nothing_by_themselves() -> None:
    assert combine([said(FeedbackKind.NUMBER, 4)], RewardRule()).reason == "number without a scale"
    assert combine([said(FeedbackKind.CORRECTION, "say it so")], RewardRule()).value is None


def test_kinds_that_are_no_verdict_are_ignored_and_never_misread() -> None:
    on_scale = replace(said(FeedbackKind.NUMBER, 5), scale=(1.0, 5.0))
    assert combine([on_scale], RewardRule()) == Reward(None, "number not calibrated")
    mute = [
        on_scale,
        said(FeedbackKind.CATEGORY, "up"),
        said(FeedbackKind.PREFERENCE, {"chosen": {"choice": 0}, "rejected": {"choice": 1}}),
        said(FeedbackKind.CORRECTION, "say it so"),
        said(OUTCOME, {"reopened": True}),
    ]
    assert combine(mute, RewardRule()).value is None
    assert combine([*mute, said(THUMB, False)], RewardRule()) == Reward(0.0, "thumb")
    assert [judges(item) for item in (*mute, said(THUMB, False), said(TEXT, "x"), said(OUTCOME, True))] == [
        False, False, False, False, False, True, True, True,
    ]  # fmt: skip


def test_outcomes_are_read_strictly() -> None:
    assert [outcome(x) for x in (True, 0.25, {"success": False}, "yes", 3, float("nan"), {"other": 1})] == [
        1.0, 0.25, 0.0, None, None, None, None,
    ]  # fmt: skip


def test_pairs_for_the_calibrator_need_agreeing_thumbs() -> None:
    assert pair([said(TEXT, "fine"), said(THUMB, True)]) == ("fine", True)
    assert pair([said(TEXT, "fine")]) is None
    assert pair([said(TEXT, "fine"), said(THUMB, True, author="a"), said(THUMB, False, author="b")]) is None


def test_the_calibrator_is_measured_on_people_it_has_not_seen(calibrator: TextCalibrator) -> None:
    assert calibrator.report["brier"] < calibrator.report["brier_of_mean"] / 2
    assert len(calibrator.cross_fitted) == 80
    assert fit_text_calibrator(*pairs(80)).version == calibrator.version
    assert fit_text_calibrator(*pairs(79)).version != calibrator.version


@pytest.mark.parametrize(("count", "says"), [(29, "29 sessions carry a text and a thumb; 30 would do")])
def test_too_few_pairs_leave_texts_unused(count: int, says: str) -> None:
    with pytest.raises(TooLittleDataError, match=says):
        fit_text_calibrator(*pairs(count))


def test_one_sided_pairs_leave_texts_unused() -> None:
    texts, _, principals = pairs(40)
    with pytest.raises(TooLittleDataError, match="7 of them are thumbs down; 8 would do"):
        fit_text_calibrator(texts, [True] * 33 + [False] * 7, principals)
