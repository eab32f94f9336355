"""From the wire to the store: sessions, retries and verified tokens, as clients and providers really send them."""

from __future__ import annotations

import json
from pathlib import Path

from fake_engine import serve
from fake_provider import FakeProvider
from tiny import write_tiny_tokenizer
from tokenizers import Tokenizer

from nightschool.types import Branch, Fidelity
from nightschool.upstream.settings import UpstreamSettings

USER = {"role": "user", "content": "hi"}
ASK = {"model": "shop", "messages": [USER]}
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_programs_name_their_session_without_being_asked(gateway):
    session = "0f3c7c9e-3a53-4a6e-9d5e-0a3b1c2d4e5f"
    ways = [
        ({"X-Claude-Code-Session-Id": session}, {}),
        ({}, {"metadata": {"user_id": f"user_ab_account_cd_session_{session}"}}),
        ({"X-Claude-Code-Session-Id": session, "X-Claude-Code-Agent-Id": "a1"}, {}),
    ]
    kept = []
    for headers, fields in ways:
        _, reply, _ = gateway.chat(ASK | fields, headers)
        kept.append(gateway.recorded(reply["x-nightschool-exchange"]))
    assert len({exchange.session_id for exchange in kept}) == 1
    assert [exchange.branch for exchange in kept] == [Branch.MAIN, Branch.MAIN, Branch.SUB_AGENT]


def test_an_sdk_that_tries_again_is_one_turn(gateway):
    gateway.engine.failure = (503, b'{"error": {"message": "busy"}}', {})
    _, first, _ = gateway.chat(ASK)
    failed = gateway.recorded(first["x-nightschool-exchange"])
    gateway.engine.failure = None
    _, second, _ = gateway.chat(ASK, {"X-Stainless-Retry-Count": "1"})
    kept = gateway.row(second["x-nightschool-exchange"])
    assert (kept.retry_of, kept.session_id, kept.branch) == (failed.id, failed.session_id, "main")
    assert gateway.row(failed.id).branch == "retry"


def test_equal_requests_are_samples(gateway):
    rows = [gateway.row(gateway.chat(ASK)[1]["x-nightschool-exchange"]) for _ in range(2)]
    assert {row.retry_of for row in rows} == {None}
    assert len({row.session_id for row in rows}) == 2


def test_a_conversation_goes_on_by_the_id_of_its_last_reply(gateway):
    _, first, body = gateway.ask("/v1/responses", {"model": "shop", "input": "hi"})
    named = {"model": "shop", "input": "more", "previous_response_id": json.loads(body)["id"]}
    _, second, _ = gateway.ask("/v1/responses", named)
    above, below = (gateway.recorded(reply["x-nightschool-exchange"]) for reply in (first, second))
    assert (below.session_id, below.parent_exchange_id) == (above.session_id, above.id)
    assert below.context_complete


def test_text_of_a_declared_model_is_verified(open_gateway, tmp_path: Path):
    folder = tmp_path / "model"
    folder.mkdir()
    write_tiny_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(CHATML)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids
    reply = tokenizer.encode("It is late.<|im_end|>", add_special_tokens=False).ids
    choice = {"index": 0, "message": {"role": "assistant", "content": "It is late."}, "finish_reason": "stop"}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(reply)}
    provider = FakeProvider(json.dumps({"id": "c", "choices": [choice], "usage": usage}).encode())
    with serve(provider.app()) as url:
        upstream = UpstreamSettings(url, ("chat",), gives_tokens=False, any_model=True)
        gateway = open_gateway(engine_url=url, upstream=upstream, tokenizer=folder)
        kept = gateway.recorded(gateway.chat(ASK)[1]["x-nightschool-exchange"])
        usage["completion_tokens"] += 40  # reasoning that the provider keeps to itself
        provider.reply = json.dumps({"id": "d", "choices": [choice], "usage": usage}).encode()
        other = gateway.recorded(gateway.chat(ASK)[1]["x-nightschool-exchange"])
    assert kept.fidelity == Fidelity.VERIFIED
    assert (kept.prompt_ids, kept.choices[0].completion_ids) == (tuple(prompt), tuple(reply))
    assert (other.fidelity, other.prompt_ids) == (Fidelity.TEXT, None)
    assert (
        other.fidelity_reason
        == f"The engine counts {len(reply) + 40} completion tokens, the declared tokenizer {len(reply)}."
    )
