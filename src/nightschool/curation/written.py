"""Rows that somebody wrote, in the shapes that TRL reads, as samples: demonstrations, pairs, judged replies.

A row without exact ids is rendered with the model's own template. That is enough where log-ratios are taken to a
reference that the trainer computes; what the policy really sampled is only known of recorded exchanges, and of rows
that bring their tokens (`curation.drawn`).
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nightschool.curation.drawn import as_drawn, exact, with_own_tokens, wrong
from nightschool.errors import MissingError, TooLittleDataError
from nightschool.objectives.loss import Material
from nightschool.objectives.rollouts import FAILED
from nightschool.rendering.renderer import Renderer
from nightschool.rendering.toolcalls import write_calls
from nightschool.types import Json, Sample

REHEARSAL = Path(__file__).with_name("rehearsal.jsonl")
SHAPES = {
    Material.DEMONSTRATIONS: ("messages",),
    Material.PAIRS: ("prompt", "chosen", "rejected"),
    Material.JUDGED: ("prompt", "completion", "label"),
    Material.WORDS: ("prompt", "completion", "feedback"),
    Material.REPLIES: ("prompt", "completion"),
}

DRAWN = (Material.JUDGED, Material.REPLIES)  # their rows may bring the tokens instead of the texts


def read_written(path: Path, material: Material, renderer: Renderer) -> list[Sample]:
    """The samples of a file. Raises: as `read_rows`."""
    return samples_of(read_rows(path, material), material, renderer)


def read_rows(path: Path, material: Material) -> list[tuple[str, Json]]:
    """The rows of a JSON-lines file that has the shape of `material`, each with its name.

    Raises:
        MissingError: there is no such file.
        InputError: a line cannot be used; the message names it.
        TooLittleDataError: the file is empty.
    """
    if not path.is_file():
        raise MissingError(f"There is no file {path}.", "", "nightschool train --data FILE.jsonl")
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    rows = [(f"line {number}", _parse(line, f"line {number}")) for number, line in lines if line.strip()]
    if not rows:
        raise TooLittleDataError(f"The file {path.name} is empty.", "It has no lines.", "Write some.")
    for name, row in rows:
        _check_shape(name, row, material)
    return rows


def samples_of(rows: Iterable[tuple[str, Json]], material: Material, renderer: Renderer) -> list[Sample]:
    """Samples of named rows. A pair becomes two of one group, annotated `preferred` 1 and 0; a label a reward."""
    found: list[Sample] = []
    for name, row in rows:
        if material == Material.DEMONSTRATIONS:
            found.append(render(row, renderer, name))
        elif material == Material.PAIRS:
            for side, preferred in (("chosen", 1.0), ("rejected", 0.0)):
                sample = render_reply(row, row[side], renderer, f"{name}, {side}")
                found.append(replace(sample, group_id=name, annotations={"preferred": preferred}))
        else:
            own = with_own_tokens(row)
            sample = exact(row, renderer, name) if own else render_reply(row, row["completion"], renderer, name)
            sample = as_drawn(sample, row, name)
            found.append(replace(sample, reward=float(row["label"])) if "label" in row else sample)
    return found


def render(row: Json, renderer: Renderer, name: str, learned: Container[int] | None = None) -> Sample:
    """One conversation as a sample whose masks cover the assistant's turns, or those at the places `learned`."""
    messages, tools = tuple(row["messages"]), tuple(row.get("tools") or ())
    turns = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    if not turns:
        raise wrong(name, "it has no assistant turn, so there is nothing to learn")
    written = {place: renderer.completion_ids(write_calls(messages[place])) for place in turns}
    token_ids = [*renderer.prompt_ids(messages[: turns[-1]], tools), *written[turns[-1]]]
    completion_mask = [False] * len(token_ids)
    for place, reply in written.items():
        if learned is not None and place not in learned:
            continue
        first = len(renderer.prompt_ids(messages[:place], tools))
        if token_ids[first : first + len(reply)] != reply:
            raise wrong(name, f"its turn {place} is rendered differently with what comes after it")
        completion_mask[first : first + len(reply)] = [True] * len(reply)
    return Sample(name, tuple(token_ids), tuple(completion_mask), tuple(completion_mask))


def render_reply(row: Json, reply: Sequence[Json], renderer: Renderer, name: str) -> Sample:
    """A conversation of which the last turn alone is learned."""
    messages = [*row["prompt"], *reply]
    return render({"messages": messages, "tools": row.get("tools")}, renderer, name, {len(messages) - 1})


def _parse(line: str, name: str) -> Json:
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise wrong(name, f"it is not JSON ({error})") from error
    if not isinstance(row, dict):
        raise wrong(name, "it is not an object")
    if isinstance(row.get("tools"), str):  # one text, so that rows of different tools share one schema
        try:
            row["tools"] = json.loads(row["tools"] or "null")
        except ValueError as error:
            raise wrong(name, f"its tools are not JSON ({error})") from error
    return row


def _check_shape(name: str, row: Json, material: Material) -> None:
    texts = set() if with_own_tokens(row) and material in DRAWN else {"prompt", "completion"}
    judged = row.get(FAILED) is not True  # a rollout that failed for no fault of the policy has nothing to be judged
    wanted = [key for key in SHAPES[material] if key in texts or key not in ("prompt", "completion")]
    wanted = [key for key in wanted if key != "label" or judged or key in row]
    missing = [key for key in wanted if key not in row]
    if missing:
        raise wrong(name, f"it has no {missing[0]!r}; {material} need {', '.join(SHAPES[material])}")
    for key in wanted:
        if key not in ("label", "feedback") and not (
            isinstance(row[key], list) and all(isinstance(m, dict) for m in row[key])
        ):
            raise wrong(name, f"its {key!r} is not a list of messages")
    for key in set(wanted) & {"chosen", "rejected", "completion"}:
        if [message.get("role") for message in row[key]] != ["assistant"]:
            raise wrong(name, f"its {key!r} is not one message of the assistant")
    if "label" in wanted and not isinstance(row["label"], bool):
        raise wrong(name, "its label is neither true nor false")
    if "feedback" in wanted and not (isinstance(row["feedback"], str) and row["feedback"].strip()):
        raise wrong(name, "its feedback has no words")
    if not isinstance(row.get("tools") or [], list):
        raise wrong(name, "its tools are not a list")
