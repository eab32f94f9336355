import math

import pytest
from exam_harness import TOOL, call, says

from nightschool.gate import behavior
from nightschool.gate.sessions import ExamSession, Turn


def session(*messages, status="ok"):
    turns = tuple(Turn(status, 200, (TOOL,), message, "stop") for message in messages)
    return ExamSession("s", "ann", "p", turns, 1.0)


@pytest.mark.parametrize(
    ("message", "valid"),
    [
        (says("Just words."), True),
        (call(), True),
        (call(arguments='{"parcel": "7", "fast": true}'), True),
        (call("teleport"), False),
        (call(arguments="{}"), False),
        (call(arguments='{"parcel": '), False),
        (call(arguments='"7"'), False),
        (says('<tool_call>{"name": "track", "arguments": {"parcel": "7"}}</tool_call>'), True),
        (says('<tool_call>{"name": "track", "arguments": {}}</tool_call>'), False),
        (says('<tool_call>{"name": "track"'), False),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, False),
    ],
)
def test_valid_calls(message, valid):
    assert behavior.calls_are_valid(message, (TOOL,)) is valid


def test_a_call_without_any_tool_offered_is_unknown():
    assert behavior.calls_are_valid(call(), ()) is False


def test_validity_is_a_share_of_replies():
    assert behavior.valid_share(session(call(), call("teleport"), says("done"), says("bye"))) == 0.75


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("I'm sorry, but I can’t help with that.", True),
        ("I AM UNABLE TO do this.", True),
        ("Your parcel cannot be helped by rain.", False),
        ("I can help with that.", False),
    ],
)
def test_refusals(text, refusal):
    assert behavior.is_refusal(says(text)) is refusal


def test_one_refusing_reply_makes_the_session_one():
    assert behavior.refused(session(says("Hello."), says("I cannot help you."))) == 1.0
    assert behavior.refused(session(says("Hello."))) == 0.0


def test_length_and_rounds_by_hand():
    # "four" and "eighteen": mean (4 + 8) / 2 = 6
    two = session(says("four"), says("eighteen"))
    assert behavior.log_length(two) == pytest.approx(math.log(6))
    assert behavior.log_rounds(two) == pytest.approx(math.log(2))
    assert behavior.log_length(session(says(""))) == 0.0
    # {"name": "track", "arguments": {"parcel": "7"}} between its two tags
    written = '<tool_call>{"name": "track", "arguments": {"parcel": "7"}}</tool_call>'
    assert behavior.log_length(session(call())) == pytest.approx(math.log(len(written)))


def test_replies_that_never_arrived_say_nothing_about_behavior():
    lost = session(None, status="error")
    measures = (behavior.valid_share, behavior.refused, behavior.log_length, behavior.log_rounds)
    assert [measure(lost) for measure in measures] == [None] * 4
