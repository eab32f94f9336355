from __future__ import annotations

import json
from pathlib import Path

import pytest

from nightschool.curation.written import read_written
from nightschool.errors import InputError, MissingError, TooLittleDataError
from nightschool.objectives.loss import Material
from nightschool.rendering.renderer import Renderer
from nightschool.types import Sample

CALL = {"id": "c", "type": "function", "function": {"name": "track", "arguments": '{"order": "7"}'}}
CONVERSATION = [
    {"role": "system", "content": "shop"},
    {"role": "user", "content": "where?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "May 12"},
    {"role": "assistant", "content": "On May 12."},
    {"role": "user", "content": "thanks"},
]


def read_demonstrations(path: Path, renderer: Renderer) -> list[Sample]:
    return read_written(path, Material.DEMONSTRATIONS, renderer)


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_only_what_the_assistant_says_is_learned_with_its_end_of_turn(tmp_path: Path, renderer: Renderer) -> None:
    (sample,) = read_demonstrations(write(tmp_path / "h.jsonl", {"messages": CONVERSATION}), renderer)
    learned = [t for t, yes in zip(sample.token_ids, sample.loss_mask, strict=True) if yes]
    call = '<tool_call>{"name": "track", "arguments": {"order": "7"}}</tool_call>'
    assert renderer.decode(learned) == f"{call}<|im_end|>On May 12.<|im_end|>"
    assert sample.loss_mask == sample.completion_mask
    whole = renderer.decode(sample.token_ids)
    assert whole.endswith("On May 12.<|im_end|>")  # the thanks after the last assistant turn are left away
    assert "May 12<|im_end|>" in whole  # the tool's result is context


def test_tools_are_announced(tmp_path: Path, renderer: Renderer) -> None:
    tool = {"type": "function", "function": {"name": "track", "description": "find it", "parameters": {}}}
    (sample,) = read_demonstrations(write(tmp_path / "h.jsonl", {"messages": CONVERSATION, "tools": [tool]}), renderer)
    assert "track(): find it" in renderer.decode(sample.token_ids)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{", "line 2.*not JSON"),
        ({"messages": "hi"}, "line 2.*not a list of messages"),
        ({"messages": CONVERSATION[:2]}, "line 2.*no assistant turn"),
        ({"messages": CONVERSATION, "tools": {}}, "line 2"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, renderer: Renderer, row: object, says: str) -> None:
    path = write(tmp_path / "h.jsonl", {"messages": CONVERSATION}, row)
    if row == {"messages": CONVERSATION, "tools": {}}:
        assert len(read_demonstrations(path, renderer)) == 2  # no tools, however they are spelled
        return
    with pytest.raises(InputError) as caught:
        read_demonstrations(path, renderer)
    assert __import__("re").search(says, str(caught.value), 2 | 16)


def test_no_handbook(tmp_path: Path, renderer: Renderer) -> None:
    with pytest.raises(MissingError, match="no file"):
        read_demonstrations(tmp_path / "absent.jsonl", renderer)
    with pytest.raises(TooLittleDataError, match="empty"):
        read_demonstrations(write(tmp_path / "h.jsonl", "", " "), renderer)


PROMPT = [{"role": "user", "content": "Where is order 7?"}]
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("On its way.", "No idea."))


def test_a_pair_is_two_rows_of_one_group_that_begin_alike(tmp_path: Path, renderer: Renderer) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": PROMPT, "chosen": [GOOD], "rejected": [BAD], "tools": "[]"})
    chosen, rejected = read_written(path, Material.PAIRS, renderer)
    assert chosen.group_id == rejected.group_id == "line 1"
    assert (chosen.annotations, rejected.annotations) == ({"preferred": 1.0}, {"preferred": 0.0})
    first = chosen.completion_mask.index(True)
    assert chosen.token_ids[:first] == rejected.token_ids[: rejected.completion_mask.index(True)]
    assert renderer.decode(chosen.token_ids[first:]) == "On its way.<|im_end|>"


def test_only_the_last_reply_of_a_judged_row_is_learned(tmp_path: Path, renderer: Renderer) -> None:
    prompt = [*PROMPT, BAD, {"role": "user", "content": "Look again."}]
    path = write(tmp_path / "k.jsonl", {"prompt": prompt, "completion": [GOOD], "label": False})
    (sample,) = read_written(path, Material.JUDGED, renderer)
    learned = [t for t, yes in zip(sample.token_ids, sample.loss_mask, strict=True) if yes]
    assert (renderer.decode(learned), sample.reward) == ("On its way.<|im_end|>", 0.0)


@pytest.mark.parametrize(
    ("material", "row", "says"),
    [
        (Material.PAIRS, {"prompt": PROMPT, "chosen": [GOOD]}, "no 'rejected'"),
        (Material.PAIRS, {"prompt": PROMPT, "chosen": [GOOD], "rejected": PROMPT}, "one message of the assistant"),
        (Material.JUDGED, {"prompt": PROMPT, "completion": [GOOD], "label": 1}, "neither true nor false"),
        (Material.JUDGED, {"prompt": "hi", "completion": [GOOD], "label": True}, "not a list of messages"),
        (Material.DEMONSTRATIONS, {"messages": [*PROMPT, GOOD], "tools": "{"}, "not JSON"),
        (Material.DEMONSTRATIONS, [1], "not an object"),
    ],
)
def test_another_shape_is_named(tmp_path: Path, renderer: Renderer, material: Material, row: object, says: str) -> None:
    with pytest.raises(InputError, match=f"(?i)line 1.*{says}"):
        read_written(write(tmp_path / "x.jsonl", row), material, renderer)
