"""`nightschool import [FORMAT] FILE...`: logs of other tools into exchanges and feedback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table, have_store
from nightschool.cli.options import new_app

if TYPE_CHECKING:
    from nightschool.imports.report import Report


app = new_app()


@app.command()
def take_in(
    ctx: typer.Context,
    words: Annotated[list[str], typer.Argument(metavar="[FORMAT] FILE...", help="Files, or folders of them.")],
    agent: Annotated[
        str | None, typer.Option("--agent", help="Whose traffic it is; by default what the log says.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would become of it and store nothing.")] = False,
    max_lost: Annotated[float, typer.Option("--max-lost", help="Percent that may be lost.", min=0, max=100)] = 1.0,
) -> Answer:
    """Take in logs of other tools. Every file is looked through before anything is stored.

    What the store has already is merged: the same file again adds nothing, and an interrupted import goes on.
    More than --max-lost percent refused is a failure, and nothing is stored. docs/imports.md lists the formats.

    Example: nightschool import traces.jsonl --dry-run
    """
    from nightschool.access.keys import key_secret
    from nightschool.access.privacy import read_privacy
    from nightschool.imports.report import together
    from nightschool.imports.taking import Wish, survey, take

    call: Call = ctx.obj
    name, paths = _files(words)
    there = have_store(call.config)
    if dry_run and not there:
        wish = Wish(name, agent, call.config.agent)
        reports = _each(call, paths, lambda path, say: survey(path, wish, None, say), "Looking through")
        return _answer(together(reports), reports, dry_run, max_lost)
    with call.store(create=not dry_run) as store:
        privacy = read_privacy(call.config.section("privacy"), key_secret(call.config.state))
        wish = Wish(name, agent, call.config.agent, privacy)
        reports = _each(call, paths, lambda path, say: survey(path, wish, store, say), "Looking through")
        found = together(reports)
        if dry_run or found.lost_share * 100 > max_lost or not found.conversations:
            return _answer(found, reports, dry_run, max_lost)
        reports = _each(call, paths, lambda path, say: take(path, wish, store, say), "Storing")
        return _answer(together(reports), reports, dry_run, max_lost)


def _files(words: list[str]) -> tuple[str | None, list[Path]]:
    """The format, where the first word is one and no file, and the files. A folder stands for the logs in it."""
    from nightschool.errors import InputError
    from nightschool.imports.formats import FORMATS
    from nightschool.imports.reading import LINE_SUFFIXES

    named = words[0] in {known.name for known in FORMATS} and not Path(words[0]).exists()
    paths: list[Path] = []
    for word in words[1:] if named else words:
        path = Path(word).expanduser()
        inside = (
            sorted(p for p in path.rglob("*") if p.suffix in (".json", *LINE_SUFFIXES)) if path.is_dir() else [path]
        )
        paths += inside
    if not paths:
        raise InputError("There is nothing to import.", "No file was named.", "nightschool import FILE")
    return (words[0] if named else None), paths


def _each(call: Call, paths: list[Path], act: Callable[..., Report], doing: str) -> list[Report]:
    """One report a file, with progress by the bytes read."""
    reports: list[Report] = []

    def say(path: Path, done: int, size: int) -> None:
        call.progress.say(f"{doing} {path.name}: {done / max(1, size):.0%} ({len(reports) + 1} of {len(paths)})")

    with call.progress.phase(f"{doing} {len(paths)} files", f"{doing} {len(paths)} files"):
        for path in paths:
            reports.append(act(path, say))
    return reports


def _answer(total: Report, reports: list[Report], dry_run: bool, max_lost: float) -> Answer:
    data = total.as_json() | {"dry_run": dry_run, "files": [report.as_json() for report in reports]}
    too_much = total.lost_share * 100 > max_lost or not total.conversations
    taken, merged = _counted(total.taken), _counted(total.merged)
    if too_much:
        lost = f"{total.refused.total()} of {total.refused.total() + total.conversations} records cannot be taken"
        why = f"{lost}; {max_lost:g} % may be lost." if total.conversations else "They hold nothing that can be taken."
        sentence = "Nothing was stored." if not dry_run else "Nothing would be stored."
        return Answer("import", f"{sentence} {why}", data, _tables(total), "", 3, why)
    verb = "Would take" if dry_run else "Took"
    sentence = f"{verb} {taken or 'nothing'}" + (f"; merged {merged}" if merged else "") + "."
    if total.refused:
        sentence += f" Refused {total.refused.total()}."
    hint = "nightschool import ... without --dry-run stores it" if dry_run else "nightschool status"
    return Answer("import", sentence, data, _tables(total), hint)


def _counted(counts: Counter[str]) -> str:
    singular = {"sessions": "session", "exchanges": "exchange", "feedback": "judgement"}
    parts = []
    for name, one in singular.items():
        if counts[name]:
            parts.append(f"{counts[name]} {one if counts[name] == 1 else one + 's'}")
    return ", ".join(parts)


def _tables(total: Report) -> tuple[Table | str, ...]:
    rows = [
        ("refused", reason, str(count), ", ".join(total.places[reason]))
        for reason, count in total.refused.most_common()
    ]
    rows += [("left out", reason, str(count), "") for reason, count in total.left_out.most_common()]
    parts: list[Table | str] = (
        [Table(tuple(rows), ("", "why", "how many", "first at"), right=(2,), wraps=(1,))] if rows else []
    )
    if total.parked:
        parts.append(f"{total.parked} judgements wait for what they are about.")
    return (*parts, *dict.fromkeys(total.notes))
