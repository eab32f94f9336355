"""Failed runs of several agents in one chat, with the culprit and the decisive step (Who&When).

Each message of an agent is one call, seen as that agent saw the chat: its own system prompt first, its own
messages as the assistant's, everybody else's as users'. What a program said (a terminal) is nobody's call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nightschool.feedback.values import NewFeedback
from nightschool.imports.lists import blank_record, checked_messages
from nightschool.imports.reading import Raw
from nightschool.imports.values import Conversation, Format, Judgement, Link, Refused, Turn, digest
from nightschool.store.records import Caller
from nightschool.types import Choice, FeedbackKind, Json, TargetKind

NAME = "who_and_when"


def knows(record: Json) -> bool:
    return "mistake_agent" in record and "history" in record


def convert(raws: Sequence[Raw], _group: str) -> Iterator[Conversation]:
    for raw in raws:
        own = digest(raw.value)
        session = f"{NAME}:{raw.value.get('question_ID')}:{own[:8]}"
        turns = _turns(raw.value, session)
        yield Conversation(
            key=session,
            digest=own,
            place=f"line {raw.line}",
            turns=turns,
            judgements=_judgements(raw.value, session),
            named=True,
            raw=raw.data,
        )


def _turns(record: Json, session: str) -> tuple[Turn, ...]:
    prompts = record.get("system_prompt")
    if not isinstance(prompts, dict):
        raise Refused("no system prompts")
    views: dict[str, Link] = {
        name: Link({"role": "system", "content": text}) for name, text in prompts.items() if isinstance(text, str)
    }
    caller = Caller(
        agent=NAME, session=session, header_user=f"{NAME} question {record.get('question_ID')}", tags=(NAME,)
    )
    blank = blank_record(f"import.{NAME}", caller)
    turns: list[Turn] = []
    for place, message in enumerate(checked_messages(record["history"])):
        speaker = message.get("name")
        if speaker in views:
            reply = message | {"role": "assistant"}
            own = replace(caller, external_key=f"{session}/step-{place}")
            made = replace(blank, caller=own, choices=(Choice(0, reply, None),))
            turns.append(Turn(f"step-{place}", views[speaker], made))
        views = {
            name: Link(message | {"role": "assistant" if name == speaker else "user"}, view)
            for name, view in views.items()
        }
    if not turns:
        raise Refused("no message of an agent")
    return tuple(turns)


def _judgements(record: Json, session: str) -> tuple[Judgement, ...]:
    found: list[Judgement] = []
    correct = record.get("is_correct", record.get("is_corrected"))
    if isinstance(correct, bool):
        item = NewFeedback(
            TargetKind.SESSION, session, FeedbackKind.OUTCOME, correct, "outcome", "code", key=f"{session}/outcome"
        )
        found.append(Judgement(item))
    step, culprit = str(record.get("mistake_step", "")), record.get("mistake_agent")
    if not step.isdecimal() or not isinstance(culprit, str):
        raise Refused("a mistake without a step or a culprit")
    keys = tuple(f"{session}/step-{place}" for place in range(int(step), -1, -1))
    item = NewFeedback(
        TargetKind.EXTERNAL_KEY,
        keys[0],
        FeedbackKind.CATEGORY,
        culprit,
        "culprit",
        "annotator",
        key=f"{session}/culprit",
        evidence={"step": step, "reason": record.get("mistake_reason")},
    )
    found.append(Judgement(item, external_keys=keys))
    return tuple(found)


FORMAT = Format(NAME, knows, convert)
