"""A model's own chat template: what an engine makes of messages, told from its folder alone.

The template is a program by somebody else, so it runs in a sandbox. It must say everything that the engine's
tokens depend on: one that writes today's date does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from nightschool.errors import InputError, MissingError
from nightschool.types import Json

# What a template may run into when the messages are not what it expects.
FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)

_SPANS = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")  # marks for trainers; they write nothing


@dataclass(frozen=True, slots=True)
class Written:
    """A request and its reply in tokens. `is_ended` when the reply closes its turn."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    is_ended: bool


class ChatTemplate:
    """The template and the tokenizer of one model. Thread-safe."""

    def __init__(self, source: str, tokenizer: Tokenizer, names: Json) -> None:
        """`names` are the special tokens that templates call by name (`bos_token`, `eos_token`, ...)."""
        if "strftime_now" in source:
            raise InputError(
                "The chat template writes the date.",
                "Nobody can tell later which one the engine saw.",
                "Leave `tokenizer` out of [upstream].",
            )
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self._template = environment.from_string(_SPANS.sub("", source))
        self._names = {key: value for key, value in names.items() if isinstance(value, str)}
        self.tokenizer = tokenizer

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate:
        """Load `tokenizer.json` and the template beside it, or inside `tokenizer_config.json`.

        Raises:
            MissingError: the folder has no tokenizer or no template.
            InputError: the template writes the date, or is no template.
        """
        config_file, file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.is_file() else {}
        source = file.read_text(encoding="utf-8") if file.is_file() else _default(config.get("chat_template"))
        if source is None or not (folder / "tokenizer.json").is_file():
            lacking = "tokenizer.json" if source is not None else "chat template"
            raise MissingError(f"{folder} holds no {lacking}.", "", "Name a model folder with both in [upstream].")
        names = {key: value["content"] if isinstance(value, dict) else value for key, value in _tokens(config)}
        try:
            return cls(source, Tokenizer.from_file(str(folder / "tokenizer.json")), names)
        except TemplateError as error:
            raise InputError(f"The chat template in {folder} cannot be read.", f"{error}.", "Correct it.") from error

    def text(self, messages: Sequence[Json], tools: Sequence[Json], asks: bool) -> str:
        """The conversation as text; `asks` ends it where the next reply begins. Raises: InputError."""
        try:
            return self._template.render(
                messages=[_with_objects(message) for message in messages],
                tools=list(tools) or None,
                add_generation_prompt=asks,
                **self._names,
            )
        except FAULTS as error:
            raise InputError(f"The template cannot write these messages: {error}") from error

    def write(self, messages: Sequence[Json], tools: Sequence[Json], reply: Json, is_cut: bool) -> Written:
        """What an engine that only tells text has most likely read and sampled.

        `is_cut`: the reply stopped at its length limit, before it closed its turn.

        Raises:
            InputError: with its reply the conversation is not written as it was before it, or what is
                written does not come back from its tokens.
        """
        asked = self.text(messages, tools, asks=True)
        whole = self.text([*messages, reply], tools, asks=False)
        if not whole.startswith(asked):
            raise InputError("The template writes the conversation differently once its reply is there.")
        answer, ending = self._turn(whole[len(asked) :])
        completion = self.encode(answer) + ([] if is_cut or ending is None else [ending])
        prompt = self.encode(asked)
        if self.decode(prompt) != asked or self.decode(self.encode(answer)) != answer:
            raise InputError("The text does not come back from its tokens.")
        return Written(tuple(prompt), tuple(completion), not is_cut and ending is not None)

    def encode(self, text: str) -> list[int]:
        try:
            return self.tokenizer.encode(text, add_special_tokens=False).ids
        except TypeError as error:  # a lone surrogate
            raise InputError("The tokenizer cannot read these messages: they are not Unicode text.") from error

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def _turn(self, text: str) -> tuple[str, int | None]:
        """A reply's text and the special token that closes it; what the template adds after it is not sampled."""
        closers = {token: index for index, token in self._special().items()}
        places = [(text.rfind(token), token) for token in closers if token in text]
        if not places:
            return text, None
        place, token = max(places)
        return text[:place], closers[token]

    def _special(self) -> dict[int, str]:
        added = self.tokenizer.get_added_tokens_decoder()
        return {index: token.content for index, token in added.items() if token.special}


def _default(template: object) -> str | None:
    """One template, or several by name."""
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _tokens(config: Json) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in config.items() if key.endswith("_token") and isinstance(value, (str, dict))]


def _with_objects(message: Json) -> Json:
    """Calls with their arguments as objects: templates write them as JSON, and a text would be quoted twice."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Json) -> Json:
    function = call["function"]
    arguments = function.get("arguments")
    try:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        read = arguments
    return {**call, "function": {**function, "arguments": read if isinstance(read, dict) else arguments}}


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
