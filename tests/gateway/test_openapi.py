"""The description of the gateway's own routes is true: each stands there, and any request gets an answer it names."""

from __future__ import annotations

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from nightschool.gateway.openapi import describe

ELSEWHERE = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")  # formats of others
NUM_EXAMPLES = 10


def test_every_route_is_described_and_nothing_else(gateway):
    found = {
        (route.path, method.lower())
        for route in gateway.app.routes
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert {(path, method) for path, methods in describe()["paths"].items() for method in methods} == found


def test_it_is_served_to_anybody(gateway):
    status, headers, raw = gateway.send("GET", "/openapi.json")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(raw) == describe()


OWN = sorted(
    (path, method)
    for path, methods in describe()["paths"].items()
    for method in methods
    if not path.startswith(ELSEWHERE)
)


@pytest.mark.parametrize(("path", "method"), OWN)
def test_any_request_gets_an_answer_that_is_described(gateway, path, method):
    schema = schemathesis.openapi.from_dict(describe())
    checks = [not_a_server_error, status_code_conformance, response_schema_conformance]

    operation = schema[path][method.upper()]

    @settings(max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case):
        case.call_and_validate(
            base_url=gateway.url, headers={"Authorization": f"Bearer {gateway.admin}"}, checks=checks, timeout=20
        )

    ask()
