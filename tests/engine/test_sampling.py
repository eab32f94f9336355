"""One uniform, one inverse: against probabilities computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from nightschool.engine.sampling import Sampling, draw, invert, nucleus

# softmax of these logits: 0.5, 0.3, 0.15, 0.05
LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()


@pytest.mark.parametrize(
    ("uniform", "expected"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2), (0.96, 3), (0.9999999, 3)]
)
def test_a_uniform_falls_into_its_token(uniform, expected):
    drawn = draw(LOGITS, [Sampling()], [uniform])
    assert drawn.ids == [expected]
    assert drawn.logprobs[0] == pytest.approx(LOGITS[0, expected].item(), abs=1e-6)


def test_temperature_is_applied_before_the_log_probability():
    # At temperature 0.5 probabilities are squared: 0.25, 0.09, 0.0225, 0.0025, sum 0.365.
    drawn = draw(LOGITS, [Sampling(temperature=0.5)], [0.9])
    assert drawn.ids == [1]  # 0.25 / 0.365 = 0.685, (0.25 + 0.09) / 0.365 = 0.93
    assert drawn.logprobs[0] == pytest.approx(math.log(0.09 / 0.365), abs=1e-6)


def test_top_p_renormalizes():
    # 0.5 + 0.3 reach 0.7: two tokens remain, with 0.625 and 0.375.
    low, high = (draw(LOGITS, [Sampling(top_p=0.7)], [uniform]) for uniform in (0.62, 0.63))
    assert (low.ids, high.ids) == ([0], [1])
    assert [low.logprobs[0], high.logprobs[0]] == pytest.approx([math.log(0.625), math.log(0.375)], abs=1e-6)


def test_rows_have_their_own_settings():
    drawn = draw(
        LOGITS.repeat(3, 1), [Sampling(temperature=0), Sampling(top_p=0.4), Sampling(temperature=0.5)], [0.99] * 3
    )
    assert drawn.ids == [0, 0, 2]  # greedy; the nucleus is one token; 0.99 > 0.93 at temperature 0.5
    expected = [math.log(0.5), 0.0, math.log(0.0225 / 0.365)]
    assert drawn.logprobs == pytest.approx(expected, abs=1e-6)


def test_best_alternatives_are_of_the_sampled_distribution():
    drawn = draw(LOGITS, [Sampling(top_logprobs=2)], [0.9])
    assert drawn.top_ids == [[0, 1]]
    assert drawn.top_logprobs[0] == pytest.approx([math.log(0.5), math.log(0.3)], abs=1e-6)


def test_the_inverse_is_exact_over_a_large_vocabulary():
    """The middle of every token's interval must give that token, in blocks and at their borders."""
    weights = torch.rand(1, 5000, generator=torch.Generator().manual_seed(0)).clamp_min(0.01)
    sums = weights.double().cumsum(-1)
    middles = ((sums - weights / 2) / sums[:, -1:])[0]
    ids, totals = invert(weights.expand(5000, -1), middles)
    assert ids.tolist() == list(range(5000))
    assert totals[0, 0].item() == pytest.approx(sums[0, -1].item(), rel=1e-6)


def test_a_token_without_weight_is_never_drawn():
    weights = torch.zeros(4, 1000)
    weights[:, 517] = 1e-30
    ids, _ = invert(weights, torch.tensor([0.0, 0.3, 0.999999, 1.0 - 2**-53], dtype=torch.float64))
    assert ids.tolist() == [517] * 4


def test_drawn_frequencies_follow_the_distribution():
    count = 20_000
    uniforms = torch.rand(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tolist()
    drawn = draw(LOGITS.expand(count, -1), [Sampling()] * count, uniforms)
    for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        error = math.sqrt(share * (1 - share) / count)
        assert drawn.ids.count(token) / count == pytest.approx(share, abs=4 * error)


def test_nucleus_keeps_the_token_that_crosses_the_border():
    weights = torch.tensor([[1.0, 4.0, 2.0, 3.0]])  # shares 0.1, 0.4, 0.2, 0.3
    assert nucleus(weights, torch.tensor([0.4], dtype=torch.float64)).tolist() == [[0, 4, 0, 0]]
    assert nucleus(weights, torch.tensor([0.41], dtype=torch.float64)).tolist() == [[0, 4, 0, 3]]
    assert nucleus(weights, torch.tensor([0.95], dtype=torch.float64)).tolist() == [[1, 4, 2, 3]]


def test_streams_differ_by_seed_and_choice_and_repeat():
    first = Sampling(seed=3).stream(0).random(4).tolist()
    assert Sampling(seed=3).stream(0).random(4).tolist() == first
    assert Sampling(seed=3).stream(1).random(4).tolist() != first
    assert Sampling(seed=-3).stream(0).random(4).tolist() != first
