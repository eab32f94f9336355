"""The template for engines that render messages themselves writes what the renderer writes, to the letter."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import write_tiny_tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from nightschool.rendering.renderer import Renderer
from nightschool.rendering.toolcalls import write_calls

TEMPLATE = (files("nightschool.rendering") / "chatml.jinja").read_text()

words = st.text(alphabet="ab é\"'\n{}<>✓:", max_size=12)
names = st.text(alphabet="abc_", min_size=1, max_size=6)
parts = st.lists(words.map(lambda text: {"type": "text", "text": text}), max_size=3)
contents = words | st.none() | parts
arguments = st.dictionaries(names, st.integers() | words, max_size=2)


@st.composite
def tools(draw: st.DrawFn) -> dict[str, Any]:
    specs = st.sampled_from([{"type": "string"}, {"type": ["string", "null"]}, {"type": None}, {}, True, None])
    required = st.none() | st.lists(st.sampled_from(["a", "b", "c"]))
    properties = draw(st.none() | st.dictionaries(names, specs))
    schema = {"type": "object", "properties": properties, "required": draw(required)}
    function: dict[str, Any] = {"name": draw(names)}
    function |= draw(st.sampled_from([{}, {"parameters": schema}, {"parameters": None}]))
    function |= draw(st.sampled_from([{}, {"description": draw(words)}, {"description": None}]))
    return {"type": "function", "function": function}


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": draw(names), "arguments": draw(arguments)}}


messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer", "user", "tool"]), "content": contents}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": contents}, optional={"tool_calls": st.lists(calls(), max_size=2)}
    ),
)


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return Renderer.from_folder(folder)


def rendered(conversation: list[dict[str, Any]], offered: list[dict[str, Any]], **more: Any) -> str:
    """As transformers and vLLM do it."""
    texts, _ = render_jinja_template([conversation], offered or None, chat_template=TEMPLATE, **more)
    return texts[0]


@given(st.lists(messages, max_size=5), st.lists(tools(), max_size=2))
def test_it_writes_what_the_renderer_writes(renderer: Renderer, conversation, offered):
    expected = renderer.decode(renderer.prompt_ids(tuple(conversation), tuple(offered)))
    assert rendered(conversation, offered, add_generation_prompt=True) == expected


def test_arguments_as_text_keep_their_spelling(renderer: Renderer):
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"id":  7}'}}
    message = {"role": "assistant", "content": "So: ", "tool_calls": [call]}
    assert rendered([message], []) == f"<|im_start|>assistant\n{write_calls(message)}<|im_end|>\n"
    assert '{"id":  7}' in write_calls(message)


def test_without_a_generation_prompt_it_ends_with_the_last_message():
    assert rendered([{"role": "user", "content": "Hi"}], []) == "<|im_start|>user\nHi<|im_end|>\n"
