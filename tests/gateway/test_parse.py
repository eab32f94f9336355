"""Shapes of streams that broke other recorders."""

import json

import pytest

from nightschool.gateway.dialects.chat_parse import parse_plain, parse_stream


def stream(*deltas: dict, finish: str | None = "stop", done: bool = True) -> bytes:
    pieces = [{"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if finish:
        pieces.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    raw = b"".join(b"data: " + json.dumps(piece).encode() + b"\n\n" for piece in pieces)
    return raw + (b"data: [DONE]\n\n" if done else b"")


def call(index: int | None, id_: str | None = None, name: str | None = None, arguments: str | None = None) -> dict:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    piece = {"id": id_, "function": function} | ({} if index is None else {"index": index})
    return {"tool_calls": [piece]}


def calls_of(raw: bytes) -> list[tuple]:
    message = parse_stream(raw).choices[0].message
    return [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]


def test_id_only_on_the_first_piece():
    raw = stream(call(0, "a", "f", ""), call(0, None, None, '{"x"'), call(0, None, None, ":1}"))
    assert calls_of(raw) == [("a", "f", '{"x":1}')]


def test_index_is_an_opaque_key():
    raw = stream(call(1, "a", "f", "{}"), call(3, "b", "g", "{"), call(3, None, None, "}"))
    assert calls_of(raw) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_pieces_without_index_and_repeated_names():
    raw = stream(call(None, "a", "f", "{"), call(None, None, "f", "}"), call(None, "b", "g", "{}"))
    assert calls_of(raw) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_empty_choices_and_usage_do_no_harm():
    raw = b'data: {"choices": [], "usage": {"x": 1}}\n\ndata: {"choices": null}\n\n' + stream({"content": "a"})
    parsed = parse_stream(raw)
    assert (parsed.error, parsed.choices[0].message["content"]) == (None, "a")


def test_choices_interleave_and_stay_apart():
    pieces = [(1, "B"), (0, "A"), (1, "b"), (0, "a")]
    raw = b"".join(
        b"data: "
        + json.dumps({"choices": [{"index": i, "delta": {"content": t}, "finish_reason": "stop"}]}).encode()
        + b"\n\n"
        for i, t in pieces
    )
    assert [choice.message["content"] for choice in parse_stream(raw).choices] == ["Aa", "Bb"]


def test_null_empty_and_unknown_fields_of_a_delta():
    raw = stream(
        {"role": "assistant", "content": None}, {"reasoning_content": "hm"}, {"reasoning_content": "m", "x": 3}
    )
    message = parse_stream(raw).choices[0].message
    assert message == {"role": "assistant", "content": None, "reasoning_content": "hmm", "x": 3}
    assert parse_stream(stream({"content": ""})).choices[0].message["content"] == ""


def test_ends_that_are_none():
    assert (
        parse_stream(stream({"content": "a"}, finish=None, done=False)).error
        == "The stream ended before its last event."
    )
    assert parse_stream(stream({"content": "a"}, done=False)).error is None
    assert parse_stream(b"data: {broken\n\ndata: [DONE]\n\n").error.startswith("An event of the stream is not JSON")
    assert parse_stream(b"").error == "The stream ended before its last event."


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"token_ids": None}, "no token ids"),
        ({"token_ids": [1, "2"]}, "no token ids"),
        ({"logprobs": None}, "no log-probabilities"),
        ({"logprobs": {"content": [{"logprob": -1.0}, {"logprob": None}]}}, "not a finite number"),
        ({"logprobs": {"content": [{"logprob": -1.0}, 4]}}, "not a finite number"),
        ({"logprobs": {"content": [{"logprob": -1.0}, {"logprob": -9999.0}]}}, "not told"),
        ({"logprobs": {"content": [{"logprob": -1.0}]}}, "2 token ids and 1 log-probabilities"),
        ({"token_ids": [], "logprobs": {"content": []}}, None),
    ],
)
def test_tokens_are_whole_or_missing(change, reason):
    choice = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop", "token_ids": [5, 6]}
    choice |= {"logprobs": {"content": [{"logprob": -1}, {"logprob": -0.5}]}} | change
    parsed = parse_plain(json.dumps({"prompt_token_ids": [1], "choices": [choice]}).encode())
    assert (parsed.tokens_missing is None) == (reason is None)
    assert reason is None or reason in (parsed.tokens_missing or "")
    assert (parsed.choices[0].behavior_logprobs is None) == (reason is not None)


def test_a_lone_surrogate_is_read():
    assert parse_plain(b'{"choices": [{"message": {"content": "\\ud83d"}}]}').choices[0].message["content"] == "\ud83d"
