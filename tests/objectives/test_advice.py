from nightschool.objectives.advice import TABLE, advise
from nightschool.objectives.catalog import OBJECTIVES


def test_the_first_of_which_there_is_enough():
    assert advise({}) is None
    assert advise({"sft": 11, "oapl": 39}) is None
    found = advise({"sft": 500, "dpo": 32, "oapl": 39})
    assert found is not None
    assert found.name == "dpo"


def test_whatever_is_advised_exists():
    assert {advice.name for advice in TABLE} <= OBJECTIVES.keys()
