"""What a run saw of its teacher, as the page of the run tells it."""

from __future__ import annotations

from nightschool.dashboard.taught import taught
from nightschool.objectives.teacher import AuditRule, Item, audit, sentence


def item(name: str, accepted: bool, told: float) -> Item:
    alone = (-1.0,) * 10
    return Item(name, name, ("texts",), accepted, alone, (-1.0 + told, *alone[1:]), alone)


def test_an_audit_and_a_watch_are_told() -> None:
    rows = [item(f"up{n}", True, 1.0 + n / 100) for n in range(12)]
    rows += [item(f"down{n}", False, -1.0 - n / 100) for n in range(12)] + [item("idle", False, 0.0)]
    report = audit(rows, AuditRule(), 5.0).report
    told = taught({"steps": 3, "teacher_audit": {**report, "sentence": sentence(report)}, "watch": {"sentence": "So."}})
    assert told is not None
    assert told["sentences"][1] == "So."
    assert [line["name"] for line in told["table"]] == ["all, behind its words", "all, beside another reply's words"]
    # 12 against 13, told apart without an error; the interval is that of tied rows beside them
    assert told["table"][0]["area"].startswith("1.00 [0.")
    assert told["table"][0]["rows"] == "12 and 13"
    assert told["table"][0]["passed"] == "passed"
    assert told["left_out"] == [{"reason": "teacher check: another reply's words do as much", "rows": "1"}]


def test_other_runs_have_nothing_to_tell() -> None:
    assert taught({"steps": 3}) is None
    assert taught(None) is None
