"""Signals read off made-up sessions, each with where it is seen."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from nightschool.feedback.implicit.course import AGAIN_S, LEFT_S
from nightschool.feedback.implicit.seen import Call, Found, Seen, Span, Spot
from nightschool.feedback.implicit.signals import SIGNALS, read_signals
from nightschool.feedback.implicit.words import language_of
from nightschool.types import Branch, Feedback, FeedbackKind, Json, TargetKind

READ = {signal.name: signal.read for signal in SIGNALS}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def agent(text: str | None, *calls: tuple[str, str]) -> Json:
    made = [{"id": f"c{n}", "function": {"name": name, "arguments": told}} for n, (name, told) in enumerate(calls)]
    return {"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}


def result(text: str, **more: Any) -> Json:
    return {"role": "tool", "content": text, **more}


def seen(*messages: Json, **more: Any) -> Seen:
    spots = tuple(Spot("x", place + 1) for place in range(len(messages)))
    return Seen("s", "ann", messages, spots, **more)


def found(name: str, session: Seen) -> Found:
    told = READ[name](session)
    assert told is not None
    return told


def call(name: str, at: float = 0.0, took: float = 1.0, **more: Any) -> Call:
    fields: dict[str, Any] = {"status": "ok", "branch": Branch.MAIN, "leaf_hash": "a", **more}
    return Call(name, at, at + took, **fields)


@pytest.mark.parametrize(
    ("name", "text", "quoted"),
    [
        ("correction", "No, I meant the other order.", ["No,", "I meant"]),
        ("correction", "It isn't that, you forgot the shoes", ["It isn't", "you forgot"]),
        ("correction", "Nein, ich meinte die Schuhe", ["Nein", "ich meinte"]),
        ("complaint", "I'm not happy, this is useless.", ["not happy", "useless"]),
        ("complaint", "Esto no funciona", ["no funciona"]),
        ("negation", "That isn't what I never said", ["isn't", "never"]),
        ("clarification", "What do you mean by that?", ["What do you mean"]),
        ("pushback", "Are you sure? But I paid.", ["Are you sure", "But I"]),
        ("wants a person", "Let me talk to a manager", ["talk to a manager"]),
        ("thanks", "Thank you so much!", ["Thank you"]),
    ],
)
def test_what_the_user_says_is_found_and_quoted(name: str, text: str, quoted: list[str]) -> None:
    told = found(name, seen(user("Hello"), agent("Hi"), user(text)))
    assert [span.text for span in told.spans] == quoted
    assert told.value == len(quoted)
    assert all((span.exchange_id, span.position) == ("x", 3) for span in told.spans)
    assert [text[span.begin : span.end] for span in told.spans] == quoted


def test_the_first_request_answers_nothing() -> None:
    session = seen(user("My last order is wrong. No, really: not what I ordered."), agent("I see."))
    assert [found(name, session).value for name in ("correction", "complaint", "negation")] == [0, 0, 0]


def test_words_inside_others_are_no_words() -> None:
    session = seen(user("Hello"), agent("Hi"), user("Nonetheless I know a badger in Thanksville, notably"))
    assert [found(name, session).value for name in ("complaint", "negation", "thanks", "correction")] == [0, 0, 0, 0]


def test_thanks_count_near_the_end_alone() -> None:
    early = seen(user("Thanks!"), agent("?"), user("My shoes"), agent("?"), user("The red ones"))
    assert found("thanks", early).value == 0


@pytest.mark.parametrize("text", ["Это совсем не то, что я хотел", "これは違います", "هذا خطأ تماما"])
def test_a_language_without_lists_is_unknown_and_not_silent(text: str) -> None:
    session = seen(user(text), agent("?"), user(text))
    assert READ["complaint"](session) is None
    assert READ["thanks"](session) is None
    # beside it one message that can be read
    assert found("complaint", seen(user(text), agent("?"), user(text), agent("?"), user("This is useless"))).value == 1


def test_languages_are_told_by_script_or_common_words() -> None:
    told = {
        "the order is not what i want": "en",
        "ich möchte bitte die Schuhe nicht": "de",
        "je ne veux pas que vous": "fr",
        "quiero que me lo envíe por favor": "es",
        "где мой заказ": "Cyrillic",
        "私の注文": "Japanese",
        "我的订单": "Han",
        "ok": None,
        "": None,
        "12345 !!": None,
        "Zyx abc qwe rty": None,
    }
    assert {text: language_of(text) for text in told} == told


def test_a_switch_of_language_is_where_the_new_one_begins() -> None:
    session = seen(
        user("where is the order that i made"),
        agent("?"),
        user("ok"),
        agent("?"),
        user("wo ist denn nur die Bestellung"),
    )
    told = found("language switch", session)
    assert (told.value, told.spans[0].position) == (1, 5)


def test_a_rephrasing_says_again_what_was_said() -> None:
    again = user("Please cancel reservation Quebec from Boston tomorrow")
    session = seen(
        user("Cancel the reservation Quebec from Boston"), agent("?"), user("Blue shoes size nine"), agent("?"), again
    )
    told = found("rephrase", session)
    # cancel, reservation, quebec, from, boston against these and please, tomorrow less the common words: 8 of 10
    assert (told.value, told.spans[0].position) == (1, 5)
    assert found("rephrase", seen(user("yes please"), agent("?"), user("yes please"))).value == 0


def test_errors_of_tools_and_what_is_done_about_them() -> None:
    session = seen(
        user("Book"),
        agent(None, ("book", '{"seat": 1}'), ("look", "{}")),
        result("Error: seat taken"),
        result('{"status": "ok", "error": null}'),
        agent(None, ("book", '{"seat": 2}')),
        result('{"error": "seat taken"}'),
        agent(None, ("book", '{ "seat" : 2 }')),
        result("done", is_error=True),
        agent(None, ("look", "{}")),
        result("An error of mine is told here"),
    )
    assert [span.position for span in found("tool error", session).spans] == [3, 6, 8]
    assert [span.position for span in found("tool retry", session).spans] == [5, 7]
    # the second look and the third booking repeat the arguments of an earlier call, spelled otherwise or not
    assert [span.position for span in found("loop", session).spans] == [7, 9]
    assert found("tool calls", session).value == 5
    assert found("messages", session).value == 10


def test_strange_messages_are_no_errors() -> None:
    odd: list[Json] = [
        {"role": "assistant", "content": None, "tool_calls": "none"},
        {
            "role": "assistant",
            "tool_calls": [None, {"function": None}, {"function": {"name": None, "arguments": None}}],
        },
        {"role": "tool", "content": None},
        {"role": "tool", "content": "{"},
        {"role": "tool", "content": '{"error": [1'},
        {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "No, wrong"}]},
        {"role": "user", "content": ""},
        {},
    ]
    told = read_signals(seen(*odd))
    assert (told["correction"], told["tool calls"]) == (Found(1.0, (Span("x", 6, 0, 3, "No,"),)), Found(1.0))
    empty = read_signals(seen())
    assert (empty["abandonment"], empty["user words"], empty["messages"]) == (None, None, Found(0.0))


def test_a_rant_is_read_in_bounded_time() -> None:
    for rant in ("wrong " * 20_000, "n't" * 40_000, "transfer " * 12_000, "a" * 100_000):
        begun = time.process_time()
        read_signals(seen(user(rant), agent(rant), user(rant)))
        assert time.process_time() - begun < 2.0


def test_a_handover_is_a_call_or_words() -> None:
    called = seen(user("Help"), agent("I will transfer you to a human agent", ("transfer_to_human_agents", "{}")))
    assert [span.text for span in found("escalation", called).spans] == ["transfer_to_human_agents"]
    said = seen(user("Help"), agent("Let me connect you to one of our specialists: a specialist will call."))
    assert found("escalation", said).value == 1
    another_agent = seen(user("Help"), agent(None, ("transfer_to_billing", "{}")))
    assert found("escalation", another_agent).value == 0


def test_refusals_and_apologies_of_the_agent() -> None:
    session = seen(user("Refund"), agent("I'm sorry, but I cannot refund that."), user("Hm"), agent("I apologize."))
    assert found("refusal", session).spans[0].position == 2
    assert [span.text for span in found("apology", session).spans] == ["I'm sorry", "I apologize"[2:]]


def test_what_was_sent_again_broken_off_or_not_answered() -> None:
    calls = (
        call("first", 0, status="error"),
        call("second", 2, retry_of="first"),
        call("left", 4, status="client_closed", leaf_hash="b", above_id="second"),
        call("title", 5, status="aborted", branch=Branch.TITLE, leaf_hash="t"),
        call("long", 6, leaf_hash="c", above_id="left", finish_reason="length"),
    )
    session = seen(user("Hi"), agent("Hello"), calls=calls, main=frozenset({"second", "long"}))
    told = {
        name: [span.exchange_id for span in found(name, session).spans]
        for name in ("retry", "abort", "no reply", "cut off")
    }
    assert told == {"retry": ["second"], "abort": ["left"], "no reply": ["first"], "cut off": ["long"]}


def test_another_answer_is_asked_for_after_the_first_and_not_beside_it() -> None:
    after = seen(calls=(call("one", 0), call("two", 30)))
    assert [span.exchange_id for span in found("regenerate", after).spans] == ["two"]
    beside = seen(calls=(call("one", 0), call("two", 0.5)))
    assert found("regenerate", beside).value == 0
    failed = seen(calls=(call("one", 0, status="error"), call("two", 30)))
    assert found("regenerate", failed).value == 0


def test_a_message_written_anew_leaves_a_reply_behind() -> None:
    calls = (
        call("top", 0),
        call("old", 10, leaf_hash="b", above_id="top"),
        call("new", 20, leaf_hash="c", above_id="top"),
    )
    told = found("edit", seen(calls=calls))
    assert [span.exchange_id for span in told.spans] == ["old"]
    assert found("regenerate", seen(calls=calls)).value == 0
    # a harness that sends no history begins anew each time
    assert found("edit", seen(calls=(call("one", 0), call("two", 10, leaf_hash="b")))).value == 0


def test_an_open_question_is_left_after_an_hour() -> None:
    asked = seen(user("Refund"), agent("Which **order**?**"), calls=(call("one", 0.0),), as_of=LEFT_S)
    assert READ["abandonment"](asked) is None  # the hour begins when the reply ends, at 1 s
    assert found("abandonment", replace(asked, as_of=LEFT_S + 1)).value == 1
    assert READ["abandonment"](replace(asked, as_of=1e9, timed=False)) is None
    done = seen(user("Refund"), agent("Done."), calls=(call("one"),), as_of=1e9)
    assert found("abandonment", done).value == 0


def test_coming_back_is_known_when_the_days_are_over() -> None:
    session = seen(user("Hi"), agent("Hello"), calls=(call("one", 0.0),), as_of=AGAIN_S)
    assert READ["repeat contact"](session) is None
    assert found("repeat contact", replace(session, as_of=AGAIN_S + 2)).value == 0
    assert found("repeat contact", replace(session, next_at=AGAIN_S)).value == 1
    assert found("repeat contact", replace(session, next_at=AGAIN_S + 2, as_of=AGAIN_S + 3)).value == 0
    assert READ["repeat contact"](replace(session, principal="s", as_of=1e9)) is None


def test_what_a_client_reports_counts_under_its_name() -> None:
    def event(kind: FeedbackKind, value: Any, name: str, **more: Any) -> Feedback:
        fields: dict[str, Any] = {"source": "implicit", "session_id": "s", **more}
        return Feedback(f"{name}{value}", TargetKind.SESSION, "s", kind, value, name, **fields)

    items = (
        event(FeedbackKind.CATEGORY, "copied", "action"),
        event(FeedbackKind.THUMB, False, "accepted"),
        event(FeedbackKind.NUMBER, 12, "edit distance", exchange_id="one"),
        event(FeedbackKind.NUMBER, 7, "edit distance", exchange_id="beside"),
        event(FeedbackKind.TEXT, "hm", "note"),
        event(FeedbackKind.THUMB, True, "thumb", source="end_user"),
    )
    session = seen(calls=(call("one"),), main=frozenset({"one"}), feedback=items)
    told = {name: value for name, value in read_signals(session).items() if name.startswith("event")}
    assert told == {
        "event copied": Found(1.0),
        "event accepted": Found(0.0),
        "event edit distance": Found(12.0, (Span("one"),)),
    }
