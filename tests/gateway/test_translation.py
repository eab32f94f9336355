"""Responses and Messages in front of an engine that speaks chat alone, with the official clients."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest

from nightschool.types import Fidelity

TOOL = {"name": "refund", "description": "Pays back.", "input_schema": {"type": "object", "required": ["id"]}}
USER = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def claude(gateway):
    with anthropic.Anthropic(base_url=gateway.url, api_key="any", max_retries=0) as client:
        yield client


def test_messages_plain_and_streamed_reach_client_and_store_alike(gateway, claude):
    gateway.engine.calls = (("refund", '{"id": 9}'), ("find", '{"q": "ü"}'))
    asked = {"model": "shop", "max_tokens": 9, "messages": USER, "tools": [TOOL]}
    plain = claude.messages.with_raw_response.create(**asked, system="Be kind.", stop_sequences=["END"])
    with claude.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for message in (plain.parse(), streamed):
        assert [(block.name, block.input) for block in message.content] == [("refund", {"id": 9}), ("find", {"q": "ü"})]
        assert (message.stop_reason, message.model, message.id) == ("tool_use", "shop", "chatcmpl-1")
    sent = json.loads(gateway.engine.bodies[0])
    assert sent["messages"] == [{"role": "system", "content": "Be kind."}, *USER]
    assert (sent["max_tokens"], sent["stop"], sent["logprobs"]) == (9, ["END"], True)
    assert sent["tools"][0]["function"]["parameters"] == TOOL["input_schema"]
    exchange = gateway.recorded(plain.headers["x-nightschool-exchange"])
    assert exchange.fidelity == Fidelity.EXACT
    assert exchange.choices[0].message["tool_calls"][0]["function"]["arguments"] == '{"id": 9}'
    row = gateway.row(exchange.id)
    assert (row.dialect, row.status) == ("anthropic.messages", "ok")


def test_messages_history_of_calls_and_results_becomes_chat(gateway, claude):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    history = [
        *USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Wait.", "cache_control": {"type": "ephemeral"}},
                {"type": "tool_use", "id": "t1", "name": "refund", "input": {"id": 9}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "done"}]},
                {"type": "text", "text": "And?"},
                image,
            ],
        },
    ]
    claude.messages.create(model="shop", max_tokens=9, messages=history)
    call = {"id": "t1", "type": "function", "function": {"name": "refund", "arguments": '{"id": 9}'}}
    assert json.loads(gateway.engine.bodies[0])["messages"] == [
        *USER,
        {"role": "assistant", "content": "Wait.", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "content": "done", "tool_call_id": "t1"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "And?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ],
        },
    ]
    blocks = gateway.recorded("chatcmpl-1").messages[1]["thinking_blocks"]
    assert blocks == [{"type": "thinking", "thinking": "hm", "signature": "s"}]


def test_messages_errors_come_in_their_own_words(gateway, claude):
    with pytest.raises(anthropic.NotFoundError, match="No agent is called other"):
        claude.messages.create(model="other", max_tokens=9, messages=USER)
    gateway.engine.failure = (429, b'{"error": {"message": "Slow down."}}', {})
    with pytest.raises(anthropic.RateLimitError, match=r"Slow down\."):
        claude.messages.create(model="shop", max_tokens=9, messages=USER)


def test_tokens_are_counted_by_the_engine(claude):
    count = claude.messages.count_tokens(model="shop", messages=USER, system="Be kind.")
    assert count.input_tokens == 10  # the fake engine's token is a byte: "Be kind." and "Hi"


def test_responses_plain_and_streamed_reach_client_and_store_alike(gateway):
    gateway.engine.calls = (("refund", '{"id": 9}'), ("find", '{"q": 1}'))
    tool = {"type": "function", "name": "refund", "parameters": TOOL["input_schema"], "strict": False}
    asked = {"model": "shop", "input": "Hi", "instructions": "Be kind.", "tools": [tool, {"type": "web_search"}]}
    with gateway.client() as client:
        plain = client.responses.with_raw_response.create(**asked, max_output_tokens=9)
        with client.responses.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_response()
    for response in (plain.parse(), streamed):
        calls = [(item.name, item.arguments, item.call_id) for item in response.output]
        assert calls == [("refund", '{"id": 9}', "call_0"), ("find", '{"q": 1}', "call_1")]
        assert (response.status, response.model) == ("completed", "shop")
    assert kinds[0] == "response.created"
    sent = json.loads(gateway.engine.bodies[0])
    assert sent["messages"] == [{"role": "system", "content": "Be kind."}, *USER]
    assert (sent["max_tokens"], [tool["function"]["name"] for tool in sent["tools"]]) == (9, ["refund"])
    exchange = gateway.recorded(plain.headers["x-nightschool-exchange"])
    assert (exchange.fidelity, exchange.choices[0].message["content"]) == (Fidelity.EXACT, None)


def test_a_named_earlier_response_is_told_to_an_engine_without_a_memory(gateway):
    with gateway.client() as client:
        first = client.responses.create(model="shop", input="Hi", instructions="Be kind.")
        client.responses.create(model="shop", input="More", instructions="Be brief.", previous_response_id=first.id)
        with pytest.raises(openai.BadRequestError, match="No response nowhere was recorded"):
            client.responses.create(model="shop", input="More", previous_response_id="nowhere")
    assert json.loads(gateway.engine.bodies[1])["messages"] == [
        {"role": "system", "content": "Be brief."},
        *USER,
        {"role": "assistant", "content": "Hello ✓", "refusal": None},
        {"role": "user", "content": "More"},
    ]


def test_what_chat_cannot_express_is_refused(gateway):
    for fields in ({"background": True}, {"conversation": "c1"}, {"input": [{"type": "item_reference", "id": "x"}]}):
        body = {"model": "shop", "input": "Hi", **fields}
        status, _, raw = gateway.ask("/v1/responses", body)
        assert (status, json.loads(raw)["error"]["code"]) == (400, "invalid_request")


def test_completions_are_recorded_with_their_tokens(open_gateway):
    gateway = open_gateway()
    gateway.engine.completion = {
        "id": "cmpl-1",
        "choices": [
            {
                "index": 0,
                "text": " world",
                "finish_reason": "stop",
                "token_ids": [8, 9],
                "prompt_token_ids": [5],
                "logprobs": {"token_logprobs": [-0.5, -0.25], "tokens": [" wor", "ld"]},
            }
        ],
    }
    with gateway.client() as client:
        reply = client.completions.create(model="shop", prompt="Hello")
    assert (reply.choices[0].text, reply.choices[0].logprobs) == (" world", None)
    exchange = gateway.recorded("cmpl-1")
    assert (exchange.fidelity, exchange.prompt_ids) == (Fidelity.EXACT, (5,))
    assert exchange.choices[0].behavior_logprobs == (-0.5, -0.25)
    assert exchange.messages == ({"role": "user", "content": "Hello"},)


def test_a_call_that_comes_back_as_an_object_continues_its_session(gateway, claude):
    """The engine spelled the arguments its own way; a client of Messages only ever saw what they say."""
    gateway.engine.calls = (("refund", '{"id":9,"why":"late"}'),)
    first = claude.messages.with_raw_response.create(model="shop", max_tokens=9, messages=USER, tools=[TOOL])
    content = [block.model_dump(exclude_none=True) for block in first.parse().content]
    result = {"type": "tool_result", "tool_use_id": "call_0", "content": "done"}
    history = [*USER, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    second = claude.messages.with_raw_response.create(model="shop", max_tokens=9, messages=history, tools=[TOOL])
    parent, child = (gateway.recorded(reply.headers["x-nightschool-exchange"]) for reply in (first, second))
    assert (child.session_id, child.parent_exchange_id) == (parent.session_id, parent.id)
