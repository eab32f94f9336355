"""Files of feedback: what every row becomes, and that doing it again changes nothing."""

import sys
import time
from datetime import UTC, datetime

import pytest

from nightschool.errors import InputError, MissingError
from nightschool.feedback.importing import import_table
from nightschool.feedback.lookup import find_history, shown
from nightschool.feedback.times import read_time
from nightschool.store.database import Store
from nightschool.store.exchanges import Caller, Record, Timing, insert_exchange
from nightschool.store.schema import feedback, imports
from nightschool.types import Choice

HEADER = "key_type,key,name,kind,value,time,author\n"
DAY = "2026-03-01T12:00:00"  # 1772366400 in UTC
NOW = 1_780_000_000.0


@pytest.fixture
def store(place):
    calls = [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}] * 2
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    with Store.open(place) as opened:
        for name, at, key in (("a", 10.0, "t1"), ("b", 1772366000.0, "t2"), ("c", 1772367000.0, "t2")):
            made = (Choice(0, message, "tool_calls"),)
            caller = Caller("shop", session=f"s-{name}", external_key=key)
            record = Record(name, caller, Timing(at), "base", b'{"x": "%s"}' % name.encode(), choices=made)
            opened.write(lambda conn, record=record: insert_exchange(conn, "default", record))
        yield opened


def take(store, path, text: str, dry_run: bool = False) -> dict:
    path.write_text(text, encoding="utf-8")
    return import_table(store, path, NOW, dry_run).as_json()


def counts(report: dict) -> tuple[int, ...]:
    return tuple(report[name] for name in ("matched", "unmatched", "ambiguous", "duplicate", "refused"))


def held(store) -> list:
    with store.read() as conn:
        return conn.execute(feedback.select().order_by(feedback.c.id)).all()


ROWS = f"""\
external_key,t1,csat,number,4,{DAY}Z,ann
exchange,a,,thumb,UP,1772366400,
external_key,t2,,thumb,down,1772366400000,
external_key,t2,,thumb,down,,
session,later,,text,"Slow, and
rude.",{DAY},
external_key,t1,csat,number,4.0,{DAY}+00:00,ann
turn,s-a#1,,category,refund,,bob
tool_call,a#1,,thumb,0,,bob
tool_call,a#c1,,thumb,0,,bob
external_key,t1,,outcome,"{{""success"": true}}",,
exchange,a,,preference,"{{""chosen"": {{""choice"": 1}}, ""rejected"": {{""choice"": 0}}}}",,
"""


def test_every_row_becomes_what_its_kind_says(store, tmp_path):
    report = take(store, tmp_path / "f.csv", HEADER + ROWS)
    # t2 is two exchanges: its row with a time means the one that had begun, the other is ambiguous. So is c1,
    # which stands in a's reply twice. The sixth row is the first one spelled otherwise.
    assert counts(report) == (7, 1, 2, 1, 0)
    assert report["rows"] == 11
    assert [(row.kind, row.value, row.exchange_id) for row in held(store)] == [
        ("number", 4.0, "a"),
        ("thumb", True, "a"),
        ("thumb", False, "b"),
        ("text", "Slow, and\nrude.", None),
        ("category", "refund", "a"),
        ("thumb", False, "a"),
        ("outcome", {"success": True}, "a"),
        ("preference", {"chosen": {"choice": 1}, "rejected": {"choice": 0}}, "a"),
    ]
    assert {row.observed_at for row in held(store)} == {1772366400.0, NOW}
    assert report["times"] == {
        "units": {"ISO 8601": 2, "seconds": 1, "milliseconds": 1, "ISO 8601 without a zone, read as UTC": 1},
        "first_at": 1772366400.0,
        "last_at": 1772366400.0,
    }
    assert (report["empty"]["time"], report["empty"]["author"], report["absent"]["source"]) == (6, 6, 11)
    lines = [(one["line"], one["outcome"]) for one in report["examples"]]
    # the text's second line is line 7 of the file
    assert lines == [(5, "ambiguous"), (6, "unmatched"), (8, "duplicate"), (11, "ambiguous")]


def test_a_dry_run_tells_the_same_and_stores_nothing(store, tmp_path):
    told = take(store, tmp_path / "f.csv", HEADER + ROWS, dry_run=True)
    assert held(store) == []
    assert take(store, tmp_path / "f.csv", HEADER + ROWS) == told
    with store.read() as conn:
        [kept] = conn.execute(imports.select()).all()
    # The page of imports shows each with the same words.
    assert (kept.format, kept.source, kept.report["records"], kept.report["taken"]) == (
        "feedback", "f.csv", 11, {"feedback": 8},
    )  # fmt: skip
    assert [(found["count"], found["places"]) for found in kept.report["refused"].values()] == [
        (1, ["line 5"]),
        (1, ["line 11"]),
    ]


def test_an_import_that_broke_off_is_run_again(store, tmp_path):
    rows = "".join(f"session,s-a,n{n},number,{n},{1772366400 + n},\n" for n in range(120))
    mind = "".join(f"exchange,a,,thumb,{word},,\n" for word in ("up", "down", "down", "up"))
    half = HEADER + rows[: len(rows) // 2].rpartition("\n")[0] + "\n"
    before = take(store, tmp_path / "half.csv", half)["matched"]
    report = take(store, tmp_path / "f.csv", HEADER + rows + mind)
    assert counts(report) == (120 - before + 3, 0, 0, before + 1, 0)
    # up, down, up: the last word holds, and a third run adds nothing to it
    assert counts(take(store, tmp_path / "again.csv", HEADER + rows + mind)) == (0, 0, 0, 124, 0)
    with store.read() as conn:
        thumbs = [item for item in shown(find_history(conn, "default", "a"), NOW) if item["kind"] == "thumb"]
    assert [(item["value"], item["current"]) for item in thumbs] == [(True, False), (False, False), (True, True)]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("exchange,a,,thumb,maybe,,", "a thumb is true"),
        ("exchange,a,,number,many,,", "'many' is no number"),
        ("exchange,a,,number,nan,,", "a finite number"),
        ("exchange,a,,text,,,", "Value is empty"),
        ("exchange,a,,text", "Value is absent"),
        ("exchange,,,text,x,,", "Key is empty"),
        ("ticket,a,,text,x,,", "'ticket' is none of"),
        ("turn,s-a,,thumb,up,,", "session#1"),
        ("tool_call,a#9,,thumb,up,,", "has 2 tool calls, and none is 9"),
        ("exchange,a,,text,x,yesterday,", "'yesterday' is no time"),
        ("exchange,a,,text,x,5,", "no time"),
        ("exchange,a,,text,x,4000000000,", "lies in the future"),
        ("exchange,a,,text,x,,,more", "more cells than the header"),
    ],
)
def test_rows_that_cannot_be_read_are_refused_with_the_reason(store, tmp_path, row, why):
    report = take(store, tmp_path / "f.csv", f"{HEADER}{row}\n")
    assert counts(report) == (0, 0, 0, 0, 1)
    assert why in report["examples"][0]["why"]
    assert held(store) == []


def test_files_that_are_no_table(store, tmp_path):
    for text, why in (
        ("key_type,key,kind\n", "'value' is missing"),
        ("", "'key_type' is missing"),
        ("key,key,key_type,kind,value\n", "there twice"),
    ):
        with pytest.raises(InputError, match=why):
            take(store, tmp_path / "f.csv", text)
    (tmp_path / "f.csv").write_bytes(HEADER.encode() + b"exchange,a,,text,\xff,,\n")
    with pytest.raises(InputError, match="not UTF-8"):
        import_table(store, tmp_path / "f.csv", NOW, False)
    (tmp_path / "f.csv").write_bytes(HEADER.encode() + b'exchange,a,,text,"x"y,,\n')
    with pytest.raises(InputError, match="Line 2"):
        import_table(store, tmp_path / "f.csv", NOW, False)
    with pytest.raises(MissingError):
        import_table(store, tmp_path / "none.csv", NOW, False)


def test_parquet_keeps_types_and_tells_null_from_empty(store, tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    table = arrow.table(
        {
            "key_type": ["exchange", "exchange", "session"],
            "key": ["a", "a", "s-b"],
            "kind": ["number", "number", "number"],
            "value": arrow.array([4, None, 2.5], arrow.float64()),
            "time": arrow.array([at, at, None], arrow.timestamp("ms", tz="UTC")),
            "author": ["", None, "ann"],
            "mood": ["x", "y", "z"],
        }
    )
    parquet.write_table(table, tmp_path / "f.parquet")
    report = import_table(store, tmp_path / "f.parquet", NOW, False).as_json()
    assert counts(report) == (2, 0, 0, 0, 1)
    assert report["examples"] == [{"line": 2, "outcome": "refused", "why": "Value is absent."}]
    assert (report["empty"], report["absent"]["author"], report["ignored_columns"]) == ({"author": 1}, 1, ["mood"])
    assert [(row.value, row.observed_at, row.author) for row in held(store)] == [
        (4.0, 1772366400.0, None),
        (2.5, NOW, "ann"),
    ]


def test_parquet_without_its_package_says_what_to_install(store, tmp_path, monkeypatch):
    (tmp_path / "f.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingError, match=r"nightschool\[parquet\]"):
        import_table(store, tmp_path / "f.parquet", NOW, False)


def test_the_size_of_a_number_tells_its_unit():
    for factor, unit in ((1, "seconds"), (1000, "milliseconds"), (10**6, "microseconds"), (10**9, "nanoseconds")):
        for given in (1772366400 * factor, str(1772366400 * factor)):
            assert (read_time(given).at, read_time(given).unit) == (1772366400.0, unit)
    assert read_time("2026-03-01T14:00:00+02:00").at == 1772366400.0
    assert read_time("20260301").at == 1772323200.0  # a date, not a number
    for wrong in (0, -1, 5, 1e11, True, "", "1999-01-01T00:00:00Z", float("inf"), None):
        with pytest.raises(InputError):
            read_time(wrong)
    assert read_time(time.time()).unit == "seconds"
