import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightschool.gate import statistics
from nightschool.gate.rule import default_rule
from nightschool.gate.spending import boundaries, nominal, spent

# Lan-DeMets boundaries with the O'Brien-Fleming-like function, one-sided 2.5 %, equal steps
# (Jennison & Turnbull 2000, table 7.4 has the same designs; also gsDesign's sfLDOF).
PUBLISHED = {
    2: [2.963, 1.969],
    3: [3.710, 2.511, 1.993],
    4: [4.333, 2.963, 2.359, 2.014],
    5: [4.877, 3.357, 2.680, 2.290, 2.031],
}


@pytest.mark.parametrize("looks", PUBLISHED)
def test_published_constants(looks):
    found = boundaries(range(1, looks + 1), looks, 0.025)
    assert found == pytest.approx(PUBLISHED[looks], abs=1e-3)


def test_one_look_is_the_plain_test():
    assert boundaries([120], 120, 0.05) == pytest.approx([1.644854], abs=1e-5)
    assert nominal(1.644854) == pytest.approx(0.05, abs=1e-6)


def test_spending_by_hand():
    # 2 - 2 Phi(1.959964 / sqrt(0.5)) = 2 - 2 Phi(2.771808) = 0.005575
    assert spent(0.5) == pytest.approx(0.005575, abs=1e-6)
    assert (spent(0.0), spent(1.0), spent(1.3)) == (0.0, 0.05, 0.05)


@pytest.mark.parametrize(
    ("counts", "planned", "final"),
    [([60, 120], 120, False), ([63, 117], 120, True), ([30, 60, 90, 120], 120, False), ([110], 120, True)],
)
def test_error_in_all_looks_together_by_simulation(counts, planned, final):
    rng = np.random.default_rng(3)
    steps = np.diff([0, *counts])
    sums = np.cumsum(rng.normal(size=(200_000, len(counts))) * np.sqrt(steps), axis=1)
    z = sums / np.sqrt(counts)
    crossed = (z > boundaries(counts, planned, final=final)).any(axis=1).mean()
    assert crossed == pytest.approx(0.05, abs=0.002)  # four standard errors


def test_error_of_a_whole_small_exam_with_t_and_real_outcomes():
    """An equal candidate at success 0.5, outcomes correlated through the customer, looks at 60 and 120."""
    rng = np.random.default_rng(4)
    ease = rng.beta(1.5, 1.5, size=(2000, 120))
    differences = (rng.random(ease.shape) < ease).astype(float) - (rng.random(ease.shape) < ease)
    wins = 0
    for row in differences:
        for critical, count in zip(boundaries([60, 120], 120), (60, 120), strict=True):
            if statistics.paired(row[:count], nominal(critical)).low > 0:
                wins += 1
                break
    assert wins / len(differences) < 0.05 + 4 * (0.05 * 0.95 / 2000) ** 0.5


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(1, 119), min_size=1, max_size=4), st.floats(0.005, 0.2))
def test_no_look_is_easier_than_a_single_one(counts, alpha):
    found = boundaries([*sorted(counts), 120], 120, alpha)
    single = boundaries([120], 120, alpha)[0]
    assert all(bound > single - 1e-6 for bound in found)


@pytest.mark.parametrize("counts", [[], [0], [60, 60], [60, 30]])
def test_looks_out_of_order_raise(counts):
    with pytest.raises(ValueError, match="growing"):
        boundaries(counts, 120)


def test_the_default_rule_looks_at_60_and_120_of_120():
    assert default_rule().look_counts() == [60, 120]
