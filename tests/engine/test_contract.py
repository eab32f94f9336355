"""The engine contract over HTTP, with the official client against a real server."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import torch
from openai import BadRequestError, NotFoundError, OpenAI

from nightschool.rendering.renderer import Renderer

MESSAGES = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Where is order 7?"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "find", "parameters": {"type": "object", "properties": {"id": {"type": "string"}}}},
    }
]
IDS = {"return_token_ids": True, "ignore_eos": True}


@pytest.fixture
def served(serve, adapters):
    return serve(adapters=adapters)


@pytest.fixture
def client(served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def call(url: str, path: str, body: object = None, raw: bytes | None = None, **headers: str) -> tuple[int, dict]:
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def scripted(served, monkeypatch: pytest.MonkeyPatch, text: str) -> list[int]:
    """Make the sampler write `text`, so that a random model speaks as the test needs."""
    ids = served.engine.base.renderer.completion_ids(text)
    from nightschool.engine import scheduler

    real = scheduler.draw
    position = iter(range(10_000))

    def draw(logits, settings, uniforms):
        forced = torch.full_like(logits, -50.0)
        forced[:, ids[next(position) % len(ids)]] = 50.0
        return real(forced, settings, uniforms)

    monkeypatch.setattr(scheduler, "draw", draw)
    return ids


def test_a_plain_reply_carries_ids_and_log_probabilities(served, client, reference):
    reply = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=6, temperature=0.8, seed=1, logprobs=True, extra_body=IDS
    )
    choice = reply.choices[0]
    renderer: Renderer = served.engine.base.renderer
    assert reply.prompt_token_ids == renderer.prompt_ids(tuple(MESSAGES))
    assert choice.finish_reason == "length"
    assert choice.message.content == renderer.tokenizer.decode(choice.token_ids)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(reply.prompt_token_ids), 6)
    ids = reply.prompt_token_ids + choice.token_ids
    logits = reference(torch.tensor([ids])).logits[0].double() / 0.8
    for at, entry in enumerate(choice.logprobs.content):
        place = len(reply.prompt_token_ids) + at
        assert entry.logprob == pytest.approx(logits[place - 1].log_softmax(-1)[ids[place]].item(), abs=1e-4)


def test_ids_stay_away_unless_asked_for(client):
    reply = client.chat.completions.create(model="base", messages=MESSAGES, max_tokens=2).model_dump()
    assert "prompt_token_ids" not in reply
    assert "token_ids" not in reply["choices"][0]
    assert reply["choices"][0]["logprobs"] is None


def test_the_end_of_turn_token_is_part_of_the_ids_and_not_of_the_text(served, client, monkeypatch):
    ids = scripted(served, monkeypatch, "Fine.")
    reply = client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"return_token_ids": True})
    assert reply.choices[0].message.content == "Fine."
    assert reply.choices[0].token_ids == ids
    assert ids[-1] == served.engine.base.renderer.end_id
    assert reply.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_says_the_same_as_a_plain_reply(client, n):
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "seed": 4, "logprobs": True, "n": n}
    plain = client.chat.completions.create(**asked, extra_body=IDS)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}, extra_body=IDS)
    )
    assert chunks[0].prompt_token_ids == plain.prompt_token_ids
    assert [chunk for chunk in chunks[1:] if "prompt_token_ids" in chunk.model_extra] == []
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12 * n
    for index in range(n):
        mine = [chunk.choices[0] for chunk in chunks[:-1] if chunk.choices[0].index == index]
        whole = plain.choices[index]
        assert mine[0].delta.role == "assistant"
        assert "".join(c.delta.content or "" for c in mine) == whole.message.content
        assert [i for c in mine for i in c.model_extra.get("token_ids", [])] == whole.token_ids
        entries = [entry for c in mine if c.logprobs for entry in c.logprobs.content]
        assert [e.logprob for e in entries] == pytest.approx([e.logprob for e in whole.logprobs.content], abs=1e-4)
        assert [c.finish_reason for c in mine if c.finish_reason] == ["length"]


def test_streamed_text_is_cut_at_whole_characters_only(served, client, monkeypatch):
    scripted(served, monkeypatch, "Grüße 😀!")
    stream = client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == "Grüße 😀!"
    assert "ü" in pieces
    assert not any("\ufffd" in piece for piece in pieces)


CALL = '<tool_call>{"name": "find", "arguments": {"id":  "7"}}</tool_call>'


def test_a_tool_call_is_parsed(served, client, monkeypatch):
    scripted(served, monkeypatch, f"Let me look. {CALL}")
    choice = client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    function = choice.message.tool_calls[0].function
    assert (function.name, function.arguments) == ("find", '{"id":  "7"}')  # spelled as the model did


def test_a_streamed_tool_call_is_one_delta_and_its_text_is_held_back(served, client, monkeypatch):
    scripted(served, monkeypatch, f"Let me look. {CALL}")
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, stream=True, extra_body={"return_token_ids": True}
    )
    choices = [chunk.choices[0] for chunk in stream]
    assert "".join(c.delta.content or "" for c in choices) == "Let me look."
    calls = [c.delta.tool_calls for c in choices if c.delta.tool_calls]
    assert len(calls) == 1
    assert calls[0][0].function.arguments == '{"id":  "7"}'
    assert choices[-1].finish_reason == "tool_calls"
    ids = [i for c in choices for i in c.model_extra.get("token_ids", [])]
    assert ids == served.engine.base.renderer.completion_ids(f"Let me look. {CALL}")


@pytest.mark.parametrize("stream", [False, True])
def test_an_unreadable_call_is_plain_content(served, client, monkeypatch, stream):
    text = 'Well <tool_call>{"name": find}</tool_call>'
    scripted(served, monkeypatch, text)
    reply = client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS, stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in reply]
        assert "".join(c.delta.content or "" for c in choices) == text
        assert choices[-1].finish_reason == "stop"
    else:
        assert reply.choices[0].message.content == text
        assert reply.choices[0].message.tool_calls is None
        assert reply.choices[0].finish_reason == "stop"


def test_without_tools_a_call_is_text(served, client, monkeypatch):
    scripted(served, monkeypatch, CALL)
    asked = {"model": "tiny", "messages": MESSAGES}
    assert client.chat.completions.create(**asked).choices[0].message.content == CALL
    scripted(served, monkeypatch, CALL)
    reply = client.chat.completions.create(**asked, tools=TOOLS, tool_choice="none")
    assert reply.choices[0].message.content == CALL


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_comes_back_keeps_its_sampled_ids(client, stream):
    """A random model's tokens are not what encoding their text gives; the next prompt must hold them as sampled."""
    asked = {"model": "tiny", "max_tokens": 20, "seed": 3, "extra_body": IDS}
    reply = client.chat.completions.create(messages=MESSAGES, **asked, stream=stream)
    if stream:
        chunks = list(reply)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        sampled = [i for chunk in chunks for i in chunk.choices[0].model_extra.get("token_ids", [])]
        prompt = chunks[0].prompt_token_ids
    else:
        text, sampled, prompt = reply.choices[0].message.content, reply.choices[0].token_ids, reply.prompt_token_ids
    history = [*MESSAGES, {"role": "assistant", "content": text}, {"role": "user", "content": "And?"}]
    following = client.chat.completions.create(messages=history, **asked)
    assert following.prompt_token_ids[: len(prompt) + 20] == prompt + sampled
    assert following.usage.prompt_tokens_details.cached_tokens == len(prompt) + 19


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_the_text_and_shows_nothing_of_itself(served, client, monkeypatch, stream):
    scripted(served, monkeypatch, "one two three")
    reply = client.chat.completions.create(model="tiny", messages=MESSAGES, stop=[" thr", "x"], stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in reply]
        assert "".join(c.delta.content or "" for c in choices) == "one two"
        assert choices[-1].finish_reason == "stop"
    else:
        assert reply.choices[0].message.content == "one two"
        assert reply.choices[0].finish_reason == "stop"


def test_best_alternatives_are_listed(client):
    reply = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=2, temperature=0, logprobs=True, top_logprobs=3
    )
    for entry in reply.choices[0].logprobs.content:
        values = [alternative.logprob for alternative in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob)


def test_scoring_prompt_ids(client, reference):
    prompts = [[5, 6, 7, 8, 9], [50, 60, 70]]
    reply = client.completions.create(
        model="tiny", prompt=prompts, max_tokens=1, temperature=1, extra_body={"prompt_logprobs": 0}
    )
    for choice, ids in zip(reply.choices, prompts, strict=True):
        expected = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
        assert choice.prompt_logprobs[0] is None
        for at, entry in enumerate(choice.prompt_logprobs[1:], start=1):
            assert entry[str(ids[at])]["logprob"] == pytest.approx(expected[at - 1, ids[at]].item(), abs=1e-4)


def test_text_completions_plain_and_streamed(client):
    asked = {"model": "tiny", "prompt": "The order", "max_tokens": 8, "seed": 1, "logprobs": 1, "extra_body": IDS}
    plain = client.completions.create(**asked).choices[0]
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == plain.text
    assert [i for chunk in chunks for i in chunk.token_ids] == plain.token_ids
    assert len(plain.logprobs.token_logprobs) == 8


def test_adapters_come_and_go(served, client, adapters):
    body = {"lora_name": "one", "lora_path": str(adapters / "one")}
    assert call(served.url, "/v1/load_lora_adapter", body)[0] == 200
    assert call(served.url, "/v1/load_lora_adapter", body)[0] == 200  # again changes nothing
    assert [card.id for card in client.models.list()] == ["tiny", "one"]
    asked = {"messages": MESSAGES, "max_tokens": 3, "temperature": 0, "logprobs": True}
    base = client.chat.completions.create(model="tiny", **asked).choices[0].logprobs.content[0].logprob
    one = client.chat.completions.create(model="one", **asked).choices[0].logprobs.content[0].logprob
    assert base != pytest.approx(one, abs=1e-3)
    assert call(served.url, "/v1/unload_lora_adapter", {"lora_name": "one"})[0] == 200
    with pytest.raises(NotFoundError, match="one is not loaded"):
        client.chat.completions.create(model="one", **asked)
    assert call(served.url, "/v1/unload_lora_adapter", {"lora_name": "one"})[0] == 404


def test_an_adapter_is_loaded_while_replies_run(served, client, adapters):
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, max_tokens=400, extra_body=IDS
    )
    next(stream)
    assert call(served.url, "/v1/load_lora_adapter", {"lora_name": "two", "lora_path": "two"})[0] == 200
    reply = client.chat.completions.create(model="two", messages=MESSAGES, max_tokens=2, extra_body=IDS)
    assert reply.usage.completion_tokens == 2
    assert sum(len(chunk.choices[0].model_extra.get("token_ids", [])) for chunk in stream) == 400


@pytest.mark.parametrize(
    ("name", "path", "status"),
    [
        ("one", "../elsewhere", 400),
        ("one", "/etc", 400),
        ("one", ".", 400),
        ("../one", "one", 400),
        ("one/two", "one", 400),
        ("tiny", "one", 400),
        ("base", "one", 400),
        ("one", "absent", 404),
        ("one", "a\0b", 400),
    ],
)
def test_refused_adapters(served, name, path, status):
    found, reply = call(served.url, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
    assert found == status
    assert reply["error"]["message"]
    assert served.engine.adapters.loaded == {}


def test_an_adapter_for_another_base_is_refused(served, adapters, tmp_path_factory):
    import shutil

    from nightschool.releases.adapters import adapter_digest
    from nightschool.releases.manifest import Manifest, template_digest, tokenizer_digest

    base = served.engine.base
    right = {
        "base_digest": base.digest,
        "tokenizer_digest": tokenizer_digest(base.folder),
        "template_digest": template_digest(base.renderer),
    }
    for wrong in (None, *right):
        digests = {**right, **({wrong: "0" * 64} if wrong else {})}
        manifest = Manifest("shop", **digests, targets=(), parent_digest=None, dataset_digest=None,
                            code_version="1", run_id=None)  # fmt: skip
        draft = adapters / "draft"
        shutil.copytree(adapters / "one", draft)
        (draft / "manifest.json").write_text(json.dumps(manifest.as_json()))
        digest = adapter_digest(draft)
        draft.rename(adapters / digest)
        status, reply = call(served.url, "/v1/load_lora_adapter", {"lora_name": digest, "lora_path": digest})
        shutil.rmtree(adapters / digest)
        assert status == (400 if wrong else 200), reply
        if wrong:
            assert wrong.removesuffix("_digest") in reply["error"]["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        (b"[1]", "JSON object"),
        (b"{}", "model"),
        (b'{"model": "tiny", "messages": []}', "messages"),
        (b'{"model": "tiny", "messages": [{"content": "x"}]}', "role"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": -1}', "temperature"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "top_k": 5}', "top_k"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5000}', "exceed 4096"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "tools": [{}]}', "tool"),
        (
            b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "tool_choice": "required"}',
            "tool_choice",
        ),
    ],
)
def test_malformed_requests_say_what_is_wrong(served, body, words):
    status, reply = call(served.url, "/v1/chat/completions", raw=body)
    assert status == 400
    assert words in reply["error"]["message"]
    assert reply["error"]["code"] == 400


@pytest.mark.parametrize("prompt", [[], [[]], [277], [-1], [1, "a"], {"a": 1}, ""])
def test_prompts_that_are_none(served, prompt):
    status, reply = call(served.url, "/v1/completions", {"model": "tiny", "prompt": prompt})
    assert status == 400
    assert "prompt" in reply["error"]["message"]


def test_too_long_a_conversation_is_refused(serve):
    served = serve(capacity=64)
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(BadRequestError, match="exceed 64"):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 200}])
        reply = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], extra_body={"ignore_eos": True}
        )
        assert reply.usage.total_tokens == 64  # without max_tokens, what is left


def test_bodies_over_the_limit_are_refused(serve):
    served = serve(max_body_bytes=1000)
    status, reply = call(served.url, "/tokenize", {"prompt": "x" * 1000})
    assert status == 413
    assert "1000 bytes" in reply["error"]["message"]


def test_the_key_is_needed_where_one_is_set(serve):
    served = serve(key="secret")
    assert call(served.url, "/v1/models")[0] == 401
    assert call(served.url, "/v1/models", Authorization="Bearer wrong")[0] == 401
    assert call(served.url, "/v1/models", Authorization="Bearer secret")[0] == 200


def test_pages_of_other_sites_are_refused(served):
    assert call(served.url, "/v1/models", Origin="http://evil.example")[0] == 403
    assert call(served.url, "/v1/models", Host="evil.example")[0] == 403


def test_unknown_routes_and_models(served, client):
    assert call(served.url, "/v1/nothing")[0] == 404
    assert call(served.url, "/v1/chat/completions")[0] == 405
    with pytest.raises(NotFoundError, match="tiny"):
        client.chat.completions.create(model="gpt", messages=MESSAGES)


def test_tokenize(served):
    renderer: Renderer = served.engine.base.renderer
    reply = call(served.url, "/tokenize", {"messages": MESSAGES, "tools": TOOLS})[1]
    assert reply["tokens"] == renderer.prompt_ids(tuple(MESSAGES), tuple(TOOLS))
    bare = call(served.url, "/tokenize", {"messages": MESSAGES, "add_generation_prompt": False})[1]
    assert renderer.decode(bare["tokens"]).endswith("order 7?<|im_end|>\n")
    assert call(served.url, "/tokenize", {"prompt": "the order"})[1]["count"] == 3  # "the", " ", "order"


def test_health_counts(served, client):
    client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=3, extra_body={"ignore_eos": True})
    health = call(served.url, "/health")[1]
    assert (health["status"], health["running"], health["queue"], health["steps"]) == ("ok", 0, 0, 3)
    assert (health["dtype"], health["device"]) == ("float32", "cpu")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_row(served, stream):
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 3500, "ignore_eos": True, "stream": stream}
    raw = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as connection:
        connection.sendall(head + raw)
        wait_for(lambda: served.engine.scheduler.steps > 3)
        assert len(served.engine.scheduler.rows) == 1
    wait_for(lambda: not served.engine.scheduler.rows)
    assert served.engine.scheduler.steps < 3000


def wait_for(condition, limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
