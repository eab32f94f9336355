"""A file from start to end: recognized, looked through once, then stored."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import StatementError

from nightschool.access.privacy import Privacy
from nightschool.errors import InputError
from nightschool.imports.formats import FORMATS
from nightschool.imports.packed import as_json
from nightschool.imports.reading import Raw, read_again, read_records
from nightschool.imports.report import Report
from nightschool.imports.storing import Taking, iterate, store_conversation
from nightschool.imports.values import Conversation, Format, Refused
from nightschool.store.database import Store
from nightschool.store.ids import new_id
from nightschool.store.schema import imports

Say = Callable[[Path, int, int], None]
LOOKED_AT = 20  # records that may tell what format a file has


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be imported. `format` and `agent` are `None` where the files are to say it.

    `privacy` says which personal data are removed; secrets always are.
    """

    format: str | None
    agent: str | None
    fallback_agent: str
    privacy: Privacy = field(default_factory=Privacy)


def survey(path: Path, wish: Wish, store: Store | None, say: Say) -> Report:
    """Read and convert the whole file and store nothing: what would become of it.

    Raises: MissingError, InputError: it cannot be read, or its format is not known.
    """
    return _go_through(path, _taking(store, "", wish, dry=True), wish, say)


def take(path: Path, wish: Wish, store: Store, say: Say) -> Report:
    """Store what is new of the file. Interrupted and run again, it goes on; a whole file again adds nothing."""
    taking = _taking(store, new_id(), wish)
    report = _go_through(path, taking, wish, say)
    if report.taken.total():
        row = {
            "tenant": store.tenant,
            "id": taking.import_id,
            "format": report.format,
            "source": path.name,
            "digest": _file_digest(path),
            "report": report.as_json(),
            "at": taking.now,
        }
        store.write(lambda conn: conn.execute(sa.insert(imports), row))
    return report


def _taking(store: Store | None, import_id: str, wish: Wish, dry: bool = False) -> Taking:
    return Taking(store, import_id, wish.agent, wish.fallback_agent, time.time(), wish.privacy, dry)


def _go_through(path: Path, taking: Taking, wish: Wish, say: Say) -> Report:
    with as_json(path) as readable:
        return _read_through(readable, Report(path.name, find_format(readable, wish.format).name), taking, say)


def _read_through(path: Path, report: Report, taking: Taking, say: Say) -> Report:
    known = find_format(path, report.format)
    for conversation in iterate(_conversations(path, known, report, say)):
        report.conversations += 1
        try:
            told = store_conversation(taking, conversation)
        except (ValueError, OverflowError, StatementError) as error:  # boundary: what no database takes
            report.refuse(f"it cannot be stored ({type(error).__name__})", conversation.place)
            continue
        report.taken += told.taken
        report.merged += told.merged
        report.merged["exchanges"] += conversation.repeated
        report.parked += told.parked
        report.left_out.update(conversation.left_out)
        report.notes += conversation.notes
        for reason in (*conversation.refused, *told.refused):
            report.refuse(reason, conversation.place)
    report.taken, report.merged = +report.taken, +report.merged  # without zeros
    return report


def find_format(path: Path, name: str | None) -> Format:
    """The format called `name`, else the one that the file's first records have."""
    if name is not None:
        found = next((known for known in FORMATS if known.name == name), None)
        if found is None:
            names = ", ".join(known.name for known in FORMATS)
            raise InputError(f"There is no format {name!r}.", f"Known are {names}.", "nightschool import --help")
        return found
    for number, raw in enumerate(read_records(path)):
        if number == LOOKED_AT:
            break
        if isinstance(raw.value, dict):
            found = next((known for known in FORMATS if known.knows(raw.value)), None)
            if found is not None:
                return found
    raise InputError(
        f"The format of {path.name} is not known.",
        "Its first records are of no kind that is read here.",
        f"Name it: nightschool import FORMAT {path.name} (docs/imports.md lists the formats)",
    )


def _conversations(path: Path, known: Format, report: Report, say: Say) -> Iterator[Conversation]:
    size = path.stat().st_size
    groups: dict[str, list[tuple[int, int, int]]] = {}
    for raw in read_records(path):
        report.records += 1
        say(path, raw.offset + len(raw.data), size)
        if raw.problem is not None or not isinstance(raw.value, dict):
            report.refuse(raw.problem or "a record is no object", f"line {raw.line}")
        elif known.group is None:
            yield from _convert(known, [raw], "", report)
        else:
            names = known.group(raw.value)
            if not names:
                report.left_out[f"record of type {raw.value.get('type')}"] += 1
            for name in names:
                groups.setdefault(name, []).append((raw.line, raw.offset, len(raw.data)))
    for name, places in groups.items():
        yield from _convert(known, read_again(path, places), name, report)


def _convert(known: Format, raws: Sequence[Raw], group: str, report: Report) -> Iterator[Conversation]:
    place = f"line {raws[0].line}"
    try:
        yield from list(known.convert(raws, group))
    except Refused as refused:
        report.refuse(str(refused), place)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        # boundary: a record from outside whose shape no reader foresaw
        report.refuse(f"not of the format {known.name} ({type(error).__name__})", place)


def _file_digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def quiet(_path: Path, _done: int, _size: int) -> None:
    """For callers that show no progress."""
