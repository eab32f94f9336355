"""What a message holds besides text, told by kind, type and size."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightschool.dashboard.parts import other_parts

URL = "https://a.example/b.png"
DATA = base64.b64encode(bytes(300)).decode()  # 400 characters
INLINE = f"data:image/png;base64,{DATA}"

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"type": "image_url", "image_url": {"url": INLINE}}, ("image", "image/png", 300, None)),
        ({"type": "image_url", "image_url": {"url": URL}}, ("image", None, None, URL)),
        ({"type": "input_image", "image_url": URL}, ("image", None, None, URL)),
        ({"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}, ("audio", "wav", 300, None)),
        ({"type": "file", "file": {"file_id": "file-1"}}, ("file", None, None, "file-1")),
        ({"type": "image", "source": {"media_type": "image/gif", "data": DATA}}, ("image", "image/gif", 300, None)),
        ({"type": "video"}, ("video", None, None, None)),
    ],
)  # fmt: skip
def test_a_part_is_told_by_kind_type_size_and_place(part, told):
    [found] = other_parts({"content": [{"type": "text", "text": "look"}, part]})
    assert (found["kind"], found["media"], found["size_bytes"], found["where"]) == told


def test_reasoning_and_refusals_are_parts_with_words():
    message = {
        "content": None,
        "reasoning_content": "first I look",
        "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}, "junk"],
        "refusal": "I cannot help with that.",
    }
    assert [(part["kind"], part["text"], part["where"]) for part in other_parts(message)] == [
        ("reasoning", "first I look", None),
        ("thinking block", "hm", "signed"),
        ("refusal", "I cannot help with that.", None),
    ]


@given(st.dictionaries(st.sampled_from(["content", "thinking_blocks", "reasoning", "refusal"]), anything))
def test_no_message_is_too_odd(message):
    for part in other_parts(message):
        assert isinstance(part["kind"], str)


def test_text_has_no_parts():
    assert other_parts({"content": "hello"}) == other_parts({"content": [{"type": "text", "text": "x"}]}) == []
