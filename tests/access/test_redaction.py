from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightschool.access.privacy import Privacy, read_privacy
from nightschool.access.redaction import FLAG, REPLY_FLAG, Redactor, redact
from nightschool.access.secrets import find_secrets
from nightschool.errors import ConfigError
from nightschool.store.records import Caller, Record, Timing
from nightschool.types import Choice, Fidelity, LogprobProvenance

KEY = "sk-proj-" + "aB3dE5gH7jK9mN1pQ2rS4tU6"
NOTHING = Privacy()
EVERYTHING = Privacy(("email", "phone", "card", "iban", "ip"), pseudonym_key=b"k")


def record_of(asked: str = "hello", said: str = "hi", stream: bool = False, **changes: Any) -> Record:
    """An exchange with token ids: `asked` in the request, `said` in the reply, letter by letter if streamed."""
    messages = ({"role": "user", "content": asked},)
    message = {"role": "assistant", "content": said}
    body = {"choices": [{"index": 0, "message": message, "logprobs": {"content": [{"token": said}]}, "token_ids": [7]}]}
    reply = json.dumps({**body, "prompt_token_ids": [1, 2]}).encode()
    if stream:
        events = [{"choices": [{"index": 0, "delta": {"content": letter}, "token_ids": [7]}]} for letter in said]
        reply = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    record = Record(
        id="x",
        caller=Caller("shop"),
        timing=Timing(0.0),
        policy_version="base",
        request_body=json.dumps({"model": "shop", "messages": messages}).encode(),
        reply_body=reply,
        messages=messages,
        choices=(Choice(0, message, "stop", (7,), (-0.5,)),),
        prompt_ids=(1, 2),
        fidelity=Fidelity.EXACT,
        logprob_provenance=LogprobProvenance.ENGINE,
        streamed=stream,
    )
    return replace(record, **changes)


def all_bytes(record: Record) -> str:
    return repr(record)


def test_what_is_clean_is_the_very_same_record():
    record = record_of()
    assert redact(record, NOTHING) is record
    assert redact(record_of("mail ann@example.org"), NOTHING).fidelity == Fidelity.EXACT


def test_a_secret_in_the_request():
    """The request loses it wherever it stands; the reply may still be shown, but its ids spell the prompt."""
    record = redact(record_of(f"my key is {KEY}, thanks"), NOTHING)
    assert KEY not in all_bytes(record)
    assert record.messages[0]["content"] == "my key is [redacted:api_key], thanks"
    assert json.loads(record.request_body)["messages"] == list(record.messages)
    assert record.choices == (Choice(0, {"role": "assistant", "content": "hi"}, "stop"),)
    assert record.prompt_ids is None
    assert (record.fidelity, record.fidelity_reason) == (Fidelity.TEXT, "redacted")
    assert record.logprob_provenance == LogprobProvenance.NONE
    assert record.flags == (FLAG,)
    assert record.caller.training_allowed
    assert json.loads(record.reply_body or b"")["prompt_token_ids"] is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_secret_in_the_reply_never_trains(stream):
    record = redact(record_of(said=f"use {KEY} here", stream=stream), NOTHING)
    assert KEY not in all_bytes(record)
    assert record.choices[0].message["content"] == "use [redacted:api_key] here"
    assert record.flags == (FLAG, REPLY_FLAG)
    assert not record.caller.training_allowed
    raw = (record.reply_body or b"").decode()
    if stream:
        events = [json.loads(line[6:]) for line in raw.split("\n") if line.startswith("data: {")]
        assert "".join(e["choices"][0]["delta"]["content"] for e in events) == "use [redacted:api_key] here"
        assert all(e["choices"][0]["token_ids"] is None for e in events)
        assert raw.endswith("data: [DONE]\n\n")
    else:
        choice = json.loads(raw)["choices"][0]
        assert (choice["logprobs"], choice["token_ids"]) == (None, None)


def test_the_texts_of_a_stream_stay_apart():
    """Two choices, and two tool calls of one choice, whose letters alternate: only one text holds a key."""

    def event(choice: int, call: int, piece: str) -> dict[str, Any]:
        calls = [{"index": call, "function": {"arguments": piece}}]
        return {"choices": [{"index": choice, "delta": {"tool_calls": calls}}]}

    texts = {(0, 0): f'{{"q": "{KEY}"}}', (0, 1): '{"q": "' + "b" * 30 + '"}', (1, 0): '{"q": "' + "c" * 30 + '"}'}
    events = [event(*where, texts[where][at : at + 1]) for at in range(60) for where in texts]
    raw = b"".join(b"data: " + json.dumps(e).encode() + b"\r\n\r\n" for e in events)
    cleaned = Redactor(NOTHING).reply(raw)
    joined = dict.fromkeys(texts, "")
    for line in cleaned.splitlines():
        if line:
            choice = json.loads(line[6:])["choices"][0]
            call = choice["delta"]["tool_calls"][0]
            joined[choice["index"], call["index"]] += call["function"]["arguments"]
    assert joined == {**texts, (0, 0): '{"q": "[redacted:api_key]"}'}


def test_messages_of_the_anthropic_and_the_responses_wire():
    pieces = [KEY[:9], KEY[9:20], KEY[20:]]
    deltas = [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": p}} for p in pieces]
    flat = [{"type": "response.output_text.delta", "output_index": 0, "delta": p} for p in pieces]
    for events in (deltas, flat):
        raw = b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events)
        cleaned = Redactor(NOTHING).reply(raw).decode()
        assert "[redacted:api_key]" in cleaned
        assert KEY[9:20] not in cleaned
        assert cleaned.count("event: x") == 3


def test_fields_named_like_secrets():
    """Whatever they look like; in JSON inside a string too. Descriptions of such fields stay."""
    fields = {
        "metadata": {"api_key": "abc", "Authorization": "Basic x", "note": "abc"},
        "tools": [{"parameters": {"properties": {"password": {"type": "string"}}, "required": ["password"]}}],
        "messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": '{"password": "abc"}'}}]}],
    }
    cleaned = Redactor(NOTHING).value(fields)
    assert cleaned["metadata"] == {"api_key": "[redacted:secret]", "Authorization": "[redacted:secret]", "note": "abc"}
    assert cleaned["tools"] is fields["tools"]
    assert cleaned["messages"][0]["tool_calls"][0]["function"]["arguments"] == '{"password": "[redacted:password]"}'
    assert fields["metadata"]["api_key"] == "abc"  # the client's own is not changed


def test_names_become_pseudonyms():
    """Two customers stay two, one stays one, and nobody reads who."""
    caller = Caller("shop", header_user="ann@example.org", session="bob@example.org", external_key="T-1", tags=("vip",))
    cleaned = redact(record_of(caller=caller), EVERYTHING).caller
    again = redact(record_of(caller=caller), replace(EVERYTHING, pseudonym_key=b"other")).caller
    assert "example.org" not in repr(cleaned)
    assert cleaned.header_user != cleaned.session
    assert cleaned.header_user == Redactor(EVERYTHING).name("ann@example.org")
    assert cleaned.header_user != again.header_user
    assert (cleaned.external_key, cleaned.tags) == ("T-1", ("vip",))


def test_personal_data_goes_by_policy():
    text = "ann@example.org, +49 30 12345678, 4539 1488 0343 6467, GB82 WEST 1234 5698 7654 32, 203.0.113.9"
    asked = redact(record_of(text), EVERYTHING).messages[0]["content"]
    assert asked == "[redacted:email], [redacted:phone], [redacted:card], [redacted:iban], [redacted:ip]"
    only_mail = redact(record_of(text), Privacy(("email",))).messages[0]["content"]
    assert only_mail == text.replace("ann@example.org", "[redacted:email]")


def test_errors_of_an_upstream_and_bodies_that_are_no_json():
    raw = f"Incorrect API key provided: {KEY}.".encode()
    broken = record_of(reply_body=raw, choices=(), http_status=401, status="error", error=raw.decode())
    record = redact(broken, NOTHING)
    assert KEY not in all_bytes(record)
    assert record.error == "Incorrect API key provided: [redacted:api_key]."
    latin = b'{"messages": "\xff ' + KEY.encode()
    record = redact(record_of(request_body=latin), NOTHING)
    assert record.request_body == b'{"messages": "\xff [redacted:api_key]'


def test_deep_and_odd_bodies_are_searched():
    deep = b'{"a":' * 900 + json.dumps(KEY).encode() + b"}" * 900
    deeper = b"[" * 5000 + json.dumps(KEY).encode() + b"]" * 5000
    for raw in (deep, deeper, b'{"messages": [NaN, "' + KEY.encode() + b'"]}'):
        record = redact(record_of(request_body=raw, messages=()), NOTHING)
        assert KEY.encode() not in record.request_body
        assert FLAG in record.flags


def test_what_cannot_be_searched_is_not_kept(monkeypatch, caplog):
    def fails(*_args: object) -> bytes:
        raise MemoryError(KEY)

    monkeypatch.setattr(Redactor, "body", fails)
    with caplog.at_level(logging.ERROR):
        record = redact(record_of(KEY, caller=Caller("shop", header_user=KEY, key_id="k")), NOTHING)
    assert KEY not in all_bytes(record) + caplog.text
    assert (record.status, record.request_body, record.messages) == ("error", b"", ())
    assert (record.caller.agent, record.caller.key_id) == ("shop", "k")
    assert not record.caller.training_allowed


def test_an_image_is_not_searched_but_its_url_may_be():
    image = "data:image/png;base64," + "sk-" + "A1" * 40
    value = {"image_url": {"url": image}}
    assert Redactor(EVERYTHING).value(value) is value


@given(st.text(max_size=200), st.sampled_from(["", KEY, "ann@example.org", "password=tr0ub4dor", "4539148803436467"]))
def test_redacting_twice_changes_nothing(text, planted):
    redactor = Redactor(EVERYTHING)
    once = redactor.text(f"{text} {planted} ")
    assert redactor.text(once) == once == Redactor(EVERYTHING).text(once)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=40),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
        max_leaves=12,
    )
)
def test_clean_values_are_the_very_same(value):
    raw = json.dumps(value).encode()
    if not find_secrets(raw.decode()):
        assert Redactor(NOTHING).body(raw) is raw


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("nightschool.access.redaction.MAX_KNOWN", 10)
    redactor = Redactor(NOTHING)
    for number in range(100):
        assert redactor.text(f"text {number}") == f"text {number}"
    assert len(redactor._known) <= 10


def test_real_traces_hold_no_secrets():
    """Tau-bench, AgentRx and Who&When: 9,183 texts with ids, hashes, code and web pages, none of them a secret."""
    folder = os.environ.get("NIGHTSCHOOL_DATA")
    if not folder:
        pytest.skip("NIGHTSCHOOL_DATA names no folder with traces")
    texts: set[str] = set()

    def collect(value: object) -> None:
        if isinstance(value, str):
            texts.add(value)
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            collect(item)

    for path in Path(folder).rglob("*.json"):
        collect(json.loads(path.read_text(encoding="utf-8")))
    assert len(texts) > 9000
    assert [text for text in texts if find_secrets(text)] == []


def test_the_table_privacy():
    privacy = read_privacy({"redact": ["email", "email"], "keep_days": 90, "tenants": {"acme": 30}}, b"k")
    assert privacy == Privacy(("email",), 90.0, (("acme", 30.0),), b"k")
    assert (privacy.days_of("acme"), privacy.days_of("default")) == (30.0, 90.0)
    assert read_privacy({}).days_of("default") is None
    for wrong in (
        {"x": 1},
        {"redact": "email"},
        {"redact": ["mail"]},
        {"keep_days": 0},
        {"keep_days": True},
        {"tenants": 3},
    ):
        with pytest.raises(ConfigError, match="privacy"):
            read_privacy(wrong)
