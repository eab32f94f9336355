import dataclasses
import time

import pytest
import sqlalchemy as sa
from exam_harness import CANDIDATE, INCUMBENT, call, says

from nightschool.errors import InputError, MissingError, RefusedError
from nightschool.gate import exam as exams
from nightschool.gate import rule as rules
from nightschool.gate.exam import close_exam, exam_progress, find_exam, look, open_exam
from nightschool.gate.rule import default_rule, rule_from_json
from nightschool.gate.verdicts import load_verdict, verdict_report
from nightschool.releases.aliases import promote, roll_back
from nightschool.store import schema
from nightschool.types import Decision, Purpose, Reading

SMALL = default_rule(40, probes=None)
WITH_PROBES = default_rule(40)
# Twenty pairs at the first look's threshold cannot exclude a loss of 8 points, whatever they show.
LENIENT = rules.rule_from_config(
    {"customers": 40, "probes": False, "margins": {rules.VALIDITY: 20, rules.REFUSALS: 20, rules.SCORED: 20}}
)


@pytest.fixture
def exam(store, harness):
    """An exam of 40 without probes: small, so that the tests are quick; it looks at 20 and may close at 32."""
    return harness(open_exam(store, "shop", CANDIDATE, SMALL))


def row_of(store, exam_id):
    with store.read() as conn:
        return find_exam(conn, store.tenant, exam_id)


def suite(verdict, name):
    return next(row for row in verdict.suites if row.name == name)


def test_the_rule_stands_before_the_first_exchange(store):
    before = time.time()
    row = row_of(store, open_exam(store, "shop", CANDIDATE))
    assert (row["agent"], row["candidate"], row["incumbent"], row["state"]) == ("shop", CANDIDATE, INCUMBENT, "open")
    assert row["opened_at"] >= before
    assert rule_from_json(row["rule"]) == default_rule()
    assert row["rule"]["look_counts"] == [60, 120]
    assert row["rule"]["sees"]["held-out traffic"] == pytest.approx(14.1, abs=0.1)
    assert row["rule"]["statement"] == (
        "This gate sees a gain of 14 points 8 times in 10, and wrongly promotes an equal candidate at most 1 in 20."
    )
    assert row["rule"]["looks_taken"] == []


def test_an_exam_needs_two_different_installed_policies_and_a_success_suite(store):
    with pytest.raises(MissingError, match="serves nothing"):
        open_exam(store, "bank", CANDIDATE)
    with pytest.raises(MissingError, match="not installed"):
        open_exam(store, "shop", "f" * 64)
    with pytest.raises(RefusedError, match="already serves"):
        open_exam(store, "shop", INCUMBENT)
    rule = default_rule()
    with pytest.raises(InputError, match="no suite"):
        open_exam(store, "shop", CANDIDATE, dataclasses.replace(rule, suites=rule.suites[1:]))
    with pytest.raises(MissingError, match="no exam"):
        close_exam(store, "nonsense")


def test_a_clearly_better_candidate_is_promoted(store, harness, customers, probe_suites):
    exam = harness(open_exam(store, "shop", CANDIDATE))
    exam.play(customers(120, 0.75, 0.45))
    assert look(store, exam.exam_id) == "decide"
    verdict = close_exam(store, exam.exam_id, probe_suites())
    assert verdict.decision is Decision.PROMOTE
    success = suite(verdict, "held-out traffic")
    assert (success.reading, success.num_pairs) == (Reading.BETTER, 120)
    assert verdict.sentence.startswith(
        f"PROMOTE 80c2…1f over v1. Better on held-out traffic by {success.difference:.0f} points ["
    )
    assert verdict.sentence.endswith("; every margin held.")
    assert all(row.reading in (Reading.NOT_WORSE, Reading.BETTER, Reading.WITHIN) for row in verdict.suites)
    promote(store, "shop", CANDIDATE, verdict.id, by="test")


def test_a_poisoned_candidate_is_refused(store, exam, customers):
    exam.play(customers(40, 0.1, 0.7))
    verdict = close_exam(store, exam.exam_id)
    assert verdict.decision is Decision.REFUSE
    assert suite(verdict, "held-out traffic").reading is Reading.BEYOND
    assert verdict.sentence.startswith("REFUSE 80c2…1f. Held-out traffic fell by ")
    assert verdict.sentence.endswith("]; a gain was needed. Everything else was at least as good.")
    with pytest.raises(RefusedError, match="says: REFUSE"):
        promote(store, "shop", CANDIDATE, verdict.id, by="test")


@pytest.mark.parametrize("seed", range(3))
def test_an_equal_candidate_is_refused_with_the_number_that_would_settle_it(store, exam, customers, seed):
    exam.play(customers(40, 0.5, 0.5, seed))
    verdict = close_exam(store, exam.exam_id)
    assert verdict.decision is Decision.REFUSE
    success = suite(verdict, "held-out traffic")
    assert success.reading in (Reading.CANNOT_TELL, Reading.NOT_WORSE)
    assert success.needed is not None
    assert success.needed > 40
    assert f"About {success.needed:,} customers would settle it, there are 40." in verdict.sentence


def test_too_few_customers_ask_for_more_and_leave_the_exam_open(store, exam, customers):
    exam.play(customers(21, 1.0, 0.0))
    verdict = close_exam(store, exam.exam_id)
    assert verdict.decision is Decision.NEED_DATA
    assert verdict.sentence == (
        "NOT ENOUGH DATA: 21 of 32 paired customers. The exam stays open. v1 keeps serving."
    )  # 32 = 80 % of 40
    assert verdict.suites == ()  # nothing was compared, so nothing was spent
    assert row_of(store, exam.exam_id)["state"] == "open"
    with pytest.raises(RefusedError):
        promote(store, "shop", CANDIDATE, verdict.id, by="test")
    exam.play(customers(19, 1.0, 0.0), first=21)
    assert close_exam(store, exam.exam_id).decision is Decision.PROMOTE


def test_no_exchange_at_all_is_not_enough_data(store, exam):
    assert close_exam(store, exam.exam_id).sentence.startswith("NOT ENOUGH DATA: 0 of 32")


def test_a_closed_exam_keeps_its_verdict(store, exam, customers):
    exam.play(customers(40, 0.9, 0.3))
    verdict = close_exam(store, exam.exam_id)
    exam.play(customers(5, 0.0, 1.0), first=200)
    assert close_exam(store, exam.exam_id) == verdict
    assert look(store, exam.exam_id) == "decide"
    row = row_of(store, exam.exam_id)
    assert (row["state"], row["verdict_id"]) == ("closed", verdict.id)
    with store.read() as conn:
        assert load_verdict(conn, store.tenant, verdict.id) == verdict
        assert load_verdict(conn, "other", verdict.id) is None
        assert len(conn.execute(sa.select(schema.verdicts)).all()) == 1


def test_the_report_holds_what_the_numbers_came_from(store, exam, customers):
    exam.play(customers(40, 0.7, 0.5))
    exam.session(CANDIDATE, "nobody's twin", {"success": True})
    exam.flush()
    verdict = close_exam(store, exam.exam_id)
    with store.read() as conn:
        report = verdict_report(conn, store.tenant, verdict.id)
    inputs = report["inputs"]["held-out traffic"]
    success = suite(verdict, "held-out traffic")
    assert (inputs["pairs"], inputs["unpaired"], inputs["degrees_of_freedom"]) == (40, 1, 39)
    half = inputs["critical"] * inputs["deviation"] / 40**0.5
    assert success.low == pytest.approx(100 * (inputs["difference"] - half))
    assert report["counts"]["candidate"]["sessions"] == 41
    assert report["looks"][-1]["pairs"] == 40
    assert report["rule"]["statement"]
    worst, best = report["pairs"]["worst"], report["pairs"]["best"]
    assert (worst[0]["difference"], best[0]["difference"]) == (-1.0, 1.0)
    assert "customer 1" not in str(report)  # sessions are named, people are not


# ------------------------------------------------------------------ looks


def test_nothing_is_looked_at_before_the_planned_count(store, exam, customers):
    exam.play(customers(19, 1.0, 0.0))
    assert look(store, exam.exam_id) == "continue"
    assert row_of(store, exam.exam_id)["rule"]["looks_taken"] == []
    assert exam_progress(store, exam.exam_id).paired == 19


def test_an_overwhelming_gain_ends_the_exam_at_its_first_look(store, harness, customers):
    exam = harness(open_exam(store, "shop", CANDIDATE, LENIENT))
    exam.play(customers(20, 1.0, 0.1))
    assert look(store, exam.exam_id) == "decide"
    (taken,) = row_of(store, exam.exam_id)["rule"]["looks_taken"]
    assert (taken["pairs"], taken["action"]) == (20, "decide")
    assert taken["critical_z"] == pytest.approx(2.538, abs=1e-3)  # published for half the information at 5 %
    exam.play(customers(12, 0.0, 1.0), first=20)  # what comes after the look does not change it
    assert look(store, exam.exam_id) == "decide"
    verdict = close_exam(store, exam.exam_id)
    assert verdict.decision is Decision.PROMOTE
    assert suite(verdict, "held-out traffic").num_pairs == 20


def test_an_overwhelming_loss_ends_it_too(store, exam, customers):
    exam.play(customers(20, 0.0, 0.9))
    assert look(store, exam.exam_id) == "decide"
    assert close_exam(store, exam.exam_id).decision is Decision.REFUSE


def test_a_look_that_continues_is_paid_for_at_the_end(store, exam, customers):
    exam.play(customers(20, 0.5, 0.5))
    assert look(store, exam.exam_id) == "continue"
    assert look(store, exam.exam_id) == "continue"  # asking again is not another look
    assert len(row_of(store, exam.exam_id)["rule"]["looks_taken"]) == 1
    exam.play(customers(20, 1.0, 0.1), first=20)
    assert look(store, exam.exam_id) == "decide"
    verdict = close_exam(store, exam.exam_id)
    with store.read() as conn:
        looks = verdict_report(conn, store.tenant, verdict.id)["looks"]
    assert [entry["pairs"] for entry in looks] == [20, 40]
    assert looks[-1]["critical_z"] == pytest.approx(1.662, abs=1e-3)


def test_a_look_that_somebody_else_took_meanwhile_speaks_instead(store, exam, customers, monkeypatch):
    exam.play(customers(20, 0.5, 0.5))
    real = exams._interim

    def interrupted(*facts):
        monkeypatch.setattr(exams, "_interim", real)
        assert look(store, exam.exam_id) == "continue"  # the other one is quicker
        return {**real(*facts), "action": "decide"}

    monkeypatch.setattr(exams, "_interim", interrupted)
    assert look(store, exam.exam_id) == "continue"
    assert len(row_of(store, exam.exam_id)["rule"]["looks_taken"]) == 1


def test_a_gain_with_a_broken_margin_does_not_end_it_early(store, harness, customers):
    exam = harness(open_exam(store, "shop", CANDIDATE, LENIENT))
    exam.play(customers(20, 1.0, 0.1), replies=(says("I'm sorry, I can't help with that."),))
    assert look(store, exam.exam_id) == "continue"


def test_running_sessions_are_not_judged_at_a_look(store, exam, customers):
    exam.play(customers(19, 0.5, 0.5))
    for policy in (CANDIDATE, INCUMBENT):
        exam.session(policy, "customer 19", None, replies=(says(""),))  # an empty reply so far
    exam.flush()
    assert look(store, exam.exam_id) == "continue"
    assert row_of(store, exam.exam_id)["rule"]["looks_taken"] == []  # 19 judged pairs, not 20


# ------------------------------------------------------------------ margins, probes, missing sessions


def test_broken_calls_refuse_a_candidate_that_succeeds(store, exam, customers):
    broken = (call("teleport"), says("Your parcel is on its way."))
    exam.play(customers(40, 0.95, 0.3), replies=broken)
    verdict = close_exam(store, exam.exam_id)
    assert verdict.decision is Decision.REFUSE
    # every candidate session has one broken reply of two: minus 50 points exactly, over 42 with the pseudo-pairs
    assert verdict.sentence.startswith("REFUSE 80c2…1f. Tool-call validity fell by 50 points [")
    assert "up to 8 was allowed. Of the rest, not settled or worse: reply length" in verdict.sentence


def test_the_same_outcomes_at_twice_the_length_are_refused(store, exam, customers):
    exam.play(customers(40, 0.95, 0.3), replies=(says("Your parcel is on its way. " * 2),))
    verdict = close_exam(store, exam.exam_id)
    length = suite(verdict, "reply length")
    # 54 characters for 26: 100 (54/26 - 1) = 107.7 percent, in every pair
    assert length.difference == pytest.approx(107.69, abs=0.01)
    assert (length.candidate, length.incumbent) == pytest.approx((54, 26))
    assert length.reading is Reading.BEYOND
    assert verdict.sentence == (
        "REFUSE 80c2…1f. Reply length rose by 108 percent [108, 108]; up to 30 was allowed. "
        "Everything else was at least as good."
    )


def test_probes_that_were_not_brought_are_not_enough_data(store, harness, customers, probe_suites):
    exam = harness(open_exam(store, "shop", CANDIDATE, WITH_PROBES))
    exam.play(customers(40, 0.95, 0.3))
    for brought in ((), probe_suites(num_scored=30)[:1]):
        verdict = close_exam(store, exam.exam_id, brought)
        assert verdict.decision is Decision.NEED_DATA
        # 58 = 80 % of 72
        assert f"{30 if brought else 0} of 58 items for OOD probes, likelihood." in verdict.sentence
    assert close_exam(store, exam.exam_id, probe_suites()).decision is Decision.PROMOTE


def test_a_candidate_that_forgot_is_refused(store, harness, customers, probe_suites):
    exam = harness(open_exam(store, "shop", CANDIDATE, WITH_PROBES))
    exam.play(customers(40, 0.95, 0.3))
    verdict = close_exam(store, exam.exam_id, probe_suites(shift=-0.3))
    assert verdict.sentence.startswith("REFUSE 80c2…1f. OOD probes, likelihood fell by 0.3")
    assert "nats per token" in verdict.sentence


def test_unsure_probe_answers_do_not_block_and_are_named(store, harness, customers, probe_suites):
    exam = harness(open_exam(store, "shop", CANDIDATE, WITH_PROBES))
    exam.play(customers(40, 0.95, 0.3))
    verdict = close_exam(store, exam.exam_id, probe_suites(right=18))
    assert suite(verdict, "OOD probes, answers").reading is Reading.CANNOT_TELL
    assert verdict.decision is Decision.PROMOTE
    assert verdict.sentence.endswith(
        "; every margin held that had to; OOD probes, answers: cannot tell, as the rule allows."
    )


def test_suites_nobody_announced_and_items_brought_twice_are_refused(store, exam, harness, customers, probe_suites):
    exam.play(customers(40, 0.95, 0.3))
    with pytest.raises(InputError, match="does not state"):
        close_exam(store, exam.exam_id, probe_suites())
    other = harness(open_exam(store, "shop", CANDIDATE, WITH_PROBES))
    other.play(customers(40, 0.95, 0.3))
    scored, answered = probe_suites()
    twice = dataclasses.replace(scored, values=scored.values * 2)
    with pytest.raises(InputError, match="an item twice"):
        close_exam(store, other.exam_id, (twice, answered))
    with pytest.raises(InputError, match="twice"):
        close_exam(store, other.exam_id, (scored, scored))


def test_sessions_lost_to_the_engine_leave_the_exam_and_are_named(store, exam, customers):
    exam.play(customers(30, 0.9, 0.4))
    for number in range(30, 40):
        exam.session(CANDIDATE, f"customer {number}", {"success": False}, status="error", http_status=503)
        exam.session(INCUMBENT, f"customer {number}", {"success": True})
    exam.flush()
    verdict = close_exam(store, exam.exam_id)
    assert verdict.sentence.startswith(
        "NOT ENOUGH DATA: 30 of 32 paired customers. 10 sessions could not be scored (the engine failed (503): 10)."
    )


def test_a_candidate_whose_sessions_vanish_is_refused_for_that(store, exam, customers):
    exam.play(customers(32, 1.0, 0.1))
    for number in range(32, 40):
        exam.session(CANDIDATE, f"customer {number}", None, status="aborted")
        exam.session(INCUMBENT, f"customer {number}", {"success": True})
    exam.flush()
    verdict = close_exam(store, exam.exam_id)
    # 8 of 40 pairs lost in one arm only: minus 20 points
    assert suite(verdict, rules.SCORED).difference == pytest.approx(-100 * 8 / 40)
    assert verdict.sentence.startswith("REFUSE 80c2…1f. Sessions scored fell by 20 points")


def test_a_candidate_that_stops_answering_fails_without_anybody_reporting(store, exam, customers):
    exam.play(customers(20, 0.5, 0.5))
    for number in range(20, 40):
        exam.session(CANDIDATE, f"customer {number}", None, replies=(says("  "),))
        exam.session(INCUMBENT, f"customer {number}", {"success": True})
    exam.flush()
    assert exam_progress(store, exam.exam_id).paired == 40  # progress counts what closing will count
    verdict = close_exam(store, exam.exam_id)
    assert verdict.decision is Decision.REFUSE
    assert suite(verdict, "held-out traffic").reading is Reading.BEYOND


def test_many_sessions_of_one_customer_are_one_pair(store, exam, customers):
    for number in range(4):
        exam.play([(1, 0)] * 10, first=0)  # the same ten people four times
        assert exam_progress(store, exam.exam_id).paired == 10, number
    assert close_exam(store, exam.exam_id).decision is Decision.NEED_DATA


def test_only_this_exams_own_traffic_counts(store, exam, harness, customers):
    exam.play(customers(5, 1.0, 0.0))
    other = harness(open_exam(store, "shop", CANDIDATE, SMALL))
    other.play(customers(7, 1.0, 0.0), first=50)
    served = harness(exam.exam_id, purpose=Purpose.SERVE)
    served.play(customers(7, 1.0, 0.0), first=200)
    assert exam_progress(store, exam.exam_id).paired == 5


def test_a_verdict_does_not_outlive_its_incumbent(store, exam, customers):
    exam.play(customers(40, 0.95, 0.3))
    verdict = close_exam(store, exam.exam_id)
    other = "3" * 64
    row = {"digest": other, "agent": "shop", "manifest": {}, "created_at": 1.0}
    store.write(lambda conn: conn.execute(schema.adapters.insert().values(tenant="default", **row)))
    promote(store, "shop", other, by="ada", reason="hotfix", override=True)
    with pytest.raises(RefusedError, match=r"(?i)incumbent has changed"):
        promote(store, "shop", CANDIDATE, verdict.id, by="test")
    roll_back(store, "shop", by="ada")
    assert promote(store, "shop", CANDIDATE, verdict.id, by="test").number == 3


def test_repeating_an_exam_is_seen(store, harness, customers):
    for earlier in range(2):
        exam = harness(open_exam(store, "shop", CANDIDATE, SMALL))
        exam.play(customers(32, 0.5, 0.5, seed=earlier))
        verdict = close_exam(store, exam.exam_id)
        with store.read() as conn:
            assert verdict_report(conn, store.tenant, verdict.id)["earlier_exams_of_this_pair"] == earlier
