"""The ledger: every exchange once, under its reason; and what the material is good for, against pure counting."""

import re
import time
from collections import Counter
from dataclasses import replace
from html import unescape
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from dashboard import recorded as made
from dashboard.states import V2, Shopkeeper, Talk
from databases import ON_BOTH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.testclient import TestClient

from nightschool.dashboard import app, counts
from nightschool.dashboard.app import build_dashboard
from nightschool.dashboard.queries.ledger import looked_at, not_looked_at, state_today, today
from nightschool.dashboard.queries.material import FACETS, code_of, decoded, material
from nightschool.dashboard.queries.scope import Scope
from nightschool.objectives.legality import OBJECTIVES, SAYS, Heard, heard_in, legal
from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.store.ids import new_id
from nightschool.types import Branch, Fidelity, Json, Support

NOW = 1_800_000_000.0
VALUES = {
    "status": st.sampled_from(["ok", "ok", "ok", "error", "aborted"]),
    **{name: st.sampled_from([getattr(value, "value", value) for value in values]) for name, values in FACETS.items()},
}
KINDS = [kind.value for kind in SAYS] + ["number"]


@pytest.fixture(scope="module", params=ON_BOTH)
def keepers_store(request, new_place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ledger")
    with new_place(request.param, folder) as place, Store.open(place) as opened:
        keeper = Shopkeeper(opened, 4)
        opened.write(lambda conn: keeper.talk(conn, Talk("base", NOW, True)))
        yield opened


def fill(conn: sa.Connection, sessions: list[Json]) -> None:
    """Exchanges with any facets, like the one that is there; some judged, some entered by a run."""
    model = dict(conn.execute(sa.select(schema.exchanges).limit(1)).mappings().one())
    for table in (schema.exchanges, schema.feedback, schema.ledger):
        conn.execute(table.delete())
    for session in sessions:
        home = new_id()
        own = {"purpose": session["purpose"], "split": session["split"]}  # one session, one purpose and split
        for call in session["calls"]:
            exchange = {**call["facets"], **own, "id": new_id(), "session_id": home}
            conn.execute(schema.exchanges.insert().values(**{**model, **exchange}))
            for kind in call["kinds"]:
                _say(conn, home, exchange["id"], kind)
            if call["run"]:
                _enter(conn, exchange["id"], home, call["run"])
        for kind in session["kinds"]:
            _say(conn, home, None, kind)


def _say(conn: sa.Connection, session: str, exchange: str | None, kind: str) -> None:
    row = {"tenant": "default", "id": new_id(), "idempotency_key": new_id(), "state": "matched", "name": kind}
    row |= {"target_kind": "exchange", "target_id": "x", "exchange_id": exchange, "session_id": session}
    row |= {"kind": kind, "value": True, "source": "end_user", "observed_at": NOW, "received_at": NOW}
    conn.execute(schema.feedback.insert().values(**row))


def _enter(conn: sa.Connection, exchange: str, session: str, run: str) -> None:
    line = {"tenant": "default", "run_id": run, "exchange_id": exchange, "session_id": session}
    conn.execute(schema.ledger.insert().values(**line, state="held", reason="no feedback"))


calls = st.fixed_dictionaries(
    {
        "facets": st.fixed_dictionaries(VALUES),
        "kinds": st.lists(st.sampled_from(KINDS), max_size=2),
        "run": st.sampled_from(["", "", "run-1"]),
    }
)
stores = st.lists(
    st.fixed_dictionaries(
        {
            "purpose": VALUES["purpose"],
            "split": VALUES["split"],
            "calls": st.lists(calls, min_size=1, max_size=4),
            "kinds": st.lists(st.sampled_from(KINDS), max_size=2),
        }
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stores)
def test_the_databases_counts_are_those_of_the_rules(keepers_store, sessions):
    """Whatever is stored: what SQL counts by codes is what the pure rules say of each exchange and each target."""

    class Undo(Exception):
        pass

    def check(conn: sa.Connection) -> None:
        fill(conn, sessions)
        seen = not_looked_at(conn, "default", None)
        counted = material(conn, Scope("default", NOW, {}), None)
        rows = conn.execute(sa.select(schema.exchanges)).mappings().all()
        said = conn.execute(sa.select(schema.feedback)).mappings().all()
        entered = set(conn.scalars(sa.select(schema.ledger.c.exchange_id)))
        standing: Counter[tuple[str, str]] = Counter()
        for row in rows:
            if row["id"] not in entered:
                about = [item for item in said if item["session_id"] == row["session_id"]]
                found = today(row, about)
                standing[found["state"], found["reason"]] += 1
        assert {(line["state"], line["reason"]): line["exchanges"] for line in seen} == dict(standing)
        assert by_hand(rows, said) == {line["name"]: line["usable"] for line in counted["objectives"]}
        raise Undo

    with pytest.raises(Undo):
        keepers_store.write(check)


def by_hand(rows: list, said: list) -> dict[str, int]:
    """Usable exchanges (without a need) and targets (with one) by objective, one rule at a time."""
    usable = dict.fromkeys((objective.name for objective in OBJECTIVES), 0)
    for row in rows:
        usable["sft"] += legal(one([row], frozenset()))["sft"] is None
    groups: Counter[tuple[str, str]] = Counter()
    for session, exchange in {(item["session_id"], item["exchange_id"]) for item in said}:
        heard = heard_in(
            item["kind"] for item in said if (item["session_id"], item["exchange_id"]) == (session, exchange)
        )
        about = [row for row in rows if row["id"] == exchange] or [
            row
            for row in rows
            if exchange is None and row["session_id"] == session and (row["branch"], row["status"]) == ("main", "ok")
        ]
        if not about:
            continue
        found = legal(one(about, heard))
        for name in ("dpo", "kto", "hindsight", "oapl"):
            usable[name] += found[name] is None
        if len(about) == 1 and legal(replace(one(about, heard), group_size=2))["grpo"] is None:
            groups[about[0]["prompt_message"], about[0]["policy_version"]] += 1
    usable["grpo"] = sum(size for size in groups.values() if size > 1)
    return usable


def one(rows: list, heard: frozenset[Heard]):
    """The facts of a target: of each facet the value that is against it most."""
    facts = decoded(0, "ok", heard)
    for name, values in FACETS.items():
        worst = {"training_allowed": False, "context_complete": False, "fidelity": Fidelity.TEXT}.get(name)
        found = [next(value for value in values if value == row[name]) for row in rows]
        if name == "fidelity":
            chosen = worst if worst in found else found[0]
        elif worst is not None:
            chosen = worst if worst in found else True
        else:
            good = {"support": Support.FULL, "branch": Branch.MAIN}.get(name, values[0])
            chosen = max((value for value in found if value != good), default=good)
        facts = replace(facts, **{name: chosen})
    return replace(facts, status=next((row["status"] for row in rows if row["status"] != "ok"), "ok"))


@given(st.fixed_dictionaries(VALUES))
def test_a_code_is_read_back_as_it_was_written(facets):
    columns = {name: sa.literal(value) for name, value in facets.items()}
    engine = sa.create_engine("sqlite://")
    with engine.connect() as conn:
        code = conn.scalar(sa.select(code_of(columns)))
    engine.dispose()
    found = decoded(code, facets["status"])
    assert {name: getattr(found, name) for name in FACETS} == {name: facets[name] for name in FACETS}
    assert found.status == facets["status"]
    assert state_today(found)[1]


def test_an_exchange_that_two_runs_looked_at_counts_once_for_the_newer(store):
    keeper = Shopkeeper(store, 2)
    _, (first, second) = store.write(lambda conn: keeper.talk(conn, Talk("base", NOW, True)))

    def enter(conn: sa.Connection) -> None:
        for run, exchange, state, reason in (
            ("run-1", first, "held", "no feedback"),
            ("run-2", first, "trained", "trained"),
            ("run-1", second, "excluded", "too stale"),
        ):
            line = {"tenant": "default", "run_id": run, "exchange_id": exchange, "session_id": "s"}
            conn.execute(schema.ledger.insert().values(**line, state=state, reason=reason))

    store.write(enter)
    with store.read() as conn:
        lines = looked_at(conn, "default", None)
        assert not_looked_at(conn, "default", None) == []
    assert [(line["state"], line["reason"], line["exchanges"], line["example"]) for line in lines] == [
        ("trained", "trained", 1, first),
        ("excluded", "too stale", 1, second),
    ]


def test_the_ledger_page_counts_every_exchange_and_leads_to_examples(nights):
    data = nights.client.get("/ledger.json").json()["data"]
    with nights.store.read() as conn:
        total = conn.scalar(sa.select(sa.func.count()).select_from(schema.exchanges))
        mine = schema.ledger.c.run_id == nights.ids[V2]
        query = sa.select(schema.ledger.c.reason, sa.func.count()).where(mine).group_by(schema.ledger.c.reason)
        entered = dict(map(tuple, conn.execute(query)))
    lines = [*data["looked_at"], *data["not_looked_at"]]
    assert sum(line["exchanges"] for line in lines) == sum(data["counts"].values()) == total
    assert {line["reason"]: line["exchanges"] for line in data["looked_at"]} == entered
    assert any(line["reason"] == "exam" for line in data["not_looked_at"])
    for by, rows in (("runs", data["looked_at"]), ("", data["not_looked_at"])):
        for line in rows:
            query = {"by": by, "state": line["state"], "reason": line["reason"]}
            found = nights.client.get("/ledger.json", params=query).json()["data"]
            assert 0 < len(found["examples"]) <= 20
            assert len(found["examples"]) == min(20, line["exchanges"])
            for example in found["examples"][:2]:
                page = nights.client.get(f"/exchanges/{example['id']}")
                text = nights.client.get(page.headers["location"].partition("#")[0]).text
                assert line["reason"] in unescape(text)


def test_a_page_of_kept_counts_says_when_they_were_made(nights, recorded, monkeypatch):
    monkeypatch.setattr(counts, "QUICK_S", -1.0)
    monkeypatch.setattr(counts, "PATIENCE", 1e9)
    now = [time.time()]
    monkeypatch.setattr(app, "time", SimpleNamespace(time=lambda: now[0]))
    for state, path in ((recorded, "/"), (recorded, "/ledger"), (nights, "/ledger")):
        client = TestClient(Starlette(routes=build_dashboard(state.store, dict)))
        first = client.get(f"{'/index' if path == '/' else path}.json").json()["data"]["material"]["counted_at"]
        assert "Counted " not in client.get(path).text
        now[0] += 1.1
        page = client.get(path)
        assert "Counted " in page.text
        assert first in page.text


def test_record_only_tells_what_text_is_good_for(recorded):
    page = recorded.client.get("/").text
    assert "Already good for SFT, DPO and KTO/BCO." in page
    data = recorded.client.get("/index.json").json()["data"]["material"]
    usable = {line["name"]: line["usable"] for line in data["objectives"]}
    assert usable["sft"] > usable["kto"] > 0
    assert (usable["dpo"], usable["oapl"], usable["hindsight"], usable["grpo"]) == (1, 0, 0, 0)
    oapl = next(line for line in data["objectives"] if line["name"] == "oapl")
    assert "text only" in {found["reason"] for found in oapl["refused"]}
    assert "It needs exact tokens, and thumbs or outcomes." in page


def test_the_ledger_says_which_share_of_the_sampled_tokens_may_train(recorded):
    """38 tokens a reply by the upstream's count, none of them with ids: whatever the reasons, nothing may train."""
    kept = recorded.client.get("/ledger.json").json()["data"]["kept"]
    assert kept["sampled_tokens"] == 38 * (kept["exchanges"] - 1)  # one attempt brought no reply
    assert (kept["share"], kept["kept_tokens"]) == (0.0, 0)
    assert sum(line["tokens"] for line in kept["lost"]) == kept["sampled_tokens"]
    assert (
        f"0 % of {kept['sampled_tokens']} tokens sampled in the last 24 h may train"
        in recorded.client.get("/ledger").text
    )


def test_a_session_names_branches_parts_source_and_why_it_would_not_train(recorded):
    client, ids = recorded.client, recorded.ids
    page = client.get(client.get(f"/exchanges/{ids['first']}").headers["location"]).text
    for told in (
        "Title generation",
        "Compaction",
        "retry</span>",
        "the upstream gives no token ids",
        "openai.chat, streamed",
        "prompt tokens 212",
        "both count once",
        "Not looked at by any run yet.",
        "excluded",
        "text only",
        "Sub-agent <a",
    ):
        assert told in page, told
    assert f"/exchanges/{ids['lost']}" in page
    sub = client.get(client.get(f"/exchanges/{ids['sub']}").headers["location"]).text
    assert "Works for" in sub
    second = client.get(client.get(f"/exchanges/{ids['second']}").headers["location"]).text
    assert "usage missing" in second
    lost = client.get(client.get(f"/exchanges/{ids['lost']}").headers["location"]).text
    assert "upstream error 529" in lost


def test_every_kind_of_feedback_is_shown_with_what_replaced_it(recorded):
    page = recorded.client.get(recorded.client.get(f"/exchanges/{recorded.ids['second']}").headers["location"]).text
    text = " ".join(re.sub(r"<[^>]+>", " ", unescape(page)).split())
    for told in (
        "fault too vague",
        "stars 4 from 1 to 5",
        "prefers Fixed. to choice 1",
        "this call was not needed about call 1",
        "a good start about turn 1",
        "should be Freeze it in one fixture only.",
    ):
        assert told in text, told
    assert text.count("replaced by a later one") == 1  # dev-9 thought again
    listed = recorded.client.get("/feedback").text
    for told in ("categories", "preferences", "about call 1"):
        assert told in listed


def test_parked_feedback_tells_how_long_it_is_waited_for(recorded):
    def show() -> str:
        return " ".join(re.sub(r"<[^>]+>", " ", recorded.client.get("/feedback?state=parked").text).split())

    f = schema.feedback.c
    parked = schema.feedback.update().where(f.state == "parked")
    assert re.search(r"parked external key ticket-77, waited for 8\d d more", show())  # 90 days, sent a day ago
    with recorded.store.read() as conn:
        until = conn.scalar(sa.select(f.expires_at).where(f.state == "parked"))
    recorded.store.write(lambda conn: conn.execute(parked.values(expires_at=NOW / 2)))
    try:
        assert "expired external key ticket-77, no longer waited for" in show()
    finally:
        recorded.store.write(lambda conn: conn.execute(parked.values(expires_at=until)))


def test_images_are_told_and_never_drawn_and_long_texts_are_paged(recorded):
    client, ids = recorded.client, recorded.ids
    location = client.get(f"/exchanges/{ids['picture']}").headers["location"].partition("#")[0]
    page = client.get(location).text
    assert "<img" not in page
    assert made.PICTURE[:60] not in page
    assert "image, image/png, 2.9 KiB" in page  # 3,000 bytes
    assert "https://pictures.example/cat.png" in page
    assert 'href="https' not in page
    assert "file-17" in page
    assert "thinking block, signed, 24 characters" in page
    assert "130,000 more characters" in page  # of 330,000, 200,000 are on the page
    assert "anthropic.messages" in page
    assert 'From <a href="/imports">import' in page
    raw = client.get(f"{location}&view=raw").text
    assert "Characters 1–100,000 of" in raw
    total = len(client.get(f"/exchanges/{ids['picture']}/request.txt").text)
    last = client.get(f"{location}&view=raw&request_at={total - 10}").text
    assert f"Characters {total - 9:,}–{total:,} of {total:,}." in last


def test_keys_are_named_and_their_hashes_are_nowhere(recorded):
    page, data = recorded.client.get("/keys"), recorded.client.get("/keys.json")
    assert "shop-bot" in page.text
    assert "2 keys in use; 1 revoked." in page.text
    for reply in (page, data):
        assert made.SECRET not in reply.text


def test_an_import_shows_its_report(recorded):
    page = recorded.client.get("/imports").text
    for told in ("traces.jsonl", "188 exchanges", "a line is no JSON", "line 17, line 44", "embedding calls"):
        assert told in page
