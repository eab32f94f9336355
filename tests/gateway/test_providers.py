"""In front of a provider: bytes pass both ways with the caller's own key, which is never stored."""

from __future__ import annotations

import json

import dialect_answers as made
import pytest

from nightschool.errors import ConfigError
from nightschool.types import Fidelity
from nightschool.upstream.settings import UpstreamSettings, read_upstream

ANSWER = made.Answer("Hello ✓", "hm", "sig", (("refund", {"id": 7}),), False, (5, 3))
CUT = list
ASK = {"model": "big-model", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
CALLS = {
    "/v1/chat/completions": (ASK, made.chat_plain(ANSWER), made.chat_stream(ANSWER, CUT)),
    "/v1/messages": (ASK, made.messages_plain(ANSWER), made.messages_stream(ANSWER, CUT)),
    "/v1/responses": (
        {"model": "big-model", "input": "Hi"},
        made.responses_plain(ANSWER),
        made.responses_stream(ANSWER, CUT),
    ),
}
KEYS = {"Authorization": "Bearer sk-mine-123", "x-api-key": "sk-mine-456", "anthropic-version": "2023-06-01"}


@pytest.mark.parametrize("path", list(CALLS))
@pytest.mark.parametrize("streamed", [False, True])
def test_bytes_pass_and_the_same_is_stored_in_every_dialect(provider_gateway, path, streamed):
    fields, plain, stream = CALLS[path]
    body = fields | {"stream": streamed, "unknown": [1.50]}
    provider_gateway.provider.reply = stream if streamed else plain
    status, headers, raw = provider_gateway.ask(path + "?beta=true", body, KEYS | {"X-Nightschool-User": "ann"})
    provider = provider_gateway.provider
    assert (status, raw) == (200, provider.reply)
    assert provider.bodies == [json.dumps(body).encode()]
    assert provider.paths == [path + "?beta=true"]
    assert headers["x-request-id"] == "req-7"
    exchange = provider_gateway.recorded(headers["x-nightschool-exchange"])
    message = exchange.choices[0].message
    assert {k: message.get(k) for k in ANSWER.normal()} == ANSWER.normal()
    assert exchange.messages == ({"role": "user", "content": "Hi"},)
    assert (exchange.fidelity, exchange.policy_version, exchange.agent) == (Fidelity.TEXT, "big-model", "shop")
    row = provider_gateway.row("id-1")
    assert (row.status, row.usage["prompt_tokens"], row.usage["completion_tokens"]) == ("ok", 5, 3)


def test_the_callers_key_reaches_the_provider_and_nothing_else(provider_gateway):
    provider_gateway.provider.reply = made.chat_plain(ANSWER)
    own = {"X-Nightschool-Session": "s1", "Cookie": "a=b"}
    _, headers, _ = provider_gateway.chat(ASK, KEYS | own)
    sent = provider_gateway.provider.headers[0]
    assert {name: sent[name.lower()] for name in KEYS} == KEYS
    assert not any(name.startswith(("x-nightschool", "x-forwarded", "cookie")) for name in sent)
    provider_gateway.recorded(headers["x-nightschool-exchange"])
    provider_gateway.store.close()
    files = [path for path in provider_gateway.state.iterdir() if path.name.startswith("store.sqlite")]
    assert not any(b"sk-mine" in path.read_bytes() for path in files)


def test_a_key_of_the_installation_takes_the_place_of_the_callers(open_gateway, provider_gateway):
    url, speaks = provider_gateway.provider_url, ("chat", "messages")
    upstream = UpstreamSettings(url, speaks, gives_tokens=False, key_env="HOME", any_model=True)
    gateway = open_gateway(engine_url=url, upstream=upstream)
    provider_gateway.provider.reply = made.chat_plain(ANSWER)
    gateway.chat(ASK, KEYS)
    sent = provider_gateway.provider.headers[0]
    assert "sk-mine" not in str(sent)
    assert sent["anthropic-version"] == "2023-06-01"


def test_a_dialect_that_nobody_speaks_is_refused(open_gateway):
    gateway = open_gateway(upstream=UpstreamSettings(speaks=("messages",)))
    status, _, body = gateway.ask("/v1/completions", {"model": "shop", "prompt": "x"})
    assert (status, json.loads(body)["error"]["code"]) == (404, "dialect_not_spoken")


def test_errors_have_the_shape_of_their_dialect(provider_gateway):
    for path in CALLS:
        status, _, body = provider_gateway.ask(path, {"messages": []})
        value = json.loads(body)
        assert status == 400
        assert value["error"]["type"] == "invalid_request_error"
        assert ("type" in value) == (path == "/v1/messages")
        assert value["error"]["message"].startswith("The request was not read.")


def test_a_providers_error_passes_and_is_stored(provider_gateway):
    provider_gateway.provider.reply = b'{"type":"error","error":{"type":"overloaded_error","message":"Busy."}}'
    provider_gateway.provider.status = 529
    status, headers, body = provider_gateway.ask("/v1/messages", ASK)
    assert (status, body) == (529, provider_gateway.provider.reply)
    row = provider_gateway.row(headers["x-nightschool-exchange"])
    assert (row.status, row.http_status, row.error) == ("error", 529, "Busy.")


def test_the_table_upstream_is_read_and_checked(monkeypatch):
    settings = read_upstream({"url": "https://api.example.com", "speaks": ["messages"], "key_env": "MY_KEY"})
    assert (settings.url, settings.speaks, settings.passes_key) == ("https://api.example.com", ("messages",), False)
    monkeypatch.setenv("MY_KEY", "k")
    assert settings.key == "k"
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ConfigError, match="not set"):
        _ = settings.key
    for table in ({"speaks": ["latin"]}, {"speaks": []}, {"url": "ftp://x"}, {"gives_tokens": "yes"}, {"other": 1}):
        with pytest.raises(ConfigError):
            read_upstream(table)


def test_what_else_a_provider_serves_passes_and_is_not_recorded(provider_gateway):
    provider = provider_gateway.provider
    provider.reply = b'{"data": [ 1.50 ]}'
    for method, path, body in (("GET", "/v1/models", None), ("POST", "/v1/embeddings?x=1", b'{"input": "a"}')):
        status, headers, raw = provider_gateway.send(method, path, body, KEYS)
        assert (status, raw, headers["x-request-id"]) == (200, provider.reply, "req-7")
        assert provider.paths[-1] == path
        assert provider.headers[-1]["authorization"] == KEYS["Authorization"]
    assert provider.bodies[-1] == b'{"input": "a"}'
    assert json.loads(provider_gateway.send("GET", "/health")[2])["recording"]["stored"] == 0
    assert provider_gateway.send("GET", "/elsewhere")[0] == 404


def test_an_engine_of_ours_serves_nothing_else(gateway):
    assert gateway.ask("/v1/embeddings", {"input": "a"})[0] == 404
