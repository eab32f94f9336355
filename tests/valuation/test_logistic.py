from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from nightschool.valuation.calibration import fit_word_model, fold_of
from nightschool.valuation.logistic import Platt, fit_logistic, fit_platt
from nightschool.valuation.words import CONSTANT, NUMBER, Vocabulary, features_of


def test_features_fold_digits_and_pair_neighbors() -> None:
    assert features_of("Order 4711, PLEASE") == {"order", NUMBER, "please", f"order {NUMBER}", f"{NUMBER} please"}
    assert features_of("A-17 order") == {"a", NUMBER, "order", f"a {NUMBER}", f"{NUMBER} order"}


def test_only_features_seen_twice_get_a_column_and_rows_have_unit_length() -> None:
    vocabulary = Vocabulary.of(["cancel it now", "cancel it", "refund"])
    assert set(vocabulary.columns) == {"cancel", "it", "cancel it"}
    dense = vocabulary.matrix(["cancel it", "unknown words"]).toarray()
    assert dense[0].tolist() == pytest.approx([3**-0.5] * 3 + [CONSTANT])
    assert dense[1].tolist() == [0, 0, 0, CONSTANT]


def test_a_constant_alone_gives_the_weighted_rate() -> None:
    # one column of ones, almost no ridge: p = (1 * 3 + 0 * 1) / 4 = 0.75; variance 1 / (4 * p * (1 - p)) = 4/3
    fitted = fit_logistic(np.ones((2, 1)), np.array([1.0, 0.0]), np.array([3.0, 1.0]), ridge=1e-9)
    eta, error = fitted.predict(np.ones((1, 1)))
    assert special.expit(eta[0]) == pytest.approx(0.75, abs=1e-5)
    assert error[0] ** 2 == pytest.approx(4 / 3, rel=1e-4)


def test_the_ridge_is_the_prior_where_there_is_no_data() -> None:
    fitted = fit_logistic(np.zeros((3, 1)), np.ones(3), np.ones(3), ridge=4.0)
    eta, error = fitted.predict(np.ones((1, 1)))
    assert eta[0] == 0
    assert error[0] == pytest.approx(0.5)  # prior standard deviation 1 / sqrt(4)


def test_platt_undoes_overconfidence() -> None:
    rng = np.random.default_rng(0)
    true = rng.normal(0, 1.5, 4000)
    targets = (rng.random(4000) < special.expit(true)).astype(float)
    platt = fit_platt(true * 3 + 1, targets, np.ones(4000))
    assert platt.slope == pytest.approx(1 / 3, abs=0.03)
    assert platt.intercept == pytest.approx(-1 / 3, abs=0.1)


def test_platt_of_golden_8_4() -> None:
    # sigma(2 * 0.6 - 0.5) = sigma(0.7) = 0.668188
    eta, _ = Platt(2.0, -0.5, np.zeros((2, 2))).apply(np.array([0.6]), np.array([0.0]))
    assert special.expit(eta) == pytest.approx([0.668188], abs=1e-6)


def test_platt_of_a_score_that_misleads_is_the_rate() -> None:
    targets = np.array([1.0] * 6 + [0.0] * 2)
    platt = fit_platt(-(targets - 0.5) * 4, targets, np.ones(8))
    eta, error = platt.apply(np.array([-5.0, 5.0]), np.array([1.0, 1.0]))
    assert special.expit(eta) == pytest.approx([0.75, 0.75], abs=1e-3)
    assert error == pytest.approx([(1 / (8 * 0.75 * 0.25)) ** 0.5] * 2, rel=1e-2)


def test_a_row_never_informs_its_own_principals_estimate() -> None:
    # the same word is always good for p0, always bad for everybody else; p0's own estimates follow the others
    texts = ["alpha"] * 60
    principals = ["p0"] * 20 + [f"q{i}" for i in range(40)]
    targets = np.array([1.0] * 20 + [0.0] * 40)
    mine = fold_of("p0")
    others = [i for i in range(20, 60) if fold_of(principals[i]) != mine]
    assert others
    fitted = fit_word_model(texts, targets, np.ones(60), principals)
    flipped = fit_word_model(texts, np.where(np.arange(60) < 20, 0.0, targets), np.ones(60), principals)
    raw = (fitted.log_odds[0] - fitted.platt.intercept) / max(fitted.platt.slope, 1e-12)
    raw_flipped = (flipped.log_odds[0] - flipped.platt.intercept) / max(flipped.platt.slope, 1e-12)
    if fitted.platt.slope and flipped.platt.slope:
        assert raw == pytest.approx(raw_flipped, abs=1e-6)
    assert fitted.platt.slope == 0.0 or raw < 0
