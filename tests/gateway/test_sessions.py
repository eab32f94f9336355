"""What requests of real agent programs say about their conversation. The values are made up in their shapes."""

import json

import pytest
from databases import ON_BOTH

from nightschool.gateway.sessions import NAMES, read_names
from nightschool.types import Branch

DATABASES = ON_BOTH

UUID = "0f3c7c9e-3a53-4a6e-9d5e-0a3b1c2d4e5f"
OLD_USER_ID = f"user_ab12_account_9d5e_session_{UUID}"
NEW_USER_ID = json.dumps({"device_id": "dev", "account_uuid": "acc", "session_id": UUID})
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

# By falling rank, as they come: headers, body fields, the name that is read.
RANKED = [
    ({"x-nightschool-session": "ours"}, {}, "ours"),
    ({"x-claude-code-session-id": "claude"}, {}, "claude"),
    ({}, {"metadata": {"user_id": OLD_USER_ID}}, UUID),
    ({"session-id": "codex"}, {}, "codex"),
    ({"session_id": "pi"}, {}, "pi"),
    ({"x-opencode-session": "ses_1"}, {}, "ses_1"),
    ({"x-session-id": "x"}, {}, "x"),
    ({"x-session-affinity": "near"}, {}, "near"),
    ({}, {"conversation": "conv_1"}, "conv_1"),
    ({}, {"conversation_id": "c2"}, "c2"),
    ({"helicone-session-id": "heli"}, {}, "heli"),
    ({}, {"metadata": {"session_id": "lite"}}, "lite"),
    ({"baggage": "user.id=ada,session.id=bag%20gage;p=1"}, {}, "bag gage"),
]


@pytest.mark.parametrize(("headers", "fields", "name"), RANKED)
def test_each_name_is_read(headers, fields, name):
    assert read_names(headers, fields).session == name


@pytest.mark.parametrize("rank", range(len(RANKED) - 1))
def test_the_higher_name_wins(rank):
    (headers, fields, name), *lower = RANKED[rank:]
    together: dict[str, object] = {"metadata": {}}
    for more_headers, more_fields, _ in lower:
        headers = more_headers | headers
        together["metadata"] |= more_fields.get("metadata", {})
        together |= {key: value for key, value in more_fields.items() if key != "metadata"}
    together["metadata"] |= fields.get("metadata", {})
    together |= {key: value for key, value in fields.items() if key != "metadata"}
    assert read_names(headers, together).session == name
    assert len(NAMES) == len(RANKED) - 1  # `conversation` is one source with two spellings


@pytest.mark.parametrize(
    ("headers", "fields", "hint"),
    [
        ({"x-client-request-id": "r"}, {"prompt_cache_key": "k"}, "r"),
        ({}, {"prompt_cache_key": "k", "metadata": {"trace_id": "t"}}, "k"),
        ({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, {"metadata": {"trace_id": "t"}}, "t"),
        ({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, {}, TRACE),
        ({"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"}, {}, None),
        ({"traceparent": "nonsense"}, {"prompt_cache_key": ""}, None),
    ],
)
def test_hints_are_no_names(headers, fields, hint):
    names = read_names(headers, fields)
    assert (names.session, names.hint) == (None, hint)


@pytest.mark.parametrize(
    ("headers", "fields", "user"),
    [
        ({"helicone-user-id": "h"}, {"user": "u", "safety_identifier": "s"}, "u"),
        ({}, {"safety_identifier": "s", "metadata": {"user_id": "m"}}, "s"),
        ({}, {"metadata": {"user_id": OLD_USER_ID}}, "user_ab12_account_9d5e"),
        ({}, {"metadata": {"user_id": NEW_USER_ID}}, "acc"),
        ({}, {"metadata": {"user_id": "plain"}}, "plain"),
        ({}, {"metadata": {"user_id": "[1]"}}, "[1]"),
        ({"helicone-user-id": "h"}, {"metadata": {"trace_user_id": "t"}}, "h"),
        ({"baggage": "user.id=ada"}, {"user": 7, "metadata": ["no", "table"]}, "ada"),
        ({}, {}, None),
    ],
)
def test_the_user(headers, fields, user):
    assert read_names(headers, fields).user == user


def test_a_json_user_id_names_its_session():
    assert read_names({}, {"metadata": {"user_id": NEW_USER_ID}}).session == UUID
    assert read_names({}, {"conversation": {"id": "conv_9"}}).session == "conv_9"


@pytest.mark.parametrize(
    ("headers", "branch"),
    [
        ({}, None),
        ({"x-claude-code-agent-id": "a1"}, Branch.SUB_AGENT),
        ({"x-claude-code-agent-id": "main"}, None),
        ({"x-openai-subagent": "review"}, Branch.SUB_AGENT),
        ({"x-openai-subagent": "compact"}, Branch.COMPACTION),
        ({"x-openai-subagent": "false"}, None),
        ({"x-codex-parent-thread-id": "t"}, Branch.SUB_AGENT),
        ({"x-session-id": "s", "x-nightschool-parent": "s"}, Branch.SUB_AGENT),
        ({"x-session-id": "s", "x-nightschool-parent": "p"}, None),
    ],
)
def test_who_says_that_it_is_a_side_branch(headers, branch):
    assert read_names(headers, {}).branch == branch


def test_parents_retries_tags_and_keys():
    names = read_names(
        {
            "x-session-id": "child",
            "x-parent-session-id": "top",
            "x-stainless-retry-count": "2",
            "x-nightschool-tags": "beta, eu,,beta",
            "helicone-property-plan": "gold",
            "helicone-request-id": "mine",
        },
        {"metadata": {"tags": ["night", 3]}, "previous_response_id": "resp_1"},
    )
    assert (names.session, names.parent_session) == ("child", "top")
    assert names.is_retry
    assert names.tags == ("beta", "eu", "night", "plan=gold")
    assert (names.previous_response, names.external_key) == ("resp_1", "mine")
    assert not read_names({"x-stainless-retry-count": "0"}, {}).is_retry


@pytest.mark.parametrize("name", ["", "  ", "x" * 513, "\0", 7, None, ["a"]])
def test_what_is_no_name(name):
    assert read_names({}, {"prompt_cache_key": name}).hint is None


def test_a_name_is_text_that_a_database_takes():
    assert read_names({}, {"prompt_cache_key": " a\0\ud800b "}).hint == "a?b"
