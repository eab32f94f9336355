"""Text while it arrives."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from nightschool.engine.text import Decoder, certain, find_stop


@pytest.fixture
def tokenizer(tiny) -> Tokenizer:
    return Tokenizer.from_file(str(tiny / "tokenizer.json"))


def test_pieces_end_at_whole_characters(tokenizer):
    ids = tokenizer.encode("aé€😀b").ids  # 1 + 2 + 3 + 4 + 1 bytes, one token each
    decoder = Decoder(tokenizer)
    assert [decoder.push(i) for i in ids] == ["a", "", "é", "", "", "€", "", "", "", "😀", "b"]
    assert decoder.text == "aé€😀b"


def test_bytes_that_never_become_a_character_are_shown_in_the_end(tokenizer):
    ids = tokenizer.encode("a€").ids[:-1]
    decoder = Decoder(tokenizer)
    assert "".join(decoder.push(i) for i in ids) == "a"
    assert decoder.flush() == tokenizer.decode(ids) == "a\ufffd"


def test_special_tokens_have_no_text(tokenizer):
    decoder = Decoder(tokenizer)
    assert [decoder.push(i) for i in (1, 2, *tokenizer.encode("x").ids)] == ["", "", "x"]


def test_the_first_stop_string_wins_also_across_pieces():
    assert find_stop("one two", 3, ("two", "ne t")) == 1
    assert find_stop("abcSTOP", 1, ("STOP",)) == 3
    assert find_stop("abcSTO", 1, ("STOP",)) is None
    assert find_stop("STOP and x", 1, ("STOP",)) is None  # that one was searched before


@pytest.mark.parametrize(
    ("text", "stop", "calls", "expected"),
    [
        ("hello", (), False, "hello"),
        (" hello ", (), False, " hello "),
        ("hello ST", ("STOP",), False, "hello "),
        ("hello STx", ("STOP",), False, "hello STx"),
        ("hello", (), True, "hello"),
        (" hello ", (), True, "hello"),
        ("hello <tool", (), True, "hello"),
        ("hello <toolbox", (), True, "hello <toolbox"),
        ('hello <tool_call>{"name"', (), True, "hello"),
        ("<", (), True, ""),
    ],
)
def test_only_what_later_tokens_cannot_take_back_is_shown(text, stop, calls, expected):
    assert certain(text, stop, calls) == expected
