"""A list of chat messages as turns: every assistant message is a call whose request is what stands before it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from nightschool.imports.values import Link, Refused, Turn
from nightschool.store.records import Caller, Record, Timing
from nightschool.store.tree import canonical
from nightschool.types import Choice, Json

UNKNOWN_MODEL = "unknown"
NO_IDS = "The log carries no token ids."


class Turns(NamedTuple):
    """`tail` is the last message where it comes after the last reply."""

    turns: tuple[Turn, ...]
    tail: Link | None


def blank_record(dialect: str, caller: Caller, model: str | None = None) -> Record:
    """What the calls of one log share. An import has no request bytes, no reply bytes and no HTTP status."""
    return Record(
        id="",
        caller=caller,
        timing=Timing(0.0),
        policy_version=model or UNKNOWN_MODEL,
        request_body=b"",
        dialect=dialect,
        http_status=None,
        fidelity_reason=NO_IDS,
    )


def checked_messages(messages: Any) -> list[Json]:
    """Raises: Refused where it is no list of messages with roles."""
    if not isinstance(messages, list) or not messages:
        raise Refused("no messages")
    for message in messages:
        if not isinstance(message, dict):
            raise Refused("a message is no object")
        if not isinstance(message.get("role"), str):
            raise Refused("a message without a role")
    return messages


def turns_of(messages: Sequence[Json], blank: Record, steps: str | None = None) -> Turns:
    """One turn for each assistant message. `steps` names the places: the fifth message is `{steps}/step-5`.

    The key of a turn is a hash of the conversation up to it, so a log that has grown brings only what is new.

    Raises: Refused where no message is an assistant's.
    """
    turns: list[Turn] = []
    link: Link | None = None
    rolling = b""
    for place, message in enumerate(messages):
        rolling = hashlib.sha256(rolling + canonical(message)).digest()
        if message["role"] == "assistant":
            record = replace(blank, choices=(Choice(0, message, None),))
            if steps is not None:
                record = replace(record, caller=replace(blank.caller, external_key=f"{steps}/step-{place + 1}"))
            turns.append(Turn(rolling.hex()[:32], link, record))
        link = Link(message, link)
    if not turns:
        raise Refused("no assistant message")
    return Turns(tuple(turns), None if messages[-1]["role"] == "assistant" else link)
