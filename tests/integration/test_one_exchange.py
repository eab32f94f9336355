"""One conversation through the whole stack: taught by the command line, asked for by the openai client, recorded with
the engine's own tokens, judged, explained, and read back as what training would see.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from patience import wait_until

from nightschool.access.tokens import admin_token
from nightschool.client import Client
from nightschool.curation.trajectories import load_trajectories
from nightschool.rendering.renderer import Renderer
from nightschool.rendering.toolcalls import write_calls
from nightschool.store.exchanges import load_exchange
from nightschool.types import Exchange, Fidelity, LogprobProvenance, Trajectory

SYSTEM = {"role": "system", "content": "the shop"}
WISH = {"role": "user", "content": "Where is order 7?"}
CALL = {"id": "c", "type": "function", "function": {"name": "track", "arguments": '{"order": "7"}'}}
RESULT = "on its way"
ANSWER = "Your order is on its way."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "track",
            "description": "Where an order is.",
            "parameters": {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]},
        },
    }
]
TEMPERATURE = 0.2  # a taught model of two layers is not sure of itself at 1
LESSON = """
[training.sft.backend]
rank = 32
[training.sft.loop]
epochs = 60
[training.sft.loop.optimizer]
learning_rate = 0.01
"""


@pytest.fixture(scope="module")
def taught(make_shop: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A shop in which `clerk` calls the tool and tells its result; `shop` is the bare model, which babbles."""
    folder = tmp_path_factory.mktemp("taught")
    shop = make_shop(folder, LESSON)
    page = [
        SYSTEM,
        WISH,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": RESULT},
        {"role": "assistant", "content": ANSWER},
    ]
    handbook = folder / "handbook.jsonl"
    handbook.write_text((json.dumps({"messages": page, "tools": TOOLS}) + "\n") * 12)
    words = ("--objective", "sft", "--data", str(handbook), "--agent", "clerk")
    run = shop.command("train", *words)
    shop.command("start", run["data"]["adapter"], "--agent", "clerk")
    shop.open()
    return shop


@pytest.fixture
def client(taught: Any) -> Any:
    url = taught.up.running.gateway_url
    with openai.OpenAI(base_url=f"{url}/v1", api_key=admin_token(taught.state), max_retries=0) as made:
        yield made


def exchange(shop: Any, key: str) -> Exchange:
    """What the store has of a reply, known by the id in it."""
    with shop.store() as store:
        found: list[Exchange] = []

        def look() -> bool:
            with store.read() as conn:
                one = load_exchange(conn, store.tenant, key)
            found.extend([one] if one else [])
            return bool(found)

        wait_until(look)
    return found[0]


def ask(client: Any, messages: list[Any], model: str = "clerk", **more: Any) -> tuple[str, Any]:
    """One chat; the exchange's id and the parsed reply."""
    fields = {"model": model, "temperature": TEMPERATURE, "seed": 1, "max_tokens": 120, **more}
    raw = client.chat.completions.with_raw_response.create(messages=messages, **fields)
    return raw.headers["x-nightschool-exchange"], raw.parse()


def trajectory(shop: Any, session_id: str, agent: str) -> Trajectory:
    """The only trajectory of a session."""
    with shop.store() as store, store.read() as conn:
        loaded = load_trajectories(conn, store.tenant, agent, time.time())
    [found] = [one for one in loaded.trajectories if one.session_id == session_id]
    return found


def test_one_exchange_lands_with_exact_ids_is_judged_and_explained(taught, client, run):
    renderer = Renderer.from_folder(taught.model)
    key, reply = ask(
        client, [WISH], model="shop", temperature=1.0, logprobs=True, extra_body={"return_token_ids": True}
    )
    stored = exchange(taught, key)
    # the engine's own ids and log-probabilities, as the client saw them
    [choice] = stored.choices
    assert stored.prompt_ids == tuple(reply.prompt_token_ids) == tuple(renderer.prompt_ids((WISH,)))
    assert choice.completion_ids == tuple(reply.choices[0].token_ids)
    assert choice.behavior_logprobs == pytest.approx(
        [entry.logprob for entry in reply.choices[0].logprobs.content], abs=1e-6
    )  # stored as float32
    assert (stored.fidelity, stored.logprob_provenance) == (Fidelity.EXACT, LogprobProvenance.ENGINE)
    assert (stored.agent, stored.policy_version, stored.upstream_id) == ("shop", "base", reply.id)
    assert stored.messages == (WISH,)
    assert choice.message["content"] == reply.choices[0].message.content

    # the reply's own id is key enough for feedback
    feedback = Client(taught.up.running.gateway_url, admin_token(taught.state))
    [receipt] = feedback.feedback(exchange=reply.id, thumb=False)
    assert (receipt["state"], receipt["exchange"]) == ("matched", key)

    told = run(taught, "explain", reply.id)
    assert told.code == 0
    assert told.out.startswith(f"Exchange {key}: Not yet looked at by any run.")
    assert "fidelity\texact_tokens" in told.out
    assert f"tokens\t{len(choice.completion_ids)} sampled" in told.out
    assert "thumb\tfalse\tend_user\tthis exchange" in told.out


def test_the_client_gets_nothing_that_it_did_not_ask_for(taught, client):
    key, reply = ask(client, [WISH], model="shop", max_tokens=4)
    assert reply.choices[0].logprobs is None
    assert not hasattr(reply, "prompt_token_ids")
    assert exchange(taught, key).fidelity == Fidelity.EXACT


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_conversation_is_one_session_whose_second_prompt_extends_the_first(taught, client, streamed):
    """No session header: what comes back in the history says which session it is."""
    renderer = Renderer.from_folder(taught.model)
    question = [SYSTEM, {**WISH, "content": f"{WISH['content']}"}]
    send = say_streamed if streamed else say_plain
    first_key, message = send(client, question)
    [call] = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("track", {"order": "7"})
    history = [*question, message, {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]
    second_key, answer = send(client, history)
    assert answer["content"] == ANSWER

    first, second = exchange(taught, first_key), exchange(taught, second_key)
    assert second.session_id == first.session_id
    assert second.parent_exchange_id == first.id
    said, told = first.choices[0].completion_ids, second.choices[0].completion_ids
    assert said is not None
    assert told is not None
    assert renderer.decode(said) == f"{write_calls(message)}<|im_end|>"
    context = (*first.prompt_ids, *said)
    assert second.prompt_ids[: len(context)] == context
    between = renderer.decode(second.prompt_ids[len(context) :])
    assert between == f"\n<|im_start|>tool\n{RESULT}<|im_end|>\n<|im_start|>assistant\n"

    one = trajectory(taught, first.session_id, "clerk")
    assert one.exchange_ids == (first.id, second.id)
    assert one.token_ids == (*second.prompt_ids, *told)
    # True on what was sampled in either turn, nowhere else
    expected = [False] * len(one.token_ids)
    for start, ids in ((len(first.prompt_ids), said), (len(second.prompt_ids), told)):
        expected[start : start + len(ids)] = [True] * len(ids)
    assert list(one.completion_mask) == expected
    assert [value is not None for value in one.behavior_logprobs] == expected
    assert one.request == WISH["content"]


def test_a_reply_that_no_encoder_would_spell_like_that_keeps_its_tokens(taught, client):
    """The bare model babbles: encoding its text again gives other tokens than were sampled."""
    renderer = Renderer.from_folder(taught.model)
    question = [SYSTEM, {"role": "user", "content": "Tell me something."}]
    first_key, reply = ask(client, question, model="shop", temperature=1.0, max_tokens=60)
    message = reply.choices[0].message.model_dump(exclude_unset=True)
    second_key, _ = ask(client, [*question, message, {"role": "user", "content": "And?"}], model="shop", max_tokens=5)
    first, second = exchange(taught, first_key), exchange(taught, second_key)
    said = first.choices[0].completion_ids
    assert said is not None
    assert tuple(renderer.completion_ids(message["content"]))[: len(said)] != said, "otherwise this tests nothing"
    assert second.session_id == first.session_id
    context = (*first.prompt_ids, *said)
    assert second.prompt_ids[: len(context)] == context
    # another temperature in the same sequence: the session is refused whole, not shortened
    with taught.store() as store, store.read() as conn:
        loaded = load_trajectories(conn, store.tenant, "shop", time.time())
    reasons = {left.exchange_id: left.reason for left in loaded.left_out}
    assert reasons[first.id] == reasons[second.id] == "mixed samplers"


def say_plain(client: Any, messages: list[Any]) -> tuple[str, dict[str, Any]]:
    key, reply = ask(client, messages, tools=TOOLS)
    return key, reply.choices[0].message.model_dump(exclude_unset=True)


def say_streamed(client: Any, messages: list[Any]) -> tuple[str, dict[str, Any]]:
    """The message a client puts together from a stream."""
    raw = client.chat.completions.with_raw_response.create(
        model="clerk", messages=messages, tools=TOOLS, temperature=TEMPERATURE, seed=1, max_tokens=120, stream=True
    )
    content, calls = "", []
    for chunk in raw.parse():
        for choice in chunk.choices:
            content += choice.delta.content or ""
            calls += [call.model_dump(exclude={"index"}) for call in choice.delta.tool_calls or ()]
    message = {"role": "assistant", "content": content or None}
    return raw.headers["x-nightschool-exchange"], message | ({"tool_calls": calls} if calls else {})
