"""An engine may send anything: what was translated ends with the dialect's error, or says what the record says."""

from __future__ import annotations

import copy
import json
from typing import Any

import anthropic
import dialect_answers as made
import openai
import pytest
from dialect_answers import Answer, answers, cuts, data
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_upstream import HEAD, LAST_CHUNK, chunk, plain, raw_upstream

from nightschool.gateway.dialects.chat import CHAT
from nightschool.gateway.dialects.dialect import Dialect, ParsedReply, read_request
from nightschool.gateway.dialects.messages import MESSAGES
from nightschool.gateway.dialects.passage import Translated
from nightschool.gateway.dialects.responses import RESPONSES
from nightschool.gateway.dialects.sse import EventSplitter, load_json, read_events
from nightschool.gateway.replies import RequestRefused
from nightschool.types import Json
from nightschool.upstream.settings import UpstreamSettings

ODD = st.sampled_from([None, "", "x", 0, -1, 7, 1.5, True, [], {}, [None], ["x"], [[]], {"a": 1}, [{"index": {}}]])
NOISE = [
    b"data: [DONE]\n\n",
    b"data: {\n\n",
    b"data: null\n\n",
    b'data: "x"\n\n',
    b"data: [1]\n\n",
    b": ping\n\n",
    b"event: x\n\n",
    b'data: {"error": {"message": "no"}}\n\n',
    b'data: {"error": 5}\n\n',
    b'data: {"id": "id-1", "choices": [{"index": 0, "delta": {"content": "\xff\xe2\x82"}}]}\n\n',
    b'data: {"created": 1e999, "id": {}, "choices": null}\n\n',
]
DIALECTS = st.sampled_from([MESSAGES, RESPONSES])
MANY = settings(max_examples=200, deadline=None)


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Every member and item inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in ((*path, key), *places(item, (*path, key)))]


def bent(draw: st.DrawFn, value: Json) -> Json:
    """The value with one member dropped, renamed or of another type."""
    value = copy.deepcopy(value)
    found = places(value)
    if not found:
        return value
    *way, last = draw(st.sampled_from(found))
    holder = value
    for key in way:
        holder = holder[key]
    match draw(st.sampled_from(["drop", "retype", "retype", "repeat"])):
        case "drop":
            del holder[last]
        case "repeat" if isinstance(holder, list):
            holder.append(holder[last])
        case _:
            holder[last] = draw(ODD)
    return value


@st.composite
def odd_streams(draw: st.DrawFn) -> bytes:
    """A stream of chat completions with events damaged, dropped, doubled, swapped, cut short or put between."""
    raw = made.chat_stream(draw(answers()), draw(cuts()))
    events = [event + b"\n\n" for event in raw.split(b"\n\n") if event]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(events) - 1))
        match draw(st.sampled_from(["bend", "bend", "bend", "drop", "double", "swap", "noise", "cut"])):
            case "bend" if events[at].startswith(b"data: {") and next(read_events(events[at])).broken is None:
                events[at] = data(bent(draw, next(read_events(events[at])).value))
            case "drop" if len(events) > 1:
                del events[at]
            case "double":
                events.insert(at, events[at])
            case "swap":
                events[at - 1], events[at] = events[at], events[at - 1]
            case "cut":
                events[at] = events[at][: draw(st.integers(0, len(events[at])))]
            case _:
                events.insert(at, draw(st.sampled_from(NOISE)))
    return b"".join(events)


def reading_in(dialect: Dialect) -> Any:
    fields = {"model": "shop", "stream": True, **({"input": "x"} if dialect is RESPONSES else {"messages": []})}
    assert dialect.translation is not None
    request = read_request(json.dumps(fields).encode(), dialect)
    return Translated(dialect.translation, request, False, ()).reading("m", 200)


def said(parsed: ParsedReply) -> tuple[str, list]:
    """The text and the calls of the first choice."""
    message: Json = next((choice.message for choice in parsed.choices if choice.index == 0), {})
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return message.get("content") or "", calls


@MANY
@given(odd_streams(), DIALECTS)
def test_a_damaged_stream_never_looks_whole_to_one_side_alone(raw: bytes, dialect: Dialect):
    reading, splitter = reading_in(dialect), EventSplitter()
    told = b"".join([*map(reading.event, splitter.feed(raw)), reading.event(splitter.rest), reading.end()])
    client, record = dialect.read(told, True), CHAT.read(raw, True)
    assert client.ending in ("ok", "incomplete", "upstream_error"), client  # the stream has an end of its dialect
    if client.ending == "upstream_error":
        assert client.error
        assert record.ending != "ok" or reading.fault
    elif record.ending == "ok":
        text, calls = said(record)
        if isinstance(text, str) and all(name and made.is_object(arguments) for name, arguments in calls):
            client_text, client_calls = said(client)
            assert client_text == text
            assert [(n, load_json(a)) for n, a in client_calls] == [(n, load_json(a)) for n, a in calls]


@MANY
@given(st.data(), answers(), DIALECTS)
def test_a_damaged_plain_reply_is_translated_or_refused(draw: st.DataObject, answer: Answer, dialect: Dialect):
    value = json.loads(made.chat_plain(answer))
    for _ in range(draw.draw(st.integers(1, 3))):
        value = bent(draw.draw, value)
    try:
        told = reading_in(dialect).plain(made.dump(value))
    except RequestRefused as refusal:
        told = made.dump({"error": refusal.code})
    assert dialect.read(told, False).ending in ("ok", "incomplete", "upstream_error")


CUT_STREAM = data({"id": "c", "choices": [{"index": 0, "delta": {"content": "Hel"}}]})
FAULTS = {
    "choices are a text": data({"choices": "abc"}),
    "delta is a text": data({"choices": [{"index": 0, "delta": "abc"}]}),
    "a call is a text": data({"choices": [{"index": 0, "delta": {"tool_calls": ["abc"]}}]}),
    "arguments are a list": data(
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": [1]}}]}}]}
    ),
    "no JSON": b'data: {"choices": [\n\n',
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("dialect", [MESSAGES, RESPONSES])
def test_what_cannot_be_read_ends_the_stream_with_an_error(name: str, dialect: Dialect):
    reading = reading_in(dialect)
    begin, fault = reading.event(CUT_STREAM), reading.event(FAULTS[name])
    client = dialect.read(begin + fault, True)
    assert (client.ending, said(client)[0]) == ("upstream_error", "Hel")
    assert (reading.event(CUT_STREAM), reading.end()) == (b"", b"")
    record = CHAT.read(CUT_STREAM + FAULTS[name], True)
    assert (record.ending, record.choices[0].message["content"]) == ("error", "Hel")


def test_nothing_counts_after_the_word_that_ends_a_stream():
    end = data({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}) + b"data: [DONE]\n\n"
    record = CHAT.read(CUT_STREAM + end + CUT_STREAM, True)
    assert (record.ending, record.choices[0].message["content"]) == ("ok", "Hel")


def test_choices_in_any_order_are_told_by_their_number():
    both = [{"index": 1, "delta": {"content": "B"}}, {"index": 0, "delta": {"content": "A"}, "finish_reason": "stop"}]
    reading = reading_in(MESSAGES)
    told = reading.event(data({"choices": both})) + reading.event(b"data: [DONE]\n\n")
    assert said(MESSAGES.read(told, True))[0] == "A"


def test_arguments_that_a_server_writes_as_an_object_are_kept():
    call = {"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}
    raw = made.dump({"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]})
    for dialect in (MESSAGES, RESPONSES):
        name, arguments = said(dialect.read(reading_in(dialect).plain(raw), False))[1][0]
        assert (name, json.loads(arguments)) == ("f", {"x": 1})


def test_a_huge_event_is_translated_whole():
    text = "ü" * 5_000_000  # 10 MB
    end = data({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]})
    reading = reading_in(MESSAGES)
    assert said(MESSAGES.read(reading.event(end) + reading.end(), True))[0] == text


def test_official_clients_are_told_and_the_bytes_are_kept(open_gateway):
    """Half a reply, then what is no reply: the client raises, and the store has the bytes and the reason."""
    with raw_upstream() as upstream:
        gateway = open_gateway(upstream.url, base_model="m", upstream=UpstreamSettings(gives_tokens=False))
        raw = CUT_STREAM + data({"id": "c", "choices": [{"index": 0, "delta": 5}]}) + CUT_STREAM
        upstream.answer(HEAD, chunk(raw), LAST_CHUNK)
        claude = anthropic.Anthropic(base_url=gateway.url, api_key="any", max_retries=0)
        asked = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
        refused = pytest.raises(anthropic.APIError, match="another shape")
        with claude, refused, claude.messages.stream(**asked) as stream:
            stream.until_done()
        row = gateway.row("c")
        assert (row.status, row.http_status, "another shape" in row.error) == ("error", 200, True)
        with gateway.client() as client:
            streamed = list(client.responses.create(model="shop", input="Hi", stream=True))
            assert streamed[-1].type == "response.failed"
            upstream.answer(plain(b'{"id": "d", "choices": {"0": 1}}'))
            with pytest.raises(openai.InternalServerError, match="was not translated"):
                client.responses.create(model="shop", input="Hi")
