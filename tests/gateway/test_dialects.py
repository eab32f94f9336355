"""The same answer, streamed or not, in any dialect, is the same in the store and to the client."""

from __future__ import annotations

import json

import dialect_answers as made
import pytest
from dialect_answers import Answer, Cut, answers, cuts
from hypothesis import given, settings
from hypothesis import strategies as st

from nightschool.gateway.dialects.chat import CHAT
from nightschool.gateway.dialects.completions import COMPLETIONS
from nightschool.gateway.dialects.dialect import Dialect, ParsedReply, read_request
from nightschool.gateway.dialects.messages import MESSAGES
from nightschool.gateway.dialects.passage import Direct, Translated
from nightschool.gateway.dialects.responses import RESPONSES
from nightschool.gateway.dialects.sse import EventSplitter, read_events

SPLITS = st.lists(st.integers(1, 40), min_size=1, max_size=8)
FEW = settings(max_examples=60, deadline=None)


def found(parsed: ParsedReply) -> tuple:
    """What must not depend on dialect or streaming. Whole thoughts with signatures differ by dialect."""
    assert len(parsed.choices) == 1
    message = {k: v for k, v in parsed.choices[0].message.items() if k not in ("thinking_blocks", "reasoning_details")}
    counts = {k: v for k, v in (parsed.usage or {}).items() if k in ("prompt_tokens", "completion_tokens")}
    return message, parsed.choices[0].finish_reason, counts, parsed.upstream_id


def expected(answer: Answer) -> tuple:
    counts = {"prompt_tokens": answer.counts[0], "completion_tokens": answer.counts[1]}
    return answer.normal(), answer.reason, counts, "id-1"


def pieces(raw: bytes, sizes: list[int]) -> list[bytes]:
    """`raw` cut wherever it falls, also inside a character or between CR and LF."""
    parts, at, turn = [], 0, 0
    while at < len(raw):
        parts.append(raw[at : at + sizes[turn % len(sizes)]])
        at += sizes[turn % len(sizes)]
        turn += 1
    return parts


def through(passage: Direct | Translated, raw: bytes, sizes: list[int]) -> bytes:
    """What the client gets of a stream that arrives in such pieces."""
    reading, splitter = passage.reading("engine-name", 200), EventSplitter()
    out = [reading.event(event) for part in pieces(raw, sizes) for event in splitter.feed(part)]
    return b"".join([*out, reading.event(splitter.rest), reading.end()])


def request_for(dialect: Dialect, **more: object):
    fields = {"model": "shop", **({"input": "x"} if dialect is RESPONSES else {"messages": []}), **more}
    return read_request(json.dumps(fields).encode(), dialect)


@FEW
@given(answers(), cuts(), st.booleans())
def test_every_parser_finds_the_same(answer: Answer, cut: Cut, whole: bool):
    ending = "incomplete" if answer.cut_short else "ok"
    for parsed, status in (
        (CHAT.parse_plain(made.chat_plain(answer)), "ok"),
        (CHAT.parse_stream(made.chat_stream(answer, cut)), "ok"),
        (MESSAGES.parse_plain(made.messages_plain(answer)), "ok"),
        (MESSAGES.parse_stream(made.messages_stream(answer, cut)), "ok"),
        (RESPONSES.parse_plain(made.responses_plain(answer)), ending),
        (RESPONSES.parse_stream(made.responses_stream(answer, cut, whole)), ending),
    ):
        assert found(parsed) == expected(answer)
        assert parsed.ending == status


@FEW
@given(answers(), cuts())
def test_signed_thoughts_are_whole_streamed_or_not(answer: Answer, cut: Cut):
    for dialect, plain, stream in (
        (MESSAGES, made.messages_plain(answer), made.messages_stream(answer, cut)),
        (RESPONSES, made.responses_plain(answer), made.responses_stream(answer, cut, whole_at_end=False)),
    ):
        assert dialect.parse_plain(plain).choices == dialect.parse_stream(stream).choices


@FEW
@given(answers(), cuts(), SPLITS, st.sampled_from([MESSAGES, RESPONSES]))
def test_a_translated_reply_says_the_same(answer: Answer, cut: Cut, sizes: list[int], dialect: Dialect):
    assert dialect.translation is not None
    streamed = request_for(dialect, stream=True)
    passage = Translated(dialect.translation, streamed, False, ())
    raw = through(passage, made.chat_stream(answer, cut), sizes)
    plain = passage.reading("engine-name", 200).plain(made.chat_plain(answer))
    assert found(dialect.parse_stream(raw)) == expected(answer)
    assert found(dialect.parse_plain(plain)) == expected(answer)
    check_framing(dialect, raw)


def check_framing(dialect: Dialect, raw: bytes) -> None:
    """Numbers rise by one; blocks open and close one after another; the last event ends the stream."""
    events = [event.value for event in read_events(raw)]
    if dialect is RESPONSES:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        added = [e["output_index"] for e in events if e["type"] == "response.output_item.added"]
        assert added == list(range(len(added)))
        assert events[-1]["type"] in ("response.completed", "response.incomplete")
        return
    open_block, next_index = None, 0
    for event in events:
        if event["type"] == "content_block_start":
            assert (open_block, event["index"]) == (None, next_index)
            open_block, next_index = next_index, next_index + 1
        elif event["type"] in ("content_block_delta", "content_block_stop"):
            assert event["index"] == open_block
            open_block = open_block if event["type"] == "content_block_delta" else None
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]


@FEW
@given(answers(), cuts(), SPLITS)
def test_a_direct_stream_is_the_same_however_it_arrives(answer: Answer, cut: Cut, sizes: list[int]):
    for dialect, raw in (
        (CHAT, made.chat_stream(answer, cut)),
        (MESSAGES, made.messages_stream(answer, cut)),
        (RESPONSES, made.responses_stream(answer, cut)),
    ):
        crlf = raw.replace(b"\n", b"\r\n")
        assert through(Direct(dialect, request_for(dialect, model="engine-name"), False), crlf, sizes) == crlf
        assert found(dialect.parse_stream(crlf)) == expected(answer)


@FEW
@given(st.lists(made.TEXT, min_size=1, max_size=3), cuts())
def test_completions_are_read_alike(texts: list[str], cut: Cut):
    plain = [{"index": i, "text": text, "finish_reason": "stop"} for i, text in enumerate(texts)]
    raw = made.dump({"id": "c", "choices": plain})
    events = [
        made.data({"id": "c", "choices": [{"index": i, "text": piece, "finish_reason": None}]})
        for i, text in enumerate(texts)
        for piece in cut(text)
    ]
    ends = [made.data({"choices": [{"index": i, "text": "", "finish_reason": "stop"}]}) for i in range(len(texts))]
    parsed = COMPLETIONS.parse_plain(raw)
    assert [choice.message for choice in parsed.choices] == [{"role": "assistant", "content": t} for t in texts]
    assert COMPLETIONS.parse_stream(b"".join([*events, *ends, b"data: [DONE]\n\n"])) == parsed


def test_a_model_hidden_deep_in_events_gets_its_own_name_back():
    for dialect, event in (
        (MESSAGES, b'event: message_start\ndata: {"type":"message_start", "message":{"model": "engine-name","id":1}}'),
        (RESPONSES, b'event: response.created\ndata: {"response":{"id":1, "model":"engine-name"}}'),
    ):
        passage = Direct(dialect, request_for(dialect), False)
        assert passage.body("engine-name").startswith(b'{"model": "engine-name"')
        assert (
            passage.reading("engine-name", 200).event(event + b"\n\n")
            == event.replace(b"engine-name", b"shop") + b"\n\n"
        )


@pytest.mark.parametrize("dialect", [MESSAGES, RESPONSES])
def test_an_error_inside_a_translated_stream_ends_it_in_the_dialect(dialect: Dialect):
    passage = Translated(dialect.translation, request_for(dialect, stream=True), False, ())
    raw = made.data({"id": "c", "choices": [{"index": 0, "delta": {"content": "Hel"}}]})
    raw += made.data({"error": {"message": "Out of memory."}}) + b"data: [DONE]\n\n"
    parsed = dialect.parse_stream(through(passage, raw, [7]))
    assert (parsed.ending, parsed.error) == ("upstream_error", "Out of memory.")


@pytest.mark.parametrize("dialect", [MESSAGES, RESPONSES])
def test_a_translated_stream_that_breaks_off_does_not_look_whole(dialect: Dialect):
    passage = Translated(dialect.translation, request_for(dialect, stream=True), False, ())
    raw = made.data({"id": "c", "choices": [{"index": 0, "delta": {"content": "Hel"}}]})
    parsed = dialect.parse_stream(through(passage, raw, [7]))
    assert (parsed.ending, parsed.choices[0].message["content"]) == ("upstream_error", "Hel")
    assert "ended before its last event" in (parsed.error or "")
