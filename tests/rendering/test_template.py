from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import write_tiny_tokenizer
from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase

from nightschool.errors import InputError, MissingError
from nightschool.rendering.template import ChatTemplate
from nightschool.types import Json

END = 2  # <|im_end|>

PLAIN = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}{{- message.content }}{% endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

# Reasoning stays in the last turn alone, as in the templates of reasoning models.
STRIPS = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- set thought = message.reasoning_content if loop.last else None %}
    {%- if thought %}{{- '<think>' + thought + '</think>' }}{% endif %}
    {{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

USER = {"role": "user", "content": "where is order 7?"}
CALL = {"id": "c", "type": "function", "function": {"name": "track", "arguments": '{"order": "7"}'}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_tokenizer(tmp_path)
    return tmp_path


def load(folder: Path, source: str, **names: object) -> ChatTemplate:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": source, **names}))
    return ChatTemplate.from_folder(folder)


def assistant(content: str | None, **more: object) -> Json:
    return {"role": "assistant", "content": content, **more}


def test_a_reply_is_what_stands_after_the_prompt_up_to_the_end_of_its_turn(folder: Path) -> None:
    template = load(folder, PLAIN)
    written = template.write([USER], [], assistant("It is late."), is_cut=False)
    assert (
        template.decode(written.prompt_ids) == "<|im_start|>user\nwhere is order 7?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.decode(written.completion_ids) == "It is late.<|im_end|>"  # not the newline after it
    assert (written.completion_ids[-1], written.is_ended) == (END, True)


def test_a_reply_at_its_length_limit_has_no_end(folder: Path) -> None:
    """B15: what the template adds after a cut reply was never sampled."""
    template = load(folder, PLAIN)
    written = template.write([USER], [], assistant("It is la"), is_cut=True)
    assert (template.decode(written.completion_ids), written.is_ended) == ("It is la", False)


def test_arguments_of_calls_are_not_quoted_twice(folder: Path) -> None:
    """B13: clients send them as text, templates write them as JSON."""
    template = load(folder, PLAIN)
    written = template.write([USER], [], assistant(None, tool_calls=[CALL]), is_cut=False)
    assert template.decode(written.completion_ids) == '<tool_call>track {"order": "7"}</tool_call><|im_end|>'
    broken = {**CALL, "function": {"name": "track", "arguments": '{"order": '}}
    assert '"{\\"order\\": "' in template.text([assistant(None, tool_calls=[broken])], [], asks=False)


def test_a_template_that_strips_reasoning_writes_the_first_turn_anew(folder: Path) -> None:
    """B14: the second prompt does not begin with what was sampled in the first turn."""
    template = load(folder, STRIPS)
    reply = assistant("It is late.", reasoning_content="look it up")
    first = template.write([USER], [], reply, is_cut=False)
    assert template.decode(first.completion_ids) == "<think>look it up</think>It is late.<|im_end|>"
    second = template.write([USER, reply, USER], [], assistant("Sorry."), is_cut=False)
    context = (*first.prompt_ids, *first.completion_ids)
    assert second.prompt_ids[: len(context)] != context
    assert "look it up" not in template.decode(second.prompt_ids)


def test_a_template_that_rewrites_the_prompt_once_the_reply_is_there_is_refused(folder: Path) -> None:
    counting = "{{- messages | length }}" + PLAIN
    with pytest.raises(InputError, match="differently once its reply is there"):
        load(folder, counting).write([USER], [], assistant("a"), is_cut=False)


def test_a_text_that_does_not_come_back_from_its_tokens_is_refused(folder: Path) -> None:
    lowering = Tokenizer.from_file(str(folder / "tokenizer.json"))
    lowering.normalizer = Lowercase()
    with pytest.raises(InputError, match="does not come back"):
        ChatTemplate(PLAIN, lowering, {}).write([USER], [], assistant("It"), is_cut=False)
    with pytest.raises(InputError, match="not Unicode"):
        load(folder, PLAIN).write([{"role": "user", "content": "\ud800"}], [], assistant("a"), is_cut=False)
    with pytest.raises(InputError, match="cannot write"):
        load(folder, PLAIN).write([{"role": "user", "tool_calls": ["no call"]}], [], assistant("a"), is_cut=False)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[7].content.strip() }}", "cannot write"),
    ],
)
def test_what_a_template_may_not_do(folder: Path, source: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load(folder, source).text([USER], [], asks=True)


def test_folders_that_will_not_do(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no chat template"):
        ChatTemplate.from_folder(folder)
    with pytest.raises(InputError, match="writes the date"):
        load(folder, "{{ strftime_now('%d') }}")
    with pytest.raises(InputError, match="cannot be read"):
        load(folder, "{% if %}")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(MissingError, match=r"no tokenizer\.json"):
        load(folder, PLAIN)


def test_templates_by_name_and_special_tokens_by_name(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": {"content": "<|endoftext|>"},
                "chat_template": [
                    {"name": "rag", "template": "no"},
                    {"name": "default", "template": "{{ bos_token }}{% generation %}x{% endgeneration %}"},
                ],
            }
        )
    )
    assert ChatTemplate.from_folder(folder).text([USER], [], asks=True) == "<|endoftext|>x"
    (folder / "chat_template.jinja").write_text("a file of its own")
    assert ChatTemplate.from_folder(folder).text([USER], [], asks=True) == "a file of its own"


def test_messages_are_written_as_transformers_writes_them(folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tools = [{"type": "function", "function": {"name": "ä", "parameters": {"type": "object"}}}]
    source = (
        PLAIN + "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{% for x in [1, 2] %}{% break %}{% endfor %}"
    )
    called = {**CALL, "function": {"name": "track", "arguments": {"order": "é"}}}
    messages = [USER, assistant(None, tool_calls=[called]), {"role": "tool", "tool_call_id": "c", "content": "late"}]
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), chat_template=source)
    expected = theirs.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert load(folder, source).text(messages, tools, asks=True) == expected
