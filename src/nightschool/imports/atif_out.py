"""Sessions as ATIF 1.8 trajectories that `atif` reads back as they were.

A reply and the tool answers behind it are one step. Where the format has no word for something, the exact messages
stand in the step's `extra`; they are left away wherever reading the step alone gives the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from nightschool.imports.atif import ASIDE, UNKNOWN_SAMPLER, messages_of_step
from nightschool.imports.atif_parts import atif_content
from nightschool.imports.calls import with_own_ids
from nightschool.imports.paths import Path, Session
from nightschool.imports.times import iso_of
from nightschool.store.tree import canonical
from nightschool.types import Branch, Choice, Exchange, Feedback, Fidelity, Json, LogprobProvenance

VERSION = "ATIF-v1.8"
SOURCES = {"assistant": "agent", "system": "system", "developer": "system"}
COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")


def trajectories(session: Session, left_out: Counter[str]) -> Iterator[Json]:
    """One trajectory for each path; what earlier ones have told is copied context. Sub-agents go with the first."""
    left_out["no reply"] += sum(not exchange.choices for exchange in session.exchanges)
    for number, path in enumerate(session.paths):
        first = number == 0
        steps = list(_steps(session, path))
        children = [found for child in session.children if first for found in trajectories(child, left_out)]
        agent: Json = {"name": path.leaf.agent, "version": "unknown", "model_name": path.leaf.policy_version}
        if path.leaf.tools:
            agent["tool_definitions"] = list(path.leaf.tools)
        trajectory: Json = {
            "schema_version": VERSION,
            "session_id": session.name,
            "trajectory_id": path.leaf.id,
            "agent": agent,
            "steps": [{"step_id": place} | step for place, step in enumerate(steps, start=1)],
            "final_metrics": {"total_steps": len(steps)},
        }
        trajectory["extra"] = {ASIDE: _about(session, first)}
        if children:
            trajectory["subagent_trajectories"] = children
        yield trajectory


def _about(session: Session, first: bool) -> Json:
    """What the format has no place for, and is said of the session."""
    aside: Json = {}
    if session.row.principal != session.id:
        aside["user"] = session.row.principal
    if session.row.tags:
        aside["tags"] = session.row.tags
    said = [_feedback(item) for item in session.about(None)] if first else []
    return aside | ({"feedback": said} if said else {})


def _steps(session: Session, path: Path) -> Iterator[Json]:
    messages, place = with_own_ids(path.messages), 0
    while place < len(messages):
        end = place + 1
        if messages[place].get("role") == "assistant":
            while end < len(messages) and messages[end].get("role") == "tool":
                end += 1
        exchange = path.calls.get(place)
        step = _step(session, messages[place:end], exchange, place in path.fresh, path.leaf)
        if canonical(messages_of_step(step)) != canonical(exact := list(path.messages[place:end])):
            step.setdefault("extra", {}).setdefault(ASIDE, {})["messages"] = exact
        yield step
        place = end


def _step(session: Session, messages: Sequence[Json], exchange: Exchange | None, fresh: bool, leaf: Exchange) -> Json:
    first = messages[0]
    step: Json = {"source": SOURCES.get(str(first.get("role")), "user")}
    step["message"] = atif_content(first.get("content")) or ""
    aside: Json = {}
    if step["source"] == "agent":
        _add_reply(step, first, messages[1:])
        if exchange is None or not fresh:
            step["is_copied_context"] = True
        else:
            aside = _add_call(session, step, exchange, leaf)
    return step | ({"extra": {ASIDE: aside}} if aside else {})


def _add_reply(step: Json, message: Json, answers: Sequence[Json]) -> None:
    if isinstance(message.get("reasoning_content"), str):
        step["reasoning_content"] = message["reasoning_content"]
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    if calls:
        step["tool_calls"] = calls
    if answers:
        step["observation"] = {"results": [_result(answer, calls) for answer in answers]}


def _result(answer: Json, calls: Sequence[Json]) -> Json:
    """What came back; the format knows no result of a call that its step does not make."""
    own = answer.get("tool_call_id")
    made = any(call["tool_call_id"] == own for call in calls)
    return {"source_call_id": own if made else None, "content": atif_content(answer.get("content"))}


def _add_call(session: Session, step: Json, exchange: Exchange, leaf: Exchange) -> Json:
    """Model, time, tokens and counts of a call; what has no place there goes aside."""
    reply = exchange.choices[0]
    step["model_name"] = exchange.policy_version
    step["timestamp"] = iso_of(exchange.started_at)
    counts = session.rows[exchange.id].usage or {}
    metrics: Json = {name: counts[name] for name in COUNTS if name in counts} | _tokens(exchange, reply)
    if metrics:
        step["metrics"] = metrics
    aside: Json = {"exchange": exchange.id}
    told = {
        "upstream_id": exchange.upstream_id,
        "finish_reason": reply.finish_reason,
        "sampler": None if exchange.sampler == UNKNOWN_SAMPLER else asdict(exchange.sampler),
        "branch": exchange.branch.value if exchange.branch != Branch.MAIN else None,
        "context_complete": None if exchange.context_complete else False,
        "fidelity": None if exchange.fidelity == Fidelity.EXACT else exchange.fidelity.value,
        "fidelity_reason": exchange.fidelity_reason,
        "logprobs_by": _scored_by(exchange),
        "flags": list(exchange.flags) or None,
        "tools": list(exchange.tools) if exchange.tools != leaf.tools else None,
        "external_key": session.rows[exchange.id].external_key,
        "training_allowed": None if session.rows[exchange.id].training_allowed else False,
        "choices": [_choice(choice) for choice in exchange.choices[1:]] or None,
        "feedback": [_feedback(item) for item in session.about(exchange.id)] or None,
    }
    aside |= {name: value for name, value in told.items() if value is not None}
    return aside


def _scored_by(exchange: Exchange) -> str | None:
    usual = (LogprobProvenance.ENGINE, LogprobProvenance.NONE)
    return None if exchange.logprob_provenance in usual else exchange.logprob_provenance.value


def _tokens(exchange: Exchange, reply: Choice) -> Json:
    metrics: Json = {}
    if exchange.prompt_ids is not None:
        metrics["prompt_token_ids"] = list(exchange.prompt_ids)
    if reply.completion_ids is not None:
        metrics["completion_token_ids"] = list(reply.completion_ids)
    if reply.behavior_logprobs is not None and None not in reply.behavior_logprobs:
        metrics["logprobs"] = list(reply.behavior_logprobs)
    return metrics


def _choice(choice: Choice) -> Json:
    row = {"index": choice.index, "message": choice.message, "finish_reason": choice.finish_reason}
    ids, scores = choice.completion_ids, choice.behavior_logprobs
    row |= {} if ids is None else {"completion_token_ids": list(ids)}
    return row | ({} if scores is None or None in scores else {"logprobs": list(scores)})


def _feedback(item: Feedback) -> Json:
    row = {"kind": item.kind.value, "name": item.name, "value": item.value, "source": item.source}
    more = {
        "author": item.author,
        "confidence": item.confidence,
        "observed_at": item.observed_at,
        "scale": None if item.scale is None else list(item.scale),
        "tool_call": item.tool_call,
    }
    return row | {name: value for name, value in more.items() if value is not None}


def _call(call: Any) -> Json:
    """A call whose arguments are an object; what they are not, or how they were spelled, stands aside."""
    told: Json = call if isinstance(call, dict) else {}
    function = told.get("function", told.get("custom"))
    function = function if isinstance(function, dict) else {}
    try:
        arguments = json.loads(str(function.get("arguments")))
    except (TypeError, ValueError):
        arguments = None
    if isinstance(function.get("input"), str):  # of a custom tool, which takes a text
        arguments = {"input": function["input"]}
    name, call_id = function.get("name"), told.get("id")
    return {
        "tool_call_id": call_id if isinstance(call_id, str) else "",
        "function_name": name if isinstance(name, str) else "",
        "arguments": arguments if isinstance(arguments, dict) else {},
    }
