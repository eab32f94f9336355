import json

from nightschool.rendering.toolcalls import announce, parse_reply, write_calls

CALL = '<tool_call>{"name": "track_order", "arguments": {"order": "8812"}}</tool_call>'


def message(*calls: tuple[str, str], content: str | None = None) -> dict:
    rows = [{"id": "x", "type": "function", "function": {"name": name, "arguments": args}} for name, args in calls]
    return {"role": "assistant", "content": content, "tool_calls": rows}


def test_a_call_is_read_with_the_models_own_spelling_and_written_back_exactly():
    # Two spaces after the colon: a re-serialization would lose one and change the tokens.
    text = '<tool_call>{"name": "track_order", "arguments": {"order":  "8812"}}</tool_call>'
    parsed = parse_reply(text)
    assert parsed.calls == (("track_order", '{"order":  "8812"}'),)
    assert parsed.content is None
    assert parsed.valid
    assert write_calls(message(*parsed.calls)) == text


def test_parallel_calls_keep_their_order_and_the_words_around_them():
    parsed = parse_reply(f"One moment. {CALL}{CALL.replace('track', 'cancel')}")
    assert [name for name, _ in parsed.calls] == ["track_order", "cancel_order"]
    assert parsed.content == "One moment."


def test_a_reply_without_calls_is_content():
    assert parse_reply("It arrives on May 3.").content == "It arrives on May 3."


def test_a_broken_call_is_invalid_and_stays_readable():
    for text in (
        "<tool_call>{not json}</tool_call>",
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "a", "arguments": "text"}</tool_call>',
        "<tool_call>" + CALL,
        "words <tool_call>",
    ):
        parsed = parse_reply(text)
        assert not parsed.valid
        assert parsed.content == text
        assert parsed.calls == ()


def test_arguments_of_a_nested_key_with_the_same_name_are_not_confused():
    # "arguments" appears first inside the name's own object; what counts is the outer value.
    text = '<tool_call>{"x": {"arguments": "no"}, "name": "a", "arguments": {"b": 1}}</tool_call>'
    ((name, arguments),) = parse_reply(text).calls
    assert (name, json.loads(arguments)) == ("a", {"b": 1})


def test_tools_are_announced_as_signatures_with_optional_arguments_marked():
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "description": "does it", "parameters": schema}}
    assert "f(a: string, b?: integer): does it" in announce((tool,))


def test_what_a_tool_leaves_null_is_not_said():
    nulls = {"name": "f", "description": None, "parameters": {"properties": {"a": {"type": None}}, "required": None}}
    tools = (
        {"type": "function", "function": nulls},
        {"type": "function", "function": {"name": "g", "parameters": None}},
    )
    assert announce(tools).splitlines()[1:3] == ["f(a?: any)", "g()"]
