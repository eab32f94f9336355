"""Streams that broke other recorders, each named after the public report it comes from.

What is cut inside characters, between CR and LF or at any other byte is in test_dialects.py.
"""

from __future__ import annotations

import json

from dialect_answers import data, dump, named

from nightschool.gateway.dialects.chat import CHAT
from nightschool.gateway.dialects.messages import MESSAGES
from nightschool.gateway.dialects.responses import RESPONSES
from nightschool.types import Json

DONE = b"data: [DONE]\n\n"
ASK = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}


def chunk(delta: Json, finish: str | None = None, index: int = 0) -> bytes:
    return data({"id": "c1", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]})


def call(index: int, arguments: str, call_id: str | None = None, name: str | None = None) -> Json:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"tool_calls": [{"index": index, "id": call_id, "function": function}]}


def calls_of(raw: bytes) -> list[tuple]:
    message = CHAT.parse_stream(raw).choices[0].message
    return [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]


def test_b1_litellm_20711_id_on_the_first_delta_alone():
    raw = chunk(call(0, "", "a", "f")) + chunk(call(0, '{"x"')) + chunk(call(0, ":1}"), "tool_calls") + DONE
    assert calls_of(raw) == [("a", "f", '{"x":1}')]


def test_b2_pipecat_4987_tool_index_starts_at_one_and_jumps():
    raw = chunk(call(1, "{}", "a", "f")) + chunk(call(3, "{", "b", "g")) + chunk(call(3, "}"), "tool_calls") + DONE
    assert calls_of(raw) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_parallel_calls_that_a_bridge_numbers_all_alike_stay_apart():
    raw = chunk(call(0, '{"a":1}', "a", "f")) + chunk(call(0, '{"b":2}', "b", "f"), "tool_calls") + DONE
    assert calls_of(raw) == [("a", "f", '{"a":1}'), ("b", "f", '{"b":2}')]


def test_b4_litellm_39796_a_whole_call_in_one_delta():
    assert calls_of(chunk(call(0, '{"t":"x"}', "a", "f"), "tool_calls") + DONE) == [("a", "f", '{"t":"x"}')]


TOOL = {"name": "refund", "input_schema": {"type": "object", "required": ["id"], "properties": {"id": {}}}}
FREE = {"name": "list", "input_schema": {"type": "object", "properties": {}}}


def empty_call(name: str) -> list[bytes]:
    block = {"type": "tool_use", "id": "t1", "name": name, "input": {}}
    return [
        named({"type": "message_start", "message": {"id": "m1", "content": [], "usage": {"input_tokens": 1}}}),
        named({"type": "content_block_start", "index": 0, "content_block": block}),
        named({"type": "content_block_stop", "index": 0}),
        named({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}}),
        named({"type": "message_stop"}),
    ]


def test_b5_litellm_25561_29491_a_call_without_its_input_is_marked(provider_gateway):
    for name, flags in (("refund", ["suspect_empty_args"]), ("list", None)):
        provider_gateway.provider.reply = b"".join(empty_call(name))
        body = ASK | {"stream": True, "max_tokens": 9, "tools": [TOOL, FREE]}
        _, headers, _ = provider_gateway.ask("/v1/messages", body)
        row = provider_gateway.row(headers["x-nightschool-exchange"])
        assert (row.status, row.flags) == ("ok", flags)
        made = provider_gateway.recorded(row.id).choices[0].message["tool_calls"][0]["function"]
        assert made == {"name": name, "arguments": "{}"}


def test_b6_llmeter_34_agentops_176_ragflow_10238_chunks_without_choices():
    """The filter's first chunk, absent and null choices, and the counts in the last one."""
    raw = data({"choices": [], "prompt_filter_results": [{}]}) + data({"id": "c1"}) + data({"choices": None})
    raw += chunk({"content": "a"}, "stop") + data({"choices": [], "usage": {"prompt_tokens": 4}}) + DONE
    parsed = CHAT.parse_stream(raw)
    assert (parsed.ending, parsed.choices[0].message["content"]) == ("ok", "a")
    assert parsed.usage == {"prompt_tokens": 4}


def test_b7_langfuse_16998_litellm_35793_choices_interleave_with_calls_of_one_index():
    pieces = [(1, "B"), (0, "A"), (1, "b"), (0, "a"), (0, "!"), (1, "?")]
    raw = b"".join(chunk({"content": text}, index=i) for i, text in pieces)
    raw += chunk(call(0, '{"x":0}', "p", "f"), "tool_calls", 0) + chunk(call(0, '{"x":1}', "q", "f"), "tool_calls", 1)
    choices = CHAT.parse_stream(raw + DONE).choices
    assert [choice.message["content"] for choice in choices] == ["Aa!", "Bb?"]
    assert [choice.message["tool_calls"][0]["id"] for choice in choices] == ["p", "q"]


def test_b7_many_choices_share_their_prompt_in_one_exchange(gateway):
    _, headers, _ = gateway.chat(ASK | {"n": 3})
    exchange = gateway.recorded(headers["x-nightschool-exchange"])
    assert [choice.index for choice in exchange.choices] == [0, 1, 2]
    assert exchange.prompt_ids == (1, 2, 3)


def test_b8_aisix_111_praxis_739_odd_framing_of_events():
    body = dump({"id": "c1", "choices": [{"index": 0, "delta": {"content": "€"}, "finish_reason": "stop"}]})
    head, tail = body[:20], body[20:]
    for raw in (
        b"data:" + body + b"\r\n\r\n",
        b": comment\r\rdata: " + body + b"\r\r",
        b"id: 7\nevent: x\nretry: 3\ndata: " + body + b"\n\n",
        b"data: " + head.replace(b", ", b",\ndata: ") + tail + b"\n\n",
        b"\n\n\n" + b"data: " + body + b"\n\n\n\n",
    ):
        assert CHAT.parse_stream(raw).choices[0].message["content"] == "€", raw


def test_b9_litellm_32159_better_ccflare_344_metapi_171_three_ends_that_are_none():
    """Broken off, told as an error, called incomplete: three statuses; the text that came is kept."""
    begun = {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "content": []}}
    text = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hel"}
    start = named({"type": "response.created", "response": {"id": "r1", "status": "in_progress", "output": []}})
    raw = start + named(begun) + named(text)
    cut = {"id": "r1", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}
    failed = {"id": "r1", "status": "failed", "error": {"message": "Overloaded."}, "output": []}
    ends = {
        b"": "truncated",
        named({"type": "error", "message": "Overloaded."}): "upstream_error",
        named({"type": "response.failed", "response": failed}): "upstream_error",
        named({"type": "response.incomplete", "response": cut}): "incomplete",
    }
    for end, status in ends.items():
        parsed = RESPONSES.parse_stream(raw + end)
        assert (parsed.ending, parsed.choices[0].message["content"]) == (status, "Hel")
    assert CHAT.parse_stream(chunk({"content": "Hel"})).ending == "truncated"
    told = CHAT.parse_stream(chunk({"content": "Hel"}) + data({"error": {"message": "x"}}) + DONE)
    assert (told.ending, told.choices[0].message["content"]) == ("upstream_error", "Hel")
    assert MESSAGES.parse_stream(b"".join(empty_call("list")[:3])).ending == "truncated"


def test_b12_lmstudio_261_mistral_common_324_null_absent_and_empty_content(gateway):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": ""},
    ]
    _, headers, _ = gateway.chat(ASK | {"messages": history})
    assert list(gateway.recorded(headers["x-nightschool-exchange"]).messages) == history
    assert json.loads(gateway.engine.bodies[-1])["messages"] == history


def test_b13_transformers_45419_oumi_2599_arguments_stay_the_text_they_were(gateway):
    for arguments in ('{"t":"2025"}', '{"t": 5}', '{"t":1.50,"t":2}', '"{}"', "{broken"):
        gateway.engine.calls = (("f", arguments),)
        for streamed in (False, True):
            _, headers, _ = gateway.chat(ASK | {"stream": streamed})
            made = gateway.recorded(headers["x-nightschool-exchange"]).choices[0].message["tool_calls"]
            assert made[0]["function"]["arguments"] == arguments


def signed(*pieces: str) -> bytes:
    start = {"type": "content_block_start", "index": 0}
    deltas = [{"type": "signature_delta", "signature": piece} for piece in pieces]
    return b"".join(
        [
            named({"type": "message_start", "message": {"id": "m1", "content": []}}),
            named(start | {"content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
            *(named({"type": "content_block_delta", "index": 0, "delta": delta}) for delta in deltas),
            named({"type": "content_block_stop", "index": 0}),
            named({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}),
            named({"type": "message_stop"}),
        ]
    )


def test_b18_litellm_41361_kiro2cc_12_a_thought_that_is_only_a_signature():
    message = MESSAGES.parse_stream(signed("Eq", "QB", "=")).choices[0].message
    assert message["thinking_blocks"] == [{"type": "thinking", "thinking": "", "signature": "EqQB="}]


def test_b18_qwen_code_3724_reasoning_beside_calls_streamed_or_not(gateway):
    raw = chunk({"reasoning_content": "h"}) + chunk({"reasoning_content": "m"}) + chunk(call(0, "{}", "a", "f"), "stop")
    message = CHAT.parse_stream(raw + DONE).choices[0].message
    assert (message["reasoning_content"], message["content"]) == ("hm", None)
    history = [*ASK["messages"], message, {"role": "tool", "tool_call_id": "a", "content": "x"}]
    _, headers, _ = gateway.chat(ASK | {"messages": history})
    assert json.loads(gateway.engine.bodies[-1])["messages"] == history
    assert list(gateway.recorded(headers["x-nightschool-exchange"]).messages) == history


def test_b18_pieces_of_one_reasoning_detail_become_one_again():
    first = {"type": "reasoning.text", "text": "He", "index": 0, "signature": None}
    second = {"type": "reasoning.text", "text": "re", "index": 0, "signature": "S1"}
    raw = chunk({"reasoning_details": [first]}) + chunk({"reasoning_details": [second]}, "stop") + DONE
    details = CHAT.parse_stream(raw).choices[0].message["reasoning_details"]
    assert details == [{"type": "reasoning.text", "text": "Here", "index": 0, "signature": "S1"}]
    blocks = [{"type": "thinking", "thinking": "a"}, {"type": "thinking", "thinking": "b", "signature": "S"}]
    blocks.append({"type": "thinking", "thinking": "c"})
    raw = b"".join(chunk({"thinking_blocks": [block]}) for block in blocks) + chunk({}, "stop") + DONE
    assert CHAT.parse_stream(raw).choices[0].message["thinking_blocks"] == [
        {"type": "thinking", "thinking": "ab", "signature": "S"},
        {"type": "thinking", "thinking": "c"},
    ]
