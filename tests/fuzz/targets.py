"""What must hold for any bytes whatever in the parsers that read what a model or an upstream wrote.

Each target takes bytes and raises AssertionError where a promise is broken. `test_fuzz.py` feeds them bytes from
hypothesis, `run.py` bytes that atheris bends towards new branches.
"""

from __future__ import annotations

import json
from functools import partial

from nightschool.gateway.dialects.chat import CHAT
from nightschool.gateway.dialects.completions import COMPLETIONS
from nightschool.gateway.dialects.dialect import Dialect, ParsedReply
from nightschool.gateway.dialects.hiding import Hidden, hide_in_event, hide_in_reply
from nightschool.gateway.dialects.messages import MESSAGES
from nightschool.gateway.dialects.responses import RESPONSES
from nightschool.gateway.dialects.sse import EventSplitter
from nightschool.rendering.toolcalls import parse_reply, write_calls

REPLACEMENT = "\ufffd"
HIDDEN = Hidden(model="alias", logprobs=True, ids=True)


def split(data: bytes) -> None:
    """The first byte says how long the pieces are in which the rest arrives."""
    size, raw = (data[0] % 7) + 1 if data else 1, data[1:]
    whole = EventSplitter()
    expected = whole.feed(raw)
    pieces = EventSplitter()
    events = [event for at in range(0, len(raw), size) for event in pieces.feed(raw[at : at + size])]
    assert b"".join(events) + pieces.rest == raw, "pass-through is byte-identical"
    assert _lines(events) == _lines(expected), "where the bytes are cut changes no event"


def hide(data: bytes) -> None:
    assert hide_in_event(data, Hidden()) == data
    assert hide_in_reply(data, Hidden()) == data
    once = hide_in_event(data, HIDDEN)
    assert hide_in_event(once, HIDDEN) == once, "what is hidden stays hidden"
    once = hide_in_reply(data, HIDDEN)
    assert hide_in_reply(once, HIDDEN) == once


def read(dialect: Dialect, data: bytes) -> None:
    """Any bytes are a reply of some kind, whole or not, plain and as a stream."""
    _introduces_nothing(data, dialect.read(data, False))
    _introduces_nothing(data, dialect.read(data, True))


def tool_calls(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    found = parse_reply(text)
    if not found.valid:
        assert (found.content, found.calls) == (text, ())
        return
    for name, arguments in found.calls:
        assert isinstance(json.loads(arguments), dict)
        assert arguments in text or REPLACEMENT in text or json.loads(arguments) is not None
        assert name is not None
    calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in found.calls]
    again = parse_reply(write_calls({"content": found.content, "tool_calls": calls}))
    assert (again.calls, again.valid) == (found.calls, True), "what was read is written so that it is read again"


TARGETS = {
    "split": split,
    "hide": hide,
    "chat": partial(read, CHAT),
    "completions": partial(read, COMPLETIONS),
    "responses": partial(read, RESPONSES),
    "messages": partial(read, MESSAGES),
    "tool_calls": tool_calls,
}

CHAT_SEEDS = [
    b'data: {"id":"a","choices":[{"index":0,"delta":{"content":"\xc3\xa9"},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}}]}'
    b"\n\ndata: [DONE]\n\n",
    b'data: {"error":{"message":"no"}}\n\n',
    b'data: {"usage":{"prompt_tokens":1},"choices":[]}\n\n',
    b'{"id":"a","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"logprobs":{"content":[]}}]}',
    b'{"error":"no"}',
]
# Where a fuzzer begins: each has a branch of its own.
SEEDS = {
    "split": [b"\x01data: {}\n\ndata: x\r\n\r\n", b"\x02: a\r\rdata: b\n\r\n"],
    "hide": [
        b'data: {"model":"m","choices":[{"index":0,"token_ids":[1],"logprobs":{"content":[]}}]}\n\n',
        b'{"model":"m","prompt_token_ids":[1],"choices":[{"token_ids":[1],"logprobs":null}]}',
    ],
    "chat": CHAT_SEEDS,
    "completions": [
        b'data: {"id":"a","choices":[{"index":0,"text":"x","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
        b'{"id":"a","choices":[{"index":0,"text":"x","logprobs":{"token_logprobs":[0.5]},"token_ids":[1]}]}',
    ],
    "responses": [
        b'data: {"type":"response.completed","response":{"id":"r","output":[{"type":"message","content":'
        b'[{"type":"output_text","text":"x"}]},{"type":"function_call","name":"f","arguments":"{}"}]}}\n\n',
        b'data: {"type":"response.output_text.delta","item_id":"m","output_index":0,"delta":"x"}\n\n',
        b'{"id":"r","status":"completed","output":[{"type":"reasoning","summary":[],"encrypted_content":"e"}]}',
    ],
    "messages": [
        b'data: {"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":1}}}\n\n'
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}\n\n'
        b'data: {"type":"message_stop"}\n\n',
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{"}}\n\n',
        b'{"id":"m","content":[{"type":"tool_use","id":"t","name":"f","input":{}},{"type":"thinking","thinking":"","signature":"s"}]}',
    ],
    "tool_calls": [
        b'So: <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        b"<tool_call>[[[[[[[[</tool_call>",
    ],
}


def _lines(events: list[bytes]) -> list[bytes]:
    """Events without their closing line ends: a CRLF cut in two closes an event one byte earlier."""
    return [event.strip(b"\r\n") for event in events if event.strip(b"\r\n")]


def _introduces_nothing(data: bytes, parsed: ParsedReply) -> None:
    """No replacement character that was not there: no multi-byte character was torn."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    if REPLACEMENT not in text and "ufffd" not in text.lower() and "\\ud" not in text.lower():
        assert REPLACEMENT not in repr(parsed)
