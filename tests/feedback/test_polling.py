"""Whose opinion is asked for, and that its share is what was set."""

from __future__ import annotations

import pytest

from nightschool.errors import ConfigError
from nightschool.feedback.polling import is_polled
from nightschool.feedback.settings import feedback_settings
from nightschool.store.ids import new_id


def test_the_share_is_what_was_set_and_a_larger_one_asks_the_same_and_more() -> None:
    ids = [new_id() for _ in range(4000)]
    few, many = ([is_polled(one, share) for one in ids] for share in (0.1, 0.3))
    # 400 with a standard deviation of 19
    assert 330 < sum(few) < 470
    assert all(b for a, b in zip(few, many, strict=True) if a)
    assert not any(is_polled(one, 0.0) for one in ids)
    assert all(is_polled(one, 1.0) for one in ids)


@pytest.mark.parametrize("share", [-0.1, 1.1, True, "x", float("nan")])
def test_a_share_that_is_none_is_told(share: object) -> None:
    with pytest.raises(ConfigError, match="share of replies"):
        feedback_settings({"poll": share}, {})
    assert feedback_settings({"poll": 0.05}, {}).poll == 0.05
    assert feedback_settings({}, {}).poll == 0.0
