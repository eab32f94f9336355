"""ATIF in: what a step says, which steps are calls, ids and log-probabilities, sub-agents."""

import pytest

from nightschool.imports.atif_parts import atif_content
from nightschool.types import Branch, Fidelity, LogprobProvenance

AGENT = {"name": "harness", "version": "1", "model_name": "m", "tool_definitions": [{"type": "function"}]}


def trajectory(*steps, **more):
    numbered = [{"step_id": number} | step for number, step in enumerate(steps, 1)]
    return {"schema_version": "ATIF-v1.8", "session_id": "s1", "agent": AGENT, "steps": numbered} | more


USER = {"source": "user", "message": "list", "timestamp": "2026-01-01T00:00:00Z"}
CALL = {
    "source": "agent",
    "message": "",
    "reasoning_content": "hm",
    "timestamp": "2026-01-01T00:00:01Z",
    "tool_calls": [{"tool_call_id": "c1", "function_name": "ls", "arguments": {"path": "."}}],
    "observation": {"results": [{"source_call_id": "c1", "content": "a b"}, {"content": "time is up"}]},
    "metrics": {
        "prompt_tokens": 2, "prompt_token_ids": [1, 2], "completion_token_ids": [7, 8], "logprobs": [-0.5, -0.25]
    },
}  # fmt: skip
DONE = {"source": "agent", "message": "two files", "model_name": "m2", "timestamp": "2026-01-01T00:00:02Z"}


def test_steps_are_calls_with_what_they_observed(write, imported, sessions, rows):
    report = imported(write("t.json", trajectory(USER, CALL, DONE)))
    assert (report.format, report.taken) == ("atif", {"sessions": 1, "exchanges": 2})
    ((first, second),) = sessions()
    message = first.choices[0].message
    assert message["tool_calls"][0]["function"] == {"name": "ls", "arguments": '{"path": "."}'}
    assert message["reasoning_content"] == "hm"
    assert second.messages[2:] == (
        {"role": "tool", "tool_call_id": "c1", "content": "a b"},
        {"role": "user", "content": "time is up"},
    )
    assert (first.prompt_ids, first.choices[0].completion_ids) == ((1, 2), (7, 8))
    assert first.choices[0].behavior_logprobs == (-0.5, -0.25)
    assert (first.fidelity, first.logprob_provenance) == (Fidelity.EXACT, LogprobProvenance.ENGINE)
    assert not first.sampler.full_support  # nobody told the temperature: ratio objectives may not use it
    assert (second.fidelity, second.policy_version) == (Fidelity.TEXT, "m2")
    assert (first.agent, first.tools) == ("harness", ({"type": "function"},))
    assert rows("exchanges")[0].usage == {"prompt_tokens": 2}


@pytest.mark.parametrize(
    "metrics",
    [
        {"completion_token_ids": [7, 8], "logprobs": [-0.5, -0.25]},
        {"prompt_token_ids": [1], "completion_token_ids": [7, 8], "logprobs": [-0.5]},
        {"prompt_token_ids": [1], "completion_token_ids": [7], "logprobs": [None]},
        {"prompt_token_ids": [1], "completion_token_ids": ["7"], "logprobs": [-0.5]},
        {"prompt_token_ids": [1], "completion_token_ids": [7]},
    ],
)
def test_ids_and_log_probabilities_that_do_not_fit_are_not_exact(write, imported, sessions, metrics):
    imported(write("t.json", trajectory(USER, DONE | {"metrics": metrics})))
    ((exchange,),) = sessions()
    assert exchange.fidelity == Fidelity.TEXT
    assert exchange.fidelity_reason.startswith("The log does not carry")


def test_copied_and_scripted_steps_are_context_alone(write, imported, sessions):
    report = imported(
        write(
            "t.json",
            trajectory(USER, DONE | {"is_copied_context": True}, USER, DONE | {"llm_call_count": 0}, USER, DONE, USER),
        )
    )
    assert report.left_out == {"copied or made without a model": 2}
    ((exchange,),) = sessions()
    assert [m["role"] for m in exchange.messages] == ["user", "assistant"] * 2 + ["user"]


def test_a_step_of_several_calls_is_never_exact(write, imported, sessions):
    imported(write("t.json", trajectory(USER, CALL | {"llm_call_count": 3})))
    ((exchange,),) = sessions()
    assert (exchange.fidelity, exchange.flags) == (Fidelity.TEXT, ("several calls in one step",))


def test_sub_agents_are_sessions_below(write, imported, sessions, rows):
    child = trajectory(USER, DONE, trajectory_id="k", session_id="s1")
    imported(write("t.json", trajectory(USER, CALL, subagent_trajectories=[child])))
    by_name = {row.external_key: row for row in rows("sessions")}
    assert set(by_name) == {"s1", "s1/k"}
    assert by_name["s1/k"].parent_session_id == by_name["s1"].id
    assert {exchange.branch for session in sessions() for exchange in session} == {Branch.MAIN, Branch.SUB_AGENT}


def test_sub_agents_without_a_session_and_among_the_steps_of_their_caller(write, imported, sessions, rows):
    child = trajectory(USER, DONE, trajectory_id="k", session_id=None)
    aside = {"is_sidechain": True, "agent_id": "a7"}
    among = [USER | {"message": "task", "extra": aside}, DONE | {"extra": aside}]
    imported(write("t.json", trajectory(USER, CALL, *among, DONE, subagent_trajectories=[child])))
    by_name = {row.external_key: row for row in rows("sessions")}
    assert set(by_name) == {"s1", "s1/k", "s1/a7"}
    assert {row.parent_session_id for row in by_name.values()} == {None, by_name["s1"].id}
    ends = [found[-1] for found in sessions()]
    seen = {len(end.messages): [message["content"] for message in end.messages] for end in ends}
    assert ["list", "", "a b", "time is up"] in seen.values()  # the caller saw nothing of what stands among its steps
    assert ["task"] in [[message["content"] for message in end.messages] for end in ends]


def test_images_are_urls_in_the_store_and_sources_in_a_file(write, imported, sessions):
    parts = [{"type": "text", "text": "see"}, {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}]
    imported(write("t.json", trajectory(USER | {"message": parts}, DONE)))
    [[exchange]] = sessions()
    kept = [parts[0], {"type": "image_url", "image_url": {"url": "a.png"}}]
    assert exchange.messages[0]["content"] == kept
    assert atif_content(kept) == parts
    other = [{"type": "input_audio", "input_audio": {}}, {"type": "image_url", "image_url": {"url": "x.svg"}}]
    assert [part["text"] for part in atif_content(other)] == ["[input_audio]", "[image_url]"]


def test_two_trajectories_of_one_session_share_what_they_have_in_common(write, imported, sessions):
    imported(write("a.json", trajectory(USER, CALL, DONE)))
    report = imported(write("b.json", trajectory(USER, CALL, DONE | {"message": "three files"})))
    assert (report.taken["exchanges"], report.merged["exchanges"]) == (1, 1)
    (session,) = sessions()
    assert len(session) == 3


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (trajectory(), "a trajectory without steps"),
        (trajectory(USER, session_id=None), "a trajectory without an id"),
        (trajectory({"source": "tool", "message": "x"}), "a step of an unknown source"),
        (trajectory(USER, DONE | {"tool_calls": 3}), "not of the format atif (TypeError)"),
    ],
)
def test_what_is_no_trajectory_is_refused(write, imported, broken, reason):
    assert imported(write("t.json", broken), "atif").refused == {reason: 1}
