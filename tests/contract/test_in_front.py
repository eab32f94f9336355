"""The gateway in front of each engine: it stores what was sampled, and the reply is the client's alone."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until
from speaking import ANSWER, ARGUMENTS, CALL, RESULT, SYSTEM, TOOL, WISH

from nightschool.curation.trajectories import load_trajectories
from nightschool.releases.adapters import install_adapter
from nightschool.releases.aliases import promote, roll_back
from nightschool.store.schema import exchanges
from nightschool.types import Fidelity, LogprobProvenance

MESSAGES = [SYSTEM, WISH]
OURS = ("prompt_token_ids", "token_ids", "logprobs")


def post(url: str, body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", raw, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read()


def told(message: Any) -> dict[str, Any]:
    """A reply's message as a client sends it back."""
    return message.model_dump(exclude_unset=True)


def said(stream: Any) -> dict[str, Any]:
    """The message a client puts together from a stream."""
    content, calls = "", {}
    for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(piece.index, {"id": piece.id, "type": "function", "function": {}})
                for key in ("name", "arguments"):
                    new = getattr(piece.function, key) or ""
                    call["function"][key] = call["function"].get(key, "") + new
    message: dict[str, Any] = {"role": "assistant", "content": content or None}
    return message | ({"tool_calls": list(calls.values())} if calls else {})


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_stored_is_what_the_engine_sampled(front, stream):
    asked = {"messages": MESSAGES, "max_tokens": 12, "seed": 5, "temperature": 0.7}
    direct = json.loads(
        post(front.engine.url, {**asked, "model": front.engine.base, "logprobs": True, "return_token_ids": True})
    )
    with front.client() as client:
        reply = client.chat.completions.create(model="shop", **asked, stream=stream)
        text = said(reply)["content"] if stream else reply.choices[0].message.content
    [exchange] = front.recorded(1)
    [choice] = exchange.choices
    assert (exchange.fidelity, exchange.fidelity_reason) == (Fidelity.EXACT, None)
    assert exchange.logprob_provenance == LogprobProvenance.ENGINE
    assert (exchange.agent, exchange.policy_version, exchange.sampler.temperature) == ("shop", "base", 0.7)
    first = direct["choices"][0]
    assert exchange.prompt_ids == tuple(direct["prompt_token_ids"])
    assert choice.completion_ids == tuple(first["token_ids"])
    scores = [entry["logprob"] for entry in first["logprobs"]["content"]]
    assert choice.behavior_logprobs == pytest.approx(scores, abs=1e-3)
    assert text == choice.message["content"] == first["message"]["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_sees_nothing_that_it_did_not_ask_for(front, stream):
    """The same reply with and without the gateway, but for its id and time, and nulls of fields that were taken out."""
    asked = {"messages": MESSAGES, "max_tokens": 6, "seed": 5, "stream": stream}

    def plain(raw: bytes) -> list[Any]:
        parts = raw.split(b"\n\n") if stream else [raw]
        return [_steady(json.loads(p.removeprefix(b"data: "))) for p in parts if p and p != b"data: [DONE]"]

    direct = plain(post(front.engine.url, {**asked, "model": front.engine.base}))
    through = plain(post(front.url, {**asked, "model": "shop"}))
    assert {part.pop("model") for part in through} == {"shop"}
    assert {part.pop("model") for part in direct} == {front.engine.base}
    assert through == direct


def _steady(reply: dict[str, Any]) -> dict[str, Any]:
    for part in (reply, *reply["choices"]):
        for name in (*OURS, "id", "created"):
            if name in ("id", "created") or part.get(name) is None:
                part.pop(name, None)
    return reply


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_conversation_is_one_session_of_exact_tokens(front, stream):
    asked = {"model": "clerk", "tools": [TOOL], "temperature": 0, "max_tokens": 60}
    with front.client() as client:
        reply = client.chat.completions.create(messages=MESSAGES, **asked, stream=stream)
        message = said(reply) if stream else told(reply.choices[0].message)
        [call] = message["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == json.loads(ARGUMENTS)
        history = [*MESSAGES, message, {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]
        reply = client.chat.completions.create(messages=history, **asked, stream=stream)
        assert (said(reply) if stream else told(reply.choices[0].message))["content"] == ANSWER
    first, second = front.recorded(2)
    renderer = front.engine.renderer
    assert first.policy_version == second.policy_version == front.digest
    assert (first.fidelity_reason, second.fidelity_reason) == (None, None)
    assert (first.fidelity, second.fidelity) == (Fidelity.EXACT, Fidelity.EXACT)
    assert first.choices[0].completion_ids == tuple(renderer.completion_ids(CALL))
    assert second.choices[0].completion_ids == tuple(renderer.completion_ids(ANSWER))
    assert len(first.choices[0].behavior_logprobs) == len(first.choices[0].completion_ids)
    assert (second.session_id, second.parent_exchange_id) == (first.session_id, first.id)
    # what training would see: the second prompt extends the first and its reply
    context = (*first.prompt_ids, *first.choices[0].completion_ids)
    assert second.prompt_ids[: len(context)] == context


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_are_kept_apart_and_share_their_prompt(front, stream):
    with front.client() as client:
        reply = client.chat.completions.create(
            model="shop", messages=MESSAGES, max_tokens=8, seed=3, n=3, stream=stream
        )
        if stream:
            list(reply)
    [exchange] = front.recorded(1)
    assert [choice.index for choice in exchange.choices] == [0, 1, 2]
    assert exchange.fidelity == Fidelity.EXACT
    assert len({choice.completion_ids for choice in exchange.choices}) == 3
    for choice in exchange.choices:
        spoken = [token for token in choice.completion_ids if token != front.engine.renderer.end_id]
        assert choice.message["content"] == front.engine.renderer.tokenizer.decode(spoken)


def test_an_alias_moves_while_replies_run_and_moves_back(front):
    with front.client() as client:

        def ask(**more: Any) -> Any:
            return client.chat.completions.create(model="clerk", messages=MESSAGES, temperature=0, **more)

        stream = ask(stream=True, max_tokens=100, extra_body={"ignore_eos": True})
        next(iter(stream))  # this reply has begun under the first release
        other = install_adapter(front.store, front.state, _weaker(front), front.engine.lesson.manifest)
        promote(front.store, "clerk", other, by="test", reason="to see it move", override=True)
        time.sleep(0.25)  # the gateway's table of aliases is at most 0.2 s old
        ask(max_tokens=4)
        list(stream)
        roll_back(front.store, "clerk", "test")
        time.sleep(0.25)
        ask(max_tokens=4)
    found = front.recorded(3)
    assert [exchange.policy_version for exchange in found] == [front.digest, other, front.digest]
    assert [(exchange.fidelity, exchange.fidelity_reason) for exchange in found] == [(Fidelity.EXACT, None)] * 3
    assert len(found[0].choices[0].completion_ids) == 100
    assert found[1].choices[0].behavior_logprobs != found[2].choices[0].behavior_logprobs


def _weaker(front: Any) -> Path:
    """The taught adapter at half its strength."""
    import shutil

    from safetensors.torch import load_file, save_file

    folder = front.state / "weaker"
    shutil.copytree(front.engine.lesson.adapter, folder)
    path = folder / "adapter_model.safetensors"
    tensors = {name: value / 2 if "lora_B" in name else value for name, value in load_file(path).items()}
    save_file(tensors, path)
    return folder


def test_a_client_that_leaves_stops_the_engine_and_its_part_is_kept(front):
    with front.client() as client:
        stream = client.chat.completions.create(
            model="shop", messages=MESSAGES, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
        )
        for _, _chunk in zip(range(5), stream, strict=False):
            pass
        stream.close()
    wait_until(lambda: running(front.engine) == 0, patience_s=10)
    front.recorded(1)
    with front.store.read() as conn:
        row = conn.execute(exchanges.select()).one()
    assert (row.status, row.training_allowed, row.fidelity) == ("client_closed", False, "text_only")


def running(engine: Any) -> float:
    """How many requests the engine works on."""
    path = "/metrics" if engine.kind == "vllm" else "/health"
    with urllib.request.urlopen(f"{engine.url}{path}", timeout=10) as reply:
        text = reply.read().decode()
    if engine.kind != "vllm":
        return json.loads(text)["running"]
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:num_requests_running"))


def test_a_conversation_on_the_engine_is_what_training_reads(front):
    """One trajectory, whose sampled places are exactly the two replies."""
    asked = {"model": "clerk", "tools": [TOOL], "temperature": 0.05, "seed": 1, "max_tokens": 60}
    with front.client() as client:
        message = told(client.chat.completions.create(messages=MESSAGES, **asked).choices[0].message)
        call = message["tool_calls"][0]
        history = [*MESSAGES, message, {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]
        client.chat.completions.create(messages=history, **asked)
    first, second = front.recorded(2)
    with front.store.read() as conn:
        loaded = load_trajectories(conn, front.store.tenant, "clerk", time.time())
    [one] = loaded.trajectories
    assert one.exchange_ids == (first.id, second.id)
    masked = tuple(token for token, was in zip(one.token_ids, one.completion_mask, strict=True) if was)
    assert masked == (*first.choices[0].completion_ids, *second.choices[0].completion_ids)
