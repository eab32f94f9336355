from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import write_tiny_tokenizer
from traffic import fix_splits, record_turn, say

from nightschool.curation.hindsight import OTHER_TEMPLATE, Views, hinted, load_views
from nightschool.rendering.renderer import Renderer
from nightschool.store.database import Store
from nightschool.types import FeedbackKind, Json

ASKED: list[Json] = [{"role": "system", "content": "Help."}, {"role": "user", "content": "Where is order 7?"}]
REPLY = "No idea."


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return Renderer.from_folder(folder)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.sqlite") as opened:
        fix_splits(opened)
        yield opened


def recorded(store: Store, renderer: Renderer, session: str, prompt: tuple[int, ...] | None = None) -> str:
    """One exchange of a user whose split is train (found by trying)."""
    ids = tuple(renderer.prompt_ids(tuple(ASKED))) if prompt is None else prompt
    reply = tuple(renderer.completion_ids(REPLY))
    return record_turn(store, ASKED, REPLY, ids, reply, session=session, user=f"user of {session}")


def views(store: Store, renderer: Renderer) -> Views:
    with store.read() as conn:
        return load_views(conn, store.tenant, "shop", renderer)


def test_a_reply_with_words_is_seen_twice_and_both_end_alike(store: Store, renderer: Renderer) -> None:
    told = {name: recorded(store, renderer, name) for name in (f"s{i}" for i in range(12))}
    for name, exchange in told.items():
        say(store, FeedbackKind.TEXT, f"That did not help, {name}.", exchange=exchange)
    recorded(store, renderer, "silent")
    found = views(store, renderer)
    assert 0 < len(found.students) < 12, "select and gate splits are left out"
    assert len(found.students) + sum(found.left_out.values()) == 12
    for student, teacher in zip(found.students, found.teachers, strict=True):
        name = next(name for name, exchange in told.items() if exchange == student.id)
        assert student.id == teacher.id
        ends = [
            tuple(t for t, used in zip(s.token_ids, s.completion_mask, strict=True) if used) for s in (student, teacher)
        ]
        assert ends == [tuple(renderer.completion_ids(REPLY))] * 2
        told_text = renderer.decode(teacher.token_ids)
        assert f"That did not help, {name}." in told_text
        assert "That did not help" not in renderer.decode(student.token_ids), "the student never sees it"
        assert told_text.count(REPLY) == 1, "the answer is scored, not shown"


def test_words_about_a_session_are_about_its_main_branch_and_a_correction_says_what_it_should_have_been(
    store: Store, renderer: Renderer
) -> None:
    for i in range(12):
        recorded(store, renderer, f"s{i}")
        say(store, FeedbackKind.CORRECTION, "It is on its way.", session=f"s{i}")
    found = views(store, renderer)
    assert found.teachers
    assert all("It should have been: It is on its way." in renderer.decode(t.token_ids) for t in found.teachers)


def test_a_prompt_that_our_template_renders_differently_is_left_out(store: Store, renderer: Renderer) -> None:
    for i in range(12):
        exchange = recorded(store, renderer, f"s{i}", prompt=(20, 21, 22))
        say(store, FeedbackKind.TEXT, "Wrong.", exchange=exchange)
    found = views(store, renderer)
    assert not found.students
    assert found.left_out[OTHER_TEMPLATE] > 0


def test_the_words_stand_behind_what_the_user_said_last() -> None:
    messages = [*ASKED, {"role": "tool", "content": "nothing"}]
    made = hinted(messages, "x" * 3000)
    assert made is not None
    assert made[0] == ASKED[0]
    assert made[2] == messages[2]
    assert made[1]["content"].startswith("Where is order 7?\n\n")
    assert made[1]["content"].count("x") == 2000
    assert hinted(ASKED[:1], "words") is None
