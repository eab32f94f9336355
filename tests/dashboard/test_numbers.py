"""What the pages count, against counts made by hand or with SQL written here."""

import time

import pytest
import sqlalchemy as sa
from dashboard.states import AGENT, V1, V2, V3, Shopkeeper, Talk
from sqlalchemy import event

from nightschool.dashboard.queries.overview import overview
from nightschool.dashboard.queries.scope import Scope
from nightschool.store import schema
from nightschool.store.database import Store


def rows(store: Store) -> dict:
    with store.read() as conn:
        data = overview(conn, Scope("default", time.time(), {}), AGENT, [AGENT])
    return {row["version"]["label"]: row for row in data["releases"]}


def test_success_is_thumbs_up_among_judged_sessions(nights) -> None:
    found = nights.client.get("/index.json").json()["data"]["releases"]
    # two_nights writes 16 of 38, 24 of 38, 30 of 38; the forked session on v3 adds one thumb down
    assert [(row["version"]["label"], row["up"], row["judged"]) for row in found] == [
        ("v1", 16, 38),
        ("v2", 24, 38),
        ("v3", 30, 39),
    ]
    # Wilson by hand for 16 of 38, z 1.96: middle (0.42105 + 0.05055) / 1.10109 = 0.42830, half 0.14975
    assert found[0]["share"]["low"] == pytest.approx(0.27855, abs=2e-4)
    assert found[0]["share"]["high"] == pytest.approx(0.57805, abs=2e-4)
    assert [row["reading"] for row in found] == ["", "cannot tell", "better"]
    assert found[2]["text"] == "77 [62, 87]"


def test_the_last_thumb_of_an_author_counts(store) -> None:
    keeper = Shopkeeper(store, 1)

    def write(conn: sa.Connection) -> None:
        session, _ = keeper.talk(conn, Talk("base", 1000.0, True, False))
        keeper.say(conn, {"session": session, "kind": "thumb", "value": True, "author": "customer-8801"}, 9000.0)

    store.write(write)
    assert (rows(store)["base"]["up"], rows(store)["base"]["judged"]) == (1, 1)


def test_authors_who_disagree_evenly_leave_a_session_failed(store) -> None:
    keeper = Shopkeeper(store, 1)

    def write(conn: sa.Connection) -> None:
        session, _ = keeper.talk(conn, Talk("base", 1000.0, True, True))
        keeper.say(conn, {"session": session, "kind": "thumb", "value": False, "author": "somebody else"}, 9000.0)

    store.write(write)
    assert (rows(store)["base"]["up"], rows(store)["base"]["judged"]) == (0, 1)


def test_below_thirty_judged_there_is_not_enough_data(twelve) -> None:
    page = twelve.client.get("/")
    assert "not enough data" in page.text
    assert "iv neutral thin" in page.text
    assert "5</a> of 30" in page.text


def test_exams_are_on_no_page_but_their_verdicts(nights) -> None:
    with nights.store.read() as conn:
        exams = conn.scalar(sa.select(sa.func.count()).where(schema.sessions.c.purpose == "exam"))
        served = conn.scalar(sa.select(sa.func.count()).where(schema.sessions.c.purpose == "serve"))
    assert exams == 30
    assert nights.client.get("/sessions.json").json()["data"]["counts"]["total"] == served
    verdict = nights.client.get(f"/verdicts/{nights.ids['refused']}.json").json()["data"]
    assert verdict["exam_sessions"] == 10
    exam = nights.client.get(f"/sessions.json?exam={verdict['exam_id']}").json()["data"]
    assert exam["counts"]["total"] == 10


def test_an_exam_session_with_a_thumb_would_not_count_either(store) -> None:
    keeper = Shopkeeper(store, 1)

    def write(conn: sa.Connection) -> None:
        session, _ = keeper.talk(conn, Talk("base", 1000.0, True, True))
        keeper.talk(conn, Talk("base", 1100.0, True, False))
        same = schema.sessions.c.external_key == session
        conn.execute(schema.sessions.update().where(same).values(purpose="exam"))

    store.write(write)
    assert (rows(store)["base"]["up"], rows(store)["base"]["judged"]) == (0, 1)


def test_filters_agree_with_counts_and_paging_misses_nobody(nights) -> None:
    def get(query: str) -> dict:
        return nights.client.get(f"/sessions.json?{query}").json()["data"]

    total = get("")["counts"]
    for outcome in ("up", "down", "silent"):
        assert get(f"outcome={outcome}")["counts"]["total"] == total[outcome]
    assert get("outcome=judged")["counts"]["total"] == total["up"] + total["down"]
    assert get(f"release={V1}")["counts"]["total"] == 46  # 16 + 22 + 8
    seen, query = [], ""
    while True:
        page = get(query)
        seen += [row["id"] for row in page["rows"]]
        if page["next"] is None:
            break
        query = f"after={page['next']}"
    assert len(seen) == len(set(seen)) == total["total"]


def test_a_filter_by_words_treats_wildcards_as_words(nights) -> None:
    assert nights.client.get("/sessions.json?q=%25").json()["data"]["rows"] == []
    found = nights.client.get("/sessions.json?q=MONEY").json()["data"]["rows"]
    assert found
    assert all("money" in row["preview"].lower() for row in found)


def test_ledger_counts_lead_to_the_sessions_behind_them(nights) -> None:
    run = nights.client.get(f"/runs/{nights.ids[V2]}.json").json()["data"]
    with nights.store.read() as conn:
        entered = conn.scalar(sa.select(sa.func.count()).where(schema.ledger.c.run_id == nights.ids[V2]))
    assert sum(line["exchanges"] for line in run["ledger"]) == entered == 92  # two exchanges in each of 46 sessions
    for line in run["ledger"]:
        query = {"run": run["id"], "ledger": line["state"], "reason": line["reason"]}
        found = nights.client.get("/sessions.json", params=query).json()["data"]
        assert found["counts"]["total"] == line["sessions"]


def test_parked_feedback_is_counted_and_listed(nights) -> None:
    data = nights.client.get("/feedback.json?state=parked").json()["data"]
    assert data["counts"]["parked"] == len(data["rows"]) == 2
    assert {row["target_id"] for row in data["rows"]} == {"ticket-5521", "chatcmpl-lost"}


def test_releases_tell_who_serves_who_was_refused_and_where_roll_back_goes(nights) -> None:
    page = nights.client.get("/releases.json").json()
    [section] = page["data"]["sections"]
    states = {row["version"]["label"]: row["state"] for row in section["rows"]}
    assert states == {"v1": "served", "v2": "served", "v3": "serving", "dd00…03": "refused"}
    assert section["back_to"]["digest"] == V2
    assert page["answer"] == "v3 serves support-shop. Roll back takes it to v2."
    assert section["serving"]["digest"] == V3


@pytest.mark.parametrize(
    "path", ["/", "/sessions?outcome=down&has=text&q=a", "/feedback", "/ledger", "/runs", "/releases"]
)
def test_no_page_asks_more_than_twelve_questions(nights, path) -> None:
    assert _questions(nights, path) <= 12


def test_no_detail_asks_more_than_twelve_questions(nights) -> None:
    exchange = nights.ids[f"exchanges {V1}"][0][1]
    session = nights.client.get(f"/exchanges/{exchange}").headers["location"].partition("#")[0]
    paths = [session, f"{session}&view=tokens", f"{session}&view=raw"]
    paths += [f"/runs/{nights.ids[V3]}", f"/verdicts/{nights.ids['refused']}"]
    for path in paths:
        assert _questions(nights, path) <= 12, path


def _questions(state, path: str) -> int:
    asked: list[str] = []

    def count(_conn, _cursor, statement: str, *_rest) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "WITH")):
            asked.append(statement)

    event.listen(state.store.engine, "before_cursor_execute", count)
    try:
        assert state.client.get(path).status_code == 200
    finally:
        event.remove(state.store.engine, "before_cursor_execute", count)
    assert all("tenant" in statement for statement in asked)
    return len(asked)


def test_another_tenants_rows_are_never_seen(nights) -> None:
    with nights.store.read() as conn:
        data = overview(conn, Scope("somebody else", time.time(), {}), AGENT, [])
    assert data["recording"] is None
    assert data["releases"] == []
