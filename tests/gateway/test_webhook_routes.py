"""Outcomes that other systems sign and send, and evaluation events of OpenTelemetry exporters."""

import base64
import gzip
import hashlib
import hmac
import json
import time

import pytest
from databases import ON_BOTH
from gateway.test_feedback_routes import asked, listed

from nightschool.errors import ConfigError
from nightschool.feedback.otel import any_value, attributes, read_evaluations
from nightschool.feedback.paths import ABSENT, follow, parse_path
from nightschool.feedback.record import current_view, feedback_value
from nightschool.feedback.reward import Reward, RewardRule, combine
from nightschool.feedback.settings import feedback_settings
from nightschool.store.schema import feedback

DATABASES = ON_BOTH

SECRET = "whsec_" + base64.b64encode(b"sixteen bytes ok").decode()
TICKETS = {
    "secret_env": "TICKETS",
    "key": "$.ticket.id",
    "name": "reopened",
    "value": "$.ticket.reopened",
    "success": [False],
    "when": {"$.type": ["ticket.updated", "ticket.closed"]},
}
MERGED = {
    "secret_env": "GITHUB",
    "signature": "github",
    "key_type": "session",
    "key": "$.pull_request['head'].ref",
    "name": "$.action",
    "value": "$.pull_request.merged",
    "time": "$.pull_request.closed_at",
}
REFUNDS = {"secret_env": "STRIPE", "signature": "stripe", "key": "$.data.items[0].order", "name": "refund"}
REFUNDS |= {"value": "$.data.amount", "failure": [0, "none"]}
SETTINGS = feedback_settings(
    {"webhooks": {"tickets": TICKETS, "merged": MERGED, "refunds": REFUNDS}},
    {"TICKETS": SECRET, "GITHUB": "hub", "STRIPE": "stripe"},
)


@pytest.fixture
def gateway(open_gateway):
    return open_gateway(feedback=SETTINGS)


def deliver(gateway, name: str, document, headers: dict[str, str]):
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    status, _, reply = gateway.send("POST", f"/v1/webhooks/{name}", raw, headers)
    return status, json.loads(reply)


def standard(document, delivery: str = "evt-1", at: float | None = None, key: bytes = b"sixteen bytes ok"):
    stamp = str(int(time.time() if at is None else at))
    signed = f"{delivery}.{stamp}.".encode() + json.dumps(document).encode()
    mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": delivery, "webhook-timestamp": stamp, "webhook-signature": f"v1,AAAA v1,{mac}"}


def ticket(number: int = 7, reopened: object = True, kind: str = "ticket.updated") -> dict:
    return {"type": kind, "ticket": {"id": number, "reopened": reopened}}


def test_an_outcome_days_later_finds_its_ticket_and_means_what_the_settings_say(gateway):
    exchange = asked(gateway, **{"External-Key": "7"})
    assert deliver(gateway, "tickets", ticket(), standard(ticket()))[1]["exchange"] == exchange
    [row] = listed(gateway, f"exchange={exchange}")
    # reopened: true is a failure, which a bare `true` would not be
    assert (row["kind"], row["name"], row["value"]) == ("outcome", "reopened", {"reopened": True, "success": False})
    assert (row["source"], row["author"], row["origin"]) == ("code", "webhook tickets", "webhook")
    with gateway.store.read() as conn:
        items = current_view(map(feedback_value, conn.execute(feedback.select()).all()))
    assert combine(items, RewardRule()) == Reward(0.0, "outcome")


def test_a_delivery_sent_again_succeeds_and_counts_once(gateway):
    """A sender that missed the answer tries again until it gets a success; it must not give up on an error."""
    headers = standard(ticket())
    status, first = deliver(gateway, "tickets", ticket(), headers)
    assert (status, first["state"], first["repeated"]) == (202, "parked", False)
    assert deliver(gateway, "tickets", ticket(), headers) == (202, first | {"repeated": True})
    signed_anew = standard(ticket(), at=time.time() + 1)
    assert deliver(gateway, "tickets", ticket(), signed_anew) == (202, first | {"repeated": True})
    exchange = asked(gateway, **{"External-Key": "7"})
    status, matched = deliver(gateway, "tickets", ticket(), headers)
    assert (status, matched["id"], matched["exchange"], matched["repeated"]) == (200, first["id"], exchange, True)
    assert len(listed(gateway, f"exchange={exchange}")) == 1
    assert listed(gateway, "state=parked") == []


@pytest.mark.parametrize("other", [ticket(8), ticket(reopened=False)])
def test_a_delivery_id_belongs_to_its_first_content(gateway, other):
    assert deliver(gateway, "tickets", ticket(), standard(ticket()))[0] == 202
    status, reply = deliver(gateway, "tickets", other, standard(other))
    assert (status, reply["error"]["code"]) == (409, "idempotency_key_taken")
    [row] = listed(gateway, "state=parked")
    assert (row["target_id"], row["value"]) == ("7", {"reopened": True, "success": False})


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (standard(ticket(), at=time.time() - 400), ticket()),
        (standard(ticket(), at=time.time() + 40_000), ticket()),  # made when the tests are collected
        (standard(ticket(), key=b"another"), ticket()),
        (standard(ticket()), ticket(8)),
        (standard(ticket()) | {"webhook-id": "evt-2"}, ticket()),
        (standard(ticket()) | {"webhook-timestamp": "now"}, ticket()),
        ({}, ticket()),
    ],
)
def test_what_the_sender_did_not_sign_is_refused(gateway, headers, body):
    status, reply = deliver(gateway, "tickets", body, headers)
    assert (status, reply["error"]["code"]) == (403, "refused")
    assert listed(gateway, "state=parked") == []


def test_other_deliveries_are_ignored_and_incomplete_ones_refused(gateway):
    other = ticket(kind="ticket.created")
    assert deliver(gateway, "tickets", other, standard(other)) == (200, {"state": "ignored"})
    for broken in ({"type": "ticket.updated"}, ticket(reopened=None), ticket() | {"ticket": {"id": True}}):
        assert deliver(gateway, "tickets", broken, standard(broken))[0] == 400
    assert deliver(gateway, "nobody", ticket(), standard(ticket()))[0] == 404
    assert listed(gateway, "state=parked") == []


def test_senders_that_sign_as_code_hosts_and_payment_services_do(gateway):
    body = {"action": "closed", "pull_request": {"head": {"ref": "fix-9"}, "merged": True}}
    body["pull_request"]["closed_at"] = "2026-03-01T12:00:00Z"
    raw = json.dumps(body).encode()
    headers = {"X-Hub-Signature-256": "sha256=" + hmac.new(b"hub", raw, hashlib.sha256).hexdigest()}
    assert deliver(gateway, "merged", raw, headers)[0] == 202
    assert deliver(gateway, "merged", raw, headers)[1]["repeated"] is True
    paid = json.dumps({"data": {"items": [{"order": "o-1"}], "amount": 12.5}}).encode()
    stamp = str(int(time.time()))
    mac = hmac.new(b"stripe", f"{stamp}.".encode() + paid, hashlib.sha256).hexdigest()
    assert deliver(gateway, "refunds", paid, {"Stripe-Signature": f"t={stamp},v1=00,v1={mac}"})[0] == 202
    first, second = listed(gateway, "state=parked")
    # Without `success` and `failure` nothing says what the value means: no verdict.
    assert (first["target_kind"], first["target_id"], first["value"]) == ("session", "fix-9", {"closed": True})
    assert first["observed_at"] == 1772366400.0  # 2026-03-01T12:00:00Z
    assert (second["target_id"], second["value"]) == ("o-1", {"refund": 12.5, "success": True})


def test_paths():
    document = {"a": {"b c": [{"d": 0}]}}
    assert follow(document, parse_path("$.a['b c'][0].d")) == 0
    assert follow(document, parse_path("$")) == document
    for missing in ("$.a.x", "$.a['b c'][1]", "$.a['b c'].d", "$.a[0]"):
        assert follow(document, parse_path(missing)) is ABSENT
    for wrong in ("a.b", "$.", "$a", "$[x]", "$.a[-1]", ""):
        with pytest.raises(ConfigError):
            parse_path(wrong)


@pytest.mark.parametrize(
    "change",
    [{"secret_env": "UNSET"}, {"key": "ticket.id"}, {"signature": "rot13"}, {"key_type": "turn"}, {"nmae": "x"}],
)
def test_settings_that_cannot_work_stop_the_start(change):
    with pytest.raises(ConfigError):
        feedback_settings({"webhooks": {"tickets": TICKETS | change}}, {"TICKETS": "x"})
    with pytest.raises(ConfigError):
        feedback_settings({"parked_days": 0}, {})
    assert feedback_settings({"parked_days": 0.5}, {}).parked_s == 43_200.0


def log_record(**more) -> dict:
    """An evaluation in OTLP's own form: typed pairs."""
    pairs = [
        {"key": "gen_ai.evaluation.name", "value": {"stringValue": "Relevance"}},
        {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.25}},
        {"key": "gen_ai.evaluation.score.label", "value": {"stringValue": "poor"}},
        {"key": "gen_ai.evaluation.explanation", "value": {"stringValue": "Beside the point."}},
        {"key": "gen_ai.response.id", "value": {"stringValue": " chatcmpl-1 "}},  # stray spaces, as seen
    ]
    return {"timeUnixNano": "1772366400500000000", "eventName": "gen_ai.evaluation.result", "attributes": pairs} | more


def export(*records: dict, service: str = "grader") -> dict:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": list(records)}]}]}


FACTS = {
    "gen_ai.evaluation.name": "Relevance",
    "gen_ai.evaluation.score.value": 0.25,
    "gen_ai.evaluation.score.label": "poor",
    "gen_ai.evaluation.explanation": "Beside the point.",
    "gen_ai.response.id": "chatcmpl-1",
}
NESTED = {
    "gen_ai": {
        "evaluation": {"name": "Relevance", "score": {"value": "0.25", "label": "poor"}},
        "response": {"id": "chatcmpl-1"},
    },
    "gen_ai.evaluation.explanation": "Beside the point.",
}


@pytest.mark.parametrize(
    "record",
    [
        log_record(),
        log_record(attributes=FACTS),
        log_record(attributes=json.dumps(FACTS)),
        log_record(attributes=NESTED),
        log_record(attributes=[], body={"kvlistValue": {"values": log_record()["attributes"]}}),
        log_record(attributes=[], body={"stringValue": json.dumps(NESTED)}),
        log_record(eventName=None, attributes=FACTS | {"event.name": "gen_ai.evaluation.result"}),
    ],
)
def test_an_evaluation_reads_alike_in_every_encoding(record):
    found = read_evaluations(export(record))
    [item] = found.items
    assert found.refused == ()
    assert (item.target_kind, item.target_id, item.kind, item.value) == ("exchange", "chatcmpl-1", "number", 0.25)
    assert (item.name, item.source, item.author, item.observed_at) == ("Relevance", "judge", "grader", 1772366400.5)
    assert item.evidence == {"label": "poor", "explanation": "Beside the point."}


def test_typed_values():
    assert any_value({"intValue": "-7"}) == -7
    assert any_value({"arrayValue": {"values": [{"boolValue": False}, {"doubleValue": "0.5"}]}}) == [False, 0.5]
    assert attributes([{"key": "a", "value": {"kvlistValue": {"values": [{"key": "b", "value": {}}]}}}]) == {
        "a": {"b": {}}
    }
    assert attributes("no json") == {}


def test_labels_and_explanations_stand_alone_and_the_rest_is_refused_with_its_reason():
    def facts(**more):
        return log_record(attributes={"gen_ai.evaluation.name": "tone", "gen_ai.conversation.id": "s1"} | more)

    found = read_evaluations(
        export(
            facts(**{"gen_ai.evaluation.score.label": "fail"}),
            facts(**{"gen_ai.evaluation.explanation": "Rude."}),
            facts(**{"gen_ai.evaluation.score.value": "NaN"}),
            facts(),
            log_record(attributes={}),
            log_record(attributes={"gen_ai.evaluation.name": "tone", "gen_ai.evaluation.score.value": 1}),
            {"body": {"stringValue": "an ordinary line"}},
        )
    )
    assert [(i.target_kind, i.kind, i.value) for i in found.items] == [
        ("session", "category", "fail"),
        ("session", "text", "Rude."),
    ]
    assert len(found.refused) == 4


def test_exporters_send_json_plain_and_packed(gateway):
    exchange = asked(gateway)
    headers = {"Authorization": f"Bearer {gateway.admin}"}
    raw = json.dumps(export(log_record(), log_record(attributes={}))).encode()
    status, _, reply = gateway.send("POST", "/v1/logs", raw, headers)
    assert (status, json.loads(reply)["partialSuccess"]["rejectedLogRecords"]) == (200, 1)
    again = gateway.send("POST", "/v1/logs", gzip.compress(raw), headers | {"Content-Encoding": "gzip"})
    assert again[0] == 200
    [row] = listed(gateway, f"exchange={exchange}")
    assert (row["value"], row["origin"], row["evidence"]["label"]) == (0.25, "otel", "poor")
    assert gateway.send("POST", "/v1/logs", raw)[0] == 401
    assert gateway.send("POST", "/v1/logs", b"no gzip", headers | {"Content-Encoding": "gzip"})[0] == 400
    bomb = gzip.compress(b" " * (9 * 2**20))
    assert gateway.send("POST", "/v1/logs", bomb, headers | {"Content-Encoding": "gzip"})[0] == 413


def test_a_real_exporter_reports_an_evaluation(gateway):
    """The default exporter of the OpenTelemetry SDK: protobuf over HTTP."""
    from opentelemetry._logs import LogRecord
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
    from opentelemetry.sdk.resources import Resource

    exchange = asked(gateway)
    exporter = OTLPLogExporter(f"{gateway.url}/v1/logs", headers={"Authorization": f"Bearer {gateway.admin}"})
    provider = LoggerProvider(Resource({"service.name": "grader"}), shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    facts = {
        "gen_ai.evaluation.name": "tone",
        "gen_ai.evaluation.score.value": 0.5,
        "gen_ai.response.id": "chatcmpl-1",
    }
    record = LogRecord(
        timestamp=1_772_366_400_500_000_000,
        trace_id=int("0af7651916cd43dd8448eb211c80319c", 16),
        span_id=int("b7ad6b7169203331", 16),
        event_name="gen_ai.evaluation.result",
        attributes=facts,
    )
    provider.get_logger("grader").emit(record)
    provider.shutdown()
    [row] = listed(gateway, f"exchange={exchange}")
    assert (row["value"], row["name"], row["author"], row["origin"]) == (0.5, "tone", "grader", "otel")
    assert row["evidence"] == {"trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331"}


def test_protobuf(gateway):
    messages = pytest.importorskip("opentelemetry.proto.collector.logs.v1.logs_service_pb2")
    from google.protobuf.json_format import ParseDict

    exchange = asked(gateway)
    raw = ParseDict(export(log_record()), messages.ExportLogsServiceRequest()).SerializeToString()
    headers = {"Authorization": f"Bearer {gateway.admin}", "content-type": "application/x-protobuf"}
    status, found, reply = gateway.send("POST", "/v1/logs", raw, headers)
    assert (status, found["content-type"], reply) == (200, "application/x-protobuf", b"")
    [row] = listed(gateway, f"exchange={exchange}")
    assert (row["value"], row["name"]) == (0.25, "Relevance")
    assert gateway.send("POST", "/v1/logs", b"\xff\xff", headers)[0] == 400
