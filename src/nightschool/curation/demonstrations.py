"""A handbook of written conversations as training samples: only what the assistant says is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nightschool.errors import InputError, MissingError, TooLittleDataError
from nightschool.rendering.renderer import Renderer
from nightschool.rendering.toolcalls import write_calls
from nightschool.types import Json, Sample

REHEARSAL = Path(__file__).with_name("rehearsal.jsonl")


def read_demonstrations(path: Path, renderer: Renderer) -> list[Sample]:
    """One sample per line of a JSON-lines file, {"messages": [...], "tools": [...]}.

    Every assistant turn is learned with its end of turn; what follows the last one is left away.

    Raises:
        MissingError: there is no such file.
        InputError: a line is not a conversation with an assistant in it; the message names the line.
        TooLittleDataError: the file is empty.
    """
    if not path.is_file():
        raise MissingError(f"There is no handbook {path}.", "", "nightschool train --data FILE.jsonl")
    samples = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            samples.append(render(_parse(line, number), renderer, f"line {number}"))
    if not samples:
        raise TooLittleDataError(f"The handbook {path.name} is empty.", "It has no lines.", "Write some.")
    return samples


def render(row: Json, renderer: Renderer, name: str) -> Sample:
    """One conversation as a sample whose masks cover the assistant's turns."""
    messages, tools = tuple(row["messages"]), tuple(row.get("tools") or ())
    turns = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    if not turns:
        raise _wrong(name, "it has no assistant turn, so there is nothing to learn")
    written = {place: renderer.completion_ids(write_calls(messages[place])) for place in turns}
    token_ids = [*renderer.prompt_ids(messages[: turns[-1]], tools), *written[turns[-1]]]
    completion_mask = [False] * len(token_ids)
    for place, reply in written.items():
        first = len(renderer.prompt_ids(messages[:place], tools))
        if token_ids[first : first + len(reply)] != reply:
            raise _wrong(name, f"its turn {place} is rendered differently with what comes after it")
        completion_mask[first : first + len(reply)] = [True] * len(reply)
    return Sample(name, tuple(token_ids), tuple(completion_mask), tuple(completion_mask))


def _parse(line: str, number: int) -> Json:
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise _wrong(f"line {number}", f"it is not JSON ({error})") from error
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise _wrong(f"line {number}", "it has no list of messages")
    if not isinstance(row.get("tools") or [], list):
        raise _wrong(f"line {number}", "its tools are not a list")
    return row


def _wrong(where: str, why: str) -> InputError:
    return InputError(f"The handbook cannot be used: {where}.", f"{why[0].upper()}{why[1:]}.", "Correct it.")
