"""The rows of a run that was not started: from the store, a dataset's digest, or a file; nothing is downloaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa

from nightschool.curation.dataset import Dataset, Rows, Wanted
from nightschool.curation.gathering import from_file, gather
from nightschool.errors import MissingError
from nightschool.models.fetch import models_folder
from nightschool.objectives.loss import Objective
from nightschool.rendering.renderer import END, START, Renderer
from nightschool.store.database import Store
from nightschool.store.schema import runs
from nightschool.training.night import read_dataset
from nightschool.training.runs import run_folder

CHARS_PER_TOKEN = 4
DIGEST = re.compile(r"[0-9a-f]{8,64}")


class Quarters:
    """Stands in for a tokenizer that is not here: a token is four characters, and equal ones are one token."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {START: 0, END: 1}
        self.texts = [START, END]
        self.encode_special_tokens = True

    def token_to_id(self, token: str) -> int | None:
        return self.ids.get(token)

    def encode(self, text: str, add_special_tokens: bool = True) -> Quartered:
        del add_special_tokens
        return Quartered([self._id(text[at : at + CHARS_PER_TOKEN]) for at in range(0, len(text), CHARS_PER_TOKEN)])

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        del skip_special_tokens
        return "".join(self.texts[one] for one in ids)

    def _id(self, piece: str) -> int:
        if piece not in self.ids:
            self.ids[piece] = len(self.texts)
            self.texts.append(piece)
        return self.ids[piece]


@dataclass(frozen=True, slots=True)
class Quartered:
    """What `Quarters.encode` gives."""

    ids: list[int]


def find_renderer(names: tuple[str, ...]) -> tuple[Renderer, str | None]:
    """With the tokenizer of the first of these models that lies on this machine, and that name; `None` where none does,
    and four characters count as a token."""
    for name in names:
        for folder in (Path(name).expanduser(), models_folder() / name):
            if (folder / "tokenizer.json").exists():
                return Renderer.from_folder(folder), name
    return Renderer(cast(Any, Quarters())), None


def dataset_of_store(store: Store, wanted: Wanted, objective: Objective, renderer: Renderer) -> Dataset:
    """What a run on the store would learn from. Raises: TooLittleDataError."""
    with store.read() as conn:
        return gather(conn, store.tenant, wanted, objective, renderer)


def rows_of_file(path: Path, wanted: Wanted, objective: Objective, renderer: Renderer) -> Rows:
    """Raises: InputError, MissingError, TooLittleDataError."""
    return from_file(path, wanted, objective, renderer).rows


def rows_of_digest(store: Store, state: Path, digest: str) -> Rows:
    """The rows of a dataset that some run was given. Raises: MissingError."""
    r = runs.c
    query = sa.select(r.id).where(r.tenant == store.tenant, r.dataset_digest.startswith(digest, autoescape=True))
    with store.read() as conn:
        known = list(conn.scalars(query))
    for run_id in known:
        folder = run_folder(state, run_id)
        if (folder / "dataset.jsonl").exists():
            return read_dataset(folder)
    raise MissingError(f"There is no dataset {digest}.", "No run on this machine was given it.", "nightschool status")
