"""What attributes and events of a span say of a call: OpenTelemetry's three generations, and OpenInference.

The newest that is there counts: whole messages, then one event a message, then one attribute a field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from nightschool.feedback.values import NewFeedback
from nightschool.gateway.dialects.sampler import resolve_sampler
from nightschool.gateway.dialects.usage import count_usage
from nightschool.imports.said import call, choices_said, messages_said, tools_said, trimmed, unpacked
from nightschool.imports.spans import NOT_TOLD, Call
from nightschool.imports.values import Judgement, Refused, exchange_id
from nightschool.types import Choice, FeedbackKind, Json, TargetKind

Events = Sequence[tuple[str, Json]]

DETAILS = "gen_ai.client.inference.operation.details"
EVALUATION = "gen_ai.evaluation.result"
CHOICE = "gen_ai.choice"
MESSAGE_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool|developer)\.message")
MODELS = ("chat", "text_completion", "generate_content", "completion", "responses")
AGENTS = ("invoke_agent", "create_agent", "invoke_workflow")
ASKED_FIELDS = ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty")


def kind_of(attributes: Json, name: str) -> str:
    """model, agent, or what else the span is."""
    told = attributes.get("openinference.span.kind") or attributes.get("traceloop.span.kind")
    if told:
        kind = str(told).lower()
        return {"llm": "model", "workflow": "agent"}.get(kind, kind)
    operation = attributes.get("gen_ai.operation.name") or attributes.get("llm.request.type")
    if operation in MODELS:
        return "model"
    if operation in AGENTS:
        return "agent"
    if operation:
        return str(operation)
    asked = "gen_ai.request.model" in attributes or "gen_ai.prompt.0.content" in attributes
    return "model" if asked and "gen_ai.tool.name" not in attributes else (name.split(" ")[0] or "unnamed")


def call_of(attributes: Json, events: Events, error: str | None) -> Call:
    """The call that a model's span tells. Raises: Refused where it has no input, or no output and no error."""
    for name, given in events:
        if name == DETAILS:
            attributes = attributes | given
    messages = _asked(attributes, events)
    try:
        choices = _answered(attributes, events)
    except Refused:
        if error is None:
            raise
        choices = ()
    return Call(
        messages=tuple(messages),
        choices=choices,
        tools=_tools(attributes),
        model=_text(attributes, "gen_ai.response.model", "gen_ai.request.model", "llm.model_name"),
        upstream_id=trimmed(_text(attributes, "gen_ai.response.id", "llm.response.id")),
        sampler=_sampler(attributes),
        usage=_usage(attributes),
        error=error,
    )


def feedback_of(name: str, given: Json, trace: str, span: str | None) -> Iterator[Judgement]:
    """An evaluation event as judgements: its score and its label, with its explanation as evidence."""
    if name != EVALUATION:
        return
    called = str(given.get("gen_ai.evaluation.name") or "evaluation")
    response = trimmed(given.get("gen_ai.response.id"))
    target = response if isinstance(response, str) and response else exchange_id(f"otlp:{trace}/{span}")
    if span is None and target != response:
        return
    found = (
        (FeedbackKind.NUMBER, given.get("gen_ai.evaluation.score.value"), called),
        (FeedbackKind.CATEGORY, given.get("gen_ai.evaluation.score.label"), f"{called} label"),
    )
    for kind, value, label in found:
        if value not in (None, ""):
            key = f"otlp/{target}/{label}/{value}"[:256]
            why = given.get("gen_ai.evaluation.explanation")
            evidence = why if isinstance(why, str) and why else None
            item = NewFeedback(TargetKind.EXCHANGE, target, kind, value, label, "judge", key=key, evidence=evidence)
            yield Judgement(item, turn=span)


def unflattened(attributes: Json, prefix: str) -> Any:
    """The value below `prefix` whose keys were written one after another: `a.0.b` is a list of objects."""
    root: Json = {}
    for key, value in attributes.items():
        if not key.startswith(prefix + "."):
            continue
        at, parts = root, key[len(prefix) + 1 :].split(".")
        for part in parts[:-1]:
            inner = at.setdefault(part, {})
            at = inner if isinstance(inner, dict) else {}
        at[parts[-1]] = value
    return _lists(root)


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: _lists(item) for key, item in value.items()}
    if inner and all(key.isdecimal() for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner


def _asked(attributes: Json, events: Events) -> list[Json]:
    system = unpacked(attributes.get("gen_ai.system_instructions"))
    given = attributes.get("gen_ai.input.messages")
    if given:
        prompt = messages_said([{"role": "system", "parts": system}]) if isinstance(system, list) and system else []
        return [*prompt, *messages_said(given)]
    told = [_event(match[1], said) for name, said in events if (match := MESSAGE_EVENT.fullmatch(name))]
    if told:
        return told
    for prefix in ("llm.input_messages", "gen_ai.prompt"):
        rows = unflattened(attributes, prefix)
        if isinstance(rows, list) and rows:
            return [_flat(row) for row in rows]
    content = next((said for name, said in events if name == "gen_ai.content.prompt"), {})
    return messages_said(content.get("gen_ai.prompt") or _text(attributes, "gen_ai.prompt", "input.value"))


def _answered(attributes: Json, events: Events) -> tuple[Choice, ...]:
    given = attributes.get("gen_ai.output.messages")
    if given:
        return choices_said(given)
    told = [said for name, said in events if name == CHOICE]
    if told:
        return tuple(_choice(place, said) for place, said in enumerate(told))
    for prefix in ("llm.output_messages", "gen_ai.completion"):
        rows = unflattened(attributes, prefix)
        if isinstance(rows, list) and rows:
            reason = attributes.get("llm.finish_reason")
            return tuple(
                Choice(place, {"role": "assistant"} | _flat(row), row.get("finish_reason", reason))
                for place, row in enumerate(rows)
            )
    content = next((said for name, said in events if name == "gen_ai.content.completion"), {})
    return choices_said(content.get("gen_ai.completion") or _text(attributes, "gen_ai.completion", "output.value"))


def _event(role: str, said: Json) -> Json:
    """One message of the second generation: its own event, named after its role."""
    (message,) = messages_said([{"role": said.get("role") or role} | {k: v for k, v in said.items() if "." not in k}])
    if role == "tool" and "id" in message:
        message["tool_call_id"] = trimmed(message.pop("id"))
    if "tool_calls" in message:
        message["tool_calls"] = unpacked(message["tool_calls"])
    return message


def _choice(place: int, said: Json) -> Choice:
    message = unpacked(said.get("message"))
    if not isinstance(message, dict):
        message = {"content": message}
    tool_calls = unpacked(said.get("tool_calls") or message.get("tool_calls"))
    made = {"role": "assistant"} | message | ({"tool_calls": tool_calls} if tool_calls else {})
    index = said.get("index")
    return Choice(index if isinstance(index, int) else place, made, said.get("finish_reason"))


def _flat(row: Any) -> Json:
    """A message whose fields were attributes of their own, as Traceloop or OpenInference write them."""
    row = row.get("message", row) if isinstance(row, dict) else {"content": row}
    message = {k: v for k, v in row.items() if k not in ("tool_calls", "contents", "finish_reason")}
    message.setdefault("role", "user")
    parts = row.get("contents")
    if isinstance(parts, list):
        message["content"] = [_part(part.get("message_content", part)) for part in parts]
    message.setdefault("content", None)
    calls = row.get("tool_calls")
    if isinstance(calls, list) and calls:
        message["tool_calls"] = [_flat_call(given.get("tool_call", given)) for given in calls]
    if "tool_call_id" in message:
        message["tool_call_id"] = trimmed(message["tool_call_id"])
    return message


def _flat_call(given: Json) -> Json:
    function = given.get("function") or given
    made = call(given.get("id"), function.get("name"), function.get("arguments"))
    return made | ({"reasoning_signature": given["reasoning_signature"]} if "reasoning_signature" in given else {})


def _part(part: Json) -> Json:
    if part.get("type") != "image":
        return part
    url = ((part.get("image") or {}).get("image") or {}).get("url") or (part.get("image") or {}).get("url")
    return {"type": "image_url", "image_url": {"url": url}} if url else part


def _tools(attributes: Json) -> tuple[Any, ...]:
    given = attributes.get("gen_ai.tool.definitions")
    if given:
        return tools_said(given)
    rows = unflattened(attributes, "llm.tools")
    if isinstance(rows, list):
        return tuple(unpacked((row.get("tool") or row).get("json_schema")) for row in rows)
    rows = unflattened(attributes, "llm.request.functions")
    if not isinstance(rows, list):
        return ()
    return tuple(
        {"type": "function", "function": row | {"parameters": unpacked(row.get("parameters"))}} for row in rows
    )


def _sampler(attributes: Json) -> Any:
    parameters = unpacked(attributes.get("llm.invocation_parameters"))
    told = {name: attributes.get(f"gen_ai.request.{name}") for name in ASKED_FIELDS}
    told = {name: value for name, value in told.items() if value is not None}
    fields = (parameters if isinstance(parameters, dict) else {}) | told
    return resolve_sampler(fields) if fields else NOT_TOLD


def _usage(attributes: Json) -> Json | None:
    names = {
        "prompt_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
        "completion_tokens": (
            "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion",
        ),
    }  # fmt: skip
    counts = {
        name: next((attributes[key] for key in keys if attributes.get(key) is not None), None)
        for name, keys in names.items()
    }
    cached = attributes.get("gen_ai.usage.cache_read.input_tokens")
    reasoning = attributes.get("gen_ai.usage.reasoning.output_tokens")
    return count_usage(
        counts
        | {"prompt_tokens_details": {"cached_tokens": cached}}
        | {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    )


def _text(attributes: Json, *names: str) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) not in (None, "")), None)
