import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nightschool.store.database import Store
from nightschool.store.exchanges import Caller, Record, Timing
from nightschool.store.ids import new_id
from nightschool.types import Choice, Fidelity, Json

ON_BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)]


@pytest.fixture(params=ON_BOTH)
def place(request, tmp_path) -> Path | str:
    """Where a new store can be opened: a file, or an empty Postgres database. The latter only where slow tests run."""
    if request.param == "sqlite":
        return tmp_path / "store.sqlite"
    return request.getfixturevalue("postgres").database()


@pytest.fixture(params=ON_BOTH)
def store(request, tmp_path) -> Iterator[Store]:
    path = tmp_path / "store.sqlite"
    with Store.open(path if request.param == "sqlite" else request.getfixturevalue("postgres").store()) as opened:
        yield opened


@pytest.fixture
def file_store(tmp_path) -> Iterator[Store]:
    """A store in a file, for what only SQLite has."""
    with Store.open(tmp_path / "store.sqlite") as opened:
        yield opened


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """A record of messages and one reply text; its time is one second after the last one's."""
    clock = itertools.count(1000)

    def make(messages: list[Json], reply: str | None = "hello", caller: Caller | None = None, **fields) -> Record:
        choices = fields.pop("choices", None)
        if choices is None:
            message = {"role": "assistant", "content": reply}
            ids = fields.pop("completion_ids", None)
            choices = () if reply is None else (Choice(0, message, "stop", ids, None),)
        return Record(
            id=fields.pop("id", None) or new_id(),
            caller=caller or Caller(agent="shop"),
            timing=Timing(fields.pop("started_at", None) or float(next(clock)), fields.pop("duration_ms", None)),
            policy_version=fields.pop("policy_version", "base"),
            request_body=fields.pop("request_body", None) or json.dumps({"messages": messages}).encode(),
            messages=tuple(messages),
            choices=choices,
            fidelity=Fidelity.EXACT,
            **fields,
        )

    return make
