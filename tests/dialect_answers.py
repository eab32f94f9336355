"""One answer as every dialect writes it, plain and streamed: the material of the property tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Cut = Callable[[str], list[str]]  # how a text is cut into the pieces of a stream

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
NAME = st.sampled_from(["find_order", "refund", "größe"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=3)


@dataclass(frozen=True)
class Answer:
    """What was said, in no dialect."""

    text: str | None
    thoughts: str
    signature: str
    calls: tuple[tuple[str, dict], ...]
    cut_short: bool
    counts: tuple[int, int]

    @property
    def reason(self) -> str:
        return "length" if self.cut_short else "tool_calls" if self.calls else "stop"

    def arguments(self) -> list[tuple[str, str, str]]:
        """Id, name and argument text of each call."""
        return [
            (f"call_{i}", name, json.dumps(value, ensure_ascii=False)) for i, (name, value) in enumerate(self.calls)
        ]

    def normal(self) -> dict:
        """What every parser must find in it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            message["tool_calls"] = [chat_call(*call) for call in self.arguments()]
        if self.thoughts:
            message["reasoning_content"] = self.thoughts
        return message


def chat_call(call_id: str, name: str, arguments: str) -> dict:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    calls = tuple(draw(st.lists(st.tuples(NAME, OBJECTS), max_size=3)))
    text = draw(TEXT if not calls else st.none() | TEXT)
    counts = draw(st.tuples(st.integers(0, 99), st.integers(0, 99)))
    return Answer(text, draw(st.just("") | TEXT), draw(TEXT), calls, draw(st.booleans()), counts)


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    """A way to cut texts; every character may stand alone."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))

    def cut(text: str) -> list[str]:
        pieces, at, turn = [], 0, 0
        while at < len(text):
            pieces.append(text[at : at + sizes[turn % len(sizes)]])
            at += sizes[turn % len(sizes)]
            turn += 1
        return pieces

    return cut


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def is_object(text: str) -> bool:
    """Whether a text is a JSON object, as the arguments of a call should be."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def data(value: Any) -> bytes:
    return b"data: " + dump(value) + b"\n\n"


def named(value: dict) -> bytes:
    return b"event: " + value["type"].encode() + b"\n" + data(value)


def usage(answer: Answer, given: str = "prompt_tokens", made: str = "completion_tokens") -> dict:
    return {given: answer.counts[0], made: answer.counts[1]}


def chat_plain(answer: Answer) -> bytes:
    choice = {"index": 0, "message": answer.normal(), "finish_reason": answer.reason}
    return dump({"id": "id-1", "object": "chat.completion", "choices": [choice], "usage": usage(answer)})


def chat_stream(answer: Answer, cut: Cut) -> bytes:
    deltas: list[dict] = [{"role": "assistant", "content": ""}] if answer.text else [{"role": "assistant"}]
    deltas += [{"reasoning_content": piece} for piece in cut(answer.thoughts)]
    deltas += [{"content": piece} for piece in cut(answer.text or "")]
    for i, (call_id, name, arguments) in enumerate(answer.arguments()):
        deltas.append({"tool_calls": [{"index": i, "id": call_id, "type": "function", "function": {"name": name}}]})
        deltas += [{"tool_calls": [{"index": i, "function": {"arguments": piece}}]} for piece in cut(arguments)]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": answer.reason})
    events = [data({"id": "id-1", "choices": [choice]}) for choice in choices]
    return b"".join([*events, data({"id": "id-1", "choices": [], "usage": usage(answer)}), b"data: [DONE]\n\n"])


def message_blocks(answer: Answer) -> list[dict]:
    blocks: list[dict] = []
    if answer.thoughts:
        blocks.append({"type": "thinking", "thinking": answer.thoughts, "signature": answer.signature})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    for i, (name, value) in enumerate(answer.calls):
        blocks.append({"type": "tool_use", "id": f"call_{i}", "name": name, "input": value})
    return blocks


def messages_head(answer: Answer) -> dict:
    return {"id": "id-1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}


def stop_reason(answer: Answer) -> str:
    return {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[answer.reason]


def messages_plain(answer: Answer) -> bytes:
    reply = messages_head(answer) | {"content": message_blocks(answer), "stop_reason": stop_reason(answer)}
    return dump(reply | {"usage": usage(answer, "input_tokens", "output_tokens")})


def messages_stream(answer: Answer, cut: Cut) -> bytes:
    head = messages_head(answer) | {"usage": {"input_tokens": answer.counts[0], "output_tokens": 1}}
    events = [{"type": "message_start", "message": head}, {"type": "ping"}]
    for index, block in enumerate(message_blocks(answer)):
        empty = {"text": "", "thinking": "", "signature": "", "input": {}}
        start = {key: empty.get(key, value) for key, value in block.items()}
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        deltas: list[dict] = []
        if block["type"] == "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in cut(block["text"])]
        elif block["type"] == "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in cut(block["thinking"])]
            deltas += [{"type": "signature_delta", "signature": piece} for piece in cut(block["signature"])]
        else:
            written = json.dumps(block["input"], ensure_ascii=False) if block["input"] else ""
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in cut(written)]
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": stop_reason(answer), "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": answer.counts[1]}})
    return b"".join(map(named, [*events, {"type": "message_stop"}]))


def response_items(answer: Answer) -> list[dict]:
    items: list[dict] = []
    if answer.thoughts:
        summary = [{"type": "summary_text", "text": answer.thoughts}]
        items.append({"id": "rs", "type": "reasoning", "summary": summary, "encrypted_content": answer.signature})
    if answer.text:
        content = [{"type": "output_text", "text": answer.text, "annotations": []}]
        items.append({"id": "m", "type": "message", "role": "assistant", "content": content})
    for call_id, name, arguments in answer.arguments():
        items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})
    return items


def response_of(answer: Answer) -> dict:
    status = "incomplete" if answer.cut_short else "completed"
    details = {"reason": "max_output_tokens"} if answer.cut_short else None
    head = {"id": "id-1", "object": "response", "status": status, "incomplete_details": details}
    return head | {"output": response_items(answer), "usage": usage(answer, "input_tokens", "output_tokens")}


def responses_plain(answer: Answer) -> bytes:
    return dump(response_of(answer))


def responses_stream(answer: Answer, cut: Cut, whole_at_end: bool = True) -> bytes:
    """`whole_at_end` False is a bridge whose last event holds no output."""
    begun = {"id": "id-1", "status": "in_progress", "output": []}
    events: list[dict] = [{"type": "response.created", "response": begun}]
    for at, item in enumerate(response_items(answer)):
        index = 2 * at + 1  # gaps, as bridges leave them
        where = {"output_index": index, "content_index": 0, "summary_index": 0}
        empty = {key: "" if key == "arguments" else [] for key in ("arguments", "content", "summary") if key in item}
        events.append({"type": "response.output_item.added", "output_index": index, "item": item | empty})
        if item["type"] == "message":
            pieces, kind = cut(item["content"][0]["text"]), "response.output_text.delta"
        elif item["type"] == "reasoning":
            pieces, kind = cut(item["summary"][0]["text"]), "response.reasoning_summary_text.delta"
        else:
            pieces, kind = cut(item["arguments"]), "response.function_call_arguments.delta"
        events += [{"type": kind, **where, "delta": piece} for piece in pieces]
    last = response_of(answer) | ({} if whole_at_end else {"output": []})
    events.append({"type": f"response.{last['status']}", "response": last})
    return b"".join(named({**event, "sequence_number": i}) for i, event in enumerate(events))
