"""The token view: classes by surprise, titles that show what a space is."""

import math

import pytest
from tiny import write_tiny_tokenizer

from nightschool.dashboard.tokens import decoder, surprise_class, token_row


@pytest.mark.parametrize(
    ("p", "name"), [(1.0, "s0"), (0.95, "s0"), (0.9, "s1"), (0.51, "s1"), (0.49, "s2"), (0.15, "s3"), (0.01, "s4")]
)
def test_surprise_classes(p: float, name: str) -> None:
    # edges in nats 0.1, 0.7, 1.6, 3: probabilities 0.905, 0.497, 0.202, 0.0498
    assert surprise_class(math.log(p)) == name


def test_a_missing_logprob_has_no_class_and_says_so() -> None:
    assert surprise_class(None) == surprise_class(math.nan) == ""
    [token] = token_row([88], [None], None)
    assert token.title == "88 “88␣” log-prob missing"


def test_a_title_names_id_text_p_and_logprob() -> None:
    # exp(-1.17) is 0.310
    [token] = token_row([88], [-1.17], lambda ids: [" 88\n"])
    assert token.title == "88 “␣88⏎” p 0.31, log-prob −1.17"


def test_ids_are_spelled_by_the_models_tokenizer(tmp_path) -> None:
    write_tiny_tokenizer(tmp_path)
    decode = decoder(str(tmp_path))
    assert decode is not None
    assert decode([2]) == ["<|im_end|>"]
    assert decoder(str(tmp_path / "nowhere")) is None
