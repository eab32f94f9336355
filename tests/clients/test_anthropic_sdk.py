"""The official `anthropic` package, unmodified, through the gateway to engines that only speak chat completions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from fronts import ADMIN, Front
from loop_checks import check_feedback, check_loop
from speaking import ANSWER, RESULT, SYSTEM, TOOL, WISH

FUNCTION = TOOL["function"]
TOOLS = [
    {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]},
]
ASKED: dict[str, Any] = {
    "model": "clerk", "system": SYSTEM["content"], "tools": TOOLS, "extra_body": {"temperature": 0}, "max_tokens": 60
}  # fmt: skip


@pytest.fixture
def claude(front: Front) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=front.url, api_key=ADMIN, max_retries=0) as client:
        yield client


def result_of(call: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT}]}


def converse(ask: Any) -> Any:
    """Two turns; `ask` takes messages and gives the reply's message. The last of them."""
    first = ask([WISH])
    [call] = [block for block in first.content if block.type == "tool_use"]
    assert (call.name, call.input, first.stop_reason) == ("track", {"order": "7"}, "tool_use")
    second = ask([WISH, {"role": "assistant", "content": first.content}, result_of(call)])
    assert [block.text for block in second.content] == [ANSWER]
    assert second.stop_reason == "end_turn"
    assert second.usage.output_tokens > 0
    return second


def test_messages_with_a_tool(front: Front, claude: anthropic.Anthropic):
    second = converse(lambda messages: claude.messages.create(messages=messages, **ASKED))
    check_feedback(front, second.id, check_loop(front)[1])


def test_the_stream_of_the_sdk_with_a_tool(front: Front, claude: anthropic.Anthropic):
    def ask(messages: list[Any]) -> Any:
        with claude.messages.stream(messages=messages, **ASKED) as stream:
            told = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert told == "".join(block.text for block in final.content if block.type == "text")
        return final

    check_feedback(front, converse(ask).id, check_loop(front)[1])


def test_the_asynchronous_client(front: Front):
    async def run() -> str:
        async with anthropic.AsyncAnthropic(base_url=front.url, api_key=ADMIN, max_retries=0) as client:
            reply = await client.messages.create(
                model="shop", max_tokens=6, messages=[{"role": "user", "content": "Hi"}]
            )
            return reply.content[0].text if reply.content else ""

    text = asyncio.run(run())
    [exchange] = front.recorded(1)
    assert (exchange.choices[0].message["content"] or "") == text
    assert exchange.fidelity == "exact_tokens"


def test_tokens_are_counted(front: Front, claude: anthropic.Anthropic):
    counted = claude.messages.count_tokens(model="clerk", system=SYSTEM["content"], tools=TOOLS, messages=[WISH])
    assert counted.input_tokens == len(front.engine.renderer.prompt_ids((SYSTEM, WISH), (TOOL,)))


def test_an_error_is_the_sdks_own(claude: anthropic.Anthropic):
    with pytest.raises(anthropic.NotFoundError, match="nobody"):
        claude.messages.create(model="nobody", max_tokens=4, messages=[WISH])
