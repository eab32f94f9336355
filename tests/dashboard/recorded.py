"""A store that `nightschool record` filled in front of a provider: text alone, every branch, images, keys, imports."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import sqlalchemy as sa
from dashboard.states import Shopkeeper
from traffic import fix_splits

from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchange
from nightschool.store.ids import new_id
from nightschool.store.records import Caller, Record
from nightschool.types import Branch, Fidelity, Json, LogprobProvenance

AGENT, MODEL = "assistant", "gpt-large-2026"
HOUR, DAY = 3600.0, 86_400.0
SECRET = "5f4dcc3b5aa765d61d8327deb882cf99"
PICTURE = "data:image/png;base64," + base64.b64encode(bytes(3000)).decode()
LONG = "The log says nothing. " * 15_000  # 330,000 characters
USAGE = {"prompt_tokens": 212, "completion_tokens": 38, "total_tokens": 250}
REPORT = {
    "file": "traces.jsonl",
    "format": "messages",
    "records": 52,
    "conversations": 50,
    "taken": {"sessions": 50, "exchanges": 188, "feedback": 12},
    "merged": {"exchanges": 6},
    "parked_feedback": 1,
    "refused": {"a line is no JSON": {"count": 2, "places": ["line 17", "line 44"]}},
    "left_out": {"embedding calls": 31},
    "lost_share": 0.038,
    "notes": ["Times are missing; those of the import stand in."],
}


def recorded(store: Store, now: float) -> Json:
    """Two days of a coding agent on somebody else's model; the ids that tests use."""
    fix_splits(store)  # the split of dev-1 is train
    keeper = Shopkeeper(store, 21)
    return store.write(lambda conn: _recorded(conn, keeper, now))


def _recorded(conn: sa.Connection, keeper: Shopkeeper, now: float) -> Json:
    ids = _work(conn, keeper, now - 3 * HOUR)
    _picture(conn, keeper, now - 2 * HOUR, ids)
    _days(conn, keeper, now)
    keeper.say(conn, {"external_key": "ticket-77", "kind": "outcome", "value": {"success": False}}, now - DAY)
    tenant = {"tenant": keeper.tenant}
    for name, role, revoked in (("shop-bot", "data", None), ("ci", "feedback", None), ("old-bot", "data", now - DAY)):
        key = {"id": new_id(), "name": name, "role": role, "hash": SECRET + name, "created_at": now - 9 * DAY}
        more = {"training": "deny" if role == "feedback" else "allow", "revoked_at": revoked}
        conn.execute(schema.keys.insert().values(**tenant, **key, **more, rate_per_minute=600 if revoked else None))
    taken = {"id": ids["import"], "format": "messages", "source": "traces.jsonl", "digest": "ab" * 32, "at": now - DAY}
    conn.execute(schema.imports.insert().values(**tenant, **taken, report=REPORT))
    return ids


def _said(keeper: Shopkeeper, asked: list[Json], text: str, caller: Caller, at: float, **changes: object) -> Record:
    """One exchange of text: no ids, no log-probabilities."""
    made = keeper.record(asked, {"role": "assistant", "content": text}, caller, MODEL, at)
    choices = (replace(made.choices[0], completion_ids=None, behavior_logprobs=None),)
    text_only = {"fidelity": Fidelity.TEXT, "fidelity_reason": "the upstream gives no token ids", "prompt_ids": None}
    provenance = {"logprob_provenance": LogprobProvenance.NONE, "usage": USAGE, "streamed": True}
    return replace(made, **{"choices": choices, **text_only, **provenance, **changes})


def _work(conn: sa.Connection, keeper: Shopkeeper, at: float) -> Json:
    """A coding agent's run: main branch, retry, title, compaction, and a sub-agent with a session of its own."""
    caller = Caller(AGENT, "run-1", "dev-1")
    history: list[Json] = [
        {"role": "system", "content": "You write code."},
        {"role": "user", "content": "Make the tests pass."},
    ]
    lost = _said(
        keeper, history, "-", caller, at, choices=(), status="upstream_error", http_status=529, reply_body=b"{}"
    )
    lost = replace(lost, error="The provider is overloaded.", usage=None)
    first = _said(keeper, history, "I read the failing test first.", caller, at + 8)
    ids = {"lost": insert_exchange(conn, keeper.tenant, lost), "first": insert_exchange(conn, keeper.tenant, first)}
    reply = {"role": "assistant", "content": "I read the failing test first."}
    longer = [*history, reply, {"role": "user", "content": "Go on."}]
    second = _said(keeper, longer, "The clock was frozen; fixed.", caller, at + 60, flags=("usage_missing",))
    call = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
    spoken = {**second.choices[0].message, "tool_calls": [call]}
    second = replace(second, choices=(replace(second.choices[0], message=spoken),))
    ids["second"] = insert_exchange(conn, keeper.tenant, second)
    title = [{"role": "system", "content": "Write a title."}, {"role": "user", "content": "Make the tests pass."}]
    named = _said(keeper, title, "Failing tests", caller, at + 5, branch=Branch.TITLE)
    short = [{"role": "system", "content": "Summarize."}, {"role": "user", "content": "All of the above"}]
    shortened = _said(keeper, short, "They fixed a clock.", caller, at + 90, branch=Branch.COMPACTION)
    for record in (named, shortened):
        insert_exchange(conn, keeper.tenant, record)
    sub = Caller(AGENT, "run-1-search", "dev-1", parent_session="run-1")
    asked = [{"role": "user", "content": "Find where the clock is frozen."}]
    found = _said(keeper, asked, "In conftest.py.", sub, at + 30, branch=Branch.SUB_AGENT)
    ids["sub"] = insert_exchange(conn, keeper.tenant, found)
    right = {"role": "assistant", "content": "Freeze it in one fixture only."}
    for kind, value in (("thumb", True), ("correction", right), ("text", "good, but say where")):
        keeper.say(conn, {"exchange": ids["second"], "kind": kind, "value": value, "author": "dev-1"}, at + HOUR)
    for kind, value, more in (
        ("thumb", False, {"author": "dev-9"}),
        ("thumb", True, {"author": "dev-9"}),
        ("category", "too vague", {"name": "fault", "author": "ines", "source": "annotator"}),
        ("number", 4, {"name": "stars", "scale": [1, 5], "author": "ines"}),
        ("preference", {"chosen": {"text": "Fixed."}, "rejected": {"choice": 1}}, {"author": "ines"}),
        ("text", "this call was not needed", {"name": "call", "tool_call": 0, "author": "ines"}),
    ):
        at += 60
        keeper.say(conn, {"exchange": ids["second"], "kind": kind, "value": value, **more}, at + 2 * HOUR)
    keeper.say(conn, {"session": "run-1", "turn": 1, "kind": "text", "value": "a good start", "author": "ines"}, at)
    return ids | {"import": new_id()}


def _picture(conn: sa.Connection, keeper: Shopkeeper, at: float, ids: Json) -> None:
    """Images, a file, reasoning with a signature, and a text too long for one page, from an import."""
    content = [
        {"type": "text", "text": "What is on these?"},
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "image_url", "image_url": {"url": "https://pictures.example/cat.png"}},
        {"type": "file", "file": {"file_id": "file-17", "filename": "plan.pdf"}},
    ]
    asked: list[Json] = [{"role": "user", "content": content}, {"role": "user", "content": LONG}]
    reply = {
        "role": "assistant",
        "content": "A cat, and a plan.",
        "thinking_blocks": [{"type": "thinking", "thinking": "Two pictures and a file.", "signature": "c2ln"}],
    }
    told = _said(keeper, asked, "-", Caller(AGENT, "pictures", "dev-2"), at, dialect="anthropic.messages")
    body = json.dumps({"messages": asked}).encode()
    told = replace(told, choices=(replace(told.choices[0], message=reply),), origin=ids["import"], request_body=body)
    ids["picture"] = insert_exchange(conn, keeper.tenant, told)


def _days(conn: sa.Connection, keeper: Shopkeeper, now: float) -> None:
    for number in range(30):
        at = now - 2 * DAY + number * HOUR
        caller = Caller(AGENT, f"ask-{number}", f"dev-{number}", training_allowed=number % 10 != 3)
        asked = [{"role": "user", "content": f"Question {number}: how do I sort a list?"}]
        insert_exchange(conn, keeper.tenant, _said(keeper, asked, "With sorted().", caller, at))
        if number % 3 == 0:
            keeper.say(conn, {"session": f"ask-{number}", "kind": "thumb", "value": number % 2 == 0}, at + HOUR)
