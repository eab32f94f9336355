from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import write_tiny_tokenizer

from nightschool.curation.demonstrations import read_demonstrations
from nightschool.errors import InputError, MissingError, TooLittleDataError
from nightschool.rendering.renderer import Renderer

CALL = {"id": "c", "type": "function", "function": {"name": "track", "arguments": '{"order": "7"}'}}
CONVERSATION = [
    {"role": "system", "content": "shop"},
    {"role": "user", "content": "where?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "May 12"},
    {"role": "assistant", "content": "On May 12."},
    {"role": "user", "content": "thanks"},
]


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return Renderer.from_folder(folder)


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
        ({"messages": "hi"}, "line 2.*no list of messages"),
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
    with pytest.raises(MissingError, match="no handbook"):
        read_demonstrations(tmp_path / "absent.jsonl", renderer)
    with pytest.raises(TooLittleDataError, match="empty"):
        read_demonstrations(write(tmp_path / "h.jsonl", "", " "), renderer)
