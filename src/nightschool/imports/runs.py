"""Benchmark runs of tau-bench, and AgentRx's labels for some of them.

A run is a record with `task_id`, `trial`, `reward` and its messages in `traj`. The task stands for the user, so
that all trials of one task fall into one split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nightschool.feedback.values import NewFeedback
from nightschool.imports.lists import blank_record, checked_messages, turns_of
from nightschool.imports.reading import Raw
from nightschool.imports.values import Conversation, Format, Judgement, Refused, digest
from nightschool.store.records import Caller
from nightschool.types import FeedbackKind, Json, TargetKind

TAU, LABELED, LABELS = "tau_bench", "agentrx", "agentrx_labels"


def knows_tau(record: Json) -> bool:
    return "traj" in record and "task_id" in record and "records" not in record


def knows_labeled(record: Json) -> bool:
    return "traj" in record and "task_id" in record and "records" in record


def knows_labels(record: Json) -> bool:
    return "trajectory_id" in record and "failures" in record


def convert_tau(raws: Sequence[Raw], _group: str) -> Iterator[Conversation]:
    for raw in raws:
        yield _run(raw, TAU, f"{_id(raw.value)}:{raw.value.get('trial')}:{digest(raw.value)[:12]}")


def convert_labeled(raws: Sequence[Raw], _group: str) -> Iterator[Conversation]:
    """AgentRx names a run by its task alone; its labels point there."""
    for raw in raws:
        yield _run(raw, LABELED, str(_id(raw.value)))


def convert_labels(raws: Sequence[Raw], _group: str) -> Iterator[Conversation]:
    """Labels without runs: each waits for its run where that is not stored yet."""
    for raw in raws:
        session = f"{LABELED}:{raw.value['trajectory_id']}"
        judgements = [*_failures(raw.value, session), *_cause(raw.value, session)]
        own = digest(raw.value)
        yield Conversation(session, own, f"line {raw.line}", judgements=tuple(judgements), raw=raw.data)


def _run(raw: Raw, kind: str, name: str) -> Conversation:
    record = raw.value
    session = f"{kind}:{name}"
    task = f"{kind} task {record['task_id']}"
    caller = Caller(agent=kind, session=session, header_user=task, tags=(task, f"trial {record.get('trial')}"))
    messages = checked_messages(record["traj"])
    turns, tail = turns_of(messages, blank_record(f"import.{kind}", caller), session)
    return Conversation(
        key=session,
        digest=digest([kind, record["task_id"], record.get("trial"), messages]),
        place=f"line {raw.line}",
        turns=turns,
        judgements=_reward(record, session),
        named=kind == LABELED,
        raw=raw.data,
        tail=tail,
    )


def _reward(record: Json, session: str) -> tuple[Judgement, ...]:
    reward = record.get("reward")
    if reward is None:  # no reward is not a bad one
        return ()
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not 0 <= reward <= 1:
        raise Refused("a reward outside 0 to 1")
    item = NewFeedback(
        TargetKind.SESSION,
        session,
        FeedbackKind.OUTCOME,
        float(reward),
        "reward",
        "code",
        key=f"{session}/reward/{reward}",
    )
    return (Judgement(item),)


def _failures(record: Json, session: str) -> Iterator[Judgement]:
    for failure in record["failures"]:
        number, step = failure.get("failure_id"), failure.get("step_number")
        category = failure.get("failure_category")
        if not isinstance(step, int) or not isinstance(category, str):
            raise Refused("a failure without step or category")
        yield _on_step(session, step, category, f"failure {number}", failure)


def _cause(record: Json, session: str) -> Iterator[Judgement]:
    cause = record.get("root_cause") or {}
    named = next((f for f in record["failures"] if f.get("failure_id") == cause.get("failure_id")), None)
    if named is not None:
        why = cause | {"failure_summary": record.get("failure_summary")}
        yield _on_step(session, named["step_number"], named["failure_category"], "root cause", why)


def _on_step(session: str, step: int, category: str, name: str, evidence: Json) -> Judgement:
    """On the reply at `step` (counted from 1), else on the last reply before it: a tool's answer is its caller's."""
    keys = tuple(f"{session}/step-{at}" for at in range(step, 0, -1))
    key = f"{session}/step-{step}/{name}/{category}"
    kind = FeedbackKind.CATEGORY
    item = NewFeedback(TargetKind.EXTERNAL_KEY, keys[0], kind, category, name, "annotator", key=key, evidence=evidence)
    return Judgement(item, external_keys=keys)


def _id(record: Json) -> Any:
    task = record["task_id"]
    if isinstance(task, bool) or not isinstance(task, int | str):
        raise Refused("a task without an id")
    return task


FORMATS = (
    Format(TAU, knows_tau, convert_tau),
    Format(LABELED, knows_labeled, convert_labeled),
    Format(LABELS, knows_labels, convert_labels),
)
