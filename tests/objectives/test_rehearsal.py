import json

from nightschool.curation.written import REHEARSAL
from nightschool.gate.probes import load_probes
from nightschool.objectives.oapl import OaplRule, annotate_rehearsal
from nightschool.types import Sample


def test_rehearsed_conversations_ask_for_no_change():
    sample = Sample("r", (1, 2), (False, True), (False, True), annotations={"temperature": 1.0})
    (kept,) = annotate_rehearsal([sample], OaplRule(beta=0.25), weight=0.5)
    # advantage 0: the residual beta * LR - 0 vanishes exactly where the anchor is
    assert kept.annotations == {"temperature": 1.0, "value": 0.0, "advantage": 0.0, "beta": 0.25, "floor": -3.0}
    assert kept.weight == 0.5


def test_what_is_rehearsed_is_not_what_the_gate_asks():
    rehearsed = {m["content"] for line in REHEARSAL.read_text().splitlines() for m in json.loads(line)["messages"]}
    asked = {m["content"] for probe in load_probes() for m in probe.messages if m["role"] == "user"}
    answers = {probe.reference for probe in load_probes()}
    assert len(rehearsed) > 80
    assert not rehearsed & (asked | answers)
