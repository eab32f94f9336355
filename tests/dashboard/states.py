"""Stores in the states that the dashboard must show: empty, 12 sessions, after two nights, hostile text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import sqlalchemy as sa

from nightschool.feedback.body import read_feedback
from nightschool.feedback.record import insert_feedback
from nightschool.gate import decision
from nightschool.gate.rule import LENGTH, SUCCESS, default_rule, rule_as_json
from nightschool.gate.suites import Pairs, judge
from nightschool.gate.verdicts import save_verdict
from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchange
from nightschool.store.ids import new_id
from nightschool.store.records import Caller, Record, Timing
from nightschool.types import Choice, Decision, Fidelity, Json, LogprobProvenance, Purpose, Verdict
from nightschool.valuation.reliability import Outcomes, report

AGENT = "support-shop"
HOUR, DAY = 3600.0, 86_400.0
V1, V2, V3, POISONED = (letter * 2 + format(number, "062x") for letter, number in zip("abcd", range(4), strict=True))
SYSTEM = "You are the support agent of a small shop. Look things up before you act."
TOOLS = tuple(
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {"order": {"type": "string"}}}},
    }
    for name in ("track_order", "cancel_order", "refund_order")
)
ASKED = (
    ("track_order", "Where is my order {n}?"),
    ("track_order", "My parcel {n} has not come yet, when will it be here?"),
    ("cancel_order", "Please cancel order {n}, I ordered it by mistake."),
    ("cancel_order", "I do not want {n} any more, please do not send it."),
    ("refund_order", "Order {n} arrived broken. I want my money back."),
    ("refund_order", "Please pay me back for order {n}."),
)
COMPLAINTS = ("you refunded the wrong thing!!", "no, as I said: the blue one", "That did not help me at all.")

Encode = Callable[[str], list[int]]


def words_as_ids(text: str) -> list[int]:
    """Stand-in for a tokenizer: one id a word, the same for the same word."""
    return [sum(ord(letter) * (place + 3) for place, letter in enumerate(word)) % 40_000 for word in text.split(" ")]


@dataclass(frozen=True, slots=True)
class Talk:
    """How one session of the shop goes."""

    policy: str
    at: float
    good: bool
    thumb: bool | None = None
    text: str | None = None
    exam_id: str | None = None


class Shopkeeper:
    """Writes sessions of the shop into a store, with tokens, log-probabilities and feedback."""

    def __init__(self, store: Store, seed: int, encode: Encode = words_as_ids) -> None:
        self.store, self.random, self.encode, self.number = store, Random(seed), encode, 8800
        self.tenant = store.tenant

    def record(self, messages: list[Json], reply: Json, caller: Caller, policy: str, at: float) -> Record:
        spoken = reply.get("content") or json.dumps(reply["tool_calls"][0]["function"])
        ids = [*self.encode(spoken), 2]
        scores = [-abs(self.random.gauss(0, 0.9)) * self.random.choice((0.05, 0.3, 1.0, 2.2)) for _ in ids]
        prompt = [token for message in messages for token in [1, *self.encode(str(message.get("content")))]]
        body = {"model": caller.agent, "messages": messages, "tools": list(TOOLS), "temperature": 1.0}
        answer = {"id": f"chatcmpl-{new_id()}", "choices": [{"index": 0, "message": reply, "finish_reason": "stop"}]}
        return Record(
            id=new_id(),
            caller=caller,
            timing=Timing(at, 900 + 700 * self.random.random(), 120.0, 0.3 + 0.5 * self.random.random()),
            policy_version=policy,
            request_body=json.dumps(body).encode(),
            reply_body=json.dumps(answer).encode(),
            messages=tuple(messages),
            tools=TOOLS,
            choices=(Choice(0, reply, "tool_calls" if reply.get("tool_calls") else "stop", tuple(ids), tuple(scores)),),
            prompt_ids=tuple(prompt),
            fidelity=Fidelity.EXACT,
            logprob_provenance=LogprobProvenance.ENGINE,
            upstream_id=answer["id"],
        )

    def talk(self, conn: sa.Connection, talk: Talk) -> tuple[str, list[str]]:
        """One session: a wish, a tool call, its result, a reply; then what the customer says. Its exchanges' ids."""
        self.number += 1
        wish, phrase = self.random.choice(ASKED)
        tool = wish if talk.good else self.random.choice([name for name, _ in ASKED if name != wish])
        purpose = Purpose.EXAM if talk.exam_id else Purpose.SERVE
        customer = f"customer-{self.number}"
        caller = Caller(AGENT, f"shop-{new_id()}", customer, purpose=purpose, exam_id=talk.exam_id)
        call = {"name": tool, "arguments": json.dumps({"order": str(self.number)})}
        asked: list[Json] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": phrase.format(n=self.number)},
        ]
        calling = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        }
        result = {"status": "in transit", "arrives": "June 14"} if talk.good else {"error": "order not delivered yet"}
        returned = {"role": "tool", "tool_call_id": "c1", "content": json.dumps(result)}
        answer = "It arrives on June 14." if talk.good else f"I have refunded order {self.number}."
        first = self.record(asked, calling, caller, talk.policy, talk.at)
        replied = {"role": "assistant", "content": answer}
        second = self.record([*asked, calling, returned], replied, caller, talk.policy, talk.at + 4)
        ids = [insert_exchange(conn, self.tenant, record) for record in (first, second)]
        if talk.thumb is not None:
            self.say(
                conn,
                {"session": caller.session, "kind": "thumb", "value": talk.thumb, "author": customer},
                talk.at + 2 * HOUR,
            )
        if talk.text is not None:
            self.say(
                conn, {"exchange": ids[1], "kind": "text", "value": talk.text, "author": customer}, talk.at + 2 * HOUR
            )
        return str(caller.session), ids

    def say(self, conn: sa.Connection, body: Json, at: float) -> None:
        insert_feedback(conn, self.tenant, read_feedback({"observed_at": at, **body}, at), False, at)


def twelve_sessions(store: Store, now: float, encode: Encode = words_as_ids) -> None:
    """A first afternoon on the bare model: 12 sessions, 5 judged, nothing released."""
    keeper = Shopkeeper(store, 12, encode)

    def write(conn: sa.Connection) -> None:
        for index in range(12):
            thumb = {0: True, 3: False, 5: False, 8: True, 9: False}.get(index)
            text = COMPLAINTS[0] if index == 3 else None
            keeper.talk(conn, Talk("base", now - 5 * HOUR + index * 900, thumb is not False, thumb, text))

    store.write(write)


# version: thumbs up, thumbs down, silent; 42 %, 63 % and 79 % up
FEW = {V1: (16, 22, 8), V2: (24, 14, 8), V3: (30, 8, 8)}
MANY = {V1: (58, 80, 102), V2: (87, 51, 102), V3: (109, 29, 102)}


def two_nights(store: Store, now: float, encode: Encode = words_as_ids, counts: dict | None = None) -> Json:
    """The demo after two nights: v1, v2, v3, a refused poisoned candidate, a running run. Ids that tests use."""
    keeper = Shopkeeper(store, 7, encode)
    return store.write(lambda conn: _two_nights(conn, keeper, now, counts or FEW))


def _two_nights(conn: sa.Connection, keeper: Shopkeeper, now: float, counts: dict) -> Json:
    start = now - 3 * DAY
    ids: Json = {}
    for version, parent, run in ((V1, None, "sft"), (V2, V1, "oapl"), (V3, V2, "oapl"), (POISONED, V2, "oapl")):
        at = start + {V1: -HOUR, V2: 13 * HOUR, V3: 37 * HOUR, POISONED: 38 * HOUR}[version]
        ids[version] = _run(conn, keeper, version, parent, run, at)
    _move(conn, keeper.tenant, 1, V1, None, "first", start, None)
    for day, version in enumerate((V1, V2, V3)):
        seen = _day(conn, keeper, version, start + day * DAY, counts[version])
        ids[f"sessions {version}"] = [session for session, _ in seen]
        ids[f"exchanges {version}"] = [exchanges for _, exchanges in seen]
    for number, (candidate, incumbent) in enumerate(((V2, V1), (V3, V2)), 2):
        at = start + {V2: 14 * HOUR, V3: 39 * HOUR}[candidate]
        gain = 0.25 if candidate == V2 else 0.3
        verdict = _exam(conn, keeper, candidate, incumbent, at, gain)
        _move(conn, keeper.tenant, number, candidate, incumbent, "promote", at + 60, verdict)
        ids[f"verdict {candidate}"] = verdict
    ids["refused"] = _exam(conn, keeper, POISONED, V2, start + 40 * HOUR, -0.3)
    _ledger(conn, keeper.tenant, ids)
    ids["running"] = _run(conn, keeper, None, V3, "oapl", now - 240)
    keeper.say(conn, {"external_key": "ticket-5521", "kind": "outcome", "value": {"reopened": True}}, now - HOUR)
    keeper.say(conn, {"exchange": "chatcmpl-lost", "kind": "thumb", "value": False}, now - 2 * HOUR)
    _fork(conn, keeper, now - 20 * 60)
    return ids


def _day(conn: sa.Connection, keeper: Shopkeeper, version: str, start: float, counts: tuple[int, int, int]) -> list:
    outcomes: list[bool | None] = [True] * counts[0] + [False] * counts[1] + [None] * counts[2]
    keeper.random.shuffle(outcomes)
    seen = []
    for index, thumb in enumerate(outcomes):
        good = keeper.random.random() < 0.6 if thumb is None else thumb
        text = keeper.random.choice(COMPLAINTS) if thumb is False and index % 3 == 0 else None
        at = start + index * (11 * HOUR / len(outcomes))
        seen.append(keeper.talk(conn, Talk(version, at, good, thumb, text)))
    return seen


def _run(
    conn: sa.Connection, keeper: Shopkeeper, digest: str | None, parent: str | None, objective: str, at: float
) -> str:
    """A finished run with its adapter, or a running one where `digest` is None."""
    run_id, dataset = new_id(), format(int(at) % 10**9, "064x")
    steps = 28 if digest else 11
    took = 552.0
    row = {
        "tenant": keeper.tenant,
        "id": run_id,
        "agent": AGENT,
        "objective": objective,
        "state": "done" if digest else "running",
        "dataset_digest": dataset,
        "parent_digest": parent,
        "adapter_digest": digest,
        "config": {
            "objective": objective,
            "lora": {"rank": 16, "alpha": 32},
            "optimizer": {"learning_rate": 3e-4},
            "beta": 0.25,
            "kl_stop": 0.5,
        },
        "summary": {"steps": steps, "tokens_per_s": 1020.4, "brier": 0.19, "kl_final": 0.41} if digest else {},
        "error": None,
        "started_at": at,
        "updated_at": at + took if digest else at + DAY,  # its lease lasts as long as any test
        "finished_at": at + took if digest else None,
    }
    conn.execute(schema.runs.insert().values(**row))
    summary: Json = {"success_model": expected()} if objective == "oapl" else {}
    data = {"tenant": keeper.tenant, "digest": dataset, "agent": AGENT, "objective": objective, "as_of": at}
    conn.execute(schema.datasets.insert().values(**data, num_samples=168, summary=summary, created_at=at))
    _metrics(conn, keeper, run_id, objective, steps)
    if digest:
        adapter = {"tenant": keeper.tenant, "digest": digest, "agent": AGENT, "parent_digest": parent, "run_id": run_id}
        conn.execute(schema.adapters.insert().values(**adapter, manifest={}, created_at=at + took))
    return run_id


def expected() -> Json:
    """How far a success model can be believed that is right but for the hardest requests."""
    p = np.repeat([0.3, 0.5, 0.6, 0.75, 0.9], 40)
    chance = Random(7)
    came = np.array([chance.random() for _ in p]) < np.where(p < 0.4, 0.75, p)
    owners = [str(row) for row in range(len(p))]
    return report(p, Outcomes(came.astype(float), np.ones(len(p)), owners, ["serving version"] * len(p)))


def _metrics(conn: sa.Connection, keeper: Shopkeeper, run_id: str, objective: str, steps: int) -> None:
    noise = keeper.random
    rows: list[Json] = []
    for step in range(1, steps + 1):
        done = step / steps
        values: dict[str, float | None] = {"loss": 1.2 * math.exp(-2 * done) + 0.05 * noise.random()}
        if objective == "oapl":
            values |= {
                "kl": 0.42 * done**1.3 + 0.01 * noise.random(),
                "kappa": 0.3 - 0.25 * done + 0.05 * noise.random(),
                "held_out_good": -0.1 * done + 0.1 * noise.random(),
                "held_out_bad": -2.7 * done + 0.2 * noise.random(),
                "value": None if step == 5 else 0.4,
            }
        rows += [
            {"tenant": keeper.tenant, "run_id": run_id, "name": name, "step": step, "value": value}
            for name, value in values.items()
        ]
    conn.execute(schema.run_metrics.insert(), rows)


def _exam(conn: sa.Connection, keeper: Shopkeeper, candidate: str, incumbent: str, at: float, gain: float) -> str:
    """A closed exam with sessions of both arms, judged by the gate's own functions."""
    exam_id, verdict_id, rule = new_id(), new_id(), default_rule(120)
    noise = Random(candidate)
    rows = []
    for suite in rule.suites:
        step = gain if suite.name == SUCCESS else 0.04 if suite.name == LENGTH else 0.0
        if gain < 0 and suite.name == "tool-call validity":
            step = -0.2
        level = 0.42 if suite.name == SUCCESS else 0.03 if suite.fewer_is_better else 0.97
        if suite.scale == "rate":
            one = [float(noise.random() < level) for _ in range(suite.num_pairs)]
            two = [float(noise.random() < min(1.0, max(0.0, level + step))) for _ in range(suite.num_pairs)]
        else:
            one = [noise.gauss(3, 0.2) for _ in range(suite.num_pairs)]
            two = [value + step + noise.gauss(0, 0.1) for value in one]
        values = tuple((f"c{index}", new, old) for index, (new, old) in enumerate(zip(two, one, strict=True)))
        rows.append(judge(rule, suite, Pairs(suite.name, values), 0.049))
    names = decision.Names({V2: "v2", V3: "v3", POISONED: "dd00…03"}[candidate], {V1: "v1", V2: "v2"}[incumbent])
    suites = tuple(row.suite for row in rows)
    outcome, sentence = decision.decide(rule, suites, names)
    stated = rule_as_json(rule)
    verdict = Verdict(verdict_id, AGENT, candidate, incumbent, outcome, sentence, suites, stated, at, exam_id)
    save_verdict(conn, keeper.tenant, verdict, {"inputs": {row.suite.name: row.inputs for row in rows}})
    exam = {"tenant": keeper.tenant, "id": exam_id, "agent": AGENT, "candidate": candidate, "incumbent": incumbent}
    conn.execute(
        schema.exams.insert().values(
            **exam, rule=stated, state="closed", opened_at=at - 460, closed_at=at, verdict_id=verdict_id
        )
    )
    for index in range(10):
        policy = candidate if index % 2 else incumbent
        keeper.talk(conn, Talk(policy, at - 400 + index, index % 3 > 0, exam_id=exam_id))
    return verdict_id


def _move(
    conn: sa.Connection,
    tenant: str,
    number: int,
    digest: str,
    previous: str | None,
    kind: str,
    at: float,
    verdict_id: str | None,
) -> None:
    release = {"tenant": tenant, "id": new_id(), "agent": AGENT, "number": number, "digest": digest, "kind": kind}
    reason = "first release" if kind == "first" else "the gate said promote"
    conn.execute(
        schema.releases.insert().values(
            **release, previous_digest=previous, verdict_id=verdict_id, by="night", reason=reason, at=at
        )
    )
    alias = {"digest": digest, "release_id": release["id"], "updated_at": at}
    if previous is None:
        conn.execute(schema.aliases.insert().values(tenant=tenant, agent=AGENT, **alias))
    else:
        here = (schema.aliases.c.tenant == tenant, schema.aliases.c.agent == AGENT)
        conn.execute(schema.aliases.update().where(*here).values(**alias))


def _ledger(conn: sa.Connection, tenant: str, ids: Json) -> None:
    """What the run that made v2 did with the sessions of day one."""
    e = schema.exchanges.c
    query = sa.select(e.id, e.session_id, e.split).where(
        e.tenant == tenant, e.policy_version == V1, e.purpose == "serve"
    )
    rows = []
    for index, (exchange, session, split) in enumerate(conn.execute(query.order_by(e.started_at, e.id))):
        state, reason = ("trained", "in every epoch")
        if split != "train":
            state, reason = "excluded", f"split {split}: not for training"
        elif index % 7 == 0:
            state, reason = "held", "this person's share of the dataset had reached 1 %"
        elif index % 2:
            state, reason = "held", "no feedback"
        rows.append(
            {
                "tenant": tenant,
                "run_id": ids[V2],
                "exchange_id": exchange,
                "session_id": session,
                "state": state,
                "reason": reason,
                "reward": 0.92 if state == "trained" else None,
                "advantage": 0.31 if state == "trained" else None,
                "weight": 0.71 if state == "trained" else None,
            }
        )
    conn.execute(schema.ledger.insert(), rows)


def _fork(conn: sa.Connection, keeper: Shopkeeper, at: float) -> None:
    """A long session with an identical retry, another retry, a failed exchange and a side request."""
    caller = Caller(AGENT, "shop-fork", "customer-fork")
    history: list[Json] = [{"role": "system", "content": SYSTEM}]
    for turn in range(6):
        history.append({"role": "user", "content": f"Question {turn + 1}: It's order 8812, I want my money back."})
        reply = {"role": "assistant", "content": f"Answer {turn + 1}: I have refunded order 8812."}
        first = keeper.record(history, reply, caller, V3, at + 60 * turn)
        insert_exchange(conn, keeper.tenant, first)
        if turn == 2:
            again = replace(
                keeper.record(history, reply, caller, V3, at + 60 * turn + 5), request_body=first.request_body
            )
            insert_exchange(conn, keeper.tenant, again)
        if turn == 4:
            other = {"role": "assistant", "content": "Let me look that up first."}
            insert_exchange(conn, keeper.tenant, keeper.record(history, other, caller, V3, at + 60 * turn + 5))
            keeper.say(
                conn, {"exchange": first.id, "kind": "thumb", "value": False, "author": "customer-fork"}, at + 600
            )
            keeper.say(
                conn,
                {"exchange": first.id, "kind": "text", "value": COMPLAINTS[0], "author": "customer-fork"},
                at + 600,
            )
            right = {"role": "assistant", "content": "Your parcel is still on its way, I cannot refund it yet."}
            keeper.say(
                conn,
                {"exchange": first.id, "kind": "correction", "value": right, "source": "operator", "author": "ines"},
                at + 700,
            )
        history.append(reply)
    title = [{"role": "system", "content": "Write a title."}, {"role": "user", "content": "refund 8812"}]
    named = {"role": "assistant", "content": "Refund of order 8812"}
    insert_exchange(conn, keeper.tenant, keeper.record(title, named, caller, V3, at + 400))
    lost = keeper.record([*history, {"role": "user", "content": "hello?"}], named, caller, V3, at + 420)
    gone = replace(
        lost, choices=(), reply_body=None, status="error", http_status=502, error="The engine did not answer."
    )
    insert_exchange(conn, keeper.tenant, gone)


def waiting(store: Store, now: float) -> Json:
    """v1 serves, v2 passed the gate and waits, the next run was interrupted."""
    keeper = Shopkeeper(store, 5)

    def write(conn: sa.Connection) -> Json:
        _move(conn, keeper.tenant, 1, V1, None, "first", now - 2 * DAY, None)
        keeper.talk(conn, Talk(V1, now - DAY, True, True))
        verdict = _exam(conn, keeper, V2, V1, now - HOUR, 0.25)
        run = _run(conn, keeper, None, V1, "oapl", now - 1800)
        stopped = schema.runs.update().where(schema.runs.c.id == run)
        conn.execute(stopped.values(state="interrupted", error="Stopped by Ctrl-C after step 11."))
        return {"verdict": verdict}

    return store.write(write)


SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
OVERRIDE = "pay \u202egnp.exe\u202c now\x1b[31m red \x00 nul \u200b zero"
ARABIC = "لم تصل طردي بعد، أريد استرداد أموالي"


def hostile(store: Store, now: float) -> Json:
    """Text that attacks whoever looks at it, in every place where a stranger may write."""
    keeper = Shopkeeper(store, 3)

    def write(conn: sa.Connection) -> Json:
        exchanges = []
        for index, text in enumerate(
            (SCRIPT, OVERRIDE, ARABIC, "\ud800 lone", "a" * 9000, "{{ 7 * 7 }} ${7*7}", "javascript:alert(1)")
        ):
            agent = 'evil"><svg/onload=alert(1)>/../\u202ex' if index == 6 else AGENT
            caller = Caller(agent, f"s-{index}-{SCRIPT}", text[:200].replace("\ud800", "?"), external_key=SCRIPT)
            asked = [
                {"role": "user", "content": text},
                {"role": text[:40], "content": [{"type": "text", "text": text}]},
            ]
            call = {"name": text[:200], "arguments": text}
            reply = {"role": "assistant", "content": text, "tool_calls": [{"function": call}, "junk", {"function": 3}]}
            record = keeper.record(asked, reply, caller, SCRIPT, now - 100 + index)
            broken = replace(record, error=text if index < 2 else None, status="aborted" if index < 2 else "ok")
            exchanges.append(insert_exchange(conn, keeper.tenant, broken))
        long = (SCRIPT + OVERRIDE + " ") * 900
        for kind, value in (
            ("text", long[:65_000]),
            ("correction", {"role": "assistant", "content": OVERRIDE}),
            ("thumb", False),
        ):
            keeper.say(
                conn, {"exchange": exchanges[0], "kind": kind, "value": value, "author": SCRIPT + OVERRIDE}, now - 10
            )
        keeper.say(conn, {"external_key": OVERRIDE, "kind": "text", "value": SCRIPT}, now - 5)
        complaint = [{"role": "user", "content": "It is broken. " * 7200}]  # 100,800 characters
        sorry = {"role": "assistant", "content": "I am sorry."}
        record = keeper.record(complaint, sorry, Caller(AGENT, "s-long", "long-winded"), SCRIPT, now - 50)
        exchanges.append(insert_exchange(conn, keeper.tenant, record))
        run = _hostile_run(conn, keeper, now)
        verdict = Verdict(new_id(), AGENT, SCRIPT, "base", Decision.REFUSE, f"REFUSE {SCRIPT}{OVERRIDE}", (), {}, now)
        save_verdict(conn, keeper.tenant, verdict, {"note": OVERRIDE})
        return {"exchanges": exchanges, "run": run, "verdict": verdict.id}

    return store.write(write)


def _hostile_run(conn: sa.Connection, keeper: Shopkeeper, now: float) -> str:
    run = {"tenant": keeper.tenant, "id": new_id(), "agent": AGENT, "objective": SCRIPT, "state": "failed"}
    conn.execute(
        schema.runs.insert().values(
            **run, config={SCRIPT: OVERRIDE}, summary={"x": [SCRIPT]}, error=SCRIPT, started_at=now - 60, updated_at=now
        )
    )
    values = [float("nan"), None, float("inf"), 1.0]
    rows = [
        {"tenant": keeper.tenant, "run_id": run["id"], "name": name, "step": step, "value": value}
        for name in (SCRIPT, "loss")
        for step, value in enumerate(values)
    ]
    conn.execute(schema.run_metrics.insert(), rows)
    return str(run["id"])
