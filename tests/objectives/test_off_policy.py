"""Off-policy weights: golden G5, the bounds, what is logged, and when staleness would count twice or not at all."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from ratios import POLICY, STALENESS, batch_of, golden_rows, row

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.objectives.clipping import BEHAVIOR, Clip
from nightschool.objectives.loss import Aggregation
from nightschool.objectives.off_policy import CORRECTIONS, WEIGHT, Correction, Weighing, require_correction, weigh
from nightschool.training.losses.clipped import clipped
from nightschool.types import Sample


def weights(samples: list[Sample], correction: Correction) -> list[list[float]]:
    made = weigh(samples, correction).samples
    return [[x for x in one.token_annotations[WEIGHT] if x is not None] for one in made]


TERMS = ([1.2, math.exp(-0.1)], [-0.8, -math.exp(0.1), -1.0, -math.exp(0.5)])  # G5 at bounds of 0.2


@pytest.mark.parametrize(
    ("name", "kept", "expected"),
    [
        # w: 1.051271 .980199 | 2.459603 .406570 .670320 1.105171
        ("tis-token", lambda w: min(w, 2.0), 0.398887),
        ("icepop", lambda w: w if 0.5 <= w <= 5 else 0.0, 0.385279),
        ("mis-token", lambda w: w if 0.5 <= w <= 2 else 0.0, 0.057332),
    ],
)
def test_golden_g5(name: str, kept, expected: float) -> None:
    by_hand = [[kept(math.exp(x)) for x in one] for one in STALENESS]
    assert -sum(w * t for ws, ts in zip(by_hand, TERMS, strict=True) for w, t in zip(ws, ts, strict=True)) / 6 == (
        pytest.approx(expected, abs=1e-6)
    )
    rows = weigh(golden_rows(), CORRECTIONS[name]).samples
    assert weights(golden_rows(), CORRECTIONS[name]) == [pytest.approx(one, abs=1e-6) for one in by_hand]
    loss = clipped(batch_of(rows, POLICY), weighted=True, aggregation=Aggregation.TOKEN_MEAN)
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_golden_sequence_ratios() -> None:
    # sums .03 and -.3; means .015 and -.075
    assert [math.exp(sum(one)) for one in STALENESS] == pytest.approx([1.030455, 0.740818], abs=1e-6)
    loose = Correction(Weighing.MASK_SEQUENCE, 0.0, 3.0)
    assert weights(golden_rows(), loose) == [
        pytest.approx([1.030455] * 2, abs=1e-6),
        pytest.approx([0.740818] * 4, abs=1e-6),
    ]
    tight = Correction(Weighing.MASK_SEQUENCE, 0.8, 3.0)
    assert weights(golden_rows(), tight) == [pytest.approx([1.030455] * 2, abs=1e-6), [0.0] * 4]
    cut = Correction(Weighing.TRUNCATE_SEQUENCE, high=1.0)
    assert weights(golden_rows(), cut) == [[1.0] * 2, pytest.approx([0.740818] * 4, abs=1e-6)]


def test_golden_geometric_ratios_reject_whole_sequences() -> None:
    # 1.015113 and 0.927744
    for low, high, kept in ((0.9277, 1.0152, ["y1", "y2"]), (0.9278, 1.0152, ["y1"]), (0.9277, 1.0151, ["y2"])):
        made = weigh(golden_rows(), Correction(Weighing.REJECT_GEOMETRIC, low, high))
        assert [one.id for one in made.samples] == kept
        assert made.figures["weight_clipped"] == (2 - len(kept)) / 2
    assert weights(golden_rows(), Correction(Weighing.REJECT_GEOMETRIC, 0.9, 1.1)) == [[1.0] * 2, [1.0] * 4]


def test_k3_rejects_whole_sequences() -> None:
    k3 = [sum(math.exp(x) - x - 1 for x in one) / len(one) for one in STALENESS]
    assert k3 == pytest.approx([0.000735, 0.235416], abs=1e-6)
    made = weigh(golden_rows(), CORRECTIONS["k3-rs"])
    assert [one.id for one in made.samples] == ["y1"]
    with pytest.raises(TooLittleDataError, match="Nothing is left"):
        weigh(golden_rows(), Correction(Weighing.REJECT_K3, high=1e-6))


def test_decoupled_ppo_drops_tokens_beyond_its_cap() -> None:
    far = row(
        "far", 2, reference=[-1.0, -1.0], token_annotations={BEHAVIOR: [-1.0 - math.log(6.0), -1.0 - math.log(4.0)]}
    )
    assert weights([far], CORRECTIONS["decoupled"]) == [[0.0, pytest.approx(4.0)]]


def test_what_is_logged() -> None:
    figures = weigh(golden_rows(), CORRECTIONS["tis-token"]).figures
    raw = [math.exp(x) for one in STALENESS for x in one]
    used = [min(w, 2.0) for w in raw]
    assert figures["weight_mean"] == pytest.approx(sum(raw) / 6)
    assert figures["weight_max"] == pytest.approx(math.exp(0.9))
    assert figures["weight_clipped"] == pytest.approx(1 / 6)
    assert figures["effective_sample_size"] == pytest.approx(sum(used) ** 2 / sum(w * w for w in used))
    assert figures["behavior_kl"] == pytest.approx(sum(w - math.log(w) - 1 for w in raw) / 6)


def test_weights_are_normalized_after_they_were_cut() -> None:
    # 2 and 4 at a bound of 2: 2 and 2, mean 2: 1 and 1. The other way round it would be 2/3 and 4/3.
    two = [
        row(name, 1, reference=[-1.0], token_annotations={BEHAVIOR: [-1.0 - math.log(w)]})
        for name, w in (("a", 2.0), ("b", 4.0))
    ]
    assert weights(two, Correction(Weighing.TRUNCATE_TOKEN, normalized=True)) == [[1.0], [1.0]]


def test_without_weights_the_drift_is_logged_all_the_same_and_without_behavior_nothing_is_known() -> None:
    made = weigh(golden_rows(), Correction())
    assert WEIGHT not in made.samples[0].token_annotations
    assert made.figures["weight_clipped"] == 0
    assert made.figures["behavior_kl"] > 0
    silent = [replace(one, token_annotations={}) for one in golden_rows()]
    assert weigh(silent, Correction()).figures == {}


def test_at_the_behavior_policy_every_correction_weighs_one() -> None:
    same = [replace(one, token_annotations={BEHAVIOR: one.reference_logprobs or ()}) for one in golden_rows()]
    for name, correction in CORRECTIONS.items():
        if name != "none":
            assert weights(same, correction) == [[1.0] * 2, [1.0] * 4], name


def test_a_product_of_thousands_of_ratios_keeps_nothing() -> None:
    """The length trap: 0.002 nats of engine noise a token is nothing for a token, and everything for 2000 of them."""
    long = row("long", 2000, reference=[-1.0] * 2000, token_annotations={BEHAVIOR: [-0.998] * 2000})
    assert weights([long, *golden_rows()], Correction(Weighing.MASK_SEQUENCE, 0.5, 3.0))[0] == [0.0] * 2000
    assert weights([long], CORRECTIONS["mis-token"])[0][0] == pytest.approx(math.exp(-0.002))


def test_a_weight_that_no_number_holds_is_cut() -> None:
    lost = row("lost", 1, reference=[-1.0], token_annotations={BEHAVIOR: [-4000.0]})
    assert weights([lost], CORRECTIONS["tis-token"]) == [[2.0]]


def test_a_tool_token_has_no_weight() -> None:
    said = row("s", 3, [1], reference=[-1.0, -1.0], token_annotations={BEHAVIOR: [-1.0, -1.0]})
    (made,) = weigh([said], CORRECTIONS["tis-token"]).samples
    assert made.token_annotations[WEIGHT] == (None, None, 1.0, None, 1.0)


def test_staleness_is_corrected_once() -> None:
    bypass = Clip(against=BEHAVIOR)
    with pytest.raises(RefusedError, match="corrected once"):
        require_correction(golden_rows(), CORRECTIONS["tis-token"], bypass)
    require_correction(golden_rows(), Correction(), bypass)


def test_versions_mix_only_under_weights() -> None:
    mixed = [replace(one, policy_version=v) for one, v in zip(golden_rows(), "ab", strict=True)]
    with pytest.raises(RefusedError, match="one anchor per buffer"):
        require_correction(mixed, Correction(), Clip())
    require_correction(mixed, CORRECTIONS["tis-token"], Clip())
    require_correction(mixed, Correction(), Clip(against=BEHAVIOR))


@pytest.mark.parametrize(
    ("correction", "clip"),
    [(CORRECTIONS["icepop"], Clip()), (Correction(), Clip(against=BEHAVIOR)), (Correction(), Clip(divergence=0.5))],
)
def test_what_reads_the_behavior_needs_all_of_it(correction: Correction, clip: Clip) -> None:
    holes = [replace(one, token_annotations={BEHAVIOR: (None,) * len(one.token_ids)}) for one in golden_rows()]
    with pytest.raises(RefusedError, match="engine's own"):
        require_correction(holes, correction, clip)
    require_correction(golden_rows(), correction, clip)
