import json

import openai
import pytest
from fake_engine import PROMPT_IDS

from nightschool.types import Fidelity, LogprobProvenance
from nightschool.upstream.settings import UpstreamSettings

ASK = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}


def test_openai_client_sees_only_what_it_asked_for(gateway):
    with gateway.client() as client:
        reply = client.chat.completions.with_raw_response.create(**ASK)
    parsed = reply.parse()
    assert parsed.model == "shop"
    assert parsed.choices[0].message.content == "Hello ✓"
    assert parsed.choices[0].logprobs is None
    assert reply.headers["x-nightschool-policy"] == "base"
    assert float(reply.headers["x-nightschool-overhead-ms"]) < 1000
    assert len(reply.headers["x-nightschool-exchange"]) == 36


def test_reply_equals_a_direct_one_after_removal(gateway):
    _, _, body = gateway.chat(ASK)
    # What the engine says to the same request without the gateway's additions, under the client's name.
    assert json.loads(body) == gateway.engine.reply(ASK)
    sent = json.loads(gateway.engine.bodies[0])
    assert sent == {**ASK, "model": "tiny-base", "logprobs": True, "return_token_ids": True}


def test_bytes_pass_both_ways_when_nothing_is_added(open_gateway):
    gateway = open_gateway(agent="tiny-base", upstream=UpstreamSettings(gives_tokens=False))
    gateway.engine.raw_reply = (
        b'{ "id":"x",\n"model" : "tiny-base", "n": 1.50e+1, "big": 123456789012345678901234, "u":"\\u00e9" }'
    )
    raw = (
        b'{"unknown":{"deep":[1.50, 1e2]} , "model":"tiny-base",\r\n'
        b' "messages":[ {"role":"user","content":"\\u00e9"} ]}'
    )
    _, _, body = gateway.chat(raw)
    assert gateway.engine.bodies == [raw]
    assert body == gateway.engine.raw_reply


def test_only_the_added_bytes_differ_upstream(gateway):
    raw = (
        b'{"unknown":{"deep":[1.50, 1e2]} , "model":"shop",\r\n'
        b' "logprobs" : false, "messages":[ {"role":"user","content":"\\u00e9"} ]}'
    )
    gateway.chat(raw)
    assert gateway.engine.bodies == [
        b'{"return_token_ids":true,"unknown":{"deep":[1.50, 1e2]} , "model":"tiny-base",\r\n'
        b' "logprobs" : true, "messages":[ {"role":"user","content":"\\u00e9"} ]}'
    ]


def test_unknown_fields_of_the_reply_survive_to_the_byte(gateway):
    gateway.engine.raw_reply = (
        b'{"prompt_token_ids":[1], "id":"x", "model" : "tiny-base", "big": 123456789012345678901234,'
        b' "choices":[{"token_ids":[7] ,"index":0, "x":1.50,"logprobs": {"content":[{"logprob":-0.5}]},'
        b' "message":{"role":"assistant","content":"\\u00e9","token_ids":"mine"}}]}'
    )
    _, _, body = gateway.chat(ASK)
    assert body == (
        b'{"id":"x", "model" : "shop", "big": 123456789012345678901234,'
        b' "choices":[{"index":0, "x":1.50,"logprobs": null,'
        b' "message":{"role":"assistant","content":"\\u00e9","token_ids":"mine"}}]}'
    )


@pytest.mark.parametrize(
    ("asked", "gone"),
    [
        ({"logprobs": True}, {"token_ids"}),
        ({"return_token_ids": True}, {"logprobs"}),
        ({"logprobs": True, "return_token_ids": True}, set()),
    ],
)
def test_what_the_client_asked_for_stays(gateway, asked, gone):
    _, _, body = gateway.chat(ASK | asked)
    reply = json.loads(body)
    assert reply == gateway.engine.reply(ASK | asked)
    choice = reply["choices"][0]
    assert ("token_ids" not in choice, choice["logprobs"] is None) == ("token_ids" in gone, "logprobs" in gone)
    assert ("prompt_token_ids" in reply) == ("token_ids" not in gone)


def test_record_is_exact(gateway):
    headers = {"X-Nightschool-Session": "s1", "X-Nightschool-User": "ann", "X-Nightschool-External-Key": "ticket-7"}
    _, reply, _ = gateway.chat(ASK | {"temperature": 0.7, "seed": 3, "n": 2}, headers)
    exchange = gateway.recorded(reply["x-nightschool-exchange"])
    assert exchange.fidelity == Fidelity.EXACT
    assert exchange.logprob_provenance == LogprobProvenance.ENGINE
    assert exchange.prompt_ids == tuple(PROMPT_IDS)
    assert [choice.index for choice in exchange.choices] == [0, 1]
    assert exchange.choices[1].completion_ids == (10, 11)
    assert exchange.choices[1].behavior_logprobs == (-1.25, -1.375)  # -10/8, -11/8
    assert exchange.choices[0].message["content"] == "Hello ✓"
    assert (exchange.sampler.temperature, exchange.sampler.seed, exchange.sampler.full_support) == (0.7, 3, True)
    assert (exchange.agent, exchange.principal, exchange.policy_version) == ("shop", "ann", "base")
    assert gateway.recorded("ticket-7").id == gateway.recorded("chatcmpl-1").id == exchange.id


def test_sampler_defaults_and_constraints(gateway):
    _, reply, _ = gateway.chat(ASK | {"top_k": -1, "response_format": {"type": "json_object"}, "logit_bias": {}})
    sampler = gateway.recorded(reply["x-nightschool-exchange"]).sampler
    assert (sampler.temperature, sampler.top_p, sampler.top_k, sampler.constraints) == (
        1.0,
        1.0,
        None,
        "response_format",
    )
    assert not sampler.full_support


def test_ids_and_logprobs_that_do_not_match_are_text_only(gateway):
    gateway.engine.logprobs_missing = 1
    _, reply, _ = gateway.chat(ASK)
    row = gateway.row(reply["x-nightschool-exchange"])
    assert (row.status, row.fidelity, row.training_allowed) == ("ok", "text_only", True)
    assert row.fidelity_reason == "The engine gave 2 token ids and 1 log-probabilities."


def test_engine_without_ids_is_text_only(gateway):
    gateway.engine.gives_ids = False
    _, reply, body = gateway.chat(ASK)
    assert json.loads(body) == gateway.engine.reply(ASK)
    row = gateway.row(reply["x-nightschool-exchange"])
    assert (row.status, row.fidelity, row.error) == ("ok", "text_only", None)
    assert row.fidelity_reason == "The engine gave no prompt ids."


def test_engine_error_passes_through_and_is_stored(gateway):
    gateway.engine.failure = (429, b'{"error": {"message": "Slow down.", "x": 1.50}}', {"retry-after": "7"})
    with gateway.client() as client, pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**ASK)
    assert caught.value.response.content == b'{"error": {"message": "Slow down.", "x": 1.50}}'
    assert caught.value.response.headers["retry-after"] == "7"
    row = gateway.row(caught.value.response.headers["x-nightschool-exchange"])
    assert (row.status, row.http_status, row.error, row.training_allowed) == ("error", 429, "Slow down.", False)


def test_engine_away_is_502_in_three_sentences_and_stored(open_gateway):
    gateway = open_gateway(engine_url="http://127.0.0.1:9", base_model="tiny-base")
    status, headers, body = gateway.chat(ASK)
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (502, "engine_unavailable")
    assert error["message"] == " ".join((error["what"], error["why"], error["next"]))
    row = gateway.row(headers["x-nightschool-exchange"])
    assert (row.status, row.http_status, row.reply_body) == ("error", None, None)
    assert "cannot be reached" in row.error


def test_refusals_are_clear_and_counted(open_gateway):
    gateway = open_gateway(max_body_bytes=1000)
    expected = {b"{not json": 400, b'{"model": "shop"}': 400, b'{"model": NaN}': 400, b"[" * 900: 400, b"\xff": 400}
    expected[b'{"model": "shop", "messages": [], "pad": "' + b"x" * 1000 + b'"}'] = 413
    expected[b'{"model": "other", "messages": []}'] = 404
    for raw, status in expected.items():
        got, headers, body = gateway.chat(raw)
        assert got == status, raw[:40]
        assert set(json.loads(body)["error"]) >= {"message", "type", "code", "what", "why", "next"}
        assert headers["x-nightschool-policy"] == "none"
    assert "The agents are: shop." in json.loads(body)["error"]["message"]
    assert gateway.engine.bodies == []
    health = json.loads(gateway.send("GET", "/health")[2])
    assert health["refused"] == {"400": 5, "413": 1, "404": 1}


def test_oversized_body_without_length_is_refused(open_gateway):
    gateway = open_gateway(max_body_bytes=1000)
    chunks = (b"1" * 400 for _ in range(10))
    with gateway.client() as client:
        response = client._client.post("/chat/completions", content=chunks, headers={"content-type": "text/plain"})
    assert response.status_code == 413


def test_training_header_only_narrows(open_gateway):
    gateway = open_gateway(training_allowed=False)
    _, reply, _ = gateway.chat(ASK, {"X-Nightschool-Training": "allow"})
    assert gateway.row(reply["x-nightschool-exchange"]).training_allowed is False


def test_training_denied_by_header(gateway):
    _, reply, _ = gateway.chat(ASK, {"X-Nightschool-Training": "deny"})
    row = gateway.row(reply["x-nightschool-exchange"])
    assert (row.training_allowed, row.fidelity) == (False, "exact_tokens")


def test_authorization_reaches_neither_engine_nor_store(gateway):
    _, reply, _ = gateway.chat(ASK, {"Authorization": "Bearer sk-secret-123"})
    gateway.recorded(reply["x-nightschool-exchange"])
    assert all("sk-secret" not in str(headers) for headers in gateway.engine.headers)
    gateway.store.close()
    files = [path for path in gateway.state.iterdir() if path.name.startswith("store.sqlite")]
    assert not any(b"sk-secret" in path.read_bytes() for path in files)


def test_client_that_leaves_stops_the_engine(gateway):
    gateway.engine.delay_s = 20
    with gateway.client(timeout=0.4) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(**ASK, extra_headers={"X-Nightschool-External-Key": "left"})
    row = gateway.row("left")
    assert (row.status, row.training_allowed, row.reply_body) == ("client_closed", False, None)
