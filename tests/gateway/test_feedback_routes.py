import json
import time

import pytest
from databases import ON_BOTH

from nightschool.client import Client
from nightschool.errors import InputError, MissingError, RefusedError
from nightschool.feedback.settings import FeedbackSettings
from nightschool.store import schema

DATABASES = ON_BOTH

ASK = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}
DATA = "data-secret"


def post(gateway, body: dict | bytes, token: str | None = None):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, reply = gateway.send("POST", "/v1/feedback", raw, {"Authorization": f"Bearer {token or gateway.admin}"})
    return status, json.loads(reply)


def listed(gateway, query: str) -> list[dict]:
    status, _, reply = gateway.send("GET", f"/v1/feedback?{query}")
    assert status == 200
    return json.loads(reply)["feedback"]


def asked(gateway, **headers: str) -> str:
    """The id of a stored exchange."""
    _, reply, _ = gateway.chat(ASK, {f"X-Nightschool-{name}": value for name, value in headers.items()})
    gateway.recorded(reply["x-nightschool-exchange"])
    return reply["x-nightschool-exchange"]


def test_client_in_one_line_by_every_name(gateway):
    exchange = asked(gateway, Session="s1", **{"External-Key": "ticket-7"})
    client = Client(gateway.url, gateway.admin)
    receipts = [
        *client.feedback(exchange=exchange, thumb=True, text="Quick and kind."),
        *client.feedback(exchange="chatcmpl-1", number=0.5),
        *client.feedback(external_key="ticket-7", outcome={"refunded": True}, source="code"),
    ]
    assert [(r["state"], r["exchange"], r["repeated"]) for r in receipts] == [("matched", exchange, False)] * 4
    [receipt] = client.feedback(session="s1", correction="Say the date.", author="ann", confidence=0.9)
    assert (receipt["exchange"], receipt["session"]) == (None, receipts[0]["session"])
    rows = listed(gateway, "session=s1")
    assert [(r["kind"], r["value"], r["current"]) for r in rows] == [
        ("thumb", True, True),
        ("text", "Quick and kind.", True),
        ("number", 0.5, True),
        ("outcome", {"refunded": True}, True),
        ("correction", "Say the date.", True),
    ]
    assert len(listed(gateway, f"exchange={exchange}")) == 4


def test_every_kind_and_target_in_one_line_each(gateway):
    exchange = asked(gateway, Session="s1", **{"External-Key": "ticket-7"})
    client = Client(gateway.url, gateway.admin)
    said = [
        {"exchange": exchange, "number": 4, "scale": (1, 5)},
        {"exchange": exchange, "category": "wrong amount"},
        {"session": "s1", "turn": 1, "preference": {"chosen": {"text": "Yes."}, "rejected": {"choice": 0}}},
        {"session": "s1", "turn": "last", "thumb": False, "evidence": {"ticket": 9}},
        {"external_key": "ticket-7", "outcome": {"success": False}, "source": "code"},
    ]
    receipts = [client.feedback(**one)[0] for one in said]
    assert [receipt["exchange"] for receipt in receipts] == [exchange] * 5
    fixed = client.feedback(exchange=exchange, number=2, scale=(1, 5), supersedes=receipts[0]["id"])[0]
    status, _, reply = gateway.send("GET", "/v1/feedback?target=ticket-7")
    reply = json.loads(reply)
    assert status == 200
    assert [row["kind"] for row in reply["feedback"]] == [
        "number", "category", "preference", "thumb", "outcome", "number",
    ]  # fmt: skip
    assert [row["id"] for row in reply["current"]] == [*(r["id"] for r in receipts[1:]), fixed["id"]]
    last = reply["feedback"][-1]
    assert (last["value"], last["scale"], last["supersedes"]) == (2, [1.0, 5.0], receipts[0]["id"])
    assert [row["turn"] for row in listed(gateway, "session=s1&turn=1")] == [1]
    assert gateway.send("GET", "/v1/feedback?session=s1&turn=x")[0] == 400
    assert gateway.send("GET", "/v1/feedback?session=s1&exchange=e")[0] == 400
    assert gateway.send("GET", "/v1/feedback")[0] == 400


def test_parked_feedback_shows_when_it_expires(open_gateway):
    gateway = open_gateway(feedback=FeedbackSettings(parked_s=3600.0))
    before = time.time()
    assert post(gateway, {"exchange": "never", "kind": "thumb", "value": True})[0] == 202
    [row] = listed(gateway, "state=parked")
    assert before + 3600 <= row["expires_at"] <= time.time() + 3600
    assert listed(gateway, "state=expired") == []
    expire = schema.feedback.update().values(expires_at=before)
    gateway.store.write(lambda conn: conn.execute(expire))
    assert listed(gateway, "state=parked") == []
    assert [(row["state"], row["value"]) for row in listed(gateway, "state=expired")] == [("expired", True)]


def test_early_feedback_is_parked_visible_and_then_found(gateway):
    early = [
        post(gateway, {"session": "s9", "kind": "thumb", "value": "down"}),
        post(gateway, {"exchange": "chatcmpl-1", "kind": "number", "value": 3}),
        post(gateway, {"external_key": "t9", "kind": "text", "value": "No."}),
    ]
    assert [(status, reply["state"]) for status, reply in early] == [(202, "parked")] * 3
    assert [row["value"] for row in listed(gateway, "state=parked")] == [False, 3, "No."]
    exchange = asked(gateway, Session="s9", **{"External-Key": "t9"})
    assert listed(gateway, "state=parked") == []
    assert [row["exchange_id"] for row in listed(gateway, "session=s9")] == [None, exchange, exchange]
    # The same delivery again, after it was matched, is still that delivery.
    status, reply = post(gateway, {"exchange": "chatcmpl-1", "kind": "number", "value": 3})
    assert (status, reply["repeated"], reply["exchange"]) == (200, True, exchange)


def test_repeated_delivery_counts_once_and_a_key_is_taken_once(gateway):
    exchange = asked(gateway)
    body = {"exchange": exchange, "kind": "thumb", "value": True, "idempotency_key": "k1"}
    first, again = post(gateway, body)[1], post(gateway, body)[1]
    assert (first["id"], first["repeated"], again["repeated"]) == (again["id"], False, True)
    status, reply = post(gateway, body | {"value": False})
    assert (status, reply["error"]["code"]) == (409, "idempotency_key_taken")
    assert len(listed(gateway, f"exchange={exchange}")) == 1


def test_without_a_key_a_retry_counts_once_and_a_mind_may_change(gateway):
    exchange = asked(gateway)
    repeats = []
    for value in (True, True, False, False, True):
        repeats.append(post(gateway, {"exchange": exchange, "kind": "thumb", "value": value})[1]["repeated"])
    assert repeats == [False, True, False, True, False]
    rows = listed(gateway, f"exchange={exchange}")
    assert [(row["value"], row["current"]) for row in rows] == [(True, False), (False, False), (True, True)]


def test_client_retries_count_once(gateway, monkeypatch):
    exchange = asked(gateway)
    client = Client(gateway.url, gateway.admin)
    import urllib.request

    real, calls = urllib.request.urlopen, []

    def loses_the_first_answer(request, timeout):
        calls.append(request)
        response = real(request, timeout=timeout)
        if len(calls) == 1:
            response.close()
            raise ConnectionResetError("the answer was lost")
        return response

    monkeypatch.setattr(urllib.request, "urlopen", loses_the_first_answer)
    [receipt] = client.feedback(exchange=exchange, thumb=False)
    assert (len(calls), receipt["repeated"]) == (2, True)
    assert len(listed(gateway, f"exchange={exchange}")) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "smile"},
        {"value": None},
        {"value": True},
        {"value": "five"},
        {"kind": "thumb", "value": 1},
        {"kind": "thumb", "value": "sideways"},
        {"kind": "text", "value": "  "},
        {"kind": "correction", "value": {}},
        {"kind": "outcome", "value": None},
        {"confidence": 1.5},
        {"observed_at": 9e12},
        {"session": "s1"},
        {"exchange": None},
        {"source": "somebody"},
        {"scale": [1]},
        {"scale": [1, 1]},
        {"scale": [2, 5]},
        {"scale": [0, True]},
        {"kind": "thumb", "value": True, "scale": [0, 1]},
        {"kind": "category", "value": ""},
        {"kind": "category", "value": 3},
        {"kind": "preference", "value": {"chosen": {"choice": 0}}},
        {"kind": "preference", "value": {"chosen": {"choice": 0}, "rejected": {"choice": 0}}},
        {"kind": "preference", "value": {"chosen": {"choice": True}, "rejected": {"text": "x"}}},
        {"kind": "preference", "value": {"chosen": "better", "rejected": {"text": "x"}}},
        {"turn": 1},
        {"exchange": None, "session": "s", "turn": 0},
        {"exchange": None, "session": "s", "tool_call": 0},
        {"tool_call": -1},
        {"tool_call": ""},
        {"supersedes": "nope"},
        {"evidence": 3},
        {"unknown": 1},
    ],
)
def test_wrong_bodies_are_refused(gateway, change):
    status, reply = post(gateway, {"exchange": "e", "kind": "number", "value": 1} | change)
    assert (status, reply["error"]["code"]) == (400, "invalid_request")
    assert listed(gateway, "state=parked") == []


@pytest.mark.parametrize("raw", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b'"NaN"'])
def test_no_number_is_never_stored(gateway, raw):
    assert post(gateway, b'{"exchange": "e", "kind": "number", "value": ' + raw + b"}")[0] == 400
    assert post(gateway, b'{"exchange": "e", "kind": "outcome", "value": {"x": [' + raw + b"]}}")[0] in (400, 202)
    assert not [row for row in listed(gateway, "state=parked") if row["kind"] == "number"]


def test_client_says_what_is_wrong(gateway):
    client = Client(gateway.url, gateway.admin)
    for said in ({"thumb": True}, {"exchange": "e"}, {"exchange": "e", "session": "s", "thumb": True}):
        with pytest.raises(InputError):
            client.feedback(**said)
    with pytest.raises(InputError):
        client.feedback(exchange="e", number=float("nan"))
    with pytest.raises(InputError, match="one by one"):
        client.feedback(exchange="e", thumb=True, text="x", name="csat")
    with pytest.raises(RefusedError):
        Client(gateway.url, "wrong").feedback(exchange="e", thumb=True)


def test_client_without_a_gateway(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _s: None)
    with pytest.raises(MissingError, match="Nothing answers"):
        Client("http://127.0.0.1:9", "x").feedback(exchange="e", thumb=True)


def test_tokens(open_gateway):
    gateway = open_gateway(data_token=DATA)
    body = {"exchange": "e", "kind": "thumb", "value": True}
    assert post(gateway, body, "wrong")[0] == 401
    assert gateway.send("POST", "/v1/feedback", json.dumps(body).encode())[0] == 401
    assert post(gateway, body, DATA)[0] == 202
    # With a data token set, loopback is no longer enough to chat or read.
    assert gateway.chat(ASK)[0] == 401
    assert gateway.send("GET", "/v1/feedback?state=parked")[0] == 401
    assert gateway.chat(ASK, {"Authorization": f"Bearer {DATA}"})[0] == 200


def test_failed_commit_is_no_success(gateway, monkeypatch):
    from concurrent.futures import Future

    from nightschool.errors import StoreError

    def refuse(_write):
        future: Future = Future()
        future.set_exception(StoreError("Nothing was written.", "The disk is full.", "nightschool doctor"))
        return future

    monkeypatch.setattr(gateway.store, "submit", refuse)
    status, reply = post(gateway, {"exchange": "e", "kind": "thumb", "value": True})
    assert (status, reply["error"]["code"]) == (503, "store_unavailable")


@pytest.fixture
def exam(open_gateway):
    """A gateway with a data token and an open exam; headers that enter it."""
    gateway = open_gateway(data_token=DATA)
    row = {"tenant": "default", "id": "x1", "agent": "shop", "candidate": "base", "incumbent": "base"}
    row |= {"rule": {}, "state": "open", "opened_at": 1.0}
    gateway.store.write(lambda conn: conn.execute(schema.exams.insert(), row))
    headers = {"X-Nightschool-Exam": "x1", "X-Nightschool-Session": "s1", "Authorization": f"Bearer {gateway.admin}"}
    return gateway, lambda: gateway.chat(ASK | {"model": "shop@base"}, headers)[1]["x-nightschool-exchange"]


def read(gateway, query: str) -> list[dict]:
    headers = {"Authorization": f"Bearer {gateway.admin}"}
    return json.loads(gateway.send("GET", f"/v1/feedback?{query}", None, headers)[2])["feedback"]


def test_exam_takes_outcomes_from_the_administrator_alone(exam):
    gateway, ask = exam
    exchange = ask()
    gateway.recorded(exchange)
    outcome = {"exchange": exchange, "kind": "outcome", "value": 1}
    assert post(gateway, outcome, DATA)[0] == 403
    assert post(gateway, outcome | {"kind": "thumb", "value": True})[0] == 403
    assert post(gateway, {"session": "s1", "kind": "outcome", "value": 1}, DATA)[0] == 403
    assert post(gateway, outcome)[0] == 200


def test_nobody_judges_an_exam_in_advance(exam):
    gateway, ask = exam
    for kind, value in (("outcome", 1), ("thumb", True)):
        assert post(gateway, {"session": "s1", "kind": kind, "value": value}, DATA)[0] == 202
    assert post(gateway, {"session": "s1", "kind": "outcome", "value": 0, "source": "code"})[0] == 202
    gateway.recorded(ask())
    rows = read(gateway, "session=s1")
    assert [(row["state"], row["value"], row["current"]) for row in rows] == [
        ("refused", 1, False),
        ("refused", True, False),
        ("matched", 0, True),
    ]


def test_a_name_means_service_before_exams(exam):
    gateway, ask = exam
    served = gateway.chat(ASK, {"X-Nightschool-Session": "s1", "Authorization": f"Bearer {DATA}"})[1]
    gateway.recorded(served["x-nightschool-exchange"])
    gateway.recorded(ask())  # the exam's session has the same name, and is newer
    status, reply = post(gateway, {"session": "s1", "kind": "thumb", "value": True}, DATA)
    assert (status, reply["state"]) == (200, "matched")
    assert reply["session"] == gateway.recorded(served["x-nightschool-exchange"]).session_id
