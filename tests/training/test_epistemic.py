"""What is seen of a policy while it is distilled, and when that ends a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import write_tiny_tokenizer

from nightschool.errors import InputError, MissingError
from nightschool.rendering.renderer import Renderer
from nightschool.training import epistemic
from nightschool.training.backend import Drawn
from nightschool.training.epistemic import (
    Look,
    Reply,
    WatchRule,
    alarms,
    change,
    count_markers,
    look_at,
    reason_to_stop,
)
from nightschool.training.looking import Looker, Question, own_prompts, read_questions
from nightschool.types import Sample


def look(markers: int = 100, right: Sequence[float] = (1.0,) * 8 + (0.0,) * 2, step: int = 0, **more: float) -> Look:
    """A thousand tokens with that many markers, and questions answered right in these shares."""
    success = {str(n): share for n, share in enumerate(right)}
    made = Look(step, 20, 1000, markers, markers, 2.0, 0.3, success, dict.fromkeys(success, 0.9))
    return replace(made, **more)  # type: ignore[arg-type]


def test_markers_are_counted_anywhere_and_as_words() -> None:
    text = "Wait, maybe I should check this. It seems likely that awaiting checks might help. Hmm."
    # anywhere also in "awaiting" and "checks": 9; whole words: wait, maybe, check, seems, likely, might, hmm
    assert count_markers(text) == (9, 7)
    assert count_markers("") == (0, 0)


def test_a_look_at_replies() -> None:
    home = [Reply("a", "maybe it is red", 4, 1.0, 0.5), Reply("b", "it is red", 3, 2.0, 0.5)]
    elsewhere = [
        Reply("q", "Paris", 1, 0.0, 0.9, True),
        Reply("q", "Rome", 1, 1.0, 0.7, False),
        Reply("r", "wait", 1, 1.0, 0.6, True),
    ]
    found = look_at(3, home, elsewhere)
    metrics = found.metrics()
    assert metrics["markers"] == pytest.approx(1000 * 2 / 10)
    assert metrics["reply_tokens"] == 2.0
    assert metrics["reply_entropy"] == 1.0
    # "it is red" of 3 words in "maybe it is red" of 4: 2 * 3 / 7
    assert metrics["similarity"] == pytest.approx(6 / 7)
    assert found.success == {"q": 0.5, "r": 1.0}
    # (0.8 + 0.6) / 2 believed, 0.75 right
    assert metrics["overconfidence"] == pytest.approx(0.7 - 0.75)


def test_replies_to_one_prompt_are_not_compared() -> None:
    twice = [Reply("a", "it is red", 3, 1.0, 0.5)] * 2
    assert epistemic.self_similarity(twice) is None


def test_doubt_and_success_must_both_be_lost() -> None:
    base, rule = look(), WatchRule()
    # success falls from 0.8 to 0.4: four of ten lose 1; deviation sqrt(4 * 0.36 + 6 * 0.16) / 9 ... = 0.516 / sqrt(10)
    failing = (0.0,) * 4 + (1.0,) * 4 + (0.0,) * 2
    moved = change(base, look(right=failing))
    assert moved == pytest.approx((-0.4, 0.5163978 / 10**0.5))
    assert reason_to_stop(base, look(49, failing), rule) == (
        "doubt and other skills are lost: markers 100.0 to 49.0 per 1,000 tokens, success on other questions -0.40 "
        "with a standard error of 0.16"
    )
    assert reason_to_stop(base, look(50, failing), rule) is None, "half of the markers are left"
    assert reason_to_stop(base, look(0), rule) is None, "nothing else is lost"
    # one of ten: -0.1 with an error of 0.1
    assert reason_to_stop(base, look(0, (0.0,) + (1.0,) * 7 + (0.0,) * 2), rule) is None
    assert reason_to_stop(look(19), look(0, failing), rule) is None, "nobody can say from 19 markers"
    # markers are counted per token: half as many in half as many tokens are as dense
    assert reason_to_stop(base, look(45, failing, num_tokens=500), rule) is None


def test_three_alarms() -> None:
    base, rule = look(), WatchRule()
    assert alarms(base, look(entropy=1.2), None, rule) == []
    assert alarms(base, look(entropy=1.19), None, rule) == ["entropy 0.59 of what it was, below 0.6"]
    assert alarms(base, look(similarity=0.86), 2.1, rule) == [
        "replies resemble each other by 0.86, above 0.85",
        "drift of 2.10 nats, above 2",
    ]
    assert alarms(look(similarity=0.9), look(similarity=0.95), 2.0, rule) == [], "they were alike before"


class Speaker:
    """Draws what it was told to say, the same to every prompt."""

    def __init__(self, renderer: Renderer, says: str) -> None:
        self.renderer, self.says, self.asked = renderer, says, 0

    def draw(self, prompts: Sequence[Sequence[int]], longest: int, seed: int) -> list[Drawn]:
        del longest, seed
        self.asked += 1
        ids = self.renderer.completion_ids(self.says)
        return [Drawn(list(ids), [-0.1] * len(ids), [0.5] * len(ids)) for _ in prompts]


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return Renderer.from_folder(folder)


def looker(renderer: Renderer, path: Path, says: str, **rule: object) -> Looker:
    questions = [Question(f"q{n}", (1, n), ("paris",)) for n in range(4)]
    home = [Question(f"h{n}", (2, n)) for n in range(2)]
    made = replace(WatchRule(every=5, least_markers=4), **rule)  # type: ignore[arg-type]
    return Looker(Speaker(renderer, says), renderer, made, home, questions, path / "looks.jsonl")  # type: ignore[arg-type]


def test_a_looker_looks_at_the_start_at_intervals_and_at_the_end(renderer: Renderer, tmp_path: Path) -> None:
    one = looker(renderer, tmp_path, "maybe Paris")
    one.begin()
    assert one.looks[0].success == dict.fromkeys(["q0", "q1", "q2", "q3"], 1.0)
    assert one.after(4, False, None) is None
    assert one.after(5, False, None) is not None
    one.backend.says = "Rome"  # type: ignore[attr-defined]
    found = one.after(7, True, 2.5)
    assert found is not None
    assert found.stop is not None
    assert found.metrics["alarms"] == 1.0
    assert found.metrics["other_success"] == 0.0
    report = one.report()
    assert report["stopped"] == found.stop
    assert report["alarms"] == {"7": ["drift of 2.50 nats, above 2"]}
    assert [row["step"] for row in report["looks"]] == [0, 5, 7]
    assert report["sentence"].startswith("The watch stopped the run (doubt and other skills are lost")


def test_a_resumed_run_knows_its_start(renderer: Renderer, tmp_path: Path) -> None:
    first = looker(renderer, tmp_path, "maybe Paris")
    first.begin()
    first.after(5, False, None)
    again = looker(renderer, tmp_path, "Rome")
    again.begin()
    assert again.backend.asked == 0  # type: ignore[attr-defined]
    assert again.looks == first.looks
    again.after(5, False, None)  # the step is taken again
    newest = looker(renderer, tmp_path, "")
    newest.begin()
    assert newest.looks[5].success["q0"] == 0.0


def test_prompts_and_questions(renderer: Renderer, tmp_path: Path) -> None:
    rows = [Sample(str(n), (1, n % 3, 9), (False, False, True), (False, False, True)) for n in range(9)]
    assert sorted(one.prompt for one in own_prompts(rows, 10)) == [(1, 0), (1, 1), (1, 2)]
    assert own_prompts(rows, 2) == own_prompts(rows[::-1], 2)
    shipped = read_questions("", renderer)
    assert len(shipped) == len({one.id for one in shipped}) == 16
    by_id = {one.id: one for one in shipped}
    assert by_id["knows-05"].judge("A spider has eight legs.")
    assert not by_id["knows-05"].judge("A spider has eighty legs."), "whole words"
    probes = Path(epistemic.__file__).parents[1] / "gate" / "probes.jsonl"
    asked = {json.loads(line)["messages"][-1]["content"] for line in probes.read_text().splitlines()}
    texts = [
        json.loads(line) for line in (Path(epistemic.__file__).parent / "questions.jsonl").read_text().splitlines()
    ]
    assert not asked & {row["prompt"][-1]["content"] for row in texts}, "the exam asks other questions"
    with pytest.raises(MissingError, match="no file"):
        read_questions(str(tmp_path / "none.jsonl"), renderer)
    (tmp_path / "bad.jsonl").write_text('{"prompt": []}\n')
    with pytest.raises(InputError, match="Line 1 of bad"):
        read_questions(str(tmp_path / "bad.jsonl"), renderer)
