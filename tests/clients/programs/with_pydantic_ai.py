"""A shop's clerk on pydantic-ai, as its documentation shows it: the only change is the provider's base_url.

Run: python with_pydantic_ai.py BASE_URL plain|streamed; prints the final answer.
"""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def track(order: str) -> str:
    """Where an order is."""
    assert order == "7", order
    return "on its way"


async def main(base_url: str, way: str) -> None:
    model = OpenAIChatModel("clerk", provider=OpenAIProvider(base_url=base_url, api_key="any"))
    agent = Agent(
        model,
        instructions="You answer for the shop.",
        tools=[track],
        model_settings={"temperature": 0, "max_tokens": 60},
    )
    if way == "plain":
        result = await agent.run("Where is order 7?")
        print(result.output)
        return
    async with agent.run_stream("Where is order 7?") as streamed:
        print(await streamed.get_output())


asyncio.run(main(*sys.argv[1:]))
