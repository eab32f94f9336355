"""What the store must hold after a clerk has called its tool once and told the result."""

from __future__ import annotations

import json
from typing import Any

from fronts import ADMIN, Front
from speaking import ANSWER, ARGUMENTS, CALL, RESULT, WISH

from nightschool.client import Client
from nightschool.store.schema import feedback
from nightschool.types import Branch, Exchange, Fidelity, LogprobProvenance


def check_loop(front: Front) -> tuple[Exchange, Exchange]:
    """Two exchanges of one session, the second after the first, with the engine's own tokens."""
    first, second = front.recorded(2)
    assert (first.status, second.status) == ("ok", "ok")
    assert first.agent == second.agent == "clerk"
    assert first.policy_version == second.policy_version == front.digest
    assert (first.branch, second.branch) == (Branch.MAIN, Branch.MAIN)
    assert second.session_id == first.session_id
    assert second.parent_exchange_id == first.id
    assert first.messages[-1]["content"] == WISH["content"]
    [call] = first.choices[0].message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("track", json.loads(ARGUMENTS))
    assert second.messages[-1]["role"] == "tool"
    assert second.messages[-1]["content"] == RESULT
    assert second.choices[0].message["content"] == ANSWER
    renderer = front.engine.renderer
    for exchange, text in ((first, CALL), (second, ANSWER)):
        assert (exchange.fidelity, exchange.fidelity_reason) == (Fidelity.EXACT, None)
        assert exchange.logprob_provenance == LogprobProvenance.ENGINE
        [choice] = exchange.choices
        assert choice.completion_ids == tuple(renderer.completion_ids(text))
        assert len(choice.behavior_logprobs or ()) == len(choice.completion_ids)
    context = (*(first.prompt_ids or ()), *(first.choices[0].completion_ids or ()))
    assert (second.prompt_ids or ())[: len(context)] == context
    return first, second


def check_feedback(front: Front, response_id: str, exchange: Exchange) -> None:
    """The id that the client's library shows is key enough for a judgement."""
    [receipt] = Client(front.url, ADMIN).feedback(exchange=response_id, thumb=True)
    assert (receipt["state"], receipt["exchange"]) == ("matched", exchange.id)
    with front.store.read() as conn:
        [row] = conn.execute(feedback.select()).all()
    assert (row.exchange_id, row.session_id, row.value) == (exchange.id, exchange.session_id, True)


def tool_result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": RESULT}
