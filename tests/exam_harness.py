"""A harness that fills exams in the store the way the gateway would, without a gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.store.exchanges import Caller, Record, Timing, insert_exchange, load_exchange
from nightschool.store.ids import new_id
from nightschool.types import Choice, Json, Purpose

INCUMBENT, CANDIDATE = "1" * 64, "80c2" + "0" * 58 + "1f"
TOOL: Json = {
    "type": "function",
    "function": {
        "name": "track",
        "parameters": {"type": "object", "properties": {"parcel": {"type": "string"}}, "required": ["parcel"]},
    },
}


def call(name: str = "track", arguments: str = '{"parcel": "7"}') -> Json:
    inner = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [inner]}


def says(text: str) -> Json:
    return {"role": "assistant", "content": text}


ANSWER = (says("Your parcel is on its way."),)


@dataclass
class Harness:
    """Plays customers against one version inside an exam. Rows are written in one transaction by `flush`."""

    store: Store
    exam_id: str
    purpose: Purpose = Purpose.EXAM
    waiting: list[Callable] = field(default_factory=list)

    def session(self, policy: str, customer: str, outcome=None, replies=ANSWER, **last):
        """One session: a request per reply, the last one with the fields in `last` (status, http_status, ...)."""
        name = new_id()
        messages: list[Json] = [{"role": "user", "content": "Where is parcel 7?"}]
        first_id = None
        for position, reply in enumerate(replies):
            fields = dict(last) if position == len(replies) - 1 else {}
            finish = fields.pop("finish_reason", "stop")
            choices = () if reply is None else (Choice(0, reply, finish),)
            record = Record(
                id=new_id(),
                caller=Caller("shop", name, customer, purpose=self.purpose, exam_id=self.exam_id),
                timing=Timing(fields.pop("at", None) or time.time()),
                policy_version=policy,
                request_body=json.dumps({"messages": messages}).encode(),
                messages=tuple(messages),
                tools=(TOOL,),
                choices=choices,
                **fields,
            )
            first_id = first_id or record.id
            self.waiting.append(lambda conn, record=record: insert_exchange(conn, self.store.tenant, record))
            messages = [*messages, *([reply] if reply else []), {"role": "user", "content": "And?"}]
        if outcome is not None:
            self.outcome(first_id, outcome)

    def outcome(self, exchange_id, value):
        def write(conn):
            exchange = load_exchange(conn, self.store.tenant, exchange_id)
            target = {"target_kind": "session", "target_id": exchange.session_id, "session_id": exchange.session_id}
            fixed = {"id": new_id(), "idempotency_key": new_id(), "state": "matched", "name": "outcome"}
            row = {"kind": "outcome", "value": value, "source": "shop", "observed_at": 1.0, "received_at": time.time()}
            conn.execute(schema.feedback.insert().values(tenant=self.store.tenant, **target, **fixed, **row))

        self.waiting.append(write)

    def flush(self):
        todo, self.waiting = self.waiting, []
        self.store.write(lambda conn: [write(conn) for write in todo])

    def play(self, successes, first=0, candidate=CANDIDATE, incumbent=INCUMBENT, **how):
        """Pairs of sessions: `successes` is a list of (candidate's, incumbent's) outcome."""
        for number, (mine, theirs) in enumerate(successes, start=first):
            self.session(candidate, f"customer {number}", {"success": bool(mine)}, **how)
            self.session(incumbent, f"customer {number}", {"success": bool(theirs)})
        self.flush()
