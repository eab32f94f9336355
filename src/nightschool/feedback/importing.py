"""Files of feedback into the store: row by row, as often as one likes, with a report."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa

from nightschool.access.privacy import Privacy
from nightschool.errors import InputError, NightschoolError, RefusedError
from nightschool.feedback.body import read_feedback
from nightschool.feedback.cells import unguarded
from nightschool.feedback.private import hidden
from nightschool.feedback.record import PARKED_S, insert_feedback
from nightschool.feedback.tables import TableRow, open_table
from nightschool.feedback.times import Moment, read_time
from nightschool.feedback.values import NewFeedback, wrong
from nightschool.store.database import Store
from nightschool.store.ids import new_id
from nightschool.store.schema import imports
from nightschool.store.targets import resolve
from nightschool.types import FeedbackKind, Json

ROWS_PER_WRITE = 50
EXAMPLES = 20
OUTCOMES = ("matched", "unmatched", "ambiguous", "duplicate", "refused")
SECRETS_ONLY = Privacy()
KEY_TYPES = ("exchange", "session", "external_key", "turn", "tool_call")
OPTIONAL = ("name", "time", "author", "source", "scale")
THUMBS = {"true": True, "1": True, "up": True, "false": False, "0": False, "down": False}


@dataclass(slots=True)
class ImportReport:
    """What became of the rows. `unmatched` ones are stored and wait; `ambiguous` and `refused` ones are not stored."""

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    examples: list[Json] = field(default_factory=list)
    units: Counter[str] = field(default_factory=Counter)
    first_at: float | None = None
    last_at: float | None = None
    absent: Counter[str] = field(default_factory=Counter)
    empty: Counter[str] = field(default_factory=Counter)
    ignored: tuple[str, ...] = ()

    def count(self, line: int, outcome: str, why: str | None = None) -> None:
        self.outcomes[outcome] += 1
        if why is not None:
            self.reasons[f"{outcome}: {why}"] += 1
            if len(self.examples) < EXAMPLES:
                self.examples.append({"line": line, "outcome": outcome, "why": why})

    def saw(self, row: TableRow, moment: Moment | None) -> None:
        """Count what a row says of its optional cells, and of its time."""
        self.absent.update(name for name in OPTIONAL if name not in row.cells)
        self.empty.update(name for name in OPTIONAL if row.cells.get(name) == "")
        if moment is not None:
            self.units[moment.unit] += 1
            self.first_at = moment.at if self.first_at is None else min(self.first_at, moment.at)
            self.last_at = moment.at if self.last_at is None else max(self.last_at, moment.at)

    def as_json(self) -> Json:
        return {
            "rows": self.outcomes.total(),
            **{outcome: self.outcomes[outcome] for outcome in OUTCOMES},
            "reasons": dict(self.reasons.most_common()),
            "examples": self.examples,
            "times": {
                "units": dict(self.units),
                "first_at": self.first_at,
                "last_at": self.last_at,
            },
            "absent": dict(self.absent),
            "empty": dict(self.empty),
            "ignored_columns": list(self.ignored),
        }

    def as_stored(self) -> Json:
        """The report in the form of every import's: taken, merged, refused and why, and where."""
        refused: Json = {}
        for reason, count in self.reasons.items():
            outcome, _, why = reason.partition(": ")
            if outcome in ("ambiguous", "refused"):
                places = [f"line {one['line']}" for one in self.examples if one["why"] == why]
                refused[why] = {"count": count, "places": places}
        notes = [f"{count} times in {unit}" for unit, count in self.units.items()]
        return {
            "records": self.outcomes.total(),
            "taken": {"feedback": self.outcomes["matched"] + self.outcomes["unmatched"]},
            "merged": {"feedback": self.outcomes["duplicate"]},
            "parked_feedback": self.outcomes["unmatched"],
            "refused": refused,
            "notes": notes,
        }


def import_table(
    store: Store,
    path: Path,
    now: float,
    dry_run: bool,
    say: Callable[[int], None] = lambda _rows: None,
    privacy: Privacy = SECRETS_ONLY,
) -> ImportReport:
    """Take in the rows of a file, without what `privacy` keeps out; with `dry_run` only tell what would become of them.

    A row that was taken in before, from this file or another, is a duplicate: an import that was broken off is
    simply run again. Rows that say when they were observed are known by that and their content; rows that do not
    are known by their content and by how often their author had changed their mind before them in the file.

    Raises: InputError, MissingError (see `open_table`).
    """
    table = open_table(path)
    report = ImportReport(ignored=table.ignored)
    origin, state = new_id(), _Seen()
    while part := list(islice(table.rows, ROWS_PER_WRITE)):
        batch = _Batch(store.tenant, part, now, origin, privacy)
        with suppress(_NothingKept):
            store.write(lambda conn, batch=batch: batch.run(conn, state, report, dry_run))
        say(report.outcomes.total())
    if not dry_run:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        row = {"tenant": store.tenant, "id": origin, "format": "feedback", "source": path.name, "digest": digest}
        store.write(lambda conn: conn.execute(sa.insert(imports), row | {"report": report.as_stored(), "at": now}))
    return report


class _NothingKept(NightschoolError):
    """Raised at the end of a dry run's write: what it stored is rolled back."""


@dataclass(slots=True)
class _Seen:
    """What the file said so far: rows with a time, and the last words of each author without one."""

    timed: set[bytes] = field(default_factory=set)
    last: dict[tuple[Any, ...], tuple[bytes, int]] = field(default_factory=dict)

    def key(self, item: NewFeedback) -> tuple[str | None, bool]:
        """The idempotency key of a row (`None`: by content and time), and whether the file said it before."""
        target = (item.target_kind.value, item.target_id, item.turn, item.tool_call)
        content = (*target, item.kind.value, item.value, item.name, item.source, item.author, item.observed_at)
        said = hashlib.sha256(orjson.dumps([*content, item.scale], option=orjson.OPT_SORT_KEYS)).digest()
        if item.observed_at is not None:
            repeated = said in self.timed
            self.timed.add(said)
            return None, repeated
        slot = (*target, item.name, item.source, item.author)
        before, changes = self.last.get(slot, (b"", 0))
        if said == before:
            return None, True
        self.last[slot] = (said, changes + 1)
        return f"import:{said.hex()}:{changes}", False


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows that are stored in one write."""

    tenant: str
    rows: list[TableRow]
    now: float
    origin: str
    privacy: Privacy

    def run(self, conn: sa.Connection, seen: _Seen, report: ImportReport, dry_run: bool) -> None:
        for row in self.rows:
            report.count(row.line, *self._take(conn, row, seen, report))
        if dry_run:
            raise _NothingKept("Nothing was stored.")

    def _take(
        self, conn: sa.Connection, row: TableRow, seen: _Seen, report: ImportReport
    ) -> tuple[str, str] | tuple[str]:
        """The row's outcome and, where it is not stored, why."""
        try:
            item = hidden(replace(_read(row, report, self.now), origin=self.origin), self.privacy)
            key, repeated = seen.key(item)
            if repeated:
                return "duplicate", "the file says it twice"
            at = self.now if item.observed_at is None else item.observed_at
            found = resolve(conn, self.tenant, item.target, at, admin=False)
            if found is not None and not found.is_alone and (item.observed_at is None or found.problem):
                return "ambiguous", found.problem or "several are called so, and no time says which one is meant"
            receipt = insert_feedback(conn, self.tenant, replace(item, key=key), False, self.now, PARKED_S)
        except RefusedError as error:
            return "refused", error.why
        except InputError as error:
            return "refused", error.why
        if receipt.repeated:
            return "duplicate", "it is in the store already"
        return ("unmatched", "no such target yet: it waits") if receipt.state == "parked" else ("matched",)


def _read(row: TableRow, report: ImportReport, now: float) -> NewFeedback:
    """A row as feedback. Raises: InputError saying which cell is wrong."""
    cells = row.cells
    if "" in cells:
        raise wrong("the row has more cells than the header")
    given = {name: unguarded(cell) if isinstance(cell, str) else cell for name, cell in cells.items() if cell != ""}
    moment = read_time(given["time"]) if "time" in given else None
    report.saw(row, moment)
    for name in ("key_type", "key", "kind", "value"):
        if name not in given:
            raise wrong(f"{name} is {'empty' if name in cells else 'absent'}")
    body: Json = {name: str(given[name]) for name in ("name", "author", "source") if name in given}
    kind = str(given["kind"]).strip()
    body |= _target(str(given["key_type"]).strip(), str(given["key"]).strip())
    body |= {"kind": kind, "value": _value(kind, given["value"])}
    if "scale" in given:
        body["scale"] = _json(given["scale"])
    if moment is not None:
        body["observed_at"] = moment.at
    return read_feedback(body, now)


def _target(key_type: str, key: str) -> Json:
    """`session#3` and `session#last` name a turn, `exchange#0` a tool call by position, `exchange#id` one by id."""
    if key_type not in KEY_TYPES:
        raise wrong(f"key_type: {key_type!r} is none of {', '.join(KEY_TYPES)}")
    if key_type not in ("turn", "tool_call"):
        return {key_type: key}
    name, mark, part = key.rpartition("#")
    if not mark or not name or not part:
        raise wrong(f"key: a {key_type} is written {'session#1' if key_type == 'turn' else 'exchange#0'}")
    number = int(part) if part.isascii() and part.isdecimal() and len(part) < 6 else part
    return {"session": name, "turn": number} if key_type == "turn" else {"exchange": name, "tool_call": number}


def _value(kind: str, value: Any) -> Any:
    """A cell in the type of its kind: in CSV everything is text, in Parquet it may have its own type."""
    if isinstance(value, Decimal):
        return float(value)
    if not isinstance(value, str):
        return _plain(value)
    if kind == FeedbackKind.NUMBER:
        try:
            return float(value)
        except ValueError as error:
            raise wrong(f"value: {value[:40]!r} is no number") from error
    if kind == FeedbackKind.THUMB:
        return THUMBS.get(value.strip().lower(), value)
    if kind in (FeedbackKind.OUTCOME, FeedbackKind.PREFERENCE) or (
        kind == FeedbackKind.CORRECTION and value.lstrip().startswith("{")
    ):
        return _json(value)
    return value


def _plain(value: Any) -> Any:
    """Raises: InputError for what JSON cannot say: a date, bytes."""
    try:
        orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError as error:
        raise wrong(f"value: a {type(value).__name__} is no value of feedback") from error
    return value


def _json(value: Any) -> Any:
    """JSON where it is some, else the text itself."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return {"true": True, "false": False}.get(value.strip().lower(), value)
