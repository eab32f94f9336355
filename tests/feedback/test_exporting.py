"""Feedback as CSV: opened in a program for tables it computes nothing, and taken in again it adds nothing."""

import csv
import io
import json

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from nightschool.feedback.body import read_feedback
from nightschool.feedback.cells import guarded, unguarded
from nightschool.feedback.exporting import COLUMNS, as_csv
from nightschool.feedback.importing import import_table
from nightschool.feedback.inbox import Inbox, Person, live_marks
from nightschool.feedback.record import insert_feedback
from nightschool.store.exchanges import Caller, Record, Timing, insert_exchange
from nightschool.store.schema import feedback

NOW = 1_772_366_400.123456


@given(st.text())
def test_a_cell_comes_back_as_it_was_and_never_begins_a_formula(text):
    assert unguarded(guarded(text)) == text
    assert not guarded(text).startswith(("=", "+", "-", "@", "\t", "\r"))


SAID = (
    {"exchange": "x-1", "kind": "thumb", "value": False, "author": "ann"},
    {"exchange": "x-1", "kind": "text", "value": '=HYPERLINK("http://evil","x")\nand, "more"', "author": "@ann"},
    {"session": "chat", "kind": "number", "value": -4, "scale": [-5, 5], "name": "stars"},
    {"exchange": "x-1", "kind": "outcome", "value": {"success": True}, "source": "code"},
    {"exchange": "x-1", "kind": "correction", "value": {"role": "assistant", "content": "Blue."}},
    {"exchange": "x-1", "kind": "correction", "value": "-1 is right", "author": "bob"},
    {"exchange": "x-1", "kind": "preference", "value": {"chosen": {"text": "a"}, "rejected": {"choice": 0}}},
    {"exchange": "x-1", "kind": "category", "value": "too vague", "name": "fault"},
    {"external_key": "ticket-9", "kind": "thumb", "value": True},
    {"session": "later", "turn": 3, "kind": "text", "value": "'quoted"},
)


@pytest.fixture
def filled(store):
    def fill(conn: sa.Connection) -> None:
        insert_exchange(conn, store.tenant, Record("x-1", Caller("shop", "chat"), Timing(NOW - 9), "base", b"{}"))
        for number, body in enumerate(SAID):
            item = read_feedback({**body, "observed_at": NOW + number}, NOW + 99)
            insert_feedback(conn, store.tenant, item, False, NOW + number)

    store.write(fill)
    return store


def written(store) -> bytes:
    with store.read() as conn:
        query = sa.select(feedback).order_by(feedback.c.received_at)
        rows = [dict(row) for row in conn.execute(query).mappings()]
        return as_csv(rows, live_marks(conn, store.tenant, [row["session_id"] or "" for row in rows]))


def test_the_file_says_what_was_said_and_by_which_names_it_is_taken_in(filled):
    table = list(csv.DictReader(io.StringIO(written(filled).decode("utf-8-sig"), newline="")))
    assert tuple(table[0]) == COLUMNS
    told = [(row["key_type"], row["kind"], row["value"]) for row in table]
    assert told[0] == ("exchange", "thumb", "down")
    assert told[1][2].startswith("'=HYPERLINK")
    assert told[2] == ("session", "number", "-4")
    assert json.loads(told[3][2]) == {"success": True}
    assert told[5][2] == "'-1 is right"
    assert told[8] == ("external_key", "thumb", "up")
    assert (table[9]["key_type"], table[9]["key"], table[9]["state"]) == ("turn", "later#3", "parked")
    assert table[1]["author"] == "'@ann"
    assert table[0]["when"] == "2026-03-01T12:00:00+00:00"
    assert float(table[0]["time"]) == NOW


def test_taking_the_file_in_again_adds_nothing(filled, tmp_path):
    file = tmp_path / "feedback.csv"
    file.write_bytes(written(filled))
    report = import_table(filled, file, NOW + 200, False)
    assert dict(report.reasons) == {"duplicate: it is in the store already": len(SAID)}
    assert report.outcomes["duplicate"] == len(SAID)


def test_what_people_did_is_told_with_its_reason(filled):
    with filled.read() as conn:
        text = conn.scalar(sa.select(feedback.c.id).where(feedback.c.kind == "text", feedback.c.state == "matched"))
    person = Person("ines", "operator", None, True)
    filled.write(lambda conn: Inbox(conn, filled.tenant, person, NOW + 300).exclude(text, "=spam"))
    table = csv.DictReader(io.StringIO(written(filled).decode("utf-8-sig"), newline=""))
    row = next(row for row in table if row["id"] == text)
    assert (row["handled"], row["reason"]) == ("excluded", "'=spam")


def test_texts_that_no_encoding_can_write_are_written_all_the_same(filled):
    lone = json.loads('"\\ud800 lone"')
    row = {"id": "1", "kind": "text", "value": lone, "target_kind": "exchange", "target_id": "x", "exchange_id": "x"}
    row |= {"session_id": "s", "turn": None, "tool_call": None, "tool_call_id": None, "name": "text", "author": None}
    row |= {"source": "end_user", "scale": None, "observed_at": NOW, "state": "matched"}
    assert b"\\ud800 lone" in as_csv([row], {})
