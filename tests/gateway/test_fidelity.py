"""Ids that contradict the engine's counts or the reply's text are not exact; text alone can be verified."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import write_tiny_tokenizer
from tokenizers import Tokenizer

from nightschool.gateway.fidelity import Grader
from nightschool.store.records import Caller, Record, Timing
from nightschool.types import Choice, Fidelity, Json, LogprobProvenance

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = {"role": "user", "content": "where is order 7?"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    write_tiny_tokenizer(made)
    (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def record(message: Json, ids: tuple[int, ...] | None, **more: object) -> Record:
    choice = Choice(0, message, "stop", ids, None if ids is None else (-0.5,) * len(ids))
    made = Record(
        id="x",
        caller=Caller("shop"),
        timing=Timing(1.0),
        policy_version="base",
        request_body=b"{}",
        messages=(USER,),
        choices=(choice,),
        prompt_ids=None if ids is None else (3, 4, 5),
        fidelity=Fidelity.TEXT if ids is None else Fidelity.EXACT,
        logprob_provenance=LogprobProvenance.NONE if ids is None else LogprobProvenance.ENGINE,
    )
    return replace(made, **more)


def says(text: str | None, **more: object) -> Json:
    return {"role": "assistant", "content": text, **more}


def call(name: str, arguments: str) -> Json:
    return says(None, tool_calls=[{"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}])


def ids_of(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return (*tokenizer.encode(text, add_special_tokens=False).ids, 2)


def test_what_agrees_stays_exact(folder: Path, tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, "It is late.")
    usage = {"prompt_tokens": 3, "completion_tokens": len(ids)}
    whole = record(says("It is late."), ids, usage=usage)
    assert Grader(folder).grade(whole) is whole
    assert Grader().grade(whole) is whole


@pytest.mark.parametrize(
    ("usage", "reason"),
    [
        ({"completion_tokens": 3}, "The engine counts 3 completion tokens and gave 2 ids."),
        ({"prompt_tokens": 9, "completion_tokens": 2}, "The engine counts 9 prompt tokens and gave 3 ids."),
    ],
)
def test_a_count_that_differs_lowers_the_fidelity_and_says_so(usage: Json, reason: str) -> None:
    graded = Grader().grade(record(says("a"), (9, 2), usage=usage))
    assert (graded.fidelity, graded.fidelity_reason) == (Fidelity.TEXT, reason)


def test_ids_that_spell_something_else_are_not_exact(folder: Path, tokenizer: Tokenizer) -> None:
    graded = Grader(folder).grade(record(says("It is early."), ids_of(tokenizer, "It is late.")))
    assert (graded.fidelity, graded.fidelity_reason) == (Fidelity.TEXT, "The ids of choice 0 do not spell its text.")


@pytest.mark.parametrize(
    ("text", "message", "agrees"),
    [
        ("  It is late.\n", says("It is late."), True),  # engines trim
        ("<think>so</think>It is late.", says("It is late.", reasoning_content="so"), True),
        ("<think>so</think>It is late.", says("It is late.", reasoning_content="other"), False),
        ("It is late. STOP", says("It is late."), True),  # a stop sequence is sampled and not shown
        ('<tool_call>{"name": "track", "arguments": {"n":"7"}}</tool_call>', call("track", '{"n": "7"}'), True),
        ("<function=track><parameter=n>seven</parameter>", call("track", '{"n": "seven"}'), True),
        ("<function=track><parameter=n>seven</parameter>", call("track", '{"n": "eight"}'), False),
        ("<function=track>", call("refund", "{}"), False),
        ("It is lat", says("It is late."), False),  # an id is missing at the end
        ("caf\ufffd", says("caf"), True),  # cut inside a character
        ("x", says(None, tool_calls=[{"function": {"name": "x", "arguments": "{not json x"}}]), False),
    ],
)
def test_parsers_may_trim_and_quote_but_not_invent(
    folder: Path, tokenizer: Tokenizer, text: str, message: Json, agrees: bool
) -> None:
    graded = Grader(folder).grade(record(message, ids_of(tokenizer, text)))
    assert (graded.fidelity == Fidelity.EXACT) == agrees


@given(text=st.text(max_size=30))
@settings(deadline=None)
def test_every_text_spells_itself(folder: Path, tokenizer: Tokenizer, text: str) -> None:
    ids = ids_of(tokenizer, text)
    assert Grader(folder).grade(record(says(text), ids)).fidelity == Fidelity.EXACT


def test_what_is_not_complete_says_so() -> None:
    graded = Grader().grade(record(says("a"), (9, 2), status="truncated"))
    assert (graded.fidelity, graded.fidelity_reason) == (Fidelity.TEXT, "The exchange ended as truncated.")


class TestWithoutIds:
    @pytest.fixture
    def prompt(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        def plain(text: str) -> list[int]:
            return tokenizer.encode(text, add_special_tokens=False).ids

        return (1, *plain("user\nwhere is order 7?"), 2, *plain("\n"), 1, *plain("assistant\n"))

    @pytest.mark.parametrize("uncounted", [0, 1])  # some engines do not count the token that ends a turn
    def test_text_that_comes_back_and_counts_that_agree_are_verified(
        self, folder: Path, tokenizer: Tokenizer, prompt: tuple[int, ...], uncounted: int
    ) -> None:
        ids = ids_of(tokenizer, "It is late.")
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids) - uncounted}
        graded = Grader(folder, encodes=True).grade(record(says("It is late."), None, usage=usage))
        assert graded.fidelity == Fidelity.VERIFIED
        assert (graded.prompt_ids, graded.choices[0].completion_ids) == (prompt, ids)
        assert (graded.logprob_provenance, graded.choices[0].behavior_logprobs) == (LogprobProvenance.NONE, None)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"prompt_tokens": 1}, "the declared template"),  # another template, or one with a date
            ({"completion_tokens": 99}, "the declared tokenizer"),  # hidden reasoning, another tokenizer
            ({"completion_tokens": None}, "does not say how many"),
            ({"estimated": True}, "does not say how many"),
        ],
    )
    def test_anything_else_stays_text_and_says_why(
        self, folder: Path, tokenizer: Tokenizer, prompt: tuple[int, ...], change: Json, reason: str
    ) -> None:
        ids = ids_of(tokenizer, "It is late.")
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)} | change
        graded = Grader(folder, encodes=True).grade(record(says("It is late."), None, usage=usage))
        assert graded.fidelity == Fidelity.TEXT
        assert graded.prompt_ids is None
        assert reason in (graded.fidelity_reason or "")

    def test_a_reply_cut_at_its_limit_has_no_end_of_turn(
        self, folder: Path, tokenizer: Tokenizer, prompt: tuple[int, ...]
    ) -> None:
        """B15: nothing is trained that was not sampled."""
        ids = ids_of(tokenizer, "It is la")[:-1]
        cut = record(says("It is la"), None, usage={"prompt_tokens": len(prompt), "completion_tokens": len(ids)})
        cut = replace(cut, choices=(replace(cut.choices[0], finish_reason="length"),))
        graded = Grader(folder, encodes=True).grade(cut)
        assert (graded.fidelity, graded.choices[0].completion_ids) == (Fidelity.VERIFIED, ids)

    def test_without_a_declared_tokenizer_it_is_text(self, folder: Path) -> None:
        usage = {"prompt_tokens": 5, "completion_tokens": 5}
        told = record(says("a"), None, usage=usage, fidelity_reason="The engine gave no prompt ids.")
        assert Grader().grade(told) is told
        assert Grader(folder).grade(told) is told  # an engine that gives ids and did not this time
