import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from databases import ON_BOTH

from nightschool.store.exchanges import Caller, Record, Timing
from nightschool.store.ids import new_id
from nightschool.types import Choice, Fidelity, Json


@pytest.fixture(params=ON_BOTH)
def bare_place(request, tmp_path) -> Iterator[Path | str]:
    """Where nothing is yet, not even a table: migrations run here."""
    if request.param == "sqlite":
        yield tmp_path / "store.sqlite"
        return
    server = request.getfixturevalue("postgres")
    url = server.database()
    yield url
    server.drop(url)


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
