"""One session: its tree, the branch being read, and the ledger of the exchange that is selected."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

import sqlalchemy as sa

from nightschool.dashboard.marks import one_line
from nightschool.dashboard.parts import other_parts
from nightschool.dashboard.queries.ledger import today
from nightschool.dashboard.queries.outcomes import outcome_of, thumb_scores
from nightschool.dashboard.queries.scope import Names, Scope, names
from nightschool.dashboard.queries.signals import marks_on, session_signals, told_of
from nightschool.dashboard.trace import Leaf, MessageRow, Node, Tree
from nightschool.feedback.inbox import ORIGIN
from nightschool.feedback.record import current_view, feedback_value
from nightschool.store.bodies import get_body
from nightschool.store.matching import content_text
from nightschool.store.schema import adapters, blobs, choices, exchanges, feedback, ledger, messages, sessions
from nightschool.store.tree import with_content
from nightschool.store.vectors import unpack_floats, unpack_ids
from nightschool.types import Branch, Json, Sampler

READ_MESSAGES = 40
TREE_LINES = 300
TREE_BLOB_BYTES = 4_000  # longer messages are named in the tree by their role alone
LEDGER_LINES = 20
FEEDBACK_ROWS = 1000
HIDDEN = ("tenant", "idempotency_key", "evidence")  # of feedback: evidence may be as large as a trace
TEXT_CHARS = 200_000  # of one message; the raw view pages through the rest
RELATED_ROWS = 50

EXCHANGE_FACTS = (
    "id", "status", "error", "http_status", "started_at", "duration_ms", "first_byte_ms", "overhead_ms", "streamed",
    "dialect", "fidelity", "logprob_provenance", "sampler", "split", "purpose", "training_allowed", "upstream_id",
    "external_key", "num_prompt_tokens", "num_sampled_tokens", "policy_version", "parent_exchange_id", "branch",
    "retry_of", "fidelity_reason", "context_complete", "flags", "usage", "key_id", "origin", "support", "mark",
)  # fmt: skip


def session(conn: sa.Connection, scope: Scope, session_id: str) -> Json | None:
    """The whole page, or None when there is no such session. At most 12 queries."""
    row = _session_row(conn, scope.tenant, session_id)
    if row is None:
        return None
    labels = names(conn, scope.tenant)
    data: Json = {**row, "version": labels.version(row["agent"], row["policy_version"])}
    calls = _exchanges(conn, scope.tenant, session_id, labels)
    replies = _choices(conn, scope.tenant, session_id, scope.text("view") == "tokens")
    tree = Tree(_messages(conn, scope.tenant, session_id), _leaves(calls, replies))
    said = _feedback(conn, scope.tenant, session_id)
    data |= _reading_place(tree, scope, calls)
    shown = tree.branch(data["branch"])[data["from"] - 1 : data["to"]] if data["branch"] else []
    lines = tree.lines()
    bodies = _bodies(
        conn, scope.tenant, [node.message for node in shown], [line.node.message for line in lines[:TREE_LINES]]
    )
    data["messages"] = [_message(node, bodies, calls, replies, said) for node in shown]
    data["tree"] = [
        {**_tree_node(line.node, bodies, calls, said), "level": min(line.level, 6), "side": line.side}
        for line in lines[:TREE_LINES]
    ]
    _name_sides(data["tree"])
    data["tree_left_out"] = max(0, len(lines) - TREE_LINES)
    data["branches"] = _branches(tree, calls)
    data["num_messages"] = len(tree.nodes)
    data["signals"] = []
    if scope.text("view") != "raw":
        data["signals"] = session_signals(conn, scope.tenant, row, told_of(session_id, calls, replies, said), scope.now)
    path = tree.branch(data["branch"]) if data["branch"] else []
    on_branch = {exchange_id for node in path for exchange_id in node.exchanges()}
    for message in data["messages"]:
        message["signals"] = marks_on(data["signals"], message, on_branch)
    data["related"] = _related(conn, scope.tenant, row)
    data["session_feedback"] = [item for item in said if item["exchange_id"] is None]
    chosen = calls.get(data["exchange"] or "")
    data["selected"] = _selected(conn, scope.tenant, chosen, labels, said) if chosen else None
    return data


def passage(conn: sa.Connection, scope: Scope, session_id: str) -> Json:
    """What was said around the exchange `x` of the URL, else from the beginning of the main branch, with its ledger.

    `turns` numbers the replies of the main branch as feedback does that names a turn. 7 queries.
    """
    labels = names(conn, scope.tenant)
    calls = _exchanges(conn, scope.tenant, session_id, labels)
    replies = _choices(conn, scope.tenant, session_id, False)
    tree = Tree(_messages(conn, scope.tenant, session_id), _leaves(calls, replies))
    said = _feedback(conn, scope.tenant, session_id)
    data = _reading_place(tree, scope, calls)
    shown = tree.branch(data["branch"])[data["from"] - 1 : data["to"]] if data["branch"] else []
    bodies = _bodies(conn, scope.tenant, [node.message for node in shown], ())
    chosen = calls.get(data["exchange"] or "")
    main = [id_ for id_, call in calls.items() if call["branch"] == Branch.MAIN.value and call["status"] != "error"]
    return {
        **data,
        "messages": [_message(node, bodies, calls, replies, said) for node in shown],
        "turns": {exchange_id: turn for turn, exchange_id in enumerate(main, start=1)},
        "said": said,
        "selected": _selected(conn, scope.tenant, chosen, labels, said) if chosen else None,
    }


def _session_row(conn: sa.Connection, tenant: str, session_id: str) -> Json | None:
    """The session with its outcome. By its own id alone: see `store.sessions.find_session` for other names."""
    scores = thumb_scores(tenant, [session_id])
    joined = sessions.outerjoin(scores, scores.c.session_id == sessions.c.id)
    query = sa.select(sessions, scores.c.score, scores.c.num_thumbs, scores.c.last_at.label("judged_at"))
    query = query.select_from(joined).where(sessions.c.tenant == tenant, sessions.c.id == session_id)
    row = conn.execute(query).mappings().first()
    if row is None:
        return None
    found = {key: value for key, value in row.items() if key not in ("tenant", "score", "num_thumbs", "judged_at")}
    outcome = {"outcome": outcome_of(row["score"]), "at": row["judged_at"], "num_thumbs": row["num_thumbs"] or 0}
    return {**found, "outcome": outcome}


def _related(conn: sa.Connection, tenant: str, row: Json) -> Json:
    """The session this one works for, and those that work for it. One query."""
    s = sessions.c
    names_ = [name for name in (row["id"], row["external_key"]) if name]
    above = row["parent_session_id"]
    upward = sa.or_(s.id == above, s.external_key == above) if above else sa.false()
    query = sa.select(s.id, s.preview, s.num_exchanges, s.last_at, upward.label("above"))
    query = query.where(s.tenant == tenant, sa.or_(upward, s.parent_session_id.in_(names_)), s.id != row["id"])
    found = [dict(row) for row in conn.execute(query.order_by(s.last_at).limit(RELATED_ROWS)).mappings()]
    return {
        "parent": next((found_row for found_row in found if found_row["above"]), None),
        "children": [found_row for found_row in found if not found_row["above"]],
    }


def _exchanges(conn: sa.Connection, tenant: str, session_id: str, labels: Names) -> dict[str, Json]:
    e = exchanges.c
    columns = [exchanges.c[name] for name in (*EXCHANGE_FACTS, "prompt_message", "agent", "request_body", "reply_body")]
    query = sa.select(*columns).where(e.tenant == tenant, e.session_id == session_id).order_by(e.started_at, e.id)
    found: dict[str, Json] = {}
    for row in conn.execute(query).mappings():
        told = {
            "sampler": asdict(Sampler(**row["sampler"])),
            "version": labels.version(row["agent"], row["policy_version"]),
        }
        found[row["id"]] = dict(row) | told
    return found


def _choices(conn: sa.Connection, tenant: str, session_id: str, with_tokens: bool) -> dict[tuple[str, int], Json]:
    c, e = choices.c, exchanges.c
    columns = [c.exchange_id, c.index, c.message_hash, c.finish_reason]
    columns += [c.completion_ids, c.behavior_logprobs] if with_tokens else []
    query = (
        sa.select(*columns)
        .join(exchanges, sa.and_(e.tenant == c.tenant, e.id == c.exchange_id))
        .where(c.tenant == tenant, e.session_id == session_id)
        .order_by(c.exchange_id, c.index)
    )
    return {(row["exchange_id"], row["index"]): dict(row) for row in conn.execute(query).mappings()}


def _leaves(calls: dict[str, Json], replies: dict[tuple[str, int], Json]) -> list[Leaf]:
    leaves = [
        Leaf(reply["message_hash"], exchange_id, index, calls[exchange_id]["started_at"])
        for (exchange_id, index), reply in replies.items()
        if reply["message_hash"]
    ]
    answered = {leaf.exchange_id for leaf in leaves}
    return leaves + [
        Leaf(call["prompt_message"], call["id"], None, call["started_at"])
        for call in calls.values()
        if call["id"] not in answered and call["prompt_message"]
    ]


def _messages(conn: sa.Connection, tenant: str, session_id: str) -> list[MessageRow]:
    """Every message of the session: from where its exchanges end, up to the roots."""
    m, e, c = messages.c, exchanges.c, choices.c
    asked = sa.select(e.prompt_message).where(e.tenant == tenant, e.session_id == session_id)
    answered = (
        sa.select(c.message_hash)
        .join(exchanges, sa.and_(e.tenant == c.tenant, e.id == c.exchange_id))
        .where(c.tenant == tenant, e.session_id == session_id)
    )
    row = sa.select(m.hash, m.parent_hash, m.match_hash, m.role, m.depth)
    branch = row.where(m.tenant == tenant, m.hash.in_(asked.union(answered))).cte("branch", recursive=True)
    above = row.where(m.tenant == tenant, m.hash == branch.c.parent_hash)
    return [MessageRow(*found) for found in conn.execute(sa.select(branch.union(above)))]


def _feedback(conn: sa.Connection, tenant: str, session_id: str) -> list[Json]:
    """Everything said about the session, oldest first; `current` is what no later judgement replaces."""
    f = feedback.c
    query = sa.select(feedback).where(f.tenant == tenant, f.session_id == session_id)
    rows = conn.execute(query.order_by(f.received_at, f.id).limit(FEEDBACK_ROWS)).all()
    holding = {item.id for item in current_view(map(feedback_value, rows))}
    found = []
    for row in rows:
        told = {key: value for key, value in row._mapping.items() if key not in HIDDEN}
        act = row.evidence if row.origin == ORIGIN and isinstance(row.evidence, dict) else None
        found.append({**told, "current": row.id in holding, "act": act})
    return found


def _reading_place(tree: Tree, scope: Scope, calls: dict[str, Json]) -> Json:
    """Branch, message range and selected exchange that the URL asks for, else the main branch's."""
    asked = scope.text("x")
    ends = tree.ends()
    end = tree.end_through(asked) if asked in calls else None
    if end is None and scope.text("branch"):
        end = next((key for key in ends if key.startswith(scope.text("branch"))), None)
    end = end or (ends[0] if ends else None)
    path = tree.branch(end) if end else []
    on_branch = [(place, end) for place, node in enumerate(path) for end in node.exchanges()]
    exchange = asked if asked in calls else on_branch[-1][1] if on_branch else next(reversed(calls), None)
    start = whole_number(scope.text("from"), 1)
    if not scope.text("from") and asked:
        place = next((place for place, reply in on_branch if reply == asked), 0)
        start = place // READ_MESSAGES * READ_MESSAGES + 1
    start = max(1, min(start, max(1, len(path))))
    return {
        "branch": end,
        "is_main": end == tree.main_end(),
        "num_branch": len(path),
        "from": start,
        "to": min(len(path), start + READ_MESSAGES - 1),
        "exchange": exchange,
        "num_branches": len(ends),
    }


def _bodies(conn: sa.Connection, tenant: str, whole: Iterable[str], short: Iterable[str]) -> dict[str, Json]:
    """Messages by hash: those being read whole, those of the tree only where they are short. One query."""
    m = messages.c
    read, named = set(whole), set(short)
    data, blob = with_content()
    short_enough = sa.func.coalesce(sa.func.length(m.content), sa.func.length(blobs.c.data)) <= TREE_BLOB_BYTES
    query = sa.select(m.hash, data).select_from(messages.outerjoin(blobs, blob))
    fits = sa.or_(m.hash.in_(read), short_enough)
    rows = conn.execute(query.where(m.tenant == tenant, m.hash.in_(read | named), fits))
    return {found: _parse(data) for found, data in rows}


def _parse(data: bytes) -> Json:
    try:
        message = json.loads(data)
    except ValueError:
        message = None
    return message if isinstance(message, dict) else {"content": data.decode("utf-8", "replace")}


def _message(
    node: Node,
    bodies: dict[str, Json],
    calls: dict[str, Json],
    replies: dict[tuple[str, int], Json],
    said: list[Json],
) -> Json:
    body = bodies.get(node.message, {})
    made = body.get("tool_calls")
    exchange_ids = [exchange_id for exchange_id, _ in node.replies]
    reply = replies.get(node.replies[0]) if node.replies else None
    text = content_text(body.get("content"))
    return {
        "role": node.role,
        "position": node.depth + 1,
        "text": text[:TEXT_CHARS],
        "left_out": max(0, len(text) - TEXT_CHARS),
        "parts": other_parts(body),
        "tool_calls": [_call(call) for call in made if isinstance(call, dict)] if isinstance(made, list) else [],
        "name": body.get("name") if isinstance(body.get("name"), str) else None,
        "exchanges": [calls[exchange_id] for exchange_id in exchange_ids if exchange_id in calls],
        "choice": node.replies[0][1] if node.replies else None,
        "finish_reason": reply["finish_reason"] if reply else None,
        "tokens": _tokens(reply),
        "unanswered": [calls[exchange_id] for exchange_id in node.unanswered if exchange_id in calls],
        "feedback": [item for item in said if item["exchange_id"] in (*exchange_ids, *node.unanswered)],
    }


def _call(call: Json) -> Json:
    made = call.get("function")
    function: Json = made if isinstance(made, dict) else {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"name": str(function.get("name")), "arguments": text}


def _branch_of(exchange_ids: list[str], calls: dict[str, Json]) -> str:
    """What part of the session a message belongs to, by the exchange that ended there; empty where none did."""
    return next((calls[exchange_id]["branch"] for exchange_id in exchange_ids if exchange_id in calls), "")


def _name_sides(drawn: list[Json]) -> None:
    """Give each line the branch of the first exchange under its root: what that part of the session was for."""
    roots = [place for place, line in enumerate(drawn) if line["root"]]
    for begin, end in zip(roots, [*roots[1:], len(drawn)], strict=True):
        part = drawn[begin:end]
        first = next((line["branch"] for line in part if line["branch"] not in ("", Branch.RETRY.value)), "")
        for line in part:
            line["below"] = first


def _tree_node(node: Node, bodies: dict[str, Json], calls: dict[str, Json], said: list[Json]) -> Json:
    body = bodies.get(node.message)
    text = ""
    if body is not None:
        made = body.get("tool_calls")
        names_ = [_call(call)["name"] for call in made if isinstance(call, dict)] if isinstance(made, list) else []
        text = one_line(content_text(body.get("content")) or ", ".join(f"→ {name}" for name in names_), 60)
    exchange_ids = node.exchanges()
    thumbs = [
        item["value"]
        for item in said
        if item["exchange_id"] in exchange_ids and item["kind"] == "thumb" and item["current"]
    ]
    return {
        "key": node.key,
        "leaf": not node.children,
        "role": node.role,
        "position": node.depth + 1,
        "text": text,
        "exchange": exchange_ids[0] if exchange_ids else None,
        "repeats": len(node.replies),
        "unanswered": bool(node.unanswered),
        "branch": _branch_of(exchange_ids, calls),
        "root": node.parent is None,
        "thumbs": thumbs,
        "num_feedback": sum(item["exchange_id"] in exchange_ids for item in said),
    }


def _branches(tree: Tree, calls: dict[str, Json]) -> list[Json]:
    main = tree.main_end()
    return [
        {
            "key": key,
            "main": key == main,
            "branch": _branch_of(tree.nodes[key].exchanges(), calls) or "main",
            "num_messages": tree.nodes[key].depth + 1,
            "first_at": tree.nodes[key].first_at,
            "exchange": next((reply[0] for reply in tree.nodes[key].replies if reply[0] in calls), None),
        }
        for key in tree.ends()[:50]
    ]


def _selected(conn: sa.Connection, tenant: str, call: Json, labels: Names, said: list[Json]) -> Json:
    """Ledger column: facts of one exchange, what was said about it, what each run did with it, and why."""
    line, a = ledger.c, adapters.c
    query = (
        sa.select(line.run_id, line.state, line.reason, line.reward, line.advantage, line.weight, a.digest, a.agent)
        .outerjoin(adapters, sa.and_(a.tenant == line.tenant, a.run_id == line.run_id))
        .where(line.tenant == tenant, line.exchange_id == call["id"])
        .order_by(line.run_id.desc())
        .limit(LEDGER_LINES)
    )
    lines = []
    for row in conn.execute(query).mappings():
        entry = dict(row)
        entry["version"] = labels.version(entry.pop("agent"), entry.pop("digest"))
        lines.append(entry)
    return {
        "exchange": call,
        "feedback": [item for item in said if item["exchange_id"] == call["id"]],
        "ledger": lines,
        "today": today(call, [item for item in said if item["current"]]),
    }


def _tokens(reply: Json | None) -> Json | None:
    """Ids and log-probabilities of one reply; None where the engine returned no ids."""
    if reply is None or reply.get("completion_ids") is None:
        return None
    raw = reply["behavior_logprobs"]
    scores = None if raw is None else list(unpack_floats(raw))
    return {"ids": list(unpack_ids(reply["completion_ids"])), "logprobs": scores}


def raw_bodies(conn: sa.Connection, tenant: str, call: Json) -> Json:
    """Request and reply of one exchange as they went over the wire. Four queries.

    Raises:
        StoreError: the store is damaged.
    """
    kept = {name: call[f"{name}_body"] for name in ("request", "reply")}
    return {name: None if body is None else get_body(conn, tenant, body) for name, body in kept.items()}


def exchange_bodies(conn: sa.Connection, tenant: str, exchange_id: str) -> Json | None:
    """The hashes of an exchange's two bodies."""
    e = exchanges.c
    query = sa.select(e.request_body, e.reply_body).where(e.tenant == tenant, e.id == exchange_id)
    row = conn.execute(query).mappings().first()
    return None if row is None else dict(row)


def exchange_session(conn: sa.Connection, scope: Scope, exchange_id: str) -> str | None:
    e = exchanges.c
    return conn.scalar(sa.select(e.session_id).where(e.tenant == scope.tenant, e.id == exchange_id))


def whole_number(text: str, default: int) -> int:
    """A small count from the URL."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else default
