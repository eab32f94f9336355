"""Payloads that other recorders dropped, cut or stored again and again, named after the public reports."""

from __future__ import annotations

import base64
import json
import random

import sqlalchemy as sa

from nightschool.store.attachments import restore
from nightschool.store.bodies import get_body
from nightschool.store.schema import blobs, exchanges

ASK = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}


def picture(size_bytes: int) -> str:
    return base64.b64encode(random.Random(1).randbytes(size_bytes)).decode()


def stored_bytes(store) -> int:
    with store.read() as conn:
        return conn.scalar(sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(blobs.c.data)), 0)))


def raw_request(gateway, exchange_id: str) -> bytes:
    row = gateway.row(exchange_id)
    with gateway.store.read() as conn:
        return get_body(conn, gateway.store.tenant, row.request_body)


def test_b21_langfuse_1676_4940_a_20_mb_picture_is_one_blob_however_often_it_is_resent(gateway):
    data = picture(15 * 2**20)  # 20 MiB of base64
    url = f"data:image/png;base64,{data}"
    shown = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    history = [shown]
    for turn in range(3):
        body = json.dumps(ASK | {"messages": history}).encode()
        status, headers, _ = gateway.chat(body)
        assert status == 200
        assert gateway.engine.bodies[-1].endswith(body[20:])
        exchange_id = headers["x-nightschool-exchange"]
        assert raw_request(gateway, exchange_id) == body
        history += [{"role": "assistant", "content": f"Seen {turn}."}, {"role": "user", "content": f"And {turn}?"}]
    exchange = gateway.recorded(exchange_id)
    kept = exchange.messages[0]["content"][0]["image_url"]["url"]
    assert kept.startswith("data:image/png;base64,blob:sha256:")
    assert len(kept) < 200
    with gateway.store.read() as conn:
        assert restore(conn, gateway.store.tenant, list(exchange.messages))[0] == shown
    assert stored_bytes(gateway.store) < len(data) * 1.01


def test_b21_the_same_file_in_other_dialects_is_the_same_blob(gateway):
    data = picture(2**16)
    source = {"type": "base64", "media_type": "image/png", "data": data}
    claude = {"role": "user", "content": [{"type": "image", "source": source}]}
    openai = {"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{data}"}]}
    for path, body in (
        ("/v1/messages", {"model": "shop", "max_tokens": 5, "messages": [claude]}),
        ("/v1/responses", {"model": "shop", "input": [openai]}),
    ):
        status, headers, _ = gateway.ask(path, body)
        assert status == 200
        assert raw_request(gateway, headers["x-nightschool-exchange"]) == json.dumps(body).encode()
        sent = json.loads(gateway.engine.bodies[-1])["messages"][0]["content"][0]
        assert sent == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    assert stored_bytes(gateway.store) < len(data) * 1.2


def test_b21_langfuse_6536_10524_a_4_mb_tool_result_is_whole(gateway):
    result = "".join(f"line {number}: ok\n" for number in range(250_000))
    history = [*ASK["messages"], {"role": "tool", "tool_call_id": "c", "content": result}]
    _, headers, _ = gateway.chat(ASK | {"messages": history})
    exchange = gateway.recorded(headers["x-nightschool-exchange"])
    assert list(exchange.messages) == history
    with gateway.store.read() as conn:
        query = sa.select(exchanges.c.fidelity).where(exchanges.c.id == exchange.id)
        assert conn.scalar(query) == "exact_tokens"


def test_a_conversation_in_responses_is_stored_once_too(gateway):
    items: list[dict] = []
    for turn in range(12):
        items.append({"role": "user", "content": f"{turn} " + "please " * 400})
        body = {"model": "shop", "input": items}
        _, headers, _ = gateway.ask("/v1/responses", body)
        assert raw_request(gateway, headers["x-nightschool-exchange"]) == json.dumps(body).encode()
        items.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello ✓"}]})
    unique = len(json.dumps(items).encode())
    assert stored_bytes(gateway.store) < 3 * unique  # resent literally it would be six times
