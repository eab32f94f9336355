"""Inputs from public bug reports of other recorders, through the gateway into the store.

A test's name says what is right; its comment names the report. Streams that only the parsers must understand are in
test_bug_reports_streams.py.
"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from nightschool.store.bodies import get_body
from nightschool.types import Fidelity
from nightschool.upstream.settings import UpstreamSettings

ASK = {"model": "tiny-base", "messages": [{"role": "user", "content": "Hi"}]}
DONE = b"data: [DONE]\n\n"


@pytest.fixture
def gateway(open_gateway):
    """Nothing is added to a request, so every byte of a reply must pass."""
    return open_gateway(agent="tiny-base", upstream=UpstreamSettings(gives_tokens=False))


def piece(delta: Any = None, finish_reason: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish_reason}
    return sse({"id": "r-1", "object": "chat.completion.chunk", "choices": [choice], **more})


def sse(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def call_piece(index: Any, arguments: str | None, finish_reason: str | None = None, **more: Any) -> bytes:
    """A piece of a tool call; `call_id` and `name` stand only where they are given."""
    call: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    call |= {"id": more["call_id"]} if "call_id" in more else {}
    if "name" in more:
        call["function"]["name"] = more["name"]
    return piece({"tool_calls": [call]}, finish_reason)


def streamed(gateway: Any, *events: bytes) -> Any:
    """Stream `events`; they reach the client byte for byte. The stored exchange."""
    gateway.engine.events = list(events)
    _, headers, raw = gateway.chat(ASK | {"stream": True})
    assert raw == b"".join(events)
    return gateway.recorded(headers["x-nightschool-exchange"])


def answered(gateway: Any, reply: Any, ask: dict[str, Any] = ASK) -> Any:
    """Answer plainly with `reply`; it reaches the client byte for byte. The stored exchange."""
    gateway.engine.raw_reply = json.dumps(reply, ensure_ascii=False).encode()
    _, headers, raw = gateway.chat(ask)
    assert raw == gateway.engine.raw_reply
    return gateway.recorded(headers["x-nightschool-exchange"])


def row(gateway: Any, exchange: Any) -> Any:
    return gateway.row(exchange.id)


def calls(exchange: Any, choice: int = 0) -> list[tuple[str, str]]:
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for call in exchange.choices[choice].message.get("tool_calls") or ()
    ]


# ---- odd chunks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(  # awslabs/llmeter PR#34, AgentOps-AI/agentops#176, infiniflow/ragflow PR#10238
    "odd", [{"choices": []}, {"choices": None}, {}, {"choices": [], "prompt_filter_results": [{"index": 0}]}]
)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_b6_chunks_without_choices_do_no_harm_and_usage_is_kept(gateway, odd, at):
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    events = [piece({"role": "assistant", "content": "Hel"}), piece({"content": "lo"}), piece({}, "stop")]
    events.insert(at, sse({"id": "r-1", **odd, "usage": usage}))
    exchange = streamed(gateway, *events, DONE)
    assert exchange.choices[0].message["content"] == "Hello"
    assert exchange.status == "ok"
    assert row(gateway, exchange).usage["completion_tokens"] == 2


@pytest.mark.parametrize("odd", [{"choices": []}, {"choices": None}, {}])
def test_b6_a_plain_reply_without_choices_is_no_success(gateway, odd):
    exchange = answered(gateway, {"id": "r-1", **odd})
    assert exchange.status != "ok"
    assert row(gateway, exchange).training_allowed is False


WHOLE = (
    piece({"role": "assistant", "content": "Grüße ✓ 😀"})
    + b": hold on\r\n\r\n"
    + piece({"content": "!"}, "stop")
    + DONE
)


@pytest.mark.parametrize("size", [1, 2, 3, 7])  # api7/aisix#111, musistudio/claude-code-router PR#1672
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_b8_bytes_cut_anywhere_give_the_same_text(gateway, size, line_end):
    raw = WHOLE.replace(b"\r\n", b"\n").replace(b"\n", line_end).replace(b"data: ", b"data:", 1)
    exchange = streamed(gateway, *[raw[at : at + size] for at in range(0, len(raw), size)])
    assert exchange.choices[0].message["content"] == "Grüße ✓ 😀!"
    assert "\ufffd" not in json.dumps(exchange.choices[0].message, ensure_ascii=False)


def test_b8_an_event_of_several_data_lines_is_one(gateway):  # praxis-proxy/praxis PR#739
    exchange = streamed(
        gateway, b'data: {"id": "r-1", "choices": [{"index": 0,\ndata: "delta": {"content": "x"},\n'
        b'data: "finish_reason": "stop"}]}\n\n', DONE,
    )  # fmt: skip
    assert exchange.choices[0].message["content"] == "x"


# ---- what is no success -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(  # BerriAI/litellm PR#32159, tombii/better-ccflare PR#344, NousResearch/hermes-agent#102766
    "ending", [b"", sse({"error": {"message": "overloaded", "code": 529}}), b'data: {"id": "r-1", "cho']
)
def test_b9_a_stream_without_its_end_keeps_its_text_and_is_no_success(gateway, ending):
    exchange = streamed(gateway, piece({"content": "half a sen"}), *([ending] if ending else []))
    assert exchange.choices[0].message["content"] == "half a sen"
    assert exchange.status != "ok"
    stored = row(gateway, exchange)
    assert stored.training_allowed is False
    assert stored.error


def test_b9_the_three_ways_to_end_early_have_names_of_their_own(gateway):
    cut = streamed(gateway, piece({"content": "a"}))
    told = streamed(gateway, piece({"content": "a"}), sse({"error": {"message": "overloaded"}}))
    assert (cut.status, told.status) == ("truncated", "upstream_error")


def test_b10_a_client_that_leaves_after_the_call_leaves_a_whole_call(
    gateway,
):  # yinxulai/one-switch#3, Kilo cloud PR#4890
    gateway.engine.event_delay_s = 0.2
    gateway.engine.events = [
        call_piece(0, '{"x":1}', call_id="a", name="f"), piece({}), *[piece({}) for _ in range(50)]
    ]  # fmt: skip
    with gateway.client() as client:
        stream = client.chat.completions.create(**ASK, stream=True)
        for chunk in stream:
            if chunk.choices[0].delta.tool_calls is None:
                break
        stream.close()
    exchange = gateway.recorded("r-1")
    assert exchange.status == "client_closed"
    assert calls(exchange) == [("f", '{"x":1}')]
    assert row(gateway, exchange).training_allowed is False


# ---- what must not be tidied up ---------------------------------------------------------------------------------


def test_b11_a_call_id_used_again_stays_as_it_was_and_pairs_by_place(gateway):  # can1357/oh-my-pi#2055, our tau-bench
    def call(name: str) -> dict[str, Any]:
        return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": "{}"}}

    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call("one"), call("two")]},
        {"role": "tool", "tool_call_id": "call_0", "content": "first"},
        {"role": "tool", "tool_call_id": "call_0", "content": "second"},
        {"role": "assistant", "content": None, "tool_calls": [call("three")]},
        {"role": "tool", "tool_call_id": "call_0", "content": "third"},
        {"role": "assistant", "content": None, "tool_calls": [{**call("four"), "id": ""}]},
    ]
    _, headers, _ = gateway.chat(ASK | {"messages": messages})
    assert list(gateway.recorded(headers["x-nightschool-exchange"]).messages) == messages


def test_b15_log_probabilities_that_do_not_match_the_ids_lower_the_fidelity(open_gateway):  # verl-project/verl#6719
    gateway = open_gateway()
    gateway.engine.logprobs_missing = 1
    _, headers, _ = gateway.chat({**ASK, "model": "shop"})
    found = gateway.row(headers["x-nightschool-exchange"])
    assert found.fidelity == Fidelity.TEXT
    assert "log-probabilities" in (found.fidelity_reason or found.error)


REASONING = {
    "reasoning_content": "the user greets",
    "reasoning_details": [{"type": "reasoning.text", "text": "the user greets", "signature": "c2ln"}],
    "thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "EpwGCk"}],
}


def test_b19_identical_answers_of_one_request_are_two_samples(gateway):  # langfuse/langfuse#9344, BerriAI/litellm#7477
    message = {"role": "assistant", "content": "Yes."}
    choices = [{"index": index, "message": message, "finish_reason": "stop"} for index in range(2)]
    assert len(answered(gateway, {"id": "r-1", "choices": choices}).choices) == 2


def test_b19_one_answer_given_twice_by_two_calls_is_two_exchanges(gateway):
    """A sampler at temperature 0 repeats itself; only a retry that says so is one."""
    reply = {"id": "r-1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."},
                                       "finish_reason": "stop"}]}  # fmt: skip
    first = answered(gateway, reply)
    second = answered(gateway, {**reply, "id": "r-2"})
    assert first.id != second.id
    assert (first.branch, second.branch) == ("main", "main")


def test_b21_a_huge_image_and_a_huge_tool_result_are_stored_whole(gateway):  # langfuse/langfuse#1676, #4940, #6536
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * 1_000_000}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]},
        {"role": "tool", "tool_call_id": "a", "content": "row\n" * 1_000_000},
    ]
    sent = json.dumps(ASK | {"messages": messages}).encode()
    _, headers, _ = gateway.chat(sent)
    exchange = gateway.recorded(headers["x-nightschool-exchange"])
    assert exchange.status == "ok"
    assert exchange.messages[1] == messages[1]
    assert exchange.messages[0]["content"][0] == messages[0]["content"][0]
    with gateway.store.read() as conn:  # the image is a blob by reference; the bytes come back whole
        assert get_body(conn, gateway.store.tenant, gateway.row(exchange.id).request_body) == sent


def test_an_error_of_the_sdk_is_the_error_of_the_upstream(gateway):
    gateway.engine.failure = (429, b'{"error": {"message": "Slow down."}}', {"retry-after": "1"})
    with gateway.client() as client, pytest.raises(openai.RateLimitError, match=r"Slow down\."):
        client.chat.completions.create(**ASK)
