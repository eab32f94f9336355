"""A shop with an order database and three tools. Its final state tells what was really done."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from random import Random

from nightschool.types import Json

SYSTEM = "You are the support agent of a small shop."


def _tool(name: str, description: str) -> Json:
    parameters = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS: tuple[Json, ...] = (
    _tool("track_order", "where a parcel is and when it arrives"),
    _tool("cancel_order", "stop an order that should not be sent"),
    _tool("refund_order", "pay an order back"),
)
MONTHS = ("May", "June", "July", "August")

SCHEMA = """
create table if not exists orders (id text primary key, status text not null, arrives text not null, code text);
create table if not exists replies (session text not null, text text not null);
create table if not exists calls (session text not null, tool text not null, order_id text, ok integer not null);
"""


class Shop:
    """One order database. Tools are called by name with JSON arguments and answer with JSON."""

    def __init__(self, path: Path | str = ":memory:") -> None:
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.executescript(SCHEMA)
        self._lock = threading.Lock()

    def place_order(self, order: str, random: Random) -> None:
        """A new order on its way; the arrival date and the code of a later act are drawn now."""
        arrives = f"{random.choice(MONTHS)} {random.randint(1, 28)}"
        code = f"{random.choice('ABCDEFGHKLMNPRSTVXZ')}{random.randint(10, 99)}"
        self._query("insert or replace into orders values (?, 'sent', ?, ?)", order, arrives, code)

    def call(self, session: str, name: str, arguments: str) -> str:
        """Run one tool. Unknown tools, unreadable arguments and unknown orders answer with an error."""
        try:
            order = str(json.loads(arguments or "{}").get("order"))
        except (ValueError, AttributeError):
            order = ""
        row = self._query("select status, arrives, code from orders where id = ?", order)
        known = name in {tool["function"]["name"] for tool in TOOLS}
        self._query("insert into calls values (?, ?, ?, ?)", session, name, order, int(bool(row) and known))
        if not known:
            return json.dumps({"error": f"there is no tool {name}"})
        if not row:
            return json.dumps({"error": "there is no such order"})
        _, arrives, code = row[0]
        if name == "track_order":
            return json.dumps({"arrives": arrives})
        status = "cancelled" if name == "cancel_order" else "refunded"
        self._query("update orders set status = ? where id = ?", status, order)
        return json.dumps({status: code})

    def reply(self, session: str, text: str) -> None:
        """What the agent said to the customer at the end of a turn."""
        self._query("insert into replies values (?, ?)", session, text)

    def fulfilled(self, session: str, order: str, wanted: str) -> bool:
        """Whether the final state is what `wanted` asks for: the order's status, and its news told.

        `wanted` is a tool's name. Tracking must leave the order alone and tell the arrival date; cancelling
        and refunding must have happened and their code must have been told.
        """
        status, arrives, code = self._query("select status, arrives, code from orders where id = ?", order)[0]
        said = " ".join(text for (text,) in self._query("select text from replies where session = ?", session))
        goal = {"track_order": "sent", "cancel_order": "cancelled", "refund_order": "refunded"}[wanted]
        news = arrives if wanted == "track_order" else code
        return status == goal and news in said

    def calls(self, session: str) -> list[tuple[str, str, bool]]:
        """(tool, order, worked) of every call made in a session."""
        rows = self._query("select tool, order_id, ok from calls where session = ?", session)
        return [(tool, order, bool(ok)) for tool, order, ok in rows]

    def close(self) -> None:
        self._db.close()

    def _query(self, sql: str, *values: object) -> list[tuple]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()
