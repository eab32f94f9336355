"""The shop's own agent program: a plain tool-calling loop on the official `openai` client.

It knows nothing of Nightschool. Pointing its client's `base_url` at the gateway is the whole integration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openai import OpenAI

from nightschool.demo.shop import SYSTEM, TOOLS, Shop

MAX_ROUNDS = 3
MAX_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Served:
    """One conversation as the harness saw it: the last completion's id and the reply the customer read."""

    completion_id: str
    reply: str


def serve(client: OpenAI, model: str, shop: Shop, customer: str, words: str) -> Served:
    """Answer one customer: call tools until the model replies in words, at most `MAX_ROUNDS` times."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": words}]
    tools: Any = list(TOOLS)
    completion_id, text = "", ""
    for _round in range(MAX_ROUNDS):
        completion = client.chat.completions.create(
            model=model, messages=messages, tools=tools, temperature=1.0, max_tokens=MAX_TOKENS, user=customer
        )
        completion_id, message = completion.id, completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            text = message.content or ""
            break
        for call in message.tool_calls:
            if call.type == "function":
                result = shop.call(customer, call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    shop.reply(customer, text)
    return Served(completion_id, text)
