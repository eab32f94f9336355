"""What no ratio may be taken of still trains by its text, where the objective asks for no more."""

from __future__ import annotations

import time
from typing import Any

import pytest
from traffic import record_turn, say

from nightschool.curation.dataset import TRAINED, TRAINED_TEXT, Dataset, Wanted
from nightschool.curation.gathering import gather
from nightschool.curation.legal import try_all
from nightschool.objectives.catalog import find_objective
from nightschool.releases.aliases import BASE
from nightschool.rendering.renderer import Renderer
from nightschool.store.database import Store
from nightschool.types import FeedbackKind, LedgerState, Sample, Sampler

ASKED = [{"role": "user", "content": "order 7"}]
USER = "user-0-1"  # of the train split


def turn(store: Store, reply: str, ids: tuple[int, ...] | None = None, **more: Any) -> str:
    messages = more.pop("messages", ASKED)
    return record_turn(store, messages, reply, (20, 21), ids, user=USER, **{"session": reply, **more})


def judged(store: Store, reply: str, good: bool, ids: tuple[int, ...] | None = None, **more: Any) -> str:
    exchange = turn(store, reply, ids, **more)
    say(store, FeedbackKind.THUMB, good, exchange=exchange)
    return exchange


def gathered(store: Store, renderer: Renderer, name: str) -> Dataset:
    with store.read() as conn:
        return gather(conn, store.tenant, Wanted("shop", BASE, time.time() + 1), find_objective(name), renderer)


def told(dataset: Dataset) -> dict[str, tuple[LedgerState, str]]:
    return {line.exchange_id: (line.state, line.reason) for line in dataset.lines}


def learned(sample: Sample, renderer: Renderer) -> list[str]:
    """The runs of tokens that train, as text."""
    runs: list[list[int]] = []
    for place, (token, used) in enumerate(zip(sample.token_ids, sample.completion_mask, strict=True)):
        if used and not (place and sample.completion_mask[place - 1]):
            runs.append([])
        if used:
            runs[-1].append(token)
    return [renderer.decode(run) for run in runs]


def test_a_text_without_tokens_is_rendered_for_kto_and_out_for_oapl(store: Store, renderer: Renderer) -> None:
    exact = judged(store, "by its tokens", True, (100, 2))
    text = judged(store, "by its text", False)
    dataset = gathered(store, renderer, "kto")
    assert told(dataset) == {exact: (LedgerState.TRAINED, TRAINED), text: (LedgerState.TRAINED, TRAINED_TEXT)}
    by_id = {sample.id: sample for sample in dataset.train}
    assert by_id[exact].token_ids == (20, 21, 100, 2)
    assert by_id[text].token_ids == (*renderer.prompt_ids(tuple(ASKED)), *renderer.completion_ids("by its text"))
    assert learned(by_id[text], renderer) == ["by its text<|im_end|>"]
    assert (by_id[text].reward, by_id[text].annotations["temperature"]) == (0.0, 1.0)
    strict = gathered(store, renderer, "topr")
    assert told(strict)[text] == (LedgerState.EXCLUDED, "text only")
    assert [sample.id for sample in strict.train] == [exact]


def test_a_session_is_one_row_of_its_own_replies_alone(store: Store, renderer: Renderer) -> None:
    shown = [{"role": "user", "content": "to"}, {"role": "assistant", "content": "an example"}, *ASKED]
    first = turn(store, "the tool", messages=shown, session="s", at=time.time() - 20)
    history = [*shown, {"role": "assistant", "content": "the tool"}, {"role": "user", "content": "and in the order?"}]
    second = turn(store, "no order", messages=history, session="s", at=time.time() - 10)
    say(store, FeedbackKind.THUMB, True, session="s")
    dataset = gathered(store, renderer, "kto")
    (sample,) = dataset.train
    assert learned(sample, renderer) == ["the tool<|im_end|>", "no order<|im_end|>"]
    assert "num_rows" not in sample.annotations
    assert told(dataset) == dict.fromkeys((first, second), (LedgerState.TRAINED, TRAINED_TEXT))


def test_a_history_that_was_rewritten_makes_rows_that_share_the_vote(store: Store, renderer: Renderer) -> None:
    turn(store, "the tool", session="s", at=time.time() - 20)
    history = [*ASKED, {"role": "assistant", "content": "the tool"}, {"role": "user", "content": "more"}]
    turn(store, "no order", messages=history, session="s", at=time.time() - 15)
    shortened = [{"role": "user", "content": "summary"}, {"role": "user", "content": "and now"}]
    turn(store, "done", messages=shortened, session="s", at=time.time() - 10)
    say(store, FeedbackKind.THUMB, True, session="s")
    rows = gathered(store, renderer, "kto").train
    assert [learned(sample, renderer) for sample in rows] == [
        ["the tool<|im_end|>", "no order<|im_end|>"],
        ["done<|im_end|>"],
    ]
    assert [sample.annotations["num_rows"] for sample in rows] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"sampler": Sampler(temperature=0.0)}, None),
        ({"sampler": Sampler(top_p=0.9)}, None),
        ({"flags": ("redacted",)}, None),
        ({"version": "somebody else's model"}, None),
        ({"flags": ("redacted_reply",)}, "redacted"),
        ({"training_allowed": False}, "training denied"),
        ({"context_complete": False}, "context incomplete"),
        ({"status": "aborted"}, "aborted"),
    ],
)
def test_what_bars_tokens_and_what_bars_texts_too(store: Store, renderer: Renderer, more: Any, why: str | None) -> None:
    ids = None if "version" in more else (100, 2)
    row = judged(store, "a reply", True, ids, **more)
    dataset = gathered(store, renderer, "kto")
    expected = (LedgerState.TRAINED, TRAINED_TEXT) if why is None else (LedgerState.EXCLUDED, why)
    assert told(dataset)[row] == expected
    assert told(gathered(store, renderer, "topr"))[row][0] == LedgerState.EXCLUDED


def test_what_a_harness_made_of_a_reply_is_not_trained(store: Store, renderer: Renderer) -> None:
    turn(store, "the tool", session="s", at=time.time() - 20)
    changed = [*ASKED, {"role": "assistant", "content": "another tool"}, {"role": "user", "content": "more"}]
    turn(store, "no order", messages=changed, session="s", at=time.time() - 10)
    say(store, FeedbackKind.THUMB, True, session="s")
    rows = gathered(store, renderer, "kto").train
    assert rows
    assert all("another tool" not in text for sample in rows for text in learned(sample, renderer))


def test_objectives_counts_them(store: Store, renderer: Renderer) -> None:
    for number in range(4):
        judged(store, f"text {number}", number % 2 == 0, messages=[{"role": "user", "content": f"order {number}"}])
    with store.read() as conn:
        wanted = Wanted("shop", BASE, time.time() + 1)
        found = {one.objective.name: one for one in try_all(conn, store.tenant, wanted, renderer)}
    assert found["kto"].against is None
    assert found["kto"].num_rows == 2 * len(gathered(store, renderer, "kto").train) > 0
    assert found["rft"].against is None
    assert found["topr"].num_rows == 0


def test_demonstrations_and_pairs_of_the_store_come_with_their_tools(store: Store, renderer: Renderer) -> None:
    """Rows for a file carry the schemas of tools as one text; a run reads what they say."""
    tool = {"type": "function", "function": {"name": "refund", "description": "in the order", "parameters": {}}}
    asked = judged(store, "by its text", True, tools=(tool,))
    say(store, FeedbackKind.CORRECTION, "the tool", exchange=asked)
    demonstrated = gathered(store, renderer, "sft")
    assert [learned(sample, renderer)[-1] for sample in demonstrated.train] == [
        "by its text<|im_end|>",
        "the tool<|im_end|>",
    ]
    prompt = tuple(renderer.prompt_ids(tuple(ASKED), (tool,)))
    pairs = gathered(store, renderer, "dpo").train
    assert len(pairs) == 2
    assert all(sample.token_ids[: len(prompt)] == prompt for sample in (*demonstrated.train, *pairs))
