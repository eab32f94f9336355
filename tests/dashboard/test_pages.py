"""Every page in every state: answers first, is one document, carries its headers, says the same as its JSON."""

import base64
import re
import time
from html.parser import HTMLParser

import pytest
from dashboard import states
from dashboard.conftest import FACTS, State
from starlette.applications import Starlette
from starlette.testclient import TestClient

from nightschool.access.identity import Access
from nightschool.dashboard.app import CSP, build_dashboard
from nightschool.dashboard.pages import index_page
from nightschool.dashboard.queries.scope import Scope
from nightschool.jobs.alive import LEASE_S
from nightschool.store import schema
from nightschool.store.database import Store

LISTS = ["/", "/sessions", "/feedback", "/feedback?state=parked", "/ledger", "/imports", "/keys", "/runs", "/releases"]
STATES = ["empty", "twelve", "waiting", "nights", "recorded", "hostile"]
# words that name a thing of the design otherwise, and phrases its language forbids
FORBIDDEN = re.compile(
    r"\b(oops|successfully|significant|please|chat thread|annotation|deploy(ed)?|we|our)\b", re.IGNORECASE
)
VOID = {"meta", "link", "input", "br", "img", "use"}


class Outline(HTMLParser):
    """What matters of a document: elements, attributes, text outside scripts, and whether its tags close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, str] = {}
        self.feed(html)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.texts[tag] = self.texts.get(tag, "") + data

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.tags)


def details(state: State) -> list[str]:
    """Pages of single things in this state."""
    client = state.client
    found = []
    for row in client.get("/sessions.json").json()["data"]["rows"][:8]:
        found += [f"/sessions/{row['id']}{view}" for view in ("", "?view=tokens", "?view=raw")]
    found += [f"/runs/{row['id']}" for row in client.get("/runs.json").json()["data"]["rows"]]
    for section in client.get("/releases.json").json()["data"]["sections"]:
        found += [f"/verdicts/{row['verdict']['id']}" for row in section["rows"] if row["verdict"]]
    return found


@pytest.mark.parametrize("name", STATES)
def test_every_page_answers_in_one_sentence_and_keeps_its_headers(name, request) -> None:
    state: State = request.getfixturevalue(name)
    paths = [*LISTS, *details(state)]
    assert len(paths) >= {"empty": 9, "twelve": 33, "waiting": 14, "nights": 41, "recorded": 33, "hostile": 33}[name]
    for path in paths:
        reply = state.client.get(path)
        assert reply.status_code == 200, path
        check_document(reply.text, path)
        assert reply.headers["content-security-policy"] == CSP
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert reply.headers["cache-control"] == "no-store"


def check_document(html: str, path: str) -> Outline:
    page = Outline(html)
    assert page.count("h1") == 1, path
    sentence = " ".join(page.texts["h1"].split())
    assert sentence.endswith((".", "…", ")")) or "<script>" in sentence, (path, sentence)
    landmarks = {"header", "nav", "main", "footer"} - {tag for tag, _ in page.tags}
    assert not landmarks, (path, landmarks)
    assert ("a", {"class": "skip", "href": "#main"}) in page.tags
    assert page.count("table") == page.count("caption"), path
    for tag, attributes in page.tags:
        assert "style" not in attributes, (path, tag)
        assert not [key for key in attributes if key.startswith(("on", "hx-on"))], (path, attributes)
        for key in ("href", "src", "action"):
            target = attributes.get(key) or "/"
            assert target.startswith(("/", "#")), (path, target)
            assert not target.startswith("//"), (path, target)
    scripts = {attributes.get("src", "").partition("?")[0] for tag, attributes in page.tags if tag == "script"}
    assert scripts <= {
        f"/static/{name}" for name in ("htmx.min.js", "inbox.js", "live.js", "plots.js", "uPlot.iife.min.js")
    }
    identifiers = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers)), path
    return page


@pytest.mark.parametrize("name", STATES)
def test_every_page_is_also_json_with_the_same_answer(name, request) -> None:
    state: State = request.getfixturevalue(name)
    for path in [*LISTS, *details(state)]:
        bare, mark, query = path.partition("?")
        url = f"{'/index' if bare == '/' else bare}.json{mark}{query}"
        body = state.client.get(url).json()
        assert body["schema"] == 1
        sentence = Outline(state.client.get(path).text).texts["h1"]
        if "so far" not in sentence and name != "hostile":
            assert " ".join(sentence.split()) == " ".join(body["answer"].split())
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", body["as_of"])


def test_numbers_on_a_page_are_those_of_its_json(nights) -> None:
    page = nights.client.get("/").text
    data = nights.client.get("/index.json").json()["data"]
    for row in data["releases"]:
        assert f">{row['text']}<" in page
        assert row["since_text"] is None or f">{row['since_text']}<" in page
        assert f">{row['judged']}</a>" in page
    for item in data["heard"]:
        assert f'<td class="num">{item["count"]}</td>' in page
    verdict = f"/verdicts/{nights.ids['refused']}"
    report = nights.client.get(f"{verdict}.json").json()["data"]["report"]
    text = nights.client.get(verdict).text
    for suite in report["suites"]:
        assert suite["name"] in text
        assert f"{suite['reading']}</span>" in text
        low = f"{abs(suite['low']):.1f}" if abs(suite["difference"]) < 10 else f"{abs(suite['low']):.0f}"
        assert suite["unit"] == "nats per token" or low in text


def test_times_in_json_are_utc(nights) -> None:
    data = nights.client.get("/index.json").json()["data"]
    assert data["serving"]["since_at"].endswith("Z")
    assert data["last_night"]["run"]["started_at"].endswith("Z")


ABSENT = ["/sessions/nope", "/runs/nope", "/verdicts/nope", "/exchanges/nope", "/exchanges/nope/reply.txt", "/nights"]


@pytest.mark.parametrize("name", STATES)
def test_what_is_not_here_is_said_so(name, request) -> None:
    state: State = request.getfixturevalue(name)
    # an empty store shows every agent the first steps
    for path in ABSENT if name == "empty" else [*ABSENT, "/agents/nope"]:
        reply = state.client.get(path)
        assert reply.status_code == 404
        check_document(reply.text, path)
        assert reply.headers["content-security-policy"] == CSP


def test_a_refusal_in_json_names_the_next_step(empty) -> None:
    reply = empty.client.get("/runs/nope.json")
    assert reply.status_code == 404
    assert reply.json()["error"] == {
        "what": "There is no run “nope”.",
        "why": "The store holds no run with this id; it may belong to another state folder.",
        "next": "nightschool status",
    }


def test_odd_parameters_are_no_errors(nights) -> None:
    session = nights.client.get("/sessions.json").json()["data"]["rows"][0]["id"]
    queries = [
        "after=x", "after=nan,x", "after=1e999,x", "from=yesterday", "to=9999-12-31", "seen=x", "outcome=x", "has=x",
        "q=" + "%F0%9F" * 300, "release=%00", "q=%ED%A0%80", "q='%20or%201=1--",
    ]  # fmt: skip
    for query in queries:
        assert nights.client.get(f"/sessions?{query}").status_code == 200, query
        assert nights.client.get(f"/feedback?{query}").status_code == 200, query
    for query in (
        "x=nope",
        "branch=nope",
        "from=0",
        "from=99999999999",
        "from=-3",
        "view=x",
        "view=tokens&token=9999",
        "from=²",
    ):
        assert nights.client.get(f"/sessions/{session}?{query}").status_code == 200, query


def test_an_exchange_leads_to_its_place_in_its_session(nights) -> None:
    exchange = nights.ids[f"exchanges {states.V1}"][0][1]
    reply = nights.client.get(f"/exchanges/{exchange}")
    assert reply.status_code == 302
    target, _, anchor = reply.headers["location"].partition("#")
    assert anchor == f"x-{exchange}"
    assert f'id="{anchor}" class="message assistant selected"' in nights.client.get(target).text


def test_a_session_is_also_found_by_its_clients_name(nights) -> None:
    reply = nights.client.get("/sessions/shop-fork")
    assert reply.status_code == 302
    page = nights.client.get(reply.headers["location"]).text
    assert "×2 identical" in page
    assert "No reply, 502: The engine did not answer." in page
    assert ">Sub-agent<" in page  # another opening in the same session
    assert "Your parcel is still on its way" in page


def test_raw_bodies_are_plain_text_byte_for_byte(nights) -> None:
    exchange = nights.ids[f"exchanges {states.V1}"][0][1]
    reply = nights.client.get(f"/exchanges/{exchange}/request.txt")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.json()["model"] == states.AGENT


def test_strangers_text_is_text(hostile) -> None:
    for path in [*LISTS, *details(hostile)]:
        html = hostile.client.get(path).text
        assert "<script>document" not in html, path
        assert "<img" not in html, path
        assert "<svg/onload" not in html, path
        assert "\u202e" not in html, path
        assert "\x1b" not in html, path
    first = hostile.client.get(f"/exchanges/{hostile.ids['exchanges'][0]}").headers["location"]
    assert "&lt;script&gt;document" in hostile.client.get(first).text
    template = hostile.client.get(f"/exchanges/{hostile.ids['exchanges'][5]}").headers["location"]
    assert "{{ 7 * 7 }} ${7*7}" in hostile.client.get(template).text


def test_a_long_complaint_is_all_there_behind_a_disclosure(hostile) -> None:
    location = hostile.client.get(f"/exchanges/{hostile.ids['exchanges'][-1]}").headers["location"]
    html = hostile.client.get(location).text
    # "It is broken. " is 14 characters, 7,200 times: 100,800, of which 2,000 are shown at once
    assert "<summary>98,800 more characters</summary>" in html
    assert html.count("It is broken.") >= 7_200 - 2  # cut between the two parts at most once, plus preview and tree


def test_the_words_are_those_of_the_design(nights, twelve, empty) -> None:
    for state in (nights, twelve, empty):
        for path in [*LISTS, *details(state)]:
            html = state.client.get(path).text
            text = re.sub(r"<(q|code|pre)\b.*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL)
            spoken = text.replace("please do not send", "").replace("Please", "").replace("please", "")
            assert not FORBIDDEN.search(spoken), (path, FORBIDDEN.search(spoken))


def test_an_unchanged_page_is_not_sent_again(nights) -> None:
    html = nights.client.get("/releases").text
    seen = re.search(r'data-seen="(\w+)"', html)
    assert seen
    again = nights.client.get("/releases", headers={"X-Nightschool-Seen": seen[1]})
    assert (again.status_code, again.content) == (204, b"")
    assert nights.client.get("/releases", headers={"X-Nightschool-Seen": "other"}).status_code == 200


def test_a_page_is_asked_for_more_often_while_a_run_goes_on(nights, twelve) -> None:
    assert 'data-every="5"' in nights.client.get("/").text
    assert 'data-every="5"' in nights.client.get(f"/runs/{nights.ids['running']}").text
    assert 'data-every="30"' in nights.client.get(f"/runs/{nights.ids[states.V2]}").text
    assert 'data-every="30"' in twelve.client.get("/").text


def test_static_files_are_a_fixed_list(empty) -> None:
    css = re.search(r'href="(/static/style\.css\?v=\w+)"', empty.client.get("/").text)
    assert css
    reply = empty.client.get(css[1])
    assert reply.headers["content-type"].startswith("text/css")
    assert "immutable" in reply.headers["cache-control"]
    assert empty.client.get("/static/style.css").headers["cache-control"] == "no-cache"
    for name in ("..%2fapp.py", "app.py", "%2e%2e"):
        assert empty.client.get(f"/static/{name}").status_code == 404
    for name in ("LICENSE-htmx.txt", "LICENSE-uPlot.txt"):
        assert "ermission" in empty.client.get(f"/static/{name}").text


def test_the_first_page_shows_this_gateways_address_and_waits(empty) -> None:
    page = empty.client.get("/").text
    assert FACTS["base_url"] in page
    assert "Waiting for the first exchange" in page
    assert "nightschool demo" in page


def test_what_waits_for_a_person_comes_with_its_command(waiting) -> None:
    page = waiting.client.get("/").text
    assert f"nightschool promote {states.V2[:12]}" in page
    assert f"/verdicts/{waiting.ids['verdict']}" in page
    assert "run</a> was interrupted" in page
    assert "<title>(2) v1 · support-shop · Nightschool</title>" in page


def test_a_broken_store_is_said_so_and_the_log_knows_why(tmp_path, caplog) -> None:
    with Store.open(tmp_path / "store.sqlite") as store:
        store.write(lambda conn: conn.exec_driver_sql("DROP TABLE sessions"))
        client = TestClient(Starlette(routes=build_dashboard(store, dict)))
        reply = client.get("/sessions")
        as_json = client.get("/sessions.json")
    assert reply.status_code == as_json.status_code == 503
    page = check_document(reply.text, "/sessions")
    reference = re.search(r"Reference (\w{8})", page.texts["main"])
    assert reference
    assert reference[1] in caplog.text
    assert "no such table" in caplog.text
    assert "no such table" not in reply.text


HERE = "http://127.0.0.1:8700"


def basic(password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}


def test_beyond_this_machine_only_the_admin_token_opens_the_pages(twelve) -> None:
    app = Starlette(routes=build_dashboard(twelve.store, dict))
    app.state.access = Access("the-admin", "the-agents")
    client = TestClient(app, HERE, client=("127.0.0.1", 5000))
    for path in ("/", "/sessions", "/sessions.json", "/runs/nope", "/nights"):
        closed = client.get(path)
        assert closed.status_code == 401
        assert closed.headers["www-authenticate"].startswith("Basic ")
        assert "support-shop" not in closed.text
        assert client.get(path, headers=basic("the-agents")).status_code == 401
    assert client.get("/", headers=basic("the-admin")).status_code == 200
    assert client.get("/", headers={"authorization": "Bearer the-admin"}).status_code == 200
    assert client.get("/", headers={"authorization": "Basic !!"}).status_code == 401


def test_on_this_machine_without_a_data_token_the_pages_are_open(twelve) -> None:
    app = Starlette(routes=build_dashboard(twelve.store, dict))
    app.state.access = Access("the-admin")
    assert TestClient(app, HERE, client=("127.0.0.1", 5000)).get("/").status_code == 200
    assert TestClient(app, HERE, client=("192.0.2.7", 5000)).get("/").status_code == 401
    assert TestClient(app, "http://night.example", client=("127.0.0.1", 5000)).get("/").status_code == 401


def test_nothing_can_be_changed_here(nights) -> None:
    for path in LISTS:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert nights.client.request(method, path).status_code == 405
        assert "<button" not in nights.client.get(path).text.replace("<button>Filter sessions</button>", "")


def test_a_file_of_feedback_is_an_import_like_others(tmp_path):
    from nightschool.feedback.importing import import_table

    file = tmp_path / "tickets.csv"
    file.write_text("key_type,key,kind,value\nexchange,x,thumb,up\nexchange,x,thumb,sideways\n")
    with Store.open(tmp_path / "store.sqlite") as store:
        import_table(store, file, 1_772_366_400.0, False)
        told = TestClient(Starlette(routes=build_dashboard(store, lambda: dict(FACTS)))).get("/imports")
    assert told.status_code == 200
    assert "tickets.csv" in told.text
    assert "line 3" in told.text


def test_the_overview_asks_for_a_decision_on_a_killed_run(twelve) -> None:
    row = {"tenant": "default", "id": "r-2", "agent": "support-shop", "objective": "oapl", "state": "running"}
    row |= {"config": {}, "summary": {}, "started_at": time.time() - 600, "updated_at": time.time() - LEASE_S - 5}
    twelve.store.write(lambda conn: conn.execute(schema.runs.insert().values(**row)))
    try:
        with twelve.store.read() as conn:
            page = index_page(conn, Scope("default", time.time(), {}), {})
        assert [(item["kind"], item["run"]["id"]) for item in page.data["decisions"]] == [("run", "r-2")]
        assert "nightschool train --resume r-2" in twelve.client.get("/").text
    finally:
        twelve.store.write(lambda conn: conn.execute(schema.runs.delete()))
