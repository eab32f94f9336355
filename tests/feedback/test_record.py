from hypothesis import given
from hypothesis import strategies as st

from nightschool.feedback.body import NewFeedback
from nightschool.feedback.record import current_view, insert_feedback, load_feedback
from nightschool.store.database import Store
from nightschool.store.exchanges import Caller, Record, Timing, insert_exchange
from nightschool.types import Feedback, FeedbackKind, TargetKind


def thumb(number: int, value: bool, observed_at: float, received_at: float, **changes) -> Feedback:
    fields = {"name": "thumb", "exchange_id": "e1", "session_id": "s1"} | changes
    times = {"observed_at": observed_at, "received_at": received_at}
    return Feedback(str(number), TargetKind.EXCHANGE, "e1", FeedbackKind.THUMB, value, **fields, **times)


def test_last_observed_holds_whatever_the_order_of_arrival():
    # Observed at 5 but delivered late, at 20: the judgement of time 9 stands.
    items = [thumb(1, True, 9, 10), thumb(2, False, 5, 20)]
    assert [item.id for item in current_view(items)] == ["1"]
    assert [item.id for item in current_view(reversed(items))] == ["1"]


def test_authors_names_and_sources_stand_beside_each_other():
    items = [
        thumb(1, True, 1, 1),
        thumb(2, True, 2, 2, author="ann"),
        thumb(3, True, 3, 3, name="tone"),
        thumb(4, True, 4, 4, source="judge"),
        thumb(5, False, 5, 5, author="ann"),
    ]
    assert [item.id for item in current_view(items)] == ["1", "3", "4", "5"]


def test_one_exchange_under_two_names_is_one_target():
    by_upstream_id = Feedback(
        "2", TargetKind.EXCHANGE, "chatcmpl-1", FeedbackKind.THUMB, False, "thumb", observed_at=2, exchange_id="e1"
    )
    assert [item.id for item in current_view([thumb(1, True, 1, 1), by_upstream_id])] == ["2"]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 5)), max_size=8), st.randoms())
def test_current_view_does_not_depend_on_order(said, random):
    items = [thumb(i, value, observed, received) for i, (value, observed, received) in enumerate(said)]
    shuffled = items.copy()
    random.shuffle(shuffled)
    assert current_view(items) == current_view(shuffled)
    assert len(current_view(items)) == min(1, len(items))


def test_as_of_leaves_out_what_came_later(place):
    record = Record("e1", Caller("shop", session="s1"), Timing(1.0), "base", b"{}")
    said = NewFeedback(TargetKind.EXCHANGE, "e1", FeedbackKind.THUMB, True, "thumb", observed_at=1.0)
    with Store.open(place) as store:
        store.write(lambda conn: insert_exchange(conn, "default", record))
        receipt = store.write(lambda conn: insert_feedback(conn, "default", said, False, now=50.0))
        with store.read() as conn:
            assert load_feedback(conn, "default", [receipt.session_id], as_of=49.9) == ()
            [item] = load_feedback(conn, "default", [receipt.session_id], as_of=50.0)
            # Other tenants see nothing.
            assert load_feedback(conn, "other", [receipt.session_id]) == ()
    assert (item.value, item.exchange_id, item.observed_at, item.received_at) == (True, "e1", 1.0, 50.0)


def test_an_admin_key_cannot_be_occupied(place):
    said = NewFeedback(TargetKind.EXCHANGE, "e1", FeedbackKind.THUMB, True, "thumb", key="k")
    with Store.open(place) as store:
        for admin in (False, True):
            receipt = store.write(lambda conn, admin=admin: insert_feedback(conn, "default", said, admin, now=1.0))
            assert not receipt.repeated
