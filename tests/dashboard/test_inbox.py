"""The inbox over HTTP: what is shown, who may act, and where an act leads."""

import re
from html import unescape
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from dashboard.states import COMPLAINTS, Shopkeeper, Talk
from dashboard.test_numbers import _questions
from dashboard.test_pages import HERE, basic, check_document
from sqlalchemy.exc import OperationalError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient
from traffic import fix_splits

from nightschool.access.identity import Access
from nightschool.access.keys import KeyRing, NewKey, Role, add_key
from nightschool.access.middleware import SameSiteOnly
from nightschool.dashboard.app import build_dashboard
from nightschool.store.database import Store
from nightschool.store.schema import feedback

NOW = 1_772_366_400.0
SECRET = b"a secret of this installation"


class Desk:
    """A shop with complaints, its dashboard behind the gateway's own checks, and somebody at it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        fix_splits(store)  # the customers whose ledgers are read here are in train
        keeper = Shopkeeper(store, 5)
        self.exchanges: list[list[str]] = []

        def fill(conn: sa.Connection) -> None:
            for number in range(6):
                thumb = False if number % 2 else None
                talk = Talk(
                    "base", NOW + 600 * number, False, thumb, COMPLAINTS[number % 3] if number % 2 == 0 else None
                )
                self.exchanges.append(keeper.talk(conn, talk)[1])
            keeper.say(conn, {"external_key": "to-come", "kind": "text", "value": "early"}, NOW)

        store.write(fill)
        self.keys = {role: add_key(store, SECRET, NewKey(f"{role}-key", role), "me")[1] for role in Role}
        middleware = [Middleware(SameSiteOnly, allowed=())]
        self.app = Starlette(routes=build_dashboard(store, dict), middleware=middleware)
        self.app.state.access = Access("the-admin", None, KeyRing(store, SECRET))
        self.client = self.as_("the-admin")

    def as_(self, password: str | None) -> TestClient:
        headers = basic(password) if password else {}
        return TestClient(self.app, HERE, headers=headers, follow_redirects=False, client=("127.0.0.1", 5000))

    def unread(self) -> list[str]:
        return [row["id"] for row in self.client.get("/feedback.json").json()["data"]["rows"]]

    def texts(self) -> list[dict]:
        """The complaints, newest first, without the one that waits for its exchange."""
        rows = self.client.get("/feedback.json?state=text").json()["data"]["rows"]
        return [row for row in rows if row["session_id"]]

    def form(self, path: str, act: str, client: TestClient | None = None) -> dict[str, str]:
        """The fields of the form that the page draws for an act."""
        page = (client or self.client).get(path).text
        found = re.search(rf'<form method="post" action="[^"]*/{act}".*?</form>', page, re.DOTALL)
        assert found, f"no form to {act}"
        inputs = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', found[0])
        return {name: unescape(value) for name, value in inputs}

    def post(self, item: str, act: str, client: TestClient | None = None, **fields: str):
        client = client or self.client
        known = self.form(f"/feedback/{item}", act if act != "judge" else "judge", client)
        return client.post(f"/feedback/{item}/{act}", data={**known, **fields})

    def num_rows(self) -> int:
        with self.store.read() as conn:
            return int(conn.scalar(sa.select(sa.func.count()).select_from(feedback)) or 0)


@pytest.fixture
def desk(file_store) -> Desk:
    return Desk(file_store)


def test_an_item_is_shown_beside_its_trace_with_what_it_means_and_becomes(desk):
    assert len(desk.unread()) == 6
    text = desk.texts()[-1]
    path = f"/feedback/{text['id']}"
    reply = desk.client.get(path)
    page = reply.text
    assert reply.headers["referrer-policy"] == "same-origin"  # else a form without scripts has the Origin null
    check_document(page, path)
    assert COMPLAINTS[0] in unescape(page)
    assert '<span class="chip solid">target</span>' in page
    data = desk.client.get(f"/feedback/{text['id']}.json").json()["data"]
    assert [message["role"] for message in data["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert [reply["turn"] for reply in data["replies"]] == [1, 2]
    assert data["item"]["exchange_id"] == desk.exchanges[0][1]
    assert data["reward"] == {"value": None, "reason": "text not calibrated"}
    assert data["reading"]["exchange"] == desk.exchanges[0][1]
    assert data["selected"]["today"]["reason"]
    assert "text not calibrated" in page


def test_an_item_asks_at_most_twelve_questions(desk):
    for item in desk.unread()[:3]:
        assert _questions(desk, f"/feedback/{item}") <= 12
    assert _questions(desk, "/feedback?state=done") <= 12


def test_each_act_leads_to_the_next_item_and_the_list_grows_shorter(desk):
    items = desk.unread()
    one = desk.post(items[0], "judge", verdict="down")
    assert one.status_code == 303
    assert urlsplit(one.headers["location"]).path == f"/feedback/{items[1]}"
    assert "Judged down." in desk.client.get(one.headers["location"]).text
    two = desk.post(items[1], "accept")
    assert urlsplit(two.headers["location"]).path == f"/feedback/{items[2]}"
    three = desk.post(items[2], "exclude", reason="a test of ours")
    assert three.status_code == 303
    assert desk.unread() == items[3:]
    done = desk.client.get("/feedback.json?state=done").json()["data"]
    assert {row["id"] for row in done["rows"]} == set(items[:3])
    assert (done["counts"]["unread"], done["counts"]["done"]) == (3, 3)
    assert "a test of ours" in desk.client.get(f"/feedback/{items[2]}").text
    told = desk.client.get(f"/feedback/{items[2]}.json").json()["data"]["selected"]["today"]
    assert told["reason"] == "no feedback"  # what was excluded says nothing to the next run
    assert told["objectives"]["oapl"] is not None
    assert "exclude" in desk.client.get(f"/feedback/{items[2]}").text


def test_the_last_item_leads_back_to_the_list(desk):
    items = desk.unread()
    for item in items:
        last = desk.post(item, "judge", verdict="unclear")
    assert urlsplit(last.headers["location"]).path == "/feedback"
    assert "Nothing is unread." in desk.client.get(last.headers["location"]).text


def test_a_correction_and_a_moved_target_are_stored_where_they_belong(desk):
    texts = [row["id"] for row in desk.texts()]
    item = texts[-1]
    desk.post(item, "correct", text="I have looked it up:\r\nit is on its way.")
    data = desk.client.get(f"/feedback/{item}.json").json()["data"]
    said = [told for message in data["messages"] for told in message["feedback"] if told["kind"] == "correction"]
    assert [(told["value"], told["source"], told["author"]) for told in said] == [
        ("I have looked it up:\nit is on its way.", "operator", "admin")
    ]
    assert [told["act"] for told in data["history"]] == ["corrected"]
    moved = desk.post(texts[-2], "move", to=desk.exchanges[2][0])
    copy = urlsplit(moved.headers["location"]).path.rpartition("/")[2]
    assert copy != texts[-2]
    assert desk.client.get(f"/feedback/{copy}.json").json()["data"]["item"]["exchange_id"] == desk.exchanges[2][0]
    assert "Moved." in desk.client.get(moved.headers["location"]).text


def test_undo_brings_back_what_was_there(desk):
    items = desk.unread()
    desk.post(items[0], "exclude")
    back = desk.post(items[0], "undo")
    again = urlsplit(back.headers["location"]).path.rpartition("/")[2]
    assert len(desk.unread()) == 6
    data = desk.client.get(f"/feedback/{again}.json").json()["data"]
    old = desk.client.get(f"/feedback/{items[0]}.json").json()["data"]
    assert (data["item"]["value"], data["item"]["author"]) == (old["item"]["value"], old["item"]["author"])
    assert old["history"][0]["undone"] is True
    assert data["current"] is True
    assert old["current"] is False


@pytest.mark.parametrize("who", ["nobody", "wrong", "data"])
def test_acting_takes_a_key_that_may_judge_on_this_machine_too(desk, who):
    item = desk.unread()[0]
    client = desk.as_({"nobody": None, "wrong": "ns-wrong", "data": desk.keys[Role.DATA]}[who])
    token = desk.form(f"/feedback/{item}", "judge")["form_token"]  # the admin's
    before = desk.num_rows()
    fields = {"verdict": "down", "to": desk.exchanges[0][0], "text": "Better.", "form_token": token}
    for act in ("accept", "judge", "move", "correct", "exclude", "undo"):
        sent = client.post(f"/feedback/{item}/{act}", data=fields)
        assert sent.status_code == 401
        assert sent.headers["www-authenticate"].startswith("Basic ")
    assert desk.num_rows() == before


@pytest.mark.parametrize("who", ["feedback", "admin"])
def test_each_act_is_open_to_who_may_judge(desk, who):
    client = desk.as_(desk.keys[Role.FEEDBACK] if who == "feedback" else "the-admin")
    text = desk.texts()[-1]["id"]
    first, other = desk.exchanges[0][1], desk.exchanges[0][0]
    token = desk.form(f"/feedback/{text}", "judge", client)["form_token"]
    for act, fields in (
        ("accept", {"polarity": "bad", "place": first}),
        ("judge", {"verdict": "down"}),
        ("correct", {"to": first, "text": "Better."}),
        ("exclude", {}),
        ("move", {"to": other}),
    ):
        sent = client.post(f"/feedback/{text}/{act}", data={**fields, "form_token": token})
        assert sent.status_code == 303, act
        back = client.post(f"/feedback/{text}/undo", data={"form_token": token})
        assert back.status_code == 303, act
        text = urlsplit(back.headers["location"]).path.rpartition("/")[2]


def test_whoever_judges_with_a_key_is_named_and_is_no_operator(desk):
    client = desk.as_(desk.keys[Role.FEEDBACK])
    item = desk.unread()[0]
    assert desk.post(item, "judge", client, verdict="up").status_code == 303
    with desk.store.read() as conn:
        row = conn.execute(sa.select(feedback).where(feedback.c.origin == "inbox", feedback.c.kind == "thumb")).one()
    assert (row.source, row.author) == ("annotator", "feedback-key")
    assert row.key_id is not None


def test_a_key_that_may_judge_sees_the_inbox_and_nothing_else(desk):
    client = desk.as_(desk.keys[Role.FEEDBACK])
    item = desk.unread()[0]
    for path in ("/feedback", f"/feedback/{item}", f"/feedback/{item}.json", "/feedback.csv"):
        assert client.get(path).status_code == 200, path
    for path in ("/", "/sessions", "/keys", "/releases"):
        assert client.get(path).status_code == 401, path
    for path in ("/feedback", f"/feedback/{item}"):
        assert desk.as_(desk.keys[Role.DATA]).get(path).status_code == 401, path


def test_a_form_counts_only_for_whom_it_was_drawn_and_from_a_page_of_ours(desk):
    item = desk.unread()[0]
    token = desk.form(f"/feedback/{item}", "exclude")["form_token"]
    path = f"/feedback/{item}/exclude"
    before = desk.num_rows()
    other = desk.as_(desk.keys[Role.FEEDBACK])
    assert other.post(path, data={"form_token": token}).status_code == 400
    assert desk.client.post(path, data={}).status_code == 400
    assert desk.client.post(path, data={"form_token": "0" * 64}).status_code == 400
    assert desk.client.post(path, json={"form_token": token}).status_code == 400
    assert (
        desk.client.post(path, data={"form_token": token}, headers={"origin": "http://evil.example"}).status_code == 403
    )
    neighbour = {"origin": "http://127.0.0.1:9999"}  # another server on this machine: the browser would send the key
    assert desk.client.post(path, data={"form_token": token}, headers=neighbour).status_code == 403
    assert desk.client.post(path, data={"form_token": token}, headers={"host": "evil.example"}).status_code == 403
    assert (
        desk.client.post(path, data={"form_token": token}, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    )
    assert desk.client.get(path).status_code == 405
    assert desk.num_rows() == before
    own = {"origin": HERE}
    assert desk.client.post(path, data={"form_token": token}, headers=own).status_code == 303


def test_a_form_that_is_too_long_or_no_form_is_refused(desk):
    item = desk.unread()[0]
    token = desk.form(f"/feedback/{item}", "correct")["form_token"]
    for content in (b"form_token=" + token.encode() + b"&text=" + b"x" * 2**20, b"\xff\xfe", b"&&&=", b"text=%FF"):
        sent = desk.client.post(
            f"/feedback/{item}/correct",
            content=content,
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
        assert sent.status_code == 400
    assert desk.client.post(f"/feedback/{item}/explode", data={"form_token": token}).status_code == 404
    assert desk.client.post("/feedback/nope/exclude", data={"form_token": token}).status_code == 404


def test_a_store_that_does_not_take_it_is_said_so(desk, monkeypatch):
    item = desk.unread()[0]
    known = desk.form(f"/feedback/{item}", "exclude")

    def full(_write):
        raise OperationalError("INSERT", {}, Exception("database or disk is full"))

    monkeypatch.setattr(desk.store, "write", full)
    sent = desk.client.post(f"/feedback/{item}/exclude", data=known)
    assert sent.status_code == 503
    check_document(sent.text, "exclude")


def test_signing_in_asks_once_and_leads_back_to_where_one_was(desk):
    desk.app.state.access = Access("the-admin")  # no agent has a key yet: everybody on this machine may look
    looking = desk.as_(None)
    item = desk.unread()[0]
    page = looking.get(f"/feedback/{item}").text
    assert "<form" not in page
    assert f"/sign-in?to=%2Ffeedback%2F{item}" in page
    asked = looking.get(f"/sign-in?to=/feedback/{item}")
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Basic ")
    assert looking.get("/sign-in").status_code == 401
    known = desk.client.get(f"/sign-in?to=/feedback/{item}")
    assert (known.status_code, known.headers["location"]) == (302, f"/feedback/{item}")
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example", "/feedback\\@evil.example", ""):
        assert desk.client.get("/sign-in", params={"to": elsewhere}).headers["location"] == "/feedback"


def test_the_list_is_also_a_file(desk):
    reply = desk.client.get("/feedback.csv?state=text")
    assert reply.headers["content-type"] == "text/csv; charset=utf-8"
    assert reply.headers["content-disposition"] == 'attachment; filename="feedback.csv"'
    assert reply.headers["x-content-type-options"] == "nosniff"
    lines = reply.content.decode("utf-8-sig").splitlines()
    assert lines[0].startswith("key_type,key,name,kind,value,time,")
    assert len(lines) == 1 + 4  # three complaints and one that waits for its exchange
    assert 'href="/feedback.csv?state=text"' in desk.client.get("/feedback?state=text").text


def test_a_parked_item_says_what_it_waits_for(desk):
    [row] = desk.client.get("/feedback.json?state=parked").json()["data"]["rows"]
    page = desk.client.get(f"/feedback/{row['id']}").text
    check_document(page, "parked")
    assert "Its exchange has not arrived: external key to-come." in page
    assert "/judge" not in page


def test_marks_are_no_feedback_of_the_lists(desk):
    before = desk.client.get("/feedback.json?state=all").json()["data"]["counts"]
    for item in desk.unread()[:2]:
        desk.post(item, "exclude")
    after = desk.client.get("/feedback.json?state=all").json()["data"]
    assert after["counts"]["all"] == before["all"]
    assert after["counts"]["category"] == 0
    assert "category" not in {row["kind"] for row in after["rows"]}


@pytest.mark.parametrize("name", ["hostile", "recorded", "nights"])
def test_every_item_of_every_state_is_a_page(name, request):
    state = request.getfixturevalue(name)
    rows = state.client.get("/feedback.json?state=all").json()["data"]["rows"]
    for row in rows[:12]:
        reply = state.client.get(f"/feedback/{row['id']}")
        assert reply.status_code == 200
        check_document(reply.text, row["id"])
        for forbidden in ("<script>document", "<img", "<svg/onload", "\u202e", "\x1b"):
            assert forbidden not in reply.text
        assert state.client.get(f"/feedback/{row['id']}.json").status_code == 200
    assert state.client.get("/feedback/nope").status_code == 404
