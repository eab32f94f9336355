"""What a gateway stores and logs of secrets: nothing, whatever goes wrong."""

from __future__ import annotations

import json
import logging

import pytest
import sqlalchemy as sa
from databases import ON_BOTH

from nightschool.access.privacy import Privacy
from nightschool.gateway import recorder as recording
from nightschool.store.schema import metadata

DATABASES = ON_BOTH

KEY = "sk-proj-" + "aB3dE5gH7jK9mN1pQ2rS4tU6vW8x"


def everything_stored(gateway) -> bytes:
    """Every value of every table, texts and blobs; compressed ones are read by the routes below."""
    found = b""
    with gateway.store.read() as conn:
        for table in metadata.sorted_tables:
            for row in conn.execute(sa.select(table).where(table.c.tenant == gateway.store.tenant)):
                found += b" ".join(v if isinstance(v, bytes) else str(v).encode() for v in row)
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_a_secret_reaches_the_engine_and_not_the_store(open_gateway, stream):
    gateway = open_gateway(privacy=Privacy(("email",), pseudonym_key=b"k"))
    asked = f"my key is {KEY} and I am ann@example.org"
    body = {
        "model": "shop",
        "stream": stream,
        "user": "ann@example.org",
        "messages": [{"role": "user", "content": asked}],
    }
    status, headers, _ = gateway.chat(body, {"x-nightschool-session": "ann@example.org"})
    assert status == 200
    exchange = gateway.recorded(headers["x-nightschool-exchange"])
    assert asked.encode() in gateway.engine.bodies[-1]
    assert exchange.messages[0]["content"] == "my key is [redacted:api_key] and I am [redacted:email]"
    assert (exchange.fidelity.value, exchange.fidelity_reason) == ("text_only", "redacted")
    assert exchange.prompt_ids is None
    stored = everything_stored(gateway)
    assert b"shop" in stored
    assert KEY.encode() not in stored
    assert b"ann@example.org" not in stored


def test_a_redacted_conversation_stays_one_session(gateway):
    first = [{"role": "user", "content": f"my key is {KEY}"}]
    _, headers, raw = gateway.chat({"model": "shop", "messages": first})
    one = gateway.recorded(headers["x-nightschool-exchange"])
    history = [*first, json.loads(raw)["choices"][0]["message"], {"role": "user", "content": "and now?"}]
    _, headers, _ = gateway.chat({"model": "shop", "messages": history})
    two = gateway.recorded(headers["x-nightschool-exchange"])
    assert two.session_id == one.session_id
    assert two.parent_exchange_id == one.id


@pytest.mark.parametrize("broken", ["derive_record", "insert", "redact"])
def test_no_fault_stores_or_logs_a_body(open_gateway, monkeypatch, caplog, broken):
    """The bytes that are kept when a record cannot be derived or inserted are searched as well."""
    gateway = open_gateway()

    def fails(*_args: object) -> None:
        raise ValueError(f"cannot take {KEY}")

    if broken == "derive_record":
        monkeypatch.setattr(recording, "derive_record", fails)
    elif broken == "insert":
        monkeypatch.setattr("nightschool.access.redaction.Redactor.record", fails)
    else:
        monkeypatch.setattr("nightschool.access.redaction.Redactor.body", fails)
    with caplog.at_level(logging.DEBUG):
        _, headers, _ = gateway.chat({"model": "shop", "messages": [{"role": "user", "content": f"canary {KEY}"}]})
        gateway.recorded(headers["x-nightschool-exchange"])
    assert KEY.encode() not in everything_stored(gateway)
    assert KEY not in caplog.text
    assert "canary" not in caplog.text


def test_refused_and_failed_requests_log_no_body(open_gateway, monkeypatch, caplog):
    gateway = open_gateway()
    with caplog.at_level(logging.DEBUG):
        gateway.chat(f'{{"model": "nobody", "messages": ["canary {KEY}"]}}'.encode())
        gateway.chat(f'{{"model": "shop", canary {KEY}'.encode())
        gateway.send(
            "POST", "/v1/feedback", f'{{"canary": "{KEY}"}}'.encode(), {"authorization": f"Bearer {gateway.admin}"}
        )

        def fails(*_args: object, **_more: object) -> None:
            raise RuntimeError(KEY)

        monkeypatch.setattr("nightschool.gateway.proxy.Proxy._post", fails)
        status, _, raw = gateway.chat({"model": "shop", "messages": [{"role": "user", "content": KEY}]})
    assert status == 500
    assert KEY.encode() not in raw
    assert KEY not in caplog.text
    assert "canary" not in caplog.text
    assert "failed in the gateway" in caplog.text


def test_judgements_hold_no_secrets_and_find_redacted_names(open_gateway):
    """A conversation known by a customer's address is found by it, and the address is nowhere."""
    gateway = open_gateway(privacy=Privacy(("email",), pseudonym_key=b"k"))
    body = {"model": "shop", "messages": [{"role": "user", "content": "hello"}]}
    _, headers, _ = gateway.chat(body, {"x-nightschool-external-key": "ann@example.org"})
    gateway.recorded(headers["x-nightschool-exchange"])
    said = {
        "external_key": "ann@example.org",
        "kind": "text",
        "value": f"it told me {KEY}",
        "author": "bob@example.org",
        "evidence": {"api_key": "abc", "mail": "bob@example.org"},
    }
    admin = {"authorization": f"Bearer {gateway.admin}"}
    status, _, raw = gateway.send("POST", "/v1/feedback", json.dumps(said).encode(), admin)
    assert (status, json.loads(raw)["state"]) == (200, "matched")
    _, _, raw = gateway.send("GET", "/v1/feedback?external_key=ann%40example.org", None, admin)
    (item,) = json.loads(raw)["feedback"]
    assert item["value"] == "it told me [redacted:api_key]"
    assert item["evidence"] == {"api_key": "[redacted:secret]", "mail": "[redacted:email]"}
    stored = everything_stored(gateway)
    assert b"example.org" not in stored
    assert KEY.encode() not in stored
