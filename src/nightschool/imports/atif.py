"""ATIF trajectories (Harbor), versions 1.0 to 1.8, into exchanges.

A step of the agent is one call with what it observed. Steps that were copied for context, or that no model made,
are context alone. What ATIF has no word for (arguments that are no object, a null content, strange keys) is read
from the step's `extra`, where `atif_out` puts it.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from nightschool.feedback.values import NewFeedback
from nightschool.imports.atif_parts import chat_content
from nightschool.imports.lists import NO_IDS, blank_record, checked_messages
from nightschool.imports.reading import Raw
from nightschool.imports.times import seconds_of
from nightschool.imports.values import Conversation, Format, Judgement, Link, Refused, Turn, digest
from nightschool.store.records import Caller, Record
from nightschool.types import Branch, Choice, FeedbackKind, Fidelity, Json, LogprobProvenance, Sampler, TargetKind

NAME = "atif"
ASIDE = "nightschool"  # key below `extra`
SOURCES = {"system": "system", "user": "user", "agent": "assistant"}
UNKNOWN_SAMPLER = Sampler(constraints="not told")
SEVERAL = "several calls in one step"
COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")
NOT_ALL = "The log does not carry prompt ids, completion ids and log-probabilities that fit together."


class Tokens(NamedTuple):
    prompt: tuple[int, ...] | None
    completion: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None


def knows(record: Json) -> bool:
    return "steps" in record and str(record.get("schema_version", "")).startswith("ATIF")


def convert(raws: Sequence[Raw], _group: str) -> Iterator[Conversation]:
    for raw in raws:
        for number, (trajectory, parent) in enumerate(_with_children(raw.value, None)):
            yield _conversation(trajectory, parent, raw, raw.data if number == 0 else b"")


def messages_of_step(step: Json) -> list[Json]:
    """The chat messages that a step says, without regard to what stands aside of it."""
    role = SOURCES.get(str(step.get("source")))
    if role is None:
        raise Refused("a step of an unknown source")
    message: Json = {"role": role, "content": chat_content(step.get("message"))}
    if step.get("reasoning_content") is not None:
        message["reasoning_content"] = step["reasoning_content"]
    if step.get("tool_calls"):
        message["tool_calls"] = [_call(call) for call in step["tool_calls"]]
    results = (step.get("observation") or {}).get("results") or ()
    return [message, *(_result(result) for result in results)]


def _with_children(trajectory: Json, parent: Json | None) -> Iterator[tuple[Json, Json | None]]:
    """A trajectory and those of its sub-agents, which are of its session where they name none."""
    own, sidechains = _apart(trajectory)
    yield own, parent
    within = trajectory.get("session_id") or trajectory.get("trajectory_id")
    yield from ((child | {"session_id": within}, trajectory) for child in sidechains)
    for child in trajectory.get("subagent_trajectories") or ():
        yield from _with_children(child if child.get("session_id") else child | {"session_id": within}, trajectory)


def _apart(trajectory: Json) -> tuple[Json, list[Json]]:
    """A trajectory without the steps of sub-agents that converters of Claude Code put among its own, and those."""
    steps: dict[str | None, list[Json]] = {None: []}
    told = trajectory.get("steps")
    for step in told if isinstance(told, list) else ():
        extra = step.get("extra") or {}
        name = str(extra.get("agent_id") or "sidechain") if extra.get("is_sidechain") else None
        steps.setdefault(name, []).append(step)
    if len(steps) == 1:
        return trajectory, []
    own = trajectory | {"steps": steps.pop(None)}
    agent = trajectory.get("agent")
    return own, [{"trajectory_id": name, "agent": agent, "steps": found} for name, found in steps.items()]


def _session(trajectory: Json, parent: Json | None) -> str:
    """A trajectory is its session's, unless it is a sub-agent's: that is a session below."""
    own = trajectory.get("session_id") or trajectory.get("trajectory_id")
    if not isinstance(own, str) or not own:
        raise Refused("a trajectory without an id")
    if parent is None:
        return own
    within = parent.get("session_id") or parent.get("trajectory_id")
    return f"{within}/{trajectory.get('trajectory_id') or own}" if own == within else own


def _conversation(trajectory: Json, parent: Json | None, raw: Raw, data: bytes) -> Conversation:
    steps = trajectory.get("steps")
    if not isinstance(steps, list) or not steps:
        raise Refused("a trajectory without steps")
    session, aside = _session(trajectory, parent), _aside(trajectory)
    told = trajectory.get("agent")
    agent: Json = told if isinstance(told, dict) else {}
    caller = Caller(
        agent=str(agent.get("name") or ""),
        session=session,
        header_user=aside.get("user"),
        parent_session=None if parent is None else _session(parent, None),
        tags=tuple(aside.get("tags") or ()),
    )
    blank = replace(
        blank_record(f"import.{NAME}", caller, agent.get("model_name")),
        tools=tuple(agent.get("tool_definitions") or ()),
        branch=Branch.MAIN if parent is None else Branch.SUB_AGENT,
    )
    turns, tail = _turns(steps, blank)
    calls = [step for step in steps if _is_call(step)]
    judgements = list(_judgements(aside, session))
    for turn, step in zip(turns, calls, strict=True):
        judgements += _judgements(_aside(step), session, turn.key)
    return Conversation(
        key=f"{NAME}:{session}",
        digest=digest(trajectory),
        place=f"line {raw.line}",
        turns=turns,
        judgements=tuple(judgements),
        raw=data,
        tail=tail,
        left_out=tuple("copied or made without a model" for step in steps if _is_agents(step) and not _is_call(step)),
    )


def _turns(steps: Sequence[Json], blank: Record) -> tuple[tuple[Turn, ...], Link | None]:
    turns: list[Turn] = []
    link: Link | None = None
    rolling = ""
    ends_with_reply = False
    for step in steps:
        said = checked_messages(_aside(step).get("messages") or messages_of_step(step))
        rolling = digest([rolling, said])
        if _is_call(step):
            at = seconds_of(step.get("timestamp"))
            turns.append(Turn(rolling[:32], link, _record(step, said[0], blank), at))
        for message in said:
            link = Link(message, link)
        ends_with_reply = _is_call(step) and len(said) == 1
    return tuple(turns), None if ends_with_reply else link


def _is_agents(step: Json) -> bool:
    return step.get("source") == "agent"


def _is_call(step: Json) -> bool:
    return _is_agents(step) and not step.get("is_copied_context") and step.get("llm_call_count") != 0


def _record(step: Json, message: Json, blank: Record) -> Record:
    metrics, aside = step.get("metrics") or {}, _aside(step)
    tokens = _tokens(metrics)
    several = (step.get("llm_call_count") or 1) > 1
    exact = None not in tokens and not several
    counts = {name: metrics[name] for name in COUNTS if isinstance(metrics.get(name), int)}
    record = replace(
        blank,
        choices=(Choice(0, message, aside.get("finish_reason"), tokens.completion, tokens.logprobs),),
        prompt_ids=tokens.prompt,
        policy_version=step.get("model_name") or blank.policy_version,
        fidelity=Fidelity.EXACT if exact else Fidelity.TEXT,
        fidelity_reason=None if exact else (NO_IDS if tokens == (None, None, None) else NOT_ALL),
        logprob_provenance=LogprobProvenance.NONE if tokens.logprobs is None else LogprobProvenance.ENGINE,
        sampler=UNKNOWN_SAMPLER,
        usage=counts or None,
        flags=(SEVERAL,) if several else (),
    )
    return record if not aside else _as_told(record, aside)


def _as_told(record: Record, aside: Json) -> Record:
    """What the format has no word for. It may say less than ids and log-probabilities do, never more."""
    told = {f.name: aside["sampler"][f.name] for f in fields(Sampler) if f.name in (aside.get("sampler") or {})}
    caller = replace(
        record.caller,
        external_key=aside.get("external_key"),
        training_allowed=record.caller.training_allowed and aside.get("training_allowed", True),
    )
    lower = Fidelity(aside["fidelity"]) if record.fidelity == Fidelity.EXACT and "fidelity" in aside else None
    scored = LogprobProvenance(aside["logprobs_by"]) if "logprobs_by" in aside else None
    return replace(
        record,
        id=_known_id(aside.get("exchange")),
        caller=caller,
        choices=(*record.choices, *(_further(choice) for choice in aside.get("choices") or ())),
        tools=tuple(aside.get("tools", record.tools)),
        sampler=Sampler(**told) if told else record.sampler,
        upstream_id=aside.get("upstream_id"),
        branch=Branch(aside["branch"]) if "branch" in aside else record.branch,
        context_complete=aside.get("context_complete", True),
        flags=tuple(aside.get("flags", record.flags)),
        fidelity=lower or record.fidelity,
        fidelity_reason=aside.get("fidelity_reason"),
        logprob_provenance=scored or record.logprob_provenance,
    )


def _known_id(given: Any) -> str:
    """The id that an exchange had where it was exported; empty for anything that is none."""
    try:
        return str(uuid.UUID(given))
    except (TypeError, ValueError, AttributeError):
        return ""


def _further(told: Json) -> Choice:
    tokens = _tokens(told)
    return Choice(told["index"], told["message"], told.get("finish_reason"), tokens.completion, tokens.logprobs)


def _tokens(metrics: Json) -> Tokens:
    """What of the ids and log-probabilities can be used; log-probabilities without their ids cannot."""
    prompt, completion = _ids(metrics.get("prompt_token_ids")), _ids(metrics.get("completion_token_ids"))
    scores = metrics.get("logprobs")
    right = (
        isinstance(scores, list)
        and completion is not None
        and len(scores) == len(completion)
        and all(isinstance(s, int | float) and not isinstance(s, bool) and math.isfinite(s) for s in scores)
    )
    return Tokens(prompt, completion, tuple(map(float, scores)) if right and isinstance(scores, list) else None)


def _ids(ids: Any) -> tuple[int, ...] | None:
    good = isinstance(ids, list) and ids and all(isinstance(t, int) and 0 <= t < 2**31 for t in ids)
    return tuple(ids) if good else None


def _call(call: Json) -> Json:
    arguments = json.dumps(call.get("arguments"), ensure_ascii=False)
    return {
        "id": call.get("tool_call_id"),
        "type": "function",
        "function": {"name": call.get("function_name"), "arguments": arguments},
    }


def _result(result: Json) -> Json:
    """What came back: a tool's answer, or what the environment said unasked."""
    if result.get("source_call_id") is None:
        return {"role": "user", "content": chat_content(result.get("content"))}
    return {"role": "tool", "tool_call_id": result["source_call_id"], "content": chat_content(result.get("content"))}


def _aside(holder: Json) -> Json:
    found = (holder.get("extra") or {}).get(ASIDE)
    return found if isinstance(found, dict) else {}


def _judgements(aside: Json, session: str, turn: str | None = None) -> Iterator[Judgement]:
    """Feedback without keys: what the store has already is known by what it says."""
    for said in aside.get("feedback") or ():
        item = NewFeedback(
            TargetKind.SESSION,
            session,
            FeedbackKind(said["kind"]),
            said["value"],
            said["name"],
            said.get("source", "end_user"),
            said.get("author"),
            said.get("confidence"),
            said.get("observed_at"),
            scale=tuple(said["scale"]) if said.get("scale") else None,
            tool_call=said.get("tool_call"),
        )
        yield Judgement(item, turn)


FORMAT = Format(NAME, knows, convert)
