"""Sessions of two turns as the gateway would record them, with feedback, for tests of curation and training."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from random import Random
from typing import Any

import sqlalchemy as sa

from nightschool.feedback.body import NewFeedback
from nightschool.feedback.record import insert_feedback
from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchange
from nightschool.store.ids import new_id
from nightschool.store.records import Caller, Record, Timing
from nightschool.store.schema import adapters, audits, meta, releases
from nightschool.store.splits import META_KEY
from nightschool.types import Choice, FeedbackKind, Fidelity, Json, Purpose, Sampler, TargetKind

SYSTEM = tuple(range(20, 50))


def record_turn(
    store: Store,
    messages: list[Json],
    reply: str,
    prompt_ids: tuple[int, ...],
    completion_ids: tuple[int, ...] | None,
    **more: Any,
) -> str:
    """One exchange. `more`: agent, user, session, at, version, sampler, status, purpose, training_allowed, branch,
    flags, context_complete, usage, is_retry, tools, finish_reason."""
    return store.write(lambda conn: _turn(conn, store.tenant, messages, reply, prompt_ids, completion_ids, **more))


def record_session(store: Store, request: str, seed: int, word: int = 7, **more: Any) -> list[str]:
    """Two turns: a call that starts with token `word`, a tool's result, a reply. Returns the exchange ids."""
    return store.write(lambda conn: _session(conn, store.tenant, request, seed, word, **more))


def say(store: Store, kind: FeedbackKind, value: Any, author: str | None = None, **target: str) -> None:
    """Feedback on `session=` or `exchange=`."""
    store.write(lambda conn: _say(conn, store.tenant, kind, value, author, **target))


def record_words(store: Store, said: Iterable[tuple[str, str, bool | None, Json]]) -> None:
    """For each user a session of one turn with a text about it, and a thumb unless it is `None`; in one write. The last
    part of each is `more` of `record_turn`, and `ids`: its prompt and its reply."""

    def write(conn: sa.Connection) -> None:
        asked: list[Json] = [{"role": "user", "content": "where is order 7"}]
        for user, text, thumb, more in said:
            prompt, reply = more.get("ids", ((), None))
            _turn(conn, store.tenant, asked, "Here.", prompt, reply, session=user, user=user, **more)
            _say(conn, store.tenant, FeedbackKind.TEXT, text, session=user)
            if thumb is not None:
                _say(conn, store.tenant, FeedbackKind.THUMB, thumb, session=user)

    store.write(write)


def fix_splits(store: Store, key: str = "00" * 32) -> None:
    """A known split key, so that the same users fall into the same splits every time."""
    same = (meta.c.tenant == store.tenant, meta.c.key == META_KEY)
    store.write(lambda conn: conn.execute(sa.update(meta).where(*same).values(value=key)))


def release(store: Store, digest: str, parent: str | None, number: int) -> None:
    """An adapter that served from then on."""
    release_row = {
        "tenant": store.tenant, "id": f"r{number}", "agent": "shop", "number": number, "digest": digest,
        "kind": "first", "by": "test", "reason": "", "at": float(number),
    }  # fmt: skip
    adapter_row = {
        "tenant": store.tenant, "digest": digest, "agent": "shop", "parent_digest": parent, "manifest": {},
        "created_at": 0.0,
    }  # fmt: skip
    store.write(lambda conn: conn.execute(sa.insert(adapters), adapter_row))
    store.write(lambda conn: conn.execute(sa.insert(releases), release_row))


def audited(store: Store, rewards: int = 10_000, agent: str = "shop", **more: Any) -> None:
    """A reward audit that passed, over so many rewards. `more`: made_at, passed, report."""
    row = {"tenant": store.tenant, "id": new_id(), "agent": agent, "made_at": time.time(), "passed": True, **more}
    report = {"rows": rewards, "passed": row["passed"], "checks": [], **more.get("report", {})}
    store.write(lambda conn: conn.execute(audits.insert().values(**{**row, "report": report})))


def busy_day(store: Store, sessions: int, seed: int = 0, **more: Any) -> None:
    """Refunds go well when they start with token 7, parcels when they start with 8; most leave a thumb."""

    def write(conn: sa.Connection) -> None:
        rng = Random(seed)
        for number in range(sessions):
            wish = rng.choice(["please refund my order", "where is my parcel"])
            word = rng.choice([7, 8])
            good = (word == 7) == wish.startswith("please")
            name = seed * 10_000 + number
            kind = 50 if wish.startswith("please") else 51  # what the model sees of the request
            user = f"user-{seed}-{number}"
            _session(conn, store.tenant, f"{wish} {number}", name, word, user=user, wish=kind, **more)
            if rng.random() < 0.8:
                _say(conn, store.tenant, FeedbackKind.THUMB, good, session=f"session-{name}")

    store.write(write)


def _turn(
    conn: sa.Connection,
    tenant: str,
    messages: list[Json],
    reply: str,
    prompt_ids: tuple[int, ...],
    completion_ids: tuple[int, ...] | None,
    **more: Any,
) -> str:
    purpose = more.get("purpose", Purpose.SERVE)
    caller = Caller(
        agent=more.get("agent", "shop"),
        session=more.get("session"),
        header_user=more.get("user"),
        purpose=purpose,
        exam_id="exam" if purpose == Purpose.EXAM else None,
        training_allowed=more.get("training_allowed", True),
        branch=more.get("branch"),
        is_retry=more.get("is_retry", False),
    )
    record = Record(
        id=new_id(),
        caller=caller,
        timing=Timing(started_at=more.get("at", time.time())),
        policy_version=more.get("version", "base"),
        request_body=json.dumps({"messages": messages}).encode(),
        messages=tuple(messages),
        tools=more.get("tools", ()),
        choices=(
            Choice(0, {"role": "assistant", "content": reply}, more.get("finish_reason", "stop"), completion_ids, None),
        ),
        prompt_ids=None if completion_ids is None else prompt_ids,
        fidelity=Fidelity.EXACT if completion_ids else Fidelity.TEXT,
        sampler=more.get("sampler", Sampler()),
        status=more.get("status", "ok"),
        flags=more.get("flags", ()),
        context_complete=more.get("context_complete", True),
        usage=more.get("usage"),
    )
    return insert_exchange(conn, tenant, record)


def _session(conn: sa.Connection, tenant: str, request: str, seed: int, word: int, **more: Any) -> list[str]:
    rng = Random(seed)
    name = more.pop("session", f"session-{seed}")
    at = more.pop("at", time.time() - 1000 + seed % 500)
    first = (*SYSTEM, more.pop("wish", 60), *[rng.randrange(60, 70) for _ in range(4)])
    call = (word, rng.randrange(70, 80), 2)
    second = (*first, *call, *[rng.randrange(80, 90) for _ in range(4)])
    answer = (rng.randrange(90, 100), rng.randrange(90, 100), 2)
    messages: list[Json] = [{"role": "system", "content": "shop"}, {"role": "user", "content": request}]
    one = _turn(conn, tenant, messages, f"call {seed}", first, call, session=name, at=at, **more)
    history = [*messages, {"role": "assistant", "content": f"call {seed}"}, {"role": "tool", "content": "done"}]
    two = _turn(conn, tenant, history, f"reply {seed}", second, answer, session=name, at=at + 1, **more)
    return [one, two]


def _say(
    conn: sa.Connection, tenant: str, kind: FeedbackKind, value: Any, author: str | None = None, **target: str
) -> None:
    ((where, target_id),) = target.items()
    item = NewFeedback(TargetKind(where), target_id, kind, value, name=kind.value, author=author)
    insert_feedback(conn, tenant, item, admin=False, now=time.time())
