"""A shop's clerk on openai-agents, as its documentation shows it: the only change is the client's base_url.

Run: python with_openai_agents.py BASE_URL plain|streamed [responses]; prints the final answer.
"""

import asyncio
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI


@function_tool
def track(order: str) -> str:
    """Where an order is."""
    assert order == "7", order
    return "on its way"


async def main(base_url: str, way: str, kind: str = "chat") -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=base_url, api_key="any")
    kinds = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
    agent = Agent(
        name="clerk",
        instructions="You answer for the shop.",
        tools=[track],
        model=kinds[kind](model="clerk", openai_client=client),
        model_settings=ModelSettings(temperature=0, max_tokens=60),
    )
    if way == "plain":
        result = await Runner.run(agent, "Where is order 7?")
    else:
        result = Runner.run_streamed(agent, "Where is order 7?")
        async for _ in result.stream_events():
            pass
    print(result.final_output)


asyncio.run(main(*sys.argv[1:]))
