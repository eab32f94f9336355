import dataclasses
import json

import pytest

from nightschool.errors import ConfigError
from nightschool.gate import rule as r


def test_survives_the_store():
    rule = dataclasses.replace(r.default_rule(80, 0.025), looks=(0.25, 1.0))
    assert r.rule_from_json(json.loads(json.dumps(r.rule_as_json(rule)))) == rule


def test_what_the_default_sees_is_stated_with_it():
    sees = r.rule_as_json(r.default_rule())["sees"]
    # (t(0.95, 119) + about 0.845) * deviation / sqrt(120): 2.5 * 20 / 10.95 = 4.57 points for validity
    assert sees["tool-call validity"] == pytest.approx(4.57, abs=0.02)
    # 2.5 * 0.25 / sqrt(72) = 0.074 nats per token; the margin is 0.10
    assert sees["OOD probes, likelihood"] == pytest.approx(0.074, abs=0.001)
    # 2.5 * 60 / 10.95 = 13.7 hundredths of a logarithm, 14.7 percent
    assert sees["reply length"] == pytest.approx(14.7, abs=0.1)


def test_a_stricter_error_sees_less_and_says_so():
    strict = r.default_rule(120, 0.01)
    assert r.statement(strict).endswith("wrongly promotes an equal candidate at most 1 in 100.")
    assert r.rule_as_json(strict)["sees"][r.SUCCESS] > r.rule_as_json(r.default_rule())["sees"][r.SUCCESS]


def test_configuration():
    rule = r.rule_from_config({"customers": 60, "alpha": 0.02, "probes": False, "margins": {r.LENGTH: 15}})
    assert (rule.customers, rule.alpha, rule.suite(r.LENGTH).margin) == (60, 0.02, 15)
    assert rule.suite(r.VALIDITY).margin == r.default_rule().suite(r.VALIDITY).margin
    assert all(suite.source == "exam" for suite in rule.suites)
    assert r.rule_from_config({}) == r.default_rule()


@pytest.mark.parametrize(
    "section",
    [
        {"custmers": 60},
        {"customers": 7},
        {"alpha": 0.0},
        {"looks": [0.5]},
        {"looks": [0.5, 0.2, 1.0]},
        {"looks": []},
        {"margins": {"politeness": 3}},
        {"margins": {r.LENGTH: -1}},
    ],
)
def test_configuration_out_of_range(section):
    with pytest.raises(ConfigError):
        r.rule_from_config(section)


def test_suites_have_names_of_their_own():
    rule = r.default_rule()
    with pytest.raises(ConfigError, match="not distinct"):
        dataclasses.replace(rule, suites=(*rule.suites, rule.suites[0]))
