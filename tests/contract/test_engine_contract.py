"""What the gateway counts on, asked of each engine in the same words.

The embedded engine's own tests look at its values; here stands what every engine must share.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import openai
import pytest
from speaking import ANSWER, ARGUMENTS, CALL, CALLING, LESSON, RESULT, SYSTEM, TOOL, WISH

MESSAGES = [SYSTEM, WISH]
TOLD = [*MESSAGES, CALLING, {"role": "tool", "tool_call_id": "c", "content": RESULT}]
IDS = {"return_token_ids": True}


def send(url: str, path: str, body: Any = None) -> tuple[int, Any]:
    """One plain HTTP request: its status and its JSON, `None` for an empty body."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            status, raw = reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            status, raw = error.code, error.read()
    return status, json.loads(raw) if raw.startswith((b"{", b"[")) else None


def sampled(chunks: list[Any]) -> tuple[str, list[int], list[float]]:
    """Text, ids and log-probabilities of a streamed reply of one choice."""
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    ids = [token for choice in choices for token in choice.model_extra.get("token_ids") or ()]
    scores = [entry.logprob for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    return text, ids, scores


def test_the_base_is_the_first_model_and_is_healthy(engine, upstream):
    assert upstream("models")[0] == engine.base
    assert upstream("health") is True


def test_a_plain_reply_carries_its_ids_and_what_each_was_worth(engine, client):
    reply = client.chat.completions.create(
        model=engine.base, messages=MESSAGES, max_tokens=8, seed=1, temperature=1.0, logprobs=True, extra_body=IDS
    )
    choice = reply.choices[0]
    assert reply.id
    assert reply.prompt_token_ids == engine.renderer.prompt_ids(tuple(MESSAGES))
    assert len(choice.token_ids) == len(choice.logprobs.content) == reply.usage.completion_tokens
    assert reply.usage.prompt_tokens == len(reply.prompt_token_ids)
    assert all(entry.logprob <= 0 for entry in choice.logprobs.content)
    spoken = [token for token in choice.token_ids if token != engine.renderer.end_id]
    assert choice.message.content == engine.renderer.tokenizer.decode(spoken)


def test_ids_and_log_probabilities_stay_away_unless_asked_for(engine, client):
    reply = client.chat.completions.create(model=engine.base, messages=MESSAGES, max_tokens=2).model_dump()
    assert reply.get("prompt_token_ids") is None
    assert reply["choices"][0].get("token_ids") is None
    assert reply["choices"][0]["logprobs"] is None


def test_a_stream_says_the_same_as_a_plain_reply(engine, client):
    asked = {"model": engine.base, "messages": MESSAGES, "max_tokens": 12, "seed": 4, "logprobs": True}
    plain = client.chat.completions.create(**asked, extra_body=IDS)
    chunks = list(
        client.chat.completions.create(**asked, extra_body=IDS, stream=True, stream_options={"include_usage": True})
    )
    text, ids, scores = sampled(chunks)
    choice = plain.choices[0]
    assert (text, ids) == (choice.message.content, choice.token_ids)
    assert scores == pytest.approx([entry.logprob for entry in choice.logprobs.content], abs=1e-3)
    told = [chunk.prompt_token_ids for chunk in chunks if getattr(chunk, "prompt_token_ids", None)]
    assert told == [plain.prompt_token_ids]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(ids)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert reasons == [choice.finish_reason]


def test_log_probabilities_are_those_of_the_distribution_that_was_sampled(engine, client):
    """Temperature 0.5 doubles every difference of two logits, and so of two log-probabilities."""
    asked = {"model": engine.base, "messages": MESSAGES, "max_tokens": 1, "logprobs": True, "top_logprobs": 5}

    def best(temperature: float) -> dict[str, float]:
        reply = client.chat.completions.create(**asked, temperature=temperature)
        return {entry.token: entry.logprob for entry in reply.choices[0].logprobs.content[0].top_logprobs}

    cold, warm = best(0.5), best(1.0)
    first, second = sorted(cold.keys() & warm.keys())[:2]
    assert cold[first] - cold[second] == pytest.approx(2 * (warm[first] - warm[second]), rel=1e-2)


def test_scoring_a_prompt_gives_what_sampling_it_gave(engine, client, upstream):
    reply = client.chat.completions.create(
        model=engine.base, messages=MESSAGES, max_tokens=8, seed=2, temperature=1.0, logprobs=True, extra_body=IDS
    )
    choice = reply.choices[0]
    scores = upstream("score", engine.base, reply.prompt_token_ids, choice.token_ids)
    assert scores == pytest.approx([entry.logprob for entry in choice.logprobs.content], abs=1e-3)


@pytest.mark.parametrize("n", [1, 3])
def test_the_same_seed_gives_the_same_replies_and_another_others(engine, client, n):
    def replies(seed: int) -> list[str]:
        reply = client.chat.completions.create(
            model=engine.base, messages=MESSAGES, max_tokens=12, temperature=1.0, seed=seed, n=n
        )
        assert [choice.index for choice in reply.choices] == list(range(n))
        return [choice.message.content for choice in reply.choices]

    first = replies(7)
    assert replies(7) == first
    assert replies(8) != first
    assert len(set(first)) == n, "choices of one request are drawn apart"


def test_streamed_choices_stay_apart(engine, client):
    stream = client.chat.completions.create(
        model=engine.base, messages=MESSAGES, max_tokens=6, seed=3, n=2, stream=True, extra_body=IDS
    )
    ids: dict[int, list[int]] = {0: [], 1: []}
    texts = {0: "", 1: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ids[choice.index] += choice.model_extra.get("token_ids") or []
    for index, found in ids.items():
        spoken = [token for token in found if token != engine.renderer.end_id]
        assert texts[index] == engine.renderer.tokenizer.decode(spoken)
    assert ids[0] != ids[1]


def test_a_reply_ends_at_its_limit_and_says_so(engine, client):
    reply = client.chat.completions.create(
        model=engine.base, messages=MESSAGES, max_tokens=3, extra_body={"ignore_eos": True}
    )
    assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (3, "length")


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_itself(engine, client, clerk, stream):
    asked = {"model": clerk, "messages": TOLD, "tools": [TOOL], "temperature": 0, "stop": [" is on"], "max_tokens": 40}
    reply = client.chat.completions.create(**asked, stream=stream)
    if stream:
        chunks = [chunk for chunk in reply if chunk.choices]
        assert sampled(chunks)[0] == "Your order"  # ANSWER up to the stop string
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        assert reply.choices[0].message.content == "Your order"
        assert reply.choices[0].finish_reason == "stop"


def test_tokenize_renders_like_our_renderer(engine, upstream):
    lesson = LESSON["messages"]
    for messages, tools in (([WISH], []), (MESSAGES, [TOOL]), (lesson, [TOOL]), ([WISH], [TOOL])):
        body = {"model": engine.base, "messages": messages, **({"tools": tools} if tools else {})}
        expected = engine.renderer.prompt_ids(tuple(messages), tuple(tools))
        assert list(upstream("tokenize", body)) == expected
    assert upstream("tokenize", {"model": engine.base, "prompt": "the order"})


def test_an_adapter_comes_answers_and_goes(engine, client, upstream):
    asked = {"messages": MESSAGES, "max_tokens": 1, "temperature": 0, "logprobs": True}
    upstream("load_adapter", "clerk-1", engine.lesson.adapter)
    upstream("load_adapter", "clerk-1", engine.lesson.adapter)  # again changes nothing
    assert "clerk-1" in upstream("models")
    base = client.chat.completions.create(model=engine.base, **asked).choices[0].logprobs.content[0].logprob
    taught = client.chat.completions.create(model="clerk-1", **asked).choices[0].logprobs.content[0].logprob
    assert base != pytest.approx(taught, abs=1e-3)
    upstream("unload_adapter", "clerk-1")
    upstream("unload_adapter", "clerk-1")  # again changes nothing
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="clerk-1", **asked)
    assert upstream("models") == (engine.base,)


def test_an_adapter_that_is_not_there_is_refused(engine, upstream):
    from nightschool.errors import UpstreamError

    with pytest.raises(UpstreamError, match="did not load"):
        upstream("load_adapter", "nobody", engine.lesson.adapter.parent / "absent")


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_is_read_and_keeps_its_tokens(engine, client, clerk, stream):
    asked = {"model": clerk, "messages": MESSAGES, "tools": [TOOL], "temperature": 0, "max_tokens": 60}
    reply = client.chat.completions.create(**asked, logprobs=True, extra_body=IDS, stream=stream)
    expected = engine.renderer.completion_ids(CALL)
    if not stream:
        choice = reply.choices[0]
        [call] = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("track", json.loads(ARGUMENTS))
        assert choice.finish_reason == "tool_calls"
        assert choice.token_ids == expected
        assert len(choice.logprobs.content) == len(expected)
        return
    chunks = [chunk for chunk in reply if chunk.choices]
    pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.function.name for call in pieces if call.function.name] == ["track"]
    assert json.loads("".join(call.function.arguments or "" for call in pieces)) == json.loads(ARGUMENTS)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    _, ids, scores = sampled(chunks)
    assert ids == expected
    assert len(scores) == len(expected)


def test_a_tool_result_is_told(engine, client, clerk):
    reply = client.chat.completions.create(model=clerk, messages=TOLD, tools=[TOOL], temperature=0, max_tokens=40)
    assert reply.choices[0].message.content == ANSWER
    assert not reply.choices[0].message.tool_calls
    assert reply.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        ({"messages": MESSAGES, "model": "nobody"}, 404),
        ({"messages": MESSAGES, "max_tokens": 100_000}, 400),
        ({"messages": MESSAGES, "temperature": -1}, 400),
        ({"messages": "hello"}, 400),
    ],
)
def test_what_cannot_be_answered_is_an_error_object(engine, body, status):
    asked = {"model": engine.base, **body} if isinstance(body, dict) else body
    found, reply = send(engine.url, "/v1/chat/completions", asked)
    assert found == status
    assert reply["error"]["message"]
