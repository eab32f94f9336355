"""The official `openai` package, unmodified, through the gateway to each engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from fronts import ADMIN, Front
from loop_checks import check_feedback, check_loop, tool_result
from speaking import ANSWER, ARGUMENTS, RESULT, SYSTEM, TOOL, WISH

MESSAGES = [SYSTEM, WISH]
ASKED: dict[str, Any] = {"model": "clerk", "tools": [TOOL], "temperature": 0, "max_tokens": 60}


def test_chat_with_a_tool(front: Front):
    with front.client() as client:
        first = client.chat.completions.create(messages=MESSAGES, **ASKED)
        message = first.choices[0].message
        [call] = message.tool_calls
        assert json.loads(call.function.arguments) == json.loads(ARGUMENTS)
        second = client.chat.completions.create(messages=[*MESSAGES, message, tool_result(call.id)], **ASKED)
    assert second.choices[0].message.content == ANSWER
    _, answered = check_loop(front)
    check_feedback(front, second.id, answered)


def test_the_stream_of_the_sdk_with_a_tool(front: Front):
    with front.client() as client:

        def run(messages: list[Any]) -> Any:
            with client.chat.completions.stream(messages=messages, **ASKED) as stream:
                for _ in stream:
                    pass
                return stream.get_final_completion()

        message = run(MESSAGES).choices[0].message
        [call] = message.tool_calls
        sent = message.model_dump(
            exclude_none=True, exclude={"tool_calls": {"__all__": {"function": {"parsed_arguments"}}}}
        )
        sent.pop("parsed", None)
        second = run([*MESSAGES, sent, tool_result(call.id)])
    assert second.choices[0].message.content == ANSWER
    check_feedback(front, second.id, check_loop(front)[1])


def test_the_asynchronous_client_several_at_once(front: Front):
    """Answers of several conversations at the same time do not mix."""

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key=ADMIN, max_retries=0) as client:

            async def one(number: int) -> str:
                stream = await client.chat.completions.create(
                    model="shop", messages=[{"role": "user", "content": f"Order {number}?"}], seed=number,
                    max_tokens=8, stream=True,
                )  # fmt: skip
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

            return await asyncio.gather(*(one(number) for number in range(4)))

    texts = asyncio.run(run())
    found = front.recorded(4)
    by_seed = {exchange.sampler.seed: exchange for exchange in found}
    for number, text in enumerate(texts):
        assert by_seed[number].messages[0]["content"] == f"Order {number}?"
        assert by_seed[number].choices[0].message["content"] == text
    assert len({exchange.session_id for exchange in found}) == 4
    assert [(exchange.fidelity, exchange.fidelity_reason) for exchange in found] == [("exact_tokens", None)] * 4


def test_models_are_the_agents(front: Front):
    with front.client() as client:
        assert [model.id for model in client.models.list()] == ["clerk", "shop"]


def test_an_error_is_the_sdks_own(front: Front):
    with front.client() as client:
        with pytest.raises(openai.NotFoundError, match="nobody"):
            client.chat.completions.create(model="nobody", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="shop", messages=MESSAGES, temperature=-1)


def test_raw_responses_show_the_exchange(front: Front):
    with front.client() as client:
        raw = client.chat.completions.with_raw_response.create(model="shop", messages=MESSAGES, max_tokens=4)
    [exchange] = front.recorded(1)
    assert raw.headers["x-nightschool-exchange"] == exchange.id
    assert raw.parse().id == exchange.upstream_id


FLAT_TOOL = {"type": "function", **TOOL["function"], "strict": False}
RESPONDING: dict[str, Any] = {"model": "clerk", "tools": [FLAT_TOOL], "temperature": 0, "max_output_tokens": 60}


def respond(client: openai.OpenAI, streamed: bool, **asked: Any) -> Any:
    """One response of the Responses API, plain or through the SDK's stream."""
    if not streamed:
        return client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("named", [False, True], ids=["whole history", "previous response"])
def test_responses_with_a_tool(front: Front, streamed: bool, named: bool):
    with front.client() as client:
        asked = {"instructions": SYSTEM["content"], **RESPONDING}
        first = respond(client, streamed, input=[WISH], **asked)
        [call] = [item for item in first.output if item.type == "function_call"]
        assert json.loads(call.arguments) == json.loads(ARGUMENTS)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
        if named:
            second = respond(client, streamed, input=[result], previous_response_id=first.id, **asked)
        else:
            made = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
            second = respond(client, streamed, input=[WISH, made, result], **asked)
    assert second.output_text == ANSWER
    check_feedback(front, second.id, check_loop(front)[1])


@pytest.mark.parametrize("streamed", [False, True])
def test_completions(front: Front, streamed: bool):
    with front.client() as client:
        reply = client.completions.create(model="shop", prompt="The order", max_tokens=6, seed=1, stream=streamed)
        text = "".join(chunk.choices[0].text for chunk in reply) if streamed else reply.choices[0].text
    [exchange] = front.recorded(1)
    assert exchange.choices[0].message["content"] == text
