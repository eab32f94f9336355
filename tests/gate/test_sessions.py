import time

import pytest
from exam_harness import CANDIDATE, call, says

from nightschool.feedback.reward import outcome
from nightschool.gate.exam import open_exam
from nightschool.gate.sessions import Turn, exam_sessions, judge_session


@pytest.fixture
def sessions(store, harness):
    """Plays one session as told, and reads it back."""
    exam_id = open_exam(store, "shop", CANDIDATE)

    def play(*outcomes, running=False, as_of=None, **how):
        player = harness(exam_id)
        player.session(CANDIDATE, "ann", None, **how)
        first = player.waiting[0]
        player.waiting = []
        exchange_id = store.write(first)
        for one in outcomes:
            player.outcome(exchange_id, one)
            player.flush()
        with store.read() as conn:
            (found,) = exam_sessions(conn, store.tenant, exam_id, as_of or time.time(), running)
        return found.success, found.reason

    return play


def test_the_reported_outcome_counts(sessions):
    assert sessions({"success": True}) == (1.0, None)


def test_the_latest_of_several_outcomes_counts(sessions):
    assert sessions({"success": True}, 0.25) == (0.25, None)


def test_an_unreadable_outcome_does_not_hide_a_readable_one(sessions):
    assert sessions({"success": True}, {"stars": 4}) == (1.0, None)


@pytest.mark.parametrize(
    ("value", "success"),
    [
        (True, 1.0),
        (False, 0.0),
        ({"success": False}, 0.0),
        ({"success": 0.5}, 0.5),
        (1, 1.0),
        (5, None),  # stars are no probability
        (-0.1, None),
        (float("nan"), None),
        ("yes", None),
        ({"success": None}, None),
        (None, None),
    ],
)
def test_what_an_outcome_may_be(value, success):
    assert outcome(value) == success


def test_no_outcome_is_missing_not_failure(sessions):
    assert sessions() == (None, "no outcome was reported")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"replies": (says(""),)}, "the agent's reply was empty"),
        ({"replies": (None,)}, "the agent did not answer"),
        ({"replies": (says("Well, first"),), "finish_reason": "length"}, "the agent's reply did not end"),
        ({"replies": (says('<tool_call>{"name": tra</tool_call>'),)}, "the agent's tool call was malformed"),
        ({"replies": (None,), "status": "error", "http_status": 400}, "the agent's request was refused (400)"),
    ],
)
def test_what_the_agent_caused_is_a_failure_without_a_report(sessions, how, reason):
    assert sessions(**how) == (0.0, reason)


def test_while_the_exam_runs_an_unreported_session_is_not_judged(sessions):
    assert sessions(replies=(says(""),), running=True) == (None, "no outcome was reported")


@pytest.mark.parametrize("status", [None, 500, 503, 429, 401, 404])
def test_infrastructure_takes_a_session_out_even_with_an_outcome(sessions, status):
    success, reason = sessions({"success": False}, replies=(None,), status="error", http_status=status)
    assert success is None
    assert reason.startswith("the engine failed")


def test_a_client_that_left_says_nothing_unless_it_says_so(sessions):
    assert sessions(status="aborted") == (None, "the client left before the reply ended")


def test_a_client_that_left_after_reporting_is_believed(sessions):
    assert sessions({"success": False}, status="aborted") == (0.0, None)


def test_outcomes_after_the_time_asked_about_do_not_count(store, harness):
    player = harness(open_exam(store, "shop", CANDIDATE))
    player.session(CANDIDATE, "ann", None)
    (insert,) = player.waiting
    player.waiting = []
    exchange_id = store.write(insert)
    then = time.time()
    player.outcome(exchange_id, True)
    player.flush()
    with store.read() as conn:
        (before,) = exam_sessions(conn, store.tenant, player.exam_id, then, False)
        (after,) = exam_sessions(conn, store.tenant, player.exam_id, time.time(), False)
        assert exam_sessions(conn, store.tenant, player.exam_id, then - 60, False) == []
        assert exam_sessions(conn, "other", player.exam_id, time.time(), False) == []
    assert (before.success, after.success) == (None, 1.0)


def test_a_well_formed_call_without_an_outcome_is_no_failure():
    assert judge_session(Turn("ok", 200, (), call(), "tool_calls"), None) == (None, "no outcome was reported")


def test_a_message_of_unreadable_shape_is_a_broken_call():
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
    assert judge_session(Turn("ok", 200, (), message, "stop"), None) == (0.0, "the agent's tool call was malformed")
