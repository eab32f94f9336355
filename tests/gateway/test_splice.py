import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightschool.gateway import splice
from nightschool.gateway.dialects import hiding
from nightschool.gateway.dialects.hiding import Hidden, hide_in_event, hide_in_reply
from nightschool.gateway.dialects.sse import EventSplitter
from nightschool.gateway.splice import NotJsonError

KEYS = st.sampled_from(["a", "b", "c", "dä", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(KEYS, VALUES, max_size=5), st.sets(KEYS), st.sampled_from([None, 1]))
def test_dropping_members_leaves_the_rest(value, keys, indent):
    text = json.dumps(value, indent=indent)
    left = splice.apply(text, splice.drop_members(splice.read_object(text), frozenset(keys)))
    assert json.loads(left) == {key: item for key, item in value.items() if key not in keys}


@given(st.dictionaries(KEYS, VALUES, max_size=5), st.dictionaries(KEYS, VALUES, max_size=3))
def test_setting_members_leaves_the_rest(value, new):
    text = json.dumps(value)
    assert json.loads(splice.apply(text, splice.set_members(text, splice.read_object(text), new))) == value | new


def test_every_repeat_of_a_key_is_set():
    text = '{"model": "a", "x": 1, "model": "b"}'
    edits = splice.set_members(text, splice.read_object(text), {"model": "m"})
    assert splice.apply(text, edits) == '{"model": "m", "x": 1, "model": "m"}'


@pytest.mark.parametrize(
    "text",
    ["", "[]", "1", '{"a":1', '{"a":1}}', '{"a" 1}', '{"a":}', "{a:1}", '{"a":1,}', '{"a":NaN}', '{"a":[1,Infinity]}'],
)
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(NotJsonError):
        splice.read_object(text)


def test_deep_nesting_is_refused_not_fatal():
    with pytest.raises(NotJsonError, match="nested too deeply"):
        splice.read_object('{"a":' + "[" * 100_000)


@given(st.lists(st.sampled_from(["data: x", "\n", "\r", "\r\n", ": c", "é", "\n\n"]), max_size=12), st.data())
def test_splitting_loses_no_byte_and_does_not_depend_on_the_cuts(parts, data):
    raw = "".join(parts).encode()
    whole, cut = EventSplitter(), EventSplitter()
    events = whole.feed(raw)
    assert b"".join(events) + whole.rest == raw
    places = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    pieces = [raw[a:b] for a, b in zip([0, *places], [*places, len(raw)], strict=True)]
    pieced = [event for piece in pieces for event in cut.feed(piece)]
    assert b"".join(pieced) + cut.rest == raw
    # A cut between CR and LF may close an event one byte early; what the events say stays the same.
    assert [e.strip() for e in pieced if e.strip()] == [e.strip() for e in events if e.strip()]


@pytest.mark.parametrize("number", ["123456789012345678901234", "0.1234567890123456789", "1.50", "-0.0", "1e5"])
def test_numbers_of_an_event_survive(number):
    raw = b'data: {"model":"m","token_ids":1,"x":' + number.encode() + b',"choices":[{"token_ids":[1]}]}\n\n'
    hidden = hide_in_event(raw, Hidden(model="shop", ids=True))
    exact = {"parse_float": Decimal}
    assert json.loads(hidden[6:], **exact) == {
        "model": "shop",
        "token_ids": 1,
        "x": json.loads(number, **exact),
        "choices": [{}],
    }


def test_an_event_without_ours_keeps_its_bytes():
    raw = b'data: {"x": 1.50,  "choices":[{"logprobs":null}]}\n\n'
    assert hide_in_event(raw, Hidden(logprobs=True, ids=True)) == raw


odd_keys = st.sampled_from(
    ["model", "choices", "message", "response", "token_ids", "logprobs", "logprobs", 'x"model', "mod\u00e9l", "a"]
)
odd_values = st.recursive(
    st.none() | st.integers() | st.sampled_from(["m", 'say "model": "m"', "{", "\\", "\u4e2d"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(odd_keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(odd_keys, odd_values, max_size=5), st.booleans(), st.sampled_from([",", ", "]), st.booleans())
def test_the_quick_way_to_rename_a_model_is_the_slow_one(reply, ascii_only, comma, all_hidden):
    raw = json.dumps(reply, ensure_ascii=ascii_only, separators=(comma, ":")).encode()
    hidden = Hidden(model="shop", logprobs=all_hidden, ids=all_hidden)
    quick = hide_in_reply(raw, hidden)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hiding, "_only_renamed", lambda *_: None)
        assert quick == hide_in_reply(raw, hidden)
