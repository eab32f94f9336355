"""Which objective may learn from what: the table of the rules, and what the next run would say."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightschool.objectives.legality import (
    MARKS_AGAINST,
    OBJECTIVES,
    SAYS,
    Facts,
    Heard,
    heard_in,
    legal,
    reason_against,
    reason_against_any,
    standing,
)
from nightschool.types import (
    MARKS,
    Branch,
    FeedbackKind,
    Fidelity,
    LedgerState,
    LogprobProvenance,
    Purpose,
    Sampler,
    Split,
    Support,
)

EVERYTHING = frozenset(Heard)
ALL = {objective.name for objective in OBJECTIVES}

facts = st.builds(
    Facts,
    status=st.sampled_from(["ok", "error", "aborted", "truncated"]),
    purpose=st.sampled_from(Purpose),
    split=st.sampled_from(Split),
    branch=st.sampled_from(Branch),
    training_allowed=st.booleans(),
    context_complete=st.booleans(),
    fidelity=st.sampled_from(Fidelity),
    support=st.sampled_from(Support),
    logprob_provenance=st.sampled_from(LogprobProvenance),
    mark=st.sampled_from([None, *MARKS]),
    heard=st.frozensets(st.sampled_from(Heard)),
    group_size=st.integers(1, 4),
)


def usable(found: Facts) -> set[str]:
    return {name for name, against in legal(found).items() if against is None}


def test_a_judged_group_with_exact_tokens_is_material_for_every_objective():
    assert usable(Facts(heard=EVERYTHING, group_size=2)) == ALL


def test_a_providers_text_teaches_what_takes_no_ratio():
    text = Facts(fidelity=Fidelity.TEXT, logprob_provenance=LogprobProvenance.NONE, heard=EVERYTHING, group_size=8)
    assert usable(text) == {"sft", "dpo", "kto"}
    assert {legal(text)[name] for name in ("hindsight", "oapl", "grpo")} == {"text only"}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (FeedbackKind.THUMB, {"kto", "oapl"}),
        (FeedbackKind.OUTCOME, {"kto", "oapl"}),
        (FeedbackKind.TEXT, {"hindsight"}),
        (FeedbackKind.CORRECTION, {"dpo", "hindsight"}),
        (FeedbackKind.PREFERENCE, {"dpo"}),
        (FeedbackKind.CATEGORY, set()),
    ],
)
def test_each_kind_of_feedback_opens_its_objectives(kind, more):
    assert usable(Facts(heard=heard_in([kind.value]))) == {"sft"} | more


def test_a_group_needs_a_second_reply_and_the_engines_own_log_probabilities():
    judged = Facts(heard=frozenset({Heard.VERDICT}))
    assert legal(judged)["grpo"] == "one reply to its request"
    assert legal(replace(judged, group_size=2))["grpo"] is None
    recomputed = replace(judged, group_size=2, logprob_provenance=LogprobProvenance.RECOMPUTED)
    assert legal(recomputed)["grpo"] == "no log-probabilities of the engine"
    assert legal(recomputed)["oapl"] is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"purpose": Purpose.EXAM, "split": Split.GATE}, "exam"),
        ({"training_allowed": False}, "training denied"),
        ({"status": "aborted"}, "aborted"),
        ({"context_complete": False}, "context incomplete"),
        ({"mark": "suspect_empty_args"}, "suspect empty arguments"),
        ({"split": Split.GATE}, "gate split"),
        ({"split": Split.SELECT}, "select split: measures drift"),
    ],
)
def test_what_never_trains_trains_with_no_objective(change, reason):
    found = replace(Facts(heard=EVERYTHING, group_size=2), **change)
    assert set(legal(found).values()) == {reason}
    state = LedgerState.HELD if "split" in reason else LedgerState.EXCLUDED
    assert standing(found) == (state, reason)


@given(facts)
def test_less_is_never_more(found):
    """Taking away what was said, or the tokens, opens no objective; what is against all is against each."""
    assert usable(replace(found, heard=frozenset())) <= usable(found)
    assert usable(replace(found, fidelity=Fidelity.TEXT)) <= usable(found)
    assert usable(replace(found, group_size=1)) <= usable(found)
    against = reason_against_any(found)
    assert against is None or set(legal(found).values()) == {against}


@given(facts)
def test_no_ratio_is_ever_taken_on_text(found):
    taken = usable(replace(found, fidelity=Fidelity.TEXT))
    assert not taken & {objective.name for objective in OBJECTIVES if objective.tokens}


@given(facts)
def test_the_next_run_considers_what_its_objective_may_learn_from(found):
    state, reason = standing(found)
    assert (state is None) == ("oapl" in usable(found))
    assert reason


def test_what_nobody_judged_is_held_on_the_main_branch_and_excluded_beside_it():
    assert standing(Facts()) == (LedgerState.HELD, "no feedback")
    assert standing(Facts(branch=Branch.TITLE)) == (LedgerState.EXCLUDED, "side branch")
    assert standing(Facts(branch=Branch.TITLE, heard=frozenset({Heard.VERDICT})))[0] is None


@pytest.mark.parametrize(
    ("sampler", "reason"),
    [
        (Sampler(), None),
        (Sampler(temperature=0.0, constraints="response_format"), "greedy decoding"),
        (Sampler(constraints="response_format", top_p=0.9), "constrained decoding"),
        (Sampler(top_p=0.9), "truncated support"),
        (Sampler(presence_penalty=0.5), "truncated support"),
    ],
)
def test_a_ratio_wants_the_whole_distribution(sampler, reason):
    assert reason_against(Fidelity.EXACT, sampler) == reason
    assert reason_against(Fidelity.TEXT, sampler) == "text only"


def test_redaction_leaves_texts_and_takes_tokens():
    for mark in ("redacted", "redacted_reply"):
        assert usable(Facts(mark=mark, heard=EVERYTHING, group_size=2)) == {"sft", "dpo", "kto"}
        assert standing(Facts(mark=mark)) == (LedgerState.EXCLUDED, "redacted")
    assert set(MARKS) == set(MARKS_AGAINST)


def test_an_attempt_that_was_repeated_is_no_reply_of_its_own():
    attempt = Facts(branch=Branch.RETRY)
    assert legal(attempt)["sft"] == "retried"
    assert standing(attempt) == (LedgerState.EXCLUDED, "retried")


def test_kinds_that_are_not_known_say_nothing():
    assert heard_in(["thumb", "applause"]) == {Heard.VERDICT}
    assert set(SAYS) <= set(FeedbackKind)
