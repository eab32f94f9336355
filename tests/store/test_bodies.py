import hashlib
import json
import time
import zlib

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightschool.errors import StoreError
from nightschool.store import bodies, phrases
from nightschool.store.blobs import get_blob, put_blob
from nightschool.store.bodies import MESSAGE, Body, body_references, cut, get_body, put_bodies, scan
from nightschool.store.columns import pack, unpack
from nightschool.store.memo import Memo
from nightschool.store.schema import blobs as blob_table
from nightschool.store.schema import bodies as body_table
from nightschool.store.schema import spellings
from nightschool.store.tree import grow, put_nodes

keep = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

words = st.text(max_size=80)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
bodies_of_chats = st.dictionaries(
    st.sampled_from(["messages", "tools", "model", "user", "x"]), json_values | st.lists(json_values, max_size=20)
)


def put(conn, raw: bytes, with_tree: bool = False) -> str:
    """Store a body; `with_tree` first the branch that its messages are, as an exchange does."""
    segments, nodes, memo = scan(raw), [], Memo()
    if with_tree:
        spelled = [segment.data for segment in segments if segment.kind == MESSAGE]
        nodes = grow("default", [json.loads(data) for data in spelled], None, spelled)
        put_nodes(conn, "default", nodes, memo)
    return put_bodies(conn, "default", [Body(1000.0, raw, segments, nodes)], memo)[0]


def round_trip(store, raw: bytes) -> None:
    key = store.write(lambda conn: put(conn, raw))
    with store.read() as conn:
        assert get_body(conn, "default", key) == raw
    try:
        messages = json.loads(raw)["messages"]
        assert all(isinstance(message, dict) for message in messages)
    except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
        return
    key = store.write(lambda conn: put(conn, raw, with_tree=True))
    with store.read() as conn:
        assert get_body(conn, "default", key) == raw


@keep
@given(raw=st.binary(max_size=300))
def test_any_bytes_come_back(store, raw):
    round_trip(store, raw)


@keep
@given(value=bodies_of_chats, indent=st.none() | st.integers(0, 2), ascii_only=st.booleans())
def test_any_json_comes_back_as_it_was_spelled(store, value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    round_trip(store, text.encode("utf-8", "surrogatepass"))


@keep
@given(value=bodies_of_chats, cut=st.integers(0, 200))
def test_json_cut_off_comes_back(store, value, cut):
    round_trip(store, json.dumps(value).encode()[:cut])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[1]",
        b'{"messages":',
        b'{"messages":[{"role":"user"},]}',
        b'{"messages":{"role":"user"}}',
        b'\xef\xbb\xbf{"messages":[]}',
        b'{"messages":["\xff"]}',
        b'{"messages":[' + b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b',"messages":[{}]}',
        b'{"a":1,"messages":[{"content":"' + b"x" * 60 + b'"}]}trailing',
    ],
)
def test_strange_bodies_come_back(store, raw):
    round_trip(store, raw)


def test_spans_are_the_messages_and_the_tools_as_they_were_spelled():
    first, second, tools = (
        b'{"role": "user",\n "content":"a\\"]}"}',
        b'{ "role":"assistant" }',
        b'[ {"type":"function"} ]',
    )
    raw = (
        b'{"model":"m", "messages" : [ ' + first + b" , " + second + b' ],"tools":' + tools + b',"x":{"messages":[1]}}'
    )
    segments = scan(raw)
    assert b"".join(s.data for s in segments) == raw
    # x.messages is not at the top level and is not cut out
    assert [(s.kind, s.data) for s in segments if s.kind] == [
        ("messages", first),
        ("messages", second),
        ("tools", tools),
    ]


def test_a_resent_conversation_costs_less_than_twice_its_unique_text(store):
    history: list[dict] = [{"role": "system", "content": "You answer for the shop. " * 30}]
    unique, sent = len(history[0]["content"]), 0
    bodies_sent: list[bytes] = []
    keys: list[str] = []
    for turn in range(40):
        said = [f"question {turn} {'why ' * 40}", f"answer {turn} {'because ' * 40}"]
        history.append({"role": "user", "content": said[0]})
        raw = json.dumps({"model": "shop", "messages": history, "stream": True}).encode()
        keys.append(store.write(lambda conn, raw=raw: put(conn, raw)))
        history.append({"role": "assistant", "content": said[1]})
        unique += len(said[0]) + len(said[1])
        sent += len(raw)
        bodies_sent.append(raw)
    with store.read() as conn:
        kept = conn.scalar(sa.select(sa.func.sum(sa.func.length(blob_table.c.data))))
        kept += conn.scalar(sa.select(sa.func.sum(sa.func.length(body_table.c.segments))))
    assert sent > 10 * unique
    # without pages the references alone would be sum(2n - 1 for 40 turns) * 33 = 53 kB, more than twice the 21 kB
    assert kept < 2 * unique
    for raw, key in zip(bodies_sent, keys, strict=True):
        assert key[12:] == hashlib.sha256(raw).hexdigest()[12:32]
        with store.read() as conn:
            assert get_body(conn, "default", key) == raw


def test_scanning_is_linear():
    def seconds(count: int) -> float:
        message = {"role": "user", "content": 'say "x" {[' * 50, "parts": [[[1]]] * 20}
        raw = json.dumps({"messages": [message] * count}).encode()
        best = 9.0
        for _ in range(3):
            started = time.thread_time()
            assert sum(s.kind == "messages" for s in scan(raw)) == count
            best = min(best, time.thread_time() - started)
        return best

    # ten times the body; a quadratic scanner would take a hundred times as long
    assert seconds(4000) < 40 * seconds(400)


def test_damage_is_noticed(store, monkeypatch):
    raw = json.dumps({"messages": [{"role": "user", "content": "x" * 100}]}).encode()
    body_hash = store.write(lambda conn: put(conn, raw))
    store.write(lambda conn: conn.execute(sa.update(blob_table).values(data=b"other")))
    with store.read() as conn, pytest.raises(StoreError, match="damaged"):
        get_body(conn, "default", body_hash)
    store.write(lambda conn: conn.execute(sa.delete(blob_table)))
    with store.read() as conn, pytest.raises(StoreError, match="not in the store"):
        get_body(conn, "default", body_hash)
    with store.read() as conn, pytest.raises(StoreError, match="not in the store"):
        get_body(conn, "default", "0" * 64)


def test_tenants_share_nothing(store):
    blob_hash = store.write(lambda conn: put_blob(conn, "a", b"secret"))
    with store.read() as conn:
        assert get_blob(conn, "a", blob_hash) == b"secret"
        with pytest.raises(StoreError):
            get_blob(conn, "b", blob_hash)


def test_short_spans_stay_literal(store):
    raw = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    assert len(raw) < 2 * bodies.WORTH_SHARING
    store.write(lambda conn: put(conn, raw))
    with store.read() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(blob_table)) == 0


def test_a_conversation_that_forks_inside_a_page_comes_back(store):
    def body(messages: list[dict]) -> bytes:
        return json.dumps({"messages": messages}).encode()

    history = [{"role": "user", "content": f"{n} " + "x" * 60} for n in range(30)]
    same = [{"role": "user", "content": "the same again and again, long enough to be shared"}] * 30
    for messages in (history, history[:20] + history[:5], history[:20], history[3:], history + history, same):
        round_trip(store, body(messages))
        round_trip(store, b" " + body(messages))


def test_a_body_of_a_branch_is_one_reference_whatever_its_length(store):
    def size(count: int) -> int:
        raw = json.dumps({"messages": [{"role": "user", "content": f"{n} " + "x" * 60} for n in range(count)]}).encode()
        key = store.write(lambda conn: put(conn, raw, with_tree=True))
        with store.read() as conn:
            assert get_body(conn, "default", key) == raw
            return len(conn.scalar(sa.select(body_table.c.segments).where(body_table.c.hash == key)) or b"")

    # head 5 + 14, branch 1 + 20 + 1 + 2 (", ") + 4, tail 5 + 2
    assert [size(2), size(100)] == [54, 54]


def test_a_message_spelled_otherwise_is_kept_once_more_and_then_counted(store):
    def chat(*messages: str) -> bytes:
        return ('{"messages":[' + ",".join(messages) + "]}").encode()

    one, other = '{"role":"user","content":"hello"}', '{"content": "hello", "role": "user"}'
    third = '{"role":"assistant","content":"hi"}'
    for raw in (chat(one), chat(other), chat(other, third), chat(one, third), chat(other)):
        round_trip(store, raw)
    with store.read() as conn:
        rows = conn.execute(sa.select(spellings)).all()
    assert [(row.variant, row.data) for row in rows] == [(1, other.encode())]
    for n in range(12):  # a client that never spells the same twice is restored all the same
        round_trip(store, chat('{"role":"user",' + " " * n + '"content":"hello"}', third))


def put_reply(conn, raw: bytes, message: dict) -> str:
    memo = Memo()
    asked = grow("default", [{"role": "user", "content": "hi"}])
    reply = grow("default", [message], asked[-1])[0]
    put_nodes(conn, "default", [*asked, reply], memo)
    return put_bodies(conn, "default", [Body(1000.0, raw, cut(raw), reply=reply)], memo)[0]


LONG = " ".join(f"word{n * n}" for n in range(400))
PARTS = [LONG[at : at + 5] for at in range(0, len(LONG), 5)]
STREAM = b"".join(b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": part}}]}).encode() for part in PARTS)


@pytest.mark.parametrize("text", ["Certainly: the red scarf was sent on Monday.", LONG, "", "\u201cs\u00ed\u201d"])
def test_a_reply_is_kept_as_what_its_message_does_not_say(store, text):
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    answer = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion", "model": "shop", "choices": [choice]}
    raw = json.dumps(answer, ensure_ascii=False).encode()
    key = store.write(lambda conn: put_reply(conn, raw, message))
    with store.read() as conn:
        assert get_body(conn, "default", key) == raw
        segments = conn.scalar(sa.select(body_table.c.segments).where(body_table.c.hash == key)) or b""
        assert segments[0] == bodies.REPLY
        # code, length, hash; the id of 16 digits; and hardly anything else
        assert len(segments) < 1 + 4 + 20 + 16 + 60 + len(text) // 20
        assert body_references(conn, "default", segments) == (set(), {segments[5:25].hex()})


def test_a_streamed_reply_of_any_length_is_too(store):
    key = store.write(lambda conn: put_reply(conn, STREAM, {"role": "assistant", "content": LONG}))
    with store.read() as conn:
        assert get_body(conn, "default", key) == STREAM
        size = conn.scalar(sa.select(sa.func.length(body_table.c.segments)).where(body_table.c.hash == key)) or 0
    assert len(STREAM) > 2**15
    assert size < len(STREAM) / 8


def test_a_reply_whose_message_is_kept_in_another_spelling_comes_back(store):
    message = {"role": "assistant", "content": "as before, and long enough to be worth sharing with the body " * 2}
    asked = [{"role": "user", "content": "hi"}]
    spelled = [b'{"role":"user","content":"hi"}', json.dumps(message, indent=2).encode()]
    store.write(lambda conn: put_nodes(conn, "default", grow("default", [*asked, message], None, spelled)))
    raw = json.dumps({"choices": [{"message": message}]}).encode()
    key = store.write(lambda conn: put_reply(conn, raw, message))
    with store.read() as conn:
        assert get_body(conn, "default", key) == raw


def test_the_phrases_are_part_of_the_format():
    digests = [hashlib.sha256(text).hexdigest()[:16] for text in (phrases.MESSAGES, phrases.REPLIES)]
    assert digests == ["2b5eae92df05afd6", "9abcce9f94bb2580"]


@given(st.binary() | st.text(max_size=500).map(str.encode) | st.integers(1, 9000).map(lambda size: b"abc" * size))
def test_what_is_packed_comes_back(data):
    assert unpack(pack(data)) == data
    assert len(pack(data)) <= len(data) + 1


def test_what_an_earlier_version_packed_is_read():
    assert unpack(b"\1" + zlib.compress(b"said before " * 30)) == b"said before " * 30
    assert unpack(b"\0said") == b"said"
