"""From what a page knows to what it says: the answer sentence, drawn rows, and the command that prints the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

import sqlalchemy as sa

from nightschool.curation.influence import in_words
from nightschool.dashboard import sentences
from nightschool.dashboard.curves import plots
from nightschool.dashboard.formatting import difference, share, short_id
from nightschool.dashboard.intervals import BETTER, NEUTRAL, SHARE, WORSE, axis, row
from nightschool.dashboard.marks import one_line, plain
from nightschool.dashboard.queries import (
    feedback,
    imports,
    keys,
    ledger,
    overview,
    releases,
    runs,
    session,
    sessions,
    verdicts,
)
from nightschool.dashboard.queries.material import material
from nightschool.dashboard.queries.scope import Scope, agents
from nightschool.dashboard.reliability import believed
from nightschool.dashboard.series import sparkline
from nightschool.dashboard.suites import suite_groups
from nightschool.dashboard.taught import taught
from nightschool.dashboard.tokens import PAGE_TOKENS, decoder, token_row
from nightschool.errors import MissingError
from nightschool.store.exchanges import find_exchange, find_session
from nightschool.types import Json

RAW_CHARS = 100_000
RUNNING_S, IDLE_S = 5, 30
TOLD = ("teacher_audit", "watch")  # parts of a run's summary that have a place of their own


@dataclass(frozen=True, slots=True)
class Page:
    """One page. `data` is what `.json` shows; `drawn` is only how the HTML draws it; `command` says the same."""

    kind: str
    title: str
    answer: str
    data: Json
    command: str
    drawn: Json = field(default_factory=dict)
    every_s: int = IDLE_S


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The page lives at another URL."""

    url: str


@dataclass(frozen=True, slots=True)
class Bytes:
    """A raw body, to be looked at as text and nothing else; or, where it has a `name`, a file to be kept."""

    data: bytes
    media_type: str = "text/plain; charset=utf-8"
    name: str | None = None


View = Callable[[sa.Connection, Scope, Mapping[str, str]], Page | Elsewhere | Bytes]


def overview_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Page:
    return _overview(conn, scope, path.get("agent") or scope.text("agent") or None, agents(conn, scope.tenant))


def _overview(conn: sa.Connection, scope: Scope, asked: str | None, known: list[str]) -> Page:
    data = overview.overview(conn, scope, asked, known)
    if asked and data["agents"] and asked not in data["agents"]:
        raise MissingError(
            f"No agent is called {plain(asked)}.", "It has no traffic and no release.", "nightschool status"
        )
    rows = data["releases"]
    for index, found in enumerate(rows):
        found["text"] = _share_text(found)
        found["since_text"] = difference(**found["since_first"]) if found["since_first"] else None
        found["reading"] = _reading(found, rows[0]["enough"] if rows else False)
        found["position"] = index
    drawn = {
        "axis": axis(SHARE, [f"{tick:.0f}" for tick in SHARE.ticks]),
        "plots": {found["version"]["digest"]: _share_plot(found) for found in rows},
        "sparks": {item["kind"]: sparkline(item["days"]) for item in data.get("heard", [])},
        "last_night": sentences.last_night(data, scope.now) if data["recording"] else [],
        "good_for": sentences.material(data["material"]) if data.get("material") else "",
    }
    answer = sentences.overview(data)
    lead = sentences.serving_row(data)
    start = f"({len(data['decisions'])}) " if data.get("decisions") else ""
    title = f"{start}{lead['version']['label']} · {data['agent']}" if lead else "Overview"
    running = data["recording"] is not None and (data["last_night"]["run"] or {}).get("state") == "running"
    command = f"nightschool status --agent {data['agent']}" if len(data["agents"]) > 1 else "nightschool status"
    return Page("overview", title, answer, data, command, drawn, RUNNING_S if running else IDLE_S)


def index_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Page:
    """The overview of the only agent, or one row for each."""
    known = agents(conn, scope.tenant)
    if scope.text("agent") or len(known) < 2:
        return _overview(conn, scope, scope.text("agent") or None, known)
    data = overview.agent_rows(conn, scope, known)
    for found in data["rows"]:
        found["text"] = _share_text(found["success"]) if found["success"] else None
    drawn = {
        "axis": axis(SHARE, [f"{tick:.0f}" for tick in SHARE.ticks]),
        "plots": {found["agent"]: _share_plot(found["success"]) for found in data["rows"] if found["success"]},
    }
    return Page("agents", "Agents", sentences.agent_rows(data), data, "nightschool status", drawn)


def sessions_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Page:
    data = sessions.session_list(conn, scope)
    several = len(data["agents"]) > 1
    drawn = {
        "agent_options": [(agent, agent) for agent in data["agents"]],
        "release_options": [
            (found["digest"], f"{found['agent']} {found['label']}" if several else found["label"])
            for found in data["releases"]
        ],
    }
    return Page("sessions", "Sessions", sentences.session_list(data), data, "", drawn)


def session_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Page | Elsewhere:
    data = session.session(conn, scope, path["id"])
    if data is None:
        known = find_session(conn, scope.tenant, path["id"])
        if known is not None:
            return Elsewhere(f"/sessions/{quote(known, safe='')}")
        raise _missing("session", path["id"])
    view = scope.text("view") if scope.text("view") in ("tokens", "raw") else "read"
    branch = next((found["branch"] for found in data["branches"] if found["key"] == data["branch"]), "")
    drawn: Json = {"view": view, "selected": data["exchange"], "branch": branch}
    if view == "tokens":
        drawn["tokens"] = _token_rows(data, scope)
    if view == "raw" and data["selected"]:
        drawn["raw"] = _raw_texts(conn, scope, data["selected"]["exchange"])
    chosen = data["exchange"]
    command = f"nightschool explain {chosen}" if chosen else ""
    return Page("session", f"Session {short_id(data['id'])}", sentences.session(data), data, command, drawn)


def exchange_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Elsewhere:
    """An exchange is read inside its session. Known by its own id, the upstream's, or its external key."""
    exchange_id = find_exchange(conn, scope.tenant, path["id"])
    if exchange_id is None:
        raise _missing("exchange", path["id"])
    home = session.exchange_session(conn, scope, exchange_id) or ""
    name = quote(exchange_id, safe="")
    return Elsewhere(f"/sessions/{quote(home, safe='')}?x={name}#x-{name}")


def body_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Bytes:
    """The request or the reply of an exchange, byte for byte."""
    found = session.exchange_bodies(conn, scope.tenant, path["id"])
    if found is None:
        raise _missing("exchange", path["id"])
    data = session.raw_bodies(conn, scope.tenant, found)[path["part"]]
    if data is None:
        raise MissingError("No reply was stored.", "The engine went away before it sent one.", "nightschool doctor")
    return Bytes(data)


def feedback_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Page:
    data = feedback.feedback_list(conn, scope)
    return Page("feedback", "Feedback", sentences.feedback_list(data), data, "")


def ledger_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Page:
    """What became of every exchange, why, and what the rest is good for."""
    data = ledger.ledger_page(conn, scope)
    data["material"] = material(conn, scope, data["only"])
    most = max((line["exchanges"] for line in (*data["looked_at"], *data["not_looked_at"])), default=0)
    return Page("ledger", "Ledger", sentences.ledger(data), data, "nightschool status --json", {"most": most})


def imports_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Page:
    data = imports.import_list(conn, scope)
    return Page("imports", "Imports", sentences.import_list(data), data, "")


def keys_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Page:
    data = keys.key_list(conn, scope)
    return Page("keys", "Keys", sentences.key_list(data), data, "")


def runs_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Page:
    data = runs.run_list(conn, scope)
    every = RUNNING_S if data["counts"].get("running") else IDLE_S
    return Page("runs", "Runs", sentences.run_list(data), data, "", every_s=every)


def run_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Page:
    data = runs.run(conn, scope, path["id"])
    if data is None:
        raise _missing("run", path["id"])
    studied = (data["dataset"] or {}).get("summary", {})
    drawn = {
        "plots": plots(data["metrics"], data["config"]),
        "reliability": believed(studied.get("success_model")),
        "heard": in_words(studied["influence"]) if "influence" in studied else "",
        "taught": taught(data["summary"]),
        "config": _flat(data["config"]),
        "summary": _flat({name: value for name, value in (data["summary"] or {}).items() if name not in TOLD}),
    }
    every = RUNNING_S if data["state"] == "running" else IDLE_S
    title = f"Run {short_id(data['id'])}"
    return Page("run", title, sentences.run(data, scope.now), data, "", drawn, every)


def releases_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Page:
    data = releases.release_list(conn, scope)
    for section in data["sections"]:
        for found in section["rows"]:
            found["text"] = _share_text(found["success"]) if found["success"] else None
    return Page("releases", "Releases", sentences.release_list(data), data, "nightschool status")


def verdict_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Page:
    data = verdicts.verdict(conn, scope, path["id"])
    if data is None:
        raise _missing("verdict", path["id"])
    study = taught(data["report"].get("study"))
    drawn = {"groups": suite_groups(data["report"].get("suites") or []), "taught": study}
    title = f"Verdict on {data['candidate']['label']}"
    return Page(
        "verdict", title, data["sentence"], data, f"nightschool gate show {data['candidate']['digest'][:12]}", drawn
    )


def _missing(kind: str, key: str) -> MissingError:
    return MissingError(
        f"There is no {kind} “{one_line(plain(short_id(key)), 40)}”.",
        f"The store holds no {kind} with this id; it may belong to another state folder.",
        "nightschool status",
    )


def _share_text(found: Json) -> str | None:
    return share(**found["share"]) if found["share"] else None


def _reading(found: Json, comparable: bool) -> str:
    """What the comparison with the first release says; nothing below the needed number of judged sessions."""
    if not found["enough"]:
        return "not enough data"
    if found["since_first"] is None or not comparable:
        return ""
    if found["since_first"]["low"] > 0:
        return "better"
    return "worse" if found["since_first"]["high"] < 0 else "cannot tell"


def _share_plot(found: Json) -> str:
    values = [None if found["share"] is None else 100 * found["share"][key] for key in ("estimate", "low", "high")]
    tone = {"better": BETTER, "worse": WORSE}.get(found.get("reading", ""), NEUTRAL)
    return row(SHARE, *values, tone=tone, solid=found["enough"])


def _token_rows(data: Json, scope: Scope) -> Json:
    """Tokens of the replies on the page, the selected one first, `PAGE_TOKENS` in all."""
    folder = scope.facts.get("model_folder")
    decode = decoder(str(folder)) if folder else None
    start = session.whole_number(scope.text("token"), 0)
    left = PAGE_TOKENS
    rows: Json = {}
    replies = [message for message in data["messages"] if message["tokens"]]
    for message in sorted(replies, key=lambda message: not _is_selected(message, data)):
        ids, scores = message["tokens"]["ids"], message["tokens"]["logprobs"]
        begin = min(start, max(0, len(ids) - 1)) if _is_selected(message, data) else 0
        end = min(len(ids), begin + left)
        if end <= begin:
            continue
        rows[message["position"]] = {
            "tokens": token_row(ids[begin:end], scores[begin:end] if scores else None, decode),
            "begin": begin,
            "end": end,
            "total": len(ids),
        }
        left -= end - begin
    return rows


def _is_selected(message: Json, data: Json) -> bool:
    return any(call["id"] == data["exchange"] for call in message["exchanges"])


def _raw_texts(conn: sa.Connection, scope: Scope, call: Json) -> list[Json]:
    """Request and reply as text, `RAW_CHARS` at once, from where the URL says (`request_at`, `reply_at`)."""
    texts = []
    for name, data in session.raw_bodies(conn, scope.tenant, call).items():
        text = "" if data is None else data.decode("utf-8", "backslashreplace")
        begin = min(session.whole_number(scope.text(f"{name}_at"), 0), max(0, len(text) - 1))
        texts.append(
            {
                "name": name,
                "text": None if data is None else text[begin : begin + RAW_CHARS],
                "begin": begin,
                "end": min(len(text), begin + RAW_CHARS),
                "total": len(text),
                "size": 0 if data is None else len(data),
            }
        )
    return texts


def _flat(value: object, name: str = "") -> list[tuple[str, object]]:
    """Nested tables, and lists of tables, as dotted names in order; other lists stay whole."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = {str(place): item for place, item in enumerate(value, 1)}
    if isinstance(value, dict) and value:
        return [line for key, item in value.items() for line in _flat(item, f"{name}.{key}" if name else str(key))]
    return [(name, value)] if name else []
