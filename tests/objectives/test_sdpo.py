import pytest

from nightschool.errors import RefusedError
from nightschool.objectives.hindsight import HindsightRule
from nightschool.objectives.hindsight import annotate as annotate_hindsight
from nightschool.objectives.loss import TOP
from nightschool.objectives.sdpo import SDPO, SdpoRule, annotate
from nightschool.types import Sample

ROW = Sample("a", (1, 2, 3), (False, True, True), (False, True, True))


def test_what_the_rule_asks_of_the_model() -> None:
    dense = SDPO.loss(SdpoRule())
    assert (dense.name, dense.num_top, TOP in dense.outputs) == ("top_divergence", 20, True)
    sampled = SDPO.loss(SdpoRule(alpha=1.0, top=0, gate=5.0))
    assert (sampled.name, sampled.num_top, sampled.settings["gate"]) == ("reverse_kl", 0, 5.0)
    assert SDPO.loss(SdpoRule(alpha=1.0, top=0)).settings["gate"] is None
    pulled = SDPO.loss(SdpoRule(alpha=1.0, top=4, clip=1.0))
    assert (pulled.name, pulled.num_top, pulled.settings["clip"]) == ("top_pull", 4, 1.0)
    assert dense.settings["max_ratio"] == sampled.settings["max_ratio"] == 2.0


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (SdpoRule(alpha=1.5), "between 0 and 1"),
        (SdpoRule(top=0), "reverse divergence"),
        (SdpoRule(gate=1.0), "sampled tokens"),
        (SdpoRule(max_ratio=0.0), "not negative"),
        (SdpoRule(clip=-1.0), "not negative"),
        (SdpoRule(clip=1.0), "over top tokens"),
        (SdpoRule(alpha=1.0, top=0, clip=1.0), "over top tokens"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(rule: SdpoRule, says: str) -> None:
    assert annotate([ROW], SdpoRule()) == [ROW]
    with pytest.raises(RefusedError, match=says):
        annotate([ROW], rule)


def test_hindsight_needs_a_clip_above_zero() -> None:
    assert annotate_hindsight([ROW], HindsightRule()) == [ROW]
    with pytest.raises(RefusedError, match="above zero"):
        annotate_hindsight([ROW], HindsightRule(clip=0.0))
