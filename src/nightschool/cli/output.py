"""From answers and errors to the terminal, a pipe or one JSON document."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import time

from nightschool.cli.answer import Answer, Table
from nightschool.cli.progress import encodable
from nightschool.dashboard.marks import plain
from nightschool.errors import NightschoolError
from nightschool.types import Json

WIDEST, NARROW = 100, 60
REFUSALS = (3, 4)
STYLES = {"better": "cyan", "worse": "red", "dim": "dim", "bold": "bold"}


def show(answer: Answer, as_json: bool) -> None:
    """Write the answer to stdout; the next command is a hint and goes to stderr."""
    if as_json:
        refusal = None
        if answer.exit_code in REFUSALS:
            refusal = {"what": answer.sentence, "why": answer.why, "next": answer.next_command}
        _document(answer.kind, answer.sentence, answer.data, refusal=refusal)
        return
    lines = [_line(answer.sentence, "bold")]
    for part in answer.evidence:
        lines.append(_table(part) if isinstance(part, Table) else _line(part))
    sys.stdout.write(encodable("".join(lines), sys.stdout))
    sys.stdout.flush()
    if answer.next_command:
        sys.stderr.write(encodable(f"{answer.next_command}\n", sys.stderr))


def show_error(error: NightschoolError, as_json: bool) -> None:
    """What, why and the next command: on stderr, or as the one document on stdout."""
    if as_json:
        told = error.as_dict()
        refused = error.exit_code in REFUSALS
        kind = "refusal" if refused else "error"
        _document(kind, error.what, None, refusal=told if refused else None, error=None if refused else told)
        return
    lines = (error.what, error.why, error.next_step)
    sys.stderr.write(encodable("".join(f"{plain(line)}\n" for line in lines if line), sys.stderr))


def _document(
    kind: str, answer: str, data: Json | None, refusal: Json | None = None, error: Json | None = None
) -> None:
    from nightschool.dashboard.app import clean
    from nightschool.dashboard.formatting import iso

    document = {
        "schema": 1,
        "kind": kind,
        "answer": answer,
        "data": clean(data),
        "refusal": refusal,
        "error": error,
        "as_of": iso(time.time()),
    }
    sys.stdout.write(json.dumps(document, allow_nan=False, default=str) + "\n")
    sys.stdout.flush()


def _line(text: str, style: str = "") -> str:
    if not _drawing():
        return f"{plain(text)}\n"
    from rich.text import Text

    return _drawn(Text(plain(text), style=style))


def _table(table: Table) -> str:
    """Columns on a terminal, stacked on a narrow one; tab-separated and uncut elsewhere."""
    if not _drawing():
        rows = [table.header, *table.rows] if table.header else table.rows
        kept = [[cell for place, cell in enumerate(row) if place not in table.drawn] for row in rows]
        return "".join("\t".join(plain(cell).replace("\t", " ") for cell in row) + "\n" for row in kept)
    return _stacked(table) if terminal_width() < NARROW else _columns(table)


def _columns(table: Table) -> str:
    from rich.table import Table as Columns
    from rich.text import Text

    gap = 2 if terminal_width() == WIDEST else 1
    titles = table.header or ("",) * max((len(row) for row in table.rows), default=0)
    columns = Columns(
        box=None, show_header=bool(table.header), header_style="dim", pad_edge=False, padding=(0, gap, 0, 0)
    )
    for place, title in enumerate(titles):
        justify = "right" if place in table.right else "left"
        columns.add_column(Text(title), justify=justify, no_wrap=place not in table.wraps, overflow="ellipsis")
    for number, row in enumerate(table.rows):
        columns.add_row(*(Text(plain(cell).replace("\t", " "), style=_style(table, number)) for cell in row))
    return _drawn(columns)


def _stacked(table: Table) -> str:
    """Every row as its own lines, for terminals too narrow for columns."""
    from rich.text import Text

    lines = []
    for number, row in enumerate(table.rows):
        text = "\n  ".join(plain(cell) for cell in row if cell.strip())
        lines.append(_drawn(Text(text, style=_style(table, number))))
    return "".join(lines)


def _style(table: Table, row: int) -> str:
    tone = table.tones[row] if row < len(table.tones) else ""
    return STYLES.get(tone, "")


def _drawn(part: object) -> str:
    """Draw with rich into a text; it honors NO_COLOR and TERM=dumb."""
    from rich.console import Console

    target = io.StringIO()
    Console(file=target, width=terminal_width(), highlight=False, force_terminal=True, emoji=False).print(
        part, markup=False
    )
    return target.getvalue()


def terminal_width() -> int:
    """Columns that are used: at most `WIDEST`."""
    return min(WIDEST, shutil.get_terminal_size().columns)


def _drawing() -> bool:
    """Whether people look at stdout: columns, color and bars instead of tab-separated cells."""
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))
