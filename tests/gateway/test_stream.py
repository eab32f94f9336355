import json
import threading
import time

import openai
import pytest

from nightschool.types import Fidelity
from nightschool.upstream.settings import UpstreamSettings

ASK = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}
CALLS = (("find_order", '{"id": "A–7"}'), ("refund", '{"id": 9, "all": true}'))


def data(raw: bytes) -> list:
    """The JSON of each event of a stream."""
    events = [event.removeprefix(b"data: ") for event in raw.split(b"\n\n") if event]
    return [json.loads(event) if event != b"[DONE]" else "[DONE]" for event in events]


def test_openai_client_streams(gateway):
    with gateway.client() as client:
        chunks = list(client.chat.completions.create(**ASK, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello ✓"
    assert {chunk.model for chunk in chunks} == {"shop"}
    assert all(chunk.choices[0].logprobs is None for chunk in chunks)
    assert not any("token_ids" in chunk.model_dump_json() for chunk in chunks)
    exchange = gateway.recorded("chatcmpl-1")
    assert exchange.choices[0].message == {"role": "assistant", "content": "Hello ✓"}
    # The fake engine numbers the tokens of each event from 10; two events of one word each.
    assert exchange.choices[0].completion_ids == (10, 10)
    assert exchange.fidelity == Fidelity.EXACT


def test_stream_equals_a_direct_one_after_removal(gateway):
    _, headers, raw = gateway.chat(ASK | {"stream": True})
    direct = b"".join(gateway.engine.stream_events(ASK | {"stream": True}))
    assert data(raw) == data(direct)
    assert headers["content-type"].startswith("text/event-stream")
    assert set(headers) >= {"x-nightschool-exchange", "x-nightschool-policy", "x-nightschool-overhead-ms"}


def test_stream_passes_byte_for_byte_when_nothing_is_added(open_gateway):
    gateway = open_gateway(agent="tiny-base", upstream=UpstreamSettings(gives_tokens=False))
    gateway.engine.events = [
        b": a comment\r\n\r",
        b'\ndata:{"id":"x","choices":[]}\n\n',
        b'event: x\ndata: {"choices": [{"index":0,"delta":{"content":"\xe2\x9c',
        b'\x93"},\r\ndata: "finish_reason":"stop"}]}\r\r',
        b"data: [DONE]\n\n",
        b"tail without end",
    ]
    _, _, raw = gateway.chat(ASK | {"model": "tiny-base", "stream": True})
    assert raw == b"".join(gateway.engine.events)
    assert gateway.recorded("x").choices[0].message["content"] == "✓"


def test_odd_framing_is_kept_while_ours_is_taken_out(gateway):
    gateway.engine.events = [
        b': hi\r\n\r\nid: 4\r\ndata: {"model":"tiny-base", "prompt_token_ids":[1],"choices":[]}\r\n\r\n',
        b'data: {"choices":[{"token_ids":[5],\ndata:  "index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n',
        b"data: not json\n\ndata: [DONE]\n\n",
    ]
    _, _, raw = gateway.chat(ASK | {"stream": True})
    assert raw == (
        b': hi\r\n\r\nid: 4\r\ndata: {"model":"shop","choices":[]}\r\n\r\n'
        b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
        b"data: not json\n\ndata: [DONE]\n\n"
    )


def test_streamed_tool_calls_record_like_plain_ones(gateway):
    gateway.engine.calls = CALLS
    with gateway.client() as client:
        chunks = list(client.chat.completions.create(**ASK, stream=True))
    arguments = {0: "", 1: ""}
    for chunk in chunks:
        for call in chunk.choices[0].delta.tool_calls or ():
            arguments[call.index] += call.function.arguments or ""
    assert tuple(arguments.values()) == (CALLS[0][1], CALLS[1][1])
    streamed = gateway.recorded("chatcmpl-1").choices[0]
    plain = gateway.engine.reply(ASK)["choices"][0]["message"]
    assert {**streamed.message, "refusal": None} == plain
    assert streamed.finish_reason == "tool_calls"


def test_client_asking_for_logprobs_keeps_them(gateway):
    asked = ASK | {"stream": True, "logprobs": True}
    _, _, raw = gateway.chat(asked)
    assert data(raw) == data(b"".join(gateway.engine.stream_events(asked)))
    assert any(event["choices"][0]["logprobs"] for event in data(raw)[:-1])


def test_events_arrive_one_by_one(gateway):
    gateway.engine.event_delay_s = 0.3
    with gateway.client() as client:
        arrivals = [time.monotonic() for _ in client.chat.completions.create(**ASK, stream=True)]
    # Three events (role, two words) 0.3 s apart; buffered they would come together.
    assert len(arrivals) == 3
    assert arrivals[-1] - arrivals[0] > 0.45


def test_client_that_leaves_stops_the_stream_and_is_kept(gateway):
    gateway.engine.words = ("one ", "two ", *["more "] * 200)
    gateway.engine.event_delay_s = 0.05
    with gateway.client() as client:
        stream = client.chat.completions.create(**ASK, stream=True)
        for chunk in stream:
            if chunk.choices[0].delta.content == "two ":
                break
        stream.close()
    assert gateway.engine.cut_off.wait(5)
    row = gateway.row("chatcmpl-1")
    assert (row.status, row.fidelity, row.training_allowed) == ("client_closed", "text_only", False)
    kept = gateway.recorded("chatcmpl-1").choices[0]
    assert kept.message["content"].startswith("one two ")
    # Nobody told the counts any more: one token was streamed with each word.
    assert row.usage == {"completion_tokens": len(kept.message["content"].split()), "estimated": True}


def test_error_inside_a_stream_passes_and_is_stored(gateway):
    events = gateway.engine.stream_events(ASK | {"model": "tiny-base"})
    gateway.engine.events = [*events[:2], b'data: {"error": {"message": "Out of memory.", "code": 500}}\n\n']
    with gateway.client() as client, pytest.raises(openai.APIError, match=r"Out of memory\."):
        list(client.chat.completions.create(**ASK, stream=True))
    row = gateway.row("chatcmpl-1")
    assert (row.status, row.error, row.training_allowed) == ("upstream_error", "Out of memory.", False)
    assert gateway.recorded("chatcmpl-1").choices[0].message["content"] == "Hel"


def test_engine_that_dies_in_a_stream_is_an_error_in_words(gateway, capfd):
    events = gateway.engine.stream_events(ASK | {"model": "tiny-base"})
    gateway.engine.events = [*events[:2], b"CUT"]
    with gateway.client() as client, pytest.raises(openai.APIError, match="went away before"):
        list(client.chat.completions.create(**ASK, stream=True))
    assert gateway.row("chatcmpl-1").status == "truncated"
    capfd.readouterr()  # uvicorn's report of the fake engine's death


def test_stream_without_an_end_is_no_complete_reply(gateway):
    gateway.engine.events = gateway.engine.stream_events(ASK | {"model": "tiny-base"})[:2]
    gateway.chat(ASK | {"stream": True})
    row = gateway.row("chatcmpl-1")
    assert (row.status, row.error) == ("truncated", "The stream ended before its last event.")


def test_engine_error_before_a_stream_passes(gateway):
    gateway.engine.failure = (503, b"busy", {})
    status, _, raw = gateway.chat(ASK | {"stream": True})
    assert (status, raw) == (503, b"busy")


def test_64_streams_at_once_stay_apart(gateway):
    gateway.engine.event_delay_s = 0.01
    got: list[str] = []

    def one() -> None:
        _, _, raw = gateway.chat(ASK | {"stream": True})
        got.append("".join(e["choices"][0]["delta"].get("content") or "" for e in data(raw)[:-1]))

    threads = [threading.Thread(target=one) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["Hello ✓"] * 64
