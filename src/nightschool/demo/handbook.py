"""The handbook the day-one agent is taught from: small, and wrong at rates that are fixed beforehand."""

from __future__ import annotations

import json
from random import Random

from nightschool.demo.customers import Customer, draw_crowd
from nightschool.demo.shop import SYSTEM, TOOLS, Shop
from nightschool.types import Json

WRONG_TOOL_RATE = 0.30  # the page names one of the other two tools
HANDS_OFF_RATE = 0.17  # "a colleague will call you" instead of the news
EMPTY_REPLY_RATE = 0.17  # polite, and says nothing

HANDS_OFF = "A colleague will call you back about this."
EMPTY_REPLY = "Thank you for contacting us. Is there anything else?"


def write_handbook(pages: int, seed: int) -> list[Json]:
    """`pages` demonstrations in the chat format, each one customer served in two turns."""
    random = Random(f"handbook {seed}")
    shop = Shop()
    rows = []
    for customer in draw_crowd("page", pages, random):
        shop.place_order(customer.order, random)
        rows.append({"messages": _serve(customer, shop, random), "tools": list(TOOLS)})
    shop.close()
    return rows


def _serve(customer: Customer, shop: Shop, random: Random) -> list[Json]:
    names = [tool["function"]["name"] for tool in TOOLS]
    wrong = [name for name in names if name != customer.wanted]
    tool = random.choice(wrong) if random.random() < WRONG_TOOL_RATE else customer.wanted
    arguments = json.dumps({"order": customer.order})
    result = shop.call(customer.name, tool, arguments)
    draw = random.random()
    if draw < HANDS_OFF_RATE:
        reply = HANDS_OFF
    elif draw < HANDS_OFF_RATE + EMPTY_REPLY_RATE:
        reply = EMPTY_REPLY
    else:
        reply = good_reply(tool, customer.order, json.loads(result))
    call = {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": arguments}}
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": customer.words},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
        {"role": "assistant", "content": reply},
    ]


def good_reply(tool: str, order: str, result: Json) -> str:
    """The handbook's proper answer: it passes on what the tool returned."""
    if tool == "track_order":
        return f"Your order arrives on {result['arrives']}."
    act, code = next(iter(result.items()))
    return f"Your order is {act}, the code is {code}."
