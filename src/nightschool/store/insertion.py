"""Exchanges into the store, many at once.

One lookup and one statement per table serve a whole batch. Only the place of an exchange (`sessions.py`) may depend
on an earlier one of the same batch: then the rows that wait are written first (`foresight.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from nightschool.store.attachments import MIN_CHARS, lift
from nightschool.store.blobs import put_hashed
from nightschool.store.bodies import MESSAGE, TOOLS, Body, Segment, cut, put_bodies, scan
from nightschool.store.dialogue import Dialogue, read_dialogue
from nightschool.store.expiry import reclaim
from nightschool.store.failpoints import fail_point
from nightschool.store.foresight import Foresight
from nightschool.store.memo import Memo, recall, remember
from nightschool.store.parked import match_feedback
from nightschool.store.prepared import insert_into
from nightschool.store.prompts import prompt_columns
from nightschool.store.records import Record
from nightschool.store.schema import choices as choice_table
from nightschool.store.schema import exchanges as table
from nightschool.store.sessions import Place, look_ahead, place_exchange, touch_sessions
from nightschool.store.tree import Node, canonical, grow, put_nodes
from nightschool.store.vectors import pack_floats, pack_ids
from nightschool.types import MARKS, Json, Sampler

_insert = insert_into(table)
_insert_choice = insert_into(choice_table)
USUAL = Sampler()
_blank = dict.fromkeys(table.c.keys())


def insert_exchange(conn: sa.Connection, tenant: str, record: Record) -> str:
    """Store one exchange; returns its id. See `insert_exchanges`."""
    return insert_exchanges(conn, tenant, [record])[0]


def insert_exchanges(conn: sa.Connection, tenant: str, records: Sequence[Record]) -> list[str]:
    """Store exchanges in this order; their ids. Call it inside `Store.submit` or `Store.write`.

    Decides session, principal and split of each (`sessions.py`), stores what is new of bodies, messages and
    prompt ids, and hands parked feedback over. It is all or nothing.

    Units: see `benchmarks/store.py`. The rows written depend on the new messages alone.
    """
    memo = recall(conn, tenant)
    attached: dict[str, bytes] = {}
    parsed = [_parse(tenant, _lifted(record, attached), memo) for record in records]
    put_hashed(conn, tenant, attached, memo.blobs)
    put_nodes(conn, tenant, [node for item in parsed for node in (*item.nodes, *item.replies)], memo)
    rows = [_facts(tenant, item) for item in parsed]
    _put_bodies(conn, tenant, parsed, rows, memo)
    _put_tools(conn, tenant, parsed, rows, memo)
    waiting = _Waiting(conn, tenant)
    ahead = Foresight(conn, waiting.write)
    look_ahead(ahead, tenant, [(item.record, item.nodes, item.dialogue) for item in parsed])
    places: list[Place] = []
    for item, row in zip(parsed, rows, strict=True):
        record = item.record
        place = place_exchange(ahead, tenant, record, item.nodes, item.dialogue)
        places.append(place)
        row |= _placed(item, place) | prompt_columns(record, place.parent)
        waiting.add(item, row, place)
        ahead.add(row)
    waiting.write()
    match_feedback(conn, tenant, list(zip(records, places, strict=True)))
    reclaim(conn, tenant, [record.id for record in records])
    remember(conn, memo)
    fail_point("exchange.written")
    return [record.id for record in records]


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A record with what its messages are in the tree."""

    record: Record
    segments: list[Segment]
    nodes: list[Node]
    replies: list[Node]
    dialogue: Dialogue


@dataclass(slots=True)
class _Waiting:
    """Rows of exchanges that are placed and not yet written."""

    conn: sa.Connection
    tenant: str
    placed: list[tuple[Record, Place]] = field(default_factory=list)
    rows: list[Json] = field(default_factory=list)
    choices: list[Json] = field(default_factory=list)

    def add(self, item: _Parsed, row: Json, place: Place) -> None:
        self.placed.append((item.record, place))
        self.rows.append({**_blank, **row})
        self.choices += _choice_rows(self.tenant, item.record, item.replies)

    def write(self) -> None:
        if self.placed:
            touch_sessions(self.conn, self.tenant, self.placed)
            _insert.many(self.conn, self.rows)
            _insert_choice.many(self.conn, self.choices)
            self.placed, self.rows, self.choices = [], [], []


def _lifted(record: Record, attached: dict[str, bytes]) -> Record:
    """The record with references in place of the images and files in its messages."""
    if len(record.request_body) + len(record.reply_body or b"") < MIN_CHARS:
        return record
    messages = tuple(lift(message, attached) for message in record.messages)
    choices = tuple(replace(choice, message=lift(choice.message, attached)) for choice in record.choices)
    return replace(record, messages=messages, choices=choices)


def _parse(tenant: str, record: Record, memo: Memo) -> _Parsed:
    segments = scan(record.request_body)
    spelled = [segment.data for segment in segments if segment.kind == MESSAGE]
    if len(spelled) != len(record.messages):
        spelled = []
    nodes = grow(tenant, record.messages, None, spelled, memo)
    leaf = nodes[-1] if nodes else None
    replies = [grow(tenant, [choice.message], leaf, memo=memo)[0] for choice in record.choices]
    return _Parsed(record, segments, nodes, replies, read_dialogue(nodes, record.messages, record.tools))


def _put_bodies(conn: sa.Connection, tenant: str, parsed: Sequence[_Parsed], rows: Sequence[Json], memo: Memo) -> None:
    requests = [Body(p.record.timing.started_at, p.record.request_body, p.segments, p.nodes) for p in parsed]
    answered = [at for at, p in enumerate(parsed) if p.record.reply_body is not None]
    replies = []
    for at in answered:
        record = parsed[at].record
        raw = record.reply_body or b""
        told = parsed[at].replies[0] if parsed[at].replies else None
        replies.append(Body(record.timing.started_at, raw, cut(raw), reply=told))
    keys = put_bodies(conn, tenant, [*requests, *replies], memo)
    for row, key in zip(rows, keys[: len(rows)], strict=True):
        row["request_body"] = key
    for at, key in zip(answered, keys[len(rows) :], strict=True):
        rows[at]["reply_body"] = key


def _put_tools(conn: sa.Connection, tenant: str, parsed: Sequence[_Parsed], rows: Sequence[Json], memo: Memo) -> None:
    """The tools of each request as a blob. Most requests bring the same ones, spelled the same."""
    new: dict[str, bytes] = {}
    for item, row in zip(parsed, rows, strict=True):
        if not item.record.tools:
            continue
        spelling = next((segment.data for segment in item.segments if segment.kind == TOOLS), None)
        known = memo.tools.get(spelling) if spelling is not None else None
        if known is None or known[0] != item.record.tools:
            data = canonical(item.record.tools)
            known = (item.record.tools, hashlib.sha256(data).hexdigest())
            new[known[1]] = data
            if spelling is not None:
                memo.keep_tools(spelling, known)
        row["tools_blob"] = known[1]
    put_hashed(conn, tenant, new, memo.blobs)


def _facts(tenant: str, item: _Parsed) -> Json:
    record = item.record
    caller, timing = record.caller, record.timing
    sampled = [choice.completion_ids for choice in record.choices]
    counts = [len(ids) for ids in sampled if ids is not None]
    return {
        "tenant": tenant,
        "id": record.id,
        "agent": caller.agent,
        "purpose": caller.purpose.value,
        "exam_id": caller.exam_id,
        "policy_version": record.policy_version,
        "dialect": record.dialect,
        "streamed": record.streamed,
        "status": record.status,
        "http_status": record.http_status,
        "error": record.error,
        "started_at": timing.started_at,
        "duration_ms": timing.duration_ms,
        "first_byte_ms": timing.first_byte_ms,
        "overhead_ms": timing.overhead_ms,
        "prompt_message": item.nodes[-1].hash if item.nodes else None,
        "upstream_id": record.upstream_id,
        "external_key": caller.external_key,
        "num_sampled_tokens": sum(counts) if counts and len(counts) == len(sampled) else None,
        "fidelity": record.fidelity.value,
        "logprob_provenance": record.logprob_provenance.value,
        "sampler": _sampler(record.sampler),
        "support": record.sampler.support.value,
        "training_allowed": caller.training_allowed,
        "fidelity_reason": record.fidelity_reason,
        "flags": list(record.flags) or None,
        "mark": next((flag for flag in record.flags if flag in MARKS), None),
        "usage": record.usage,
        "key_id": caller.key_id,
        "origin": record.origin,
    }


def _placed(item: _Parsed, place: Place) -> Json:
    first = next((at for at, choice in enumerate(item.record.choices) if choice.index == 0), None)
    return {
        "session_id": place.session_id,
        "principal": place.principal,
        "split": place.split.value,
        "parent_exchange_id": place.parent.exchange_id if place.parent else None,
        "reply_match_hash": item.dialogue.reply_hash(item.replies[first]) if item.nodes and first is not None else None,
        "system_hash": item.dialogue.system_hash,
        "branch": place.branch.value,
        "retry_of": place.retry_of,
        "context_complete": item.record.context_complete and place.context_complete,
    }


@lru_cache(maxsize=256)
def _sampler(sampler: Sampler) -> Json:
    """What is not as the API has it by default."""
    return {name: value for name, value in asdict(sampler).items() if value != getattr(USUAL, name)}


def _choice_rows(tenant: str, record: Record, replies: Sequence[Node]) -> list[dict[str, Any]]:
    return [
        {
            "tenant": tenant,
            "exchange_id": record.id,
            "index": choice.index,
            "message_hash": node.hash,
            "finish_reason": choice.finish_reason,
            "completion_ids": None if choice.completion_ids is None else pack_ids(choice.completion_ids),
            "behavior_logprobs": None if choice.behavior_logprobs is None else pack_floats(choice.behavior_logprobs),
        }
        for choice, node in zip(record.choices, replies, strict=True)
    ]
