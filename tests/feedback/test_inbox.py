"""What people do in the inbox, on both databases: append-only, and always the way back."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import sqlalchemy as sa

from nightschool.access.privacy import Privacy
from nightschool.errors import InputError, MissingError
from nightschool.feedback.body import read_feedback
from nightschool.feedback.inbox import Accepted, Inbox, Person, is_done, is_unread, live_marks
from nightschool.feedback.record import current_view, insert_feedback, load_feedback
from nightschool.feedback.reward import RewardRule, combine
from nightschool.store.database import Store
from nightschool.store.exchanges import Caller, Record, Timing, insert_exchange
from nightschool.store.schema import feedback
from nightschool.types import Feedback

NOW = 1_772_366_400.0
INES = Person("ines", "operator", None, True)
SECRETS_ONLY = Privacy()


@pytest.fixture
def desk(store: Store) -> "Desk":
    def fill(conn: sa.Connection) -> None:
        for name, session in (("x-1", "chat"), ("x-2", "chat"), ("y-1", "other")):
            insert_exchange(conn, store.tenant, Record(name, Caller("shop", session), Timing(NOW), "base", b"{}"))

    store.write(fill)
    return Desk(store)


class Desk:
    def __init__(self, store: Store) -> None:
        self.store, self.clock = store, NOW + 100

    def say(self, kind: str = "thumb", value: object = False, **more: object) -> str:
        self.clock += 1
        target = {} if {"exchange", "session"} & set(more) else {"exchange": "x-1"}
        item = read_feedback({"kind": kind, "value": value, "author": "ann", **target, **more}, self.clock)
        at = self.clock
        return self.store.write(lambda conn: insert_feedback(conn, self.store.tenant, item, False, at)).id

    def act(self, do: Callable[[Inbox], str], person: Person = INES, privacy: Privacy = SECRETS_ONLY) -> str:
        self.clock += 1
        at = self.clock
        return self.store.write(lambda conn: do(Inbox(conn, self.store.tenant, person, at, privacy)))

    def holding(self, exchange_id: str | None = None) -> list[Feedback]:
        """What holds of the session, marks aside; of one exchange where one is named."""
        with self.store.read() as conn:
            session = conn.scalar(sa.select(feedback.c.session_id).where(feedback.c.session_id.is_not(None)).limit(1))
            items = current_view(load_feedback(conn, self.store.tenant, [str(session)]))
        found = [item for item in items if not item.name.startswith("inbox")]
        return [item for item in found if exchange_id in (None, item.exchange_id)]

    def reward(self) -> float | None:
        return combine(self.holding("x-1"), RewardRule()).value

    def ids(self, condition: Callable) -> set[str]:
        with self.store.read() as conn:
            return set(conn.scalars(sa.select(feedback.c.id).where(condition(feedback.c))))

    def rows(self) -> list[tuple]:
        with self.store.read() as conn:
            columns = [column for column in feedback.columns if column.name not in ("state", "expires_at")]
            return [tuple(row) for row in conn.execute(sa.select(*columns).order_by(feedback.c.id))]


def test_an_accepted_reading_becomes_a_thumb_of_the_person(desk):
    text = desk.say("text", "no, as I said: the blue one")
    assert desk.ids(is_unread) == {text}
    assert desk.reward() is None  # a text that no calibrator reads says nothing
    desk.act(lambda inbox: inbox.accept(text, Accepted(False, "x-1", "local-1")))
    assert desk.ids(is_unread) == set()
    assert desk.ids(is_done) == {text}
    assert desk.reward() == 0.0
    thumb = next(item for item in desk.holding() if item.kind == "thumb")
    assert (thumb.source, thumb.author, thumb.exchange_id) == ("operator", "ines", "x-1")
    assert text in {item.id for item in desk.holding()}  # its words still teach


def test_a_thumb_judged_otherwise_does_not_hold_any_more(desk):
    thumb = desk.say(value=False)
    desk.act(lambda inbox: inbox.judge(thumb, "up"))
    assert [item.value for item in desk.holding()] == [True]
    assert desk.reward() == 1.0  # and the two do not disagree
    desk.act(lambda inbox: inbox.undo(thumb))
    assert [(item.value, item.author) for item in desk.holding()] == [(False, "ann")]
    assert desk.reward() == 0.0


def test_an_outcome_judged_otherwise_is_overruled_and_one_that_agrees_stays(desk):
    outcome = desk.say("outcome", {"success": False}, source="code")
    desk.act(lambda inbox: inbox.judge(outcome, "down"))
    assert {item.kind.value for item in desk.holding()} == {"outcome", "thumb"}
    desk.act(lambda inbox: inbox.undo(outcome))
    desk.act(lambda inbox: inbox.judge(outcome, "up"))
    assert desk.reward() == 1.0


@pytest.mark.parametrize("act", ["unclear", "exclude"])
def test_what_is_unclear_or_excluded_teaches_nothing_and_stays_in_the_history(desk, act):
    text = desk.say("text", "well, well")
    thumb = desk.say(value=False)
    for item in (text, thumb):
        if act == "unclear":
            desk.act(lambda inbox, item=item: inbox.judge(item, "unclear"))
        else:
            desk.act(lambda inbox, item=item: inbox.exclude(item, "a test of ours"))
    assert desk.holding() == []
    assert desk.reward() is None
    assert {text, thumb} <= {row[1] for row in desk.rows()}
    if act == "exclude":
        with desk.store.read() as conn:
            marks = live_marks(conn, "default", list(conn.scalars(sa.select(feedback.c.session_id))))
        assert [mark.evidence["reason"] for mark in marks[text]] == ["a test of ours"]


def test_a_moved_item_is_the_same_words_of_the_same_person_on_another_reply(desk):
    text = desk.say("text", "that was wrong", confidence=0.7)
    copy = desk.act(lambda inbox: inbox.move(text, "x-2"))
    assert copy != text
    [moved] = desk.holding()
    assert (moved.id, moved.exchange_id, moved.value) == (copy, "x-2", "that was wrong")
    assert (moved.author, moved.source, moved.confidence) == ("ann", "end_user", 0.7)
    assert desk.ids(is_unread) == {copy}
    back = desk.act(lambda inbox: inbox.undo(text))
    [again] = desk.holding()
    assert (again.id, again.exchange_id) == (back, "x-1")
    assert desk.ids(is_unread) == {back}


def test_a_copy_carries_no_more_trust_than_its_original(desk):
    item = read_feedback({"exchange": "x-1", "kind": "text", "value": "bad"}, NOW)
    page = replace(item, origin="browser", key_id="k-1")
    text = desk.store.write(lambda conn: insert_feedback(conn, "default", page, False, NOW + 5)).id
    copy = desk.act(lambda inbox: inbox.move(text, "x-2"))
    with desk.store.read() as conn:
        row = conn.execute(sa.select(feedback).where(feedback.c.id == copy)).one()
    assert (row.origin, row.key_id, row.source) == ("browser", "k-1", "end_user")


def test_accepting_a_reading_that_found_the_reply_moves_the_item_there(desk):
    text = desk.say("text", "your second answer was wrong", session="chat")
    desk.act(lambda inbox: inbox.accept(text, Accepted(False, "x-2")))
    assert {(item.kind.value, item.exchange_id) for item in desk.holding()} == {("text", "x-2"), ("thumb", "x-2")}
    assert desk.ids(is_unread) == set()
    desk.act(lambda inbox: inbox.undo(text))
    assert [(item.kind.value, item.exchange_id) for item in desk.holding()] == [("text", None)]


def test_a_correction_is_the_persons_and_free_of_what_may_not_be_stored(desk):
    thumb = desk.say(value=False)
    privacy = Privacy(redact=("email",))
    desk.act(lambda inbox: inbox.correct(thumb, "x-1", "Write to bob@example.org about it."), privacy=privacy)
    [correction] = [item for item in desk.holding("x-1") if item.kind == "correction"]
    assert correction.author == "ines"
    assert "bob@example.org" not in correction.value
    assert correction.value.endswith(" about it.")
    assert thumb in {item.id for item in desk.holding()}
    desk.act(lambda inbox: inbox.undo(thumb))
    assert [item.kind.value for item in desk.holding()] == ["thumb"]
    assert desk.ids(is_unread) == {thumb}


def test_nothing_that_was_stored_ever_changes(desk):
    items = [desk.say(value=False), desk.say("text", "no"), desk.say("outcome", True, source="code")]
    for do in (
        lambda inbox: inbox.judge(items[0], "up"),
        lambda inbox: inbox.undo(items[0]),
        lambda inbox: inbox.move(items[1], "x-2"),
        lambda inbox: inbox.undo(items[1]),
        lambda inbox: inbox.exclude(items[2]),
    ):
        before = desk.rows()
        desk.act(do)
        assert desk.rows()[: len(before)] == before
        assert len(desk.rows()) > len(before)


def test_what_cannot_be_done_is_refused_and_leaves_nothing(desk):
    text, parked = desk.say("text", "no"), desk.say("text", "no", exchange="to come")
    before = len(desk.rows())
    for do, why in (
        (lambda inbox: inbox.move(text, "y-1"), "none of the same session"),
        (lambda inbox: inbox.move(text, "x-1"), "about that reply already"),
        (lambda inbox: inbox.judge(text, "sideways"), "one of up, down, unclear"),
        (lambda inbox: inbox.correct(text, "x-1", "  "), "1 to"),
        (lambda inbox: inbox.undo(text), "nothing to take back"),
        (lambda inbox: inbox.exclude(parked), "has not arrived"),
    ):
        with pytest.raises(InputError, match=why):
            desk.act(do)
    with pytest.raises(MissingError):
        desk.act(lambda inbox: inbox.exclude("nope"))
    assert len(desk.rows()) == before
    desk.act(lambda inbox: inbox.exclude(text))
    with pytest.raises(InputError, match="does not hold"):
        desk.act(lambda inbox: inbox.judge(text, "up"))


def test_a_move_whose_copy_was_handled_is_taken_back_from_its_end(desk):
    text = desk.say("text", "no")
    copy = desk.act(lambda inbox: inbox.move(text, "x-2"))
    desk.act(lambda inbox: inbox.judge(copy, "down"))
    with pytest.raises(InputError, match="handled since"):
        desk.act(lambda inbox: inbox.undo(text))
    desk.act(lambda inbox: inbox.undo(copy))
    desk.act(lambda inbox: inbox.undo(text))
    assert [(item.value, item.exchange_id) for item in desk.holding()] == [("no", "x-1")]


def test_nobody_marks_an_item_by_sending_feedback_that_looks_like_a_mark(desk):
    text = desk.say("text", "no")
    desk.say("category", "excluded", name="inbox", evidence={"about": text}, idempotency_key=f"inbox:{text}")
    assert text in desk.ids(is_unread)


def test_another_tenant_has_another_inbox(desk):
    text = desk.say("text", "no")
    acme = desk.store.scoped("acme")
    with pytest.raises(MissingError):
        acme.write(lambda conn: Inbox(conn, "acme", INES, NOW).exclude(text))
