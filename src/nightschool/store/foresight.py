"""What placement will ask about a whole batch, found by a query each; the rest is asked when it is needed.

Each exchange that is placed is added to what was found. Where that cannot be done the rows that wait are written,
and the question goes to the database. So a batch is placed as if its exchanges had come one by one.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from nightschool.store.prepared import Lookup
from nightschool.store.schema import exchanges, sessions
from nightschool.store.worlds import IS_FAILED, NUM_LOOKED_AT, candidate_columns, home_columns, own_session
from nightschool.types import Json

ROWS_EACH = 4  # of a batch's questions, on average; what many have in common is asked one by one

_x, _s = exchanges.c, sessions.c
FAILURES = Lookup(_x.prompt_message, (_x.prompt_message,), IS_FAILED, at_most=ROWS_EACH)
_candidate = (*candidate_columns(exchanges), _x.purpose, _x.exam_id, _x.agent, _x.policy_version, _x.reply_match_hash)
REPLIES = Lookup(_x.reply_match_hash, _candidate, own_session(exchanges), at_most=ROWS_EACH)
_home = (
    *home_columns(sessions),
    _s.external_key,
    _s.first_at.label("started_at"),
    _s.purpose,
    _s.exam_id,
    _s.agent,
    _s.policy_version,
)
NAMED = Lookup(_s.external_key, _home, at_most=ROWS_EACH)
BY_ID = Lookup(_s.id, _home, at_most=ROWS_EACH)

Candidate: Any = namedtuple("Candidate", [column.key for column in _candidate])


@dataclass(slots=True)
class Foresight:
    """`settle` writes what waits. A question that is no key here is not answered beforehand.

    `states` tells of a session when it was last, and how its main branch began; `doubted` have changed otherwise.
    """

    conn: sa.Connection
    settle: Callable[[], None]
    failures: dict[str, bool] = field(default_factory=dict)
    replies: dict[str, list[Any]] = field(default_factory=dict)
    names: dict[str, list[Any]] = field(default_factory=dict)
    states: dict[str, tuple[float, str | None]] = field(default_factory=dict)
    doubted: set[str] = field(default_factory=set)

    def look(self, tenant: str, prompts: Iterable[str], replies: Iterable[str], names: Iterable[str]) -> None:
        """Which of `prompts` ever failed, who gave `replies`, and which sessions are called `names`."""
        asked = list(dict.fromkeys(prompts))
        failed = FAILURES.few(self.conn, tenant, asked)
        if failed is not None:
            self.failures = dict.fromkeys(asked, False) | {row.prompt_message: True for row in failed}
        asked = list(dict.fromkeys(replies))
        self.replies = _grouped(asked, REPLIES.few(self.conn, tenant, asked), "reply_match_hash")
        asked = list(dict.fromkeys(names))
        self.names = _grouped(asked, NAMED.few(self.conn, tenant, asked), "external_key")
        for row in BY_ID.few(self.conn, tenant, list(self.names)) or ():
            self.names[row.id].insert(0, row)

    def now(self) -> sa.Connection:
        """The connection, for a question about the store as it is after the exchanges placed so far."""
        self.settle()
        return self.conn

    def never_failed(self, prompt: str) -> bool:
        """True only if no exchange with this prompt did."""
        return self.failures.get(prompt) is False

    def that_replied(self, reply: str) -> list[Any] | None:
        """Those that gave `reply`, newest first, each with its session as it is now; `None`: ask."""
        rows = self.replies.get(reply)
        if rows is None or any(row.session_id in self.doubted for row in rows):
            return None
        return [self._as_it_is(row) for row in rows]

    def called(self, name: str) -> list[Any] | None:
        """The session with this id, then those with this name, newest first; `None`: ask."""
        rows = self.names.get(name)
        return None if rows is None or any(row.id in self.doubted for row in rows) else rows

    def joined(self, session_id: str, before: tuple[float, str | None] | None, at: float) -> None:
        """An exchange of this time goes into a session that was so before; `None`: who knows what changes there."""
        if before is None:
            self.doubted.add(session_id)
        else:
            last_at, opening = self.states.get(session_id, before)
            self.states[session_id] = max(last_at, at), opening

    def add(self, row: Json) -> None:
        """The row of an exchange that is placed: it may be the answer to what is asked next."""
        if row["status"] != "ok":
            self.failures.pop(row["prompt_message"], None)
        rows = self.replies.get(row["reply_match_hash"])
        if rows is not None:
            rows.append(Candidate._make(row.get(name) for name in Candidate._fields))
            rows.sort(key=_age, reverse=True)
            if len(rows) > NUM_LOOKED_AT:
                del self.replies[row["reply_match_hash"]]

    def _as_it_is(self, row: Any) -> Any:
        state = self.states.get(row.session_id)
        return row if state is None else row._replace(last_at=state[0], opening=state[1])


def _age(row: Any) -> tuple[float, str]:
    return row.started_at, row.id


def _grouped(asked: list[str], rows: list[Any] | None, key: str) -> dict[str, list[Any]]:
    """Rows, newest first, by what was asked; without what more have in common than one query looks at."""
    if rows is None:
        return {}
    found: dict[str, list[Any]] = {value: [] for value in asked}
    for row in rows:
        found[getattr(row, key)].append(row)
    for some in found.values():
        some.sort(key=_age, reverse=True)
    return {value: some for value, some in found.items() if len(some) <= NUM_LOOKED_AT}
