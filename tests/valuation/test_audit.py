"""The reward audit: each check sees what was planted, and stays quiet where nothing was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nightschool.valuation.audit import Check, Rewarded, Standing, audit, length, noise, order


def rows(count: int = 200, seed: int = 0) -> list[Rewarded]:
    """Honest rewards of replies whose length has nothing to do with them; success 0.6, as expected."""
    rng = np.random.default_rng(seed)
    return [
        Rewarded(float(rng.random() < 0.6), "thumb", f"user {i}", "word " * int(rng.integers(5, 60)), 0.6)
        for i in range(count)
    ]


def named(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_nothing_planted_nothing_broken() -> None:
    found = named(audit(rows()))
    assert all(check.standing is not Standing.BROKEN for check in found.values())
    assert found["length"].standing is Standing.HOLDS
    assert found["noise"].standing is Standing.UNKNOWN
    assert found["refusals"].standing is Standing.UNKNOWN
    assert found["sources"].standing is Standing.LOOK  # thumbs alone
    assert found["sources"].value == 1.0


def test_noise_is_measured_against_trusted_outcomes() -> None:
    # of 40 good ones 36 are rewarded, of 20 bad ones 5: q1 = 0.9, q0 = 0.75, J = 0.65
    known = [*[(1.0, 1.0)] * 36, *[(0.0, 1.0)] * 4, *[(1.0, 0.0)] * 5, *[(0.0, 0.0)] * 15]
    check = noise([Rewarded(r, "thumb", str(i), "x", trusted=t) for i, (r, t) in enumerate(known)])
    assert check.standing is Standing.HOLDS
    assert check.value == pytest.approx(0.65)
    # with half a case more on either side: q 36.5/41 and 15.5/21
    error = (36.5 / 41 * 4.5 / 41 / 40 + 15.5 / 21 * 5.5 / 21 / 20) ** 0.5
    assert check.low == pytest.approx(0.65 - 1.959964 * error)
    # agreement 51 of 60, chance (41 * 40 + 19 * 20) / 3600
    chance = (41 * 40 + 19 * 20) / 3600
    assert f"kappa {(51 / 60 - chance) / (1 - chance):.2f}" in check.sentence


def test_a_reward_that_tells_nothing_is_broken() -> None:
    known = [(float(i % 2), float(i // 2 % 2)) for i in range(200)]  # independent
    check = noise([Rewarded(r, "thumb", str(i), "x", trusted=t) for i, (r, t) in enumerate(known)])
    assert check.standing is Standing.BROKEN
    assert check.value == pytest.approx(0)


def test_few_outcomes_tell_nothing() -> None:
    known = [*[(1.0, 1.0)] * 30, *[(0.0, 0.0)] * 9]
    check = noise([Rewarded(r, "thumb", str(i), "x", trusted=t) for i, (r, t) in enumerate(known)])
    assert check.standing is Standing.UNKNOWN
    assert "30 good and 9 bad" in check.sentence


@pytest.mark.parametrize(("slope", "expected"), [(0.25, Standing.LOOK), (-0.25, Standing.LOOK), (0.0, Standing.HOLDS)])
def test_a_reward_for_length(slope: float, expected: Standing) -> None:
    """Replies of 2 to 64 words; success rises by `slope` a doubling around a half, and nobody expected that."""
    rng = np.random.default_rng(1)
    found = []
    for number in range(400):
        doublings = int(rng.integers(1, 7))
        good = rng.random() < np.clip(0.5 + slope * (doublings - 3.5), 0, 1)
        found.append(Rewarded(float(good), "thumb", f"user {number}", "w" * 2**doublings, 0.5))
    check = length(found)
    assert check.standing is expected
    assert check.low is not None
    assert check.high is not None
    assert check.low < check.high


def test_what_a_request_explains_is_no_bias() -> None:
    """Long answers to easy questions: the success model expects their success, so nothing is left for length."""
    rng = np.random.default_rng(2)
    found = []
    for number in range(400):
        easy = number % 2
        good = rng.random() < (0.9, 0.3)[1 - easy]
        found.append(Rewarded(float(good), "thumb", str(number), "w" * (8, 64)[easy], (0.3, 0.9)[easy]))
    assert length(found).standing is Standing.HOLDS
    assert length([replace(row, expected=0.6) for row in found]).standing is Standing.LOOK


@pytest.mark.parametrize(
    ("name", "reply", "worst"),
    [
        ("empty answers", "  ", Standing.BROKEN),
        ("asking for praise", "Done. Please rate me with five stars!", Standing.BROKEN),
        ("refusals", "I'm sorry, but I cannot help with that.", Standing.LOOK),
    ],
)
def test_kinds_that_are_rewarded_above_all_others(name: str, reply: str, worst: Standing) -> None:
    planted = [Rewarded(1.0, "thumb", f"more {i}", reply, 0.6) for i in range(40)]
    assert named(audit([*rows(), *planted]))[name].standing is worst
    honest = [replace(row, reward=0.0) for row in planted]
    assert named(audit([*rows(), *honest]))[name].standing is Standing.HOLDS
    assert named(audit([*rows(), *planted[:19]]))[name].standing is Standing.UNKNOWN


def test_ordinary_words_are_no_bid_for_praise_and_no_refusal() -> None:
    for text in ("The rate is 5 percent.", "A star was added.", "I cannot find order 7; it was cancelled.", "Sorry!"):
        found = named(audit([*rows(), *[Rewarded(1.0, "thumb", f"m{i}", text, 0.6) for i in range(40)]]))
        assert found["asking for praise"].standing is Standing.UNKNOWN, text
        assert found["refusals"].standing is Standing.UNKNOWN, text


def test_the_first_of_two() -> None:
    assert order([(str(i), True) for i in range(40)]).standing is Standing.LOOK
    assert order([(str(i), i % 2 == 0) for i in range(40)]).standing is Standing.HOLDS
    assert order([("ann", True)] * 40).standing is Standing.UNKNOWN  # one voice
    assert order([]).standing is Standing.UNKNOWN


def test_nothing_rewarded() -> None:
    assert {check.standing for check in audit([])} == {Standing.UNKNOWN}
