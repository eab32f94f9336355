"""How far the token ids of a record can be trusted (design law 2), and why not further.

Ids of the engine are exact while its own counts agree with them and they spell the reply. Without ids, what a
declared tokenizer and template make of the text is `retokenized_verified` if it comes back from its tokens and
the engine counted as many. Everything here runs after the reply has gone out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from nightschool.errors import NightschoolError
from nightschool.rendering.template import ChatTemplate
from nightschool.store.matching import content_text
from nightschool.store.records import Record
from nightschool.types import Fidelity, Json, LogprobProvenance

Decode = Callable[[Sequence[int]], str]

log = logging.getLogger(__name__)


class Grader:
    """Grades records. `folder` is the model folder of the engine, `None` where it is not known.

    `encodes`: the engine gives no ids, so the folder's template and tokenizer stand in for them. They are
    loaded with the first record that needs them.
    """

    def __init__(self, folder: Path | None = None, encodes: bool = False) -> None:
        self._folder = folder
        self._encodes = encodes
        self._tokenizer: Tokenizer | None = None
        self._template: ChatTemplate | None = None

    def grade(self, record: Record) -> Record:
        """The record with its fidelity, lowered where something speaks against it, and the reason."""
        if record.status != "ok":
            return _lowered(record, f"The exchange ended as {record.status}.")
        if record.fidelity == Fidelity.EXACT:
            reason = reason_against_ids(record, self._decode() if self._folder else None)
            return record if reason is None else _lowered(record, reason)
        if self._folder is None or not self._encodes:
            return record
        try:
            return _verified(record, self._load())
        except NightschoolError as error:
            return _lowered(record, str(error))

    def _decode(self) -> Decode | None:
        if self._tokenizer is None:
            file = self._folder / "tokenizer.json" if self._folder else None
            if file is None or not file.is_file():
                log.warning("%s holds no tokenizer.json: token ids are not checked against their text.", self._folder)
                self._folder = None
                return None
            self._tokenizer = Tokenizer.from_file(str(file))
        tokenizer = self._tokenizer
        return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)

    def _load(self) -> ChatTemplate:
        if self._template is None:
            assert self._folder is not None, "checked by grade"
            self._template = ChatTemplate.from_folder(self._folder)
        return self._template


def reason_against_ids(record: Record, decode: Decode | None) -> str | None:
    """Why the engine's ids are not what it sampled; `None` when nothing speaks against them.

    `decode` turns ids into their text, special tokens included; without it only counts are compared.
    """
    counts = record.usage or {}
    sampled = [len(choice.completion_ids) for choice in record.choices if choice.completion_ids is not None]
    prompt = None if record.prompt_ids is None else len(record.prompt_ids)
    for told, name, found in (
        (counts.get("completion_tokens"), "completion", sum(sampled) if len(sampled) == len(record.choices) else None),
        (counts.get("prompt_tokens"), "prompt", prompt),
    ):
        if isinstance(told, int) and found is not None and told != found:
            return f"The engine counts {told} {name} tokens and gave {found} ids."
    for choice in record.choices:
        if choice.behavior_logprobs is not None and len(choice.behavior_logprobs) != len(choice.completion_ids or ()):
            return f"The ids and the log-probabilities of choice {choice.index} are not equally many."
        if decode is not None and not _spells(decode(choice.completion_ids or ()), choice.message):
            return f"The ids of choice {choice.index} do not spell its text."
    return None


def _spells(text: str, message: Json) -> bool:
    """Whether everything the message says stands in the decoded text, in spite of parsers that trim and quote."""
    told = _squeezed(text)
    return all(_squeezed(part) in told for part in _parts(message))


def _parts(message: Json) -> Iterator[str]:
    for key in ("reasoning_content", "reasoning", "content", "refusal"):
        yield content_text(message.get(key)) if isinstance(message.get(key), str | list) else ""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield str(function.get("name") or "")
            yield from _words(function.get("arguments"))


def _words(arguments: Any) -> Iterator[str]:
    """The plain texts inside a call's arguments: how they are quoted differs between formats of calls."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        yield arguments
        return
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str) and '"' not in item and "\\" not in item and item.isprintable() and item.isascii():
            yield item


def _squeezed(text: str) -> str:
    """Without spaces, and without the mark of a character that was cut in two."""
    return "".join(text.replace("\ufffd", "").split())


def _verified(record: Record, template: ChatTemplate) -> Record:
    """The record with ids made from its text. Raises: NightschoolError where that is not what the engine saw."""
    written = [
        template.write(record.messages, record.tools, choice.message, choice.finish_reason == "length")
        for choice in record.choices
    ]
    if not written:
        return record
    counts = record.usage or {}
    told, sampled = counts.get("completion_tokens"), sum(len(one.completion_ids) for one in written)
    unsaid = sum(one.is_ended for one in written)  # some engines do not count the token that ends a turn
    if counts.get("estimated") or not isinstance(told, int) or not isinstance(counts.get("prompt_tokens"), int):
        return _lowered(record, "The engine does not say how many tokens there were.")
    prompt = written[0].prompt_ids
    if counts["prompt_tokens"] != len(prompt):
        return _lowered(
            record, f"The engine counts {counts['prompt_tokens']} prompt tokens, the declared template {len(prompt)}."
        )
    if not sampled - unsaid <= told <= sampled:
        return _lowered(record, f"The engine counts {told} completion tokens, the declared tokenizer {sampled}.")
    choices = zip(record.choices, written, strict=True)
    return replace(
        record,
        prompt_ids=prompt,
        choices=tuple(replace(choice, completion_ids=one.completion_ids) for choice, one in choices),
        fidelity=Fidelity.VERIFIED,
        fidelity_reason="The engine gives no ids; these come from its text.",
        logprob_provenance=LogprobProvenance.NONE,
    )


def _lowered(record: Record, reason: str) -> Record:
    return replace(record, fidelity=Fidelity.TEXT, fidelity_reason=reason)
