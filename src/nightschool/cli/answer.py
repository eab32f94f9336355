"""What a command returns: one sentence that answers, the evidence below it, and what it was asked with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nightschool.cli.progress import Progress
from nightschool.config import Config
from nightschool.errors import MissingError, StoreError
from nightschool.types import Json

if TYPE_CHECKING:
    from nightschool.store.database import Store

STORE_FILE = "store.sqlite"


def store_place(config: Config) -> Path | str:
    """Where the installation's store is: a file, or the URL of a database."""
    return config.store or config.state / STORE_FILE


def have_store(config: Config) -> bool:
    """Whether there is one to open; a database elsewhere is taken to be there."""
    return config.store is not None or (config.state / STORE_FILE).exists()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text. `tones` colors a row: better, worse or nothing.

    Columns by number: `drawn` exist on terminals alone, `right` are numbers, only `wraps` may break into lines.
    """

    rows: tuple[tuple[str, ...], ...]
    header: tuple[str, ...] = ()
    tones: tuple[str, ...] = ()
    drawn: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    wraps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one command. `why` is told where the answer is a refusal (exit codes 3 and 4)."""

    kind: str
    sentence: str
    data: Json
    evidence: tuple[Table | str, ...] = ()
    next_command: str = ""
    exit_code: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """What every command is given: the configuration, the form of the answer, and where progress is told."""

    config: Config
    as_json: bool
    progress: Progress = field(repr=False)

    @contextmanager
    def store(self, create: bool = False) -> Iterator[Store]:
        """The store of this installation, open for the length of the block; made first where `create` says so.

        Raises:
            MissingError: nothing was recorded in this state folder yet.
            StoreError: it cannot be opened, or did not answer.
        """
        from sqlalchemy.exc import SQLAlchemyError

        from nightschool.store.database import Store

        if not create and not have_store(self.config):
            raise MissingError(
                f"There is no store in {self.config.state}.",
                "Nothing was recorded there yet.",
                "Start with `nightschool up`, or name another folder with --state.",
            )
        try:
            with Store.open(store_place(self.config), self.config.tenant) as store:
                yield store
        except SQLAlchemyError as error:
            cause = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise StoreError("The store did not answer.", f"{cause.rstrip('.')}.", "nightschool doctor") from error
