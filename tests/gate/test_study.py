"""What a candidate's run saw becomes part of its verdict."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from nightschool.gate.study import study_of, warning
from nightschool.store.database import Store
from nightschool.store.schema import runs
from nightschool.types import Json

DIGEST = "a" * 64


def remember(store: Store, name: str, summary: Json, at: float, state: str = "done") -> None:
    row = {
        "tenant": store.tenant, "id": name, "agent": "shop", "objective": "sdpo", "state": state, "config": {},
        "summary": summary, "adapter_digest": DIGEST, "started_at": at, "updated_at": at,
    }  # fmt: skip
    store.write(lambda conn: conn.execute(sa.insert(runs), row))


def test_what_the_run_saw_is_found_by_its_adapter(tmp_path: Path) -> None:
    watch, audit = {"sentence": "It passed.", "stopped": None, "alarms": {}}, {"sentence": "It reads."}
    with Store.open(tmp_path / "store.sqlite") as store:
        with store.read() as conn:
            assert study_of(conn, store.tenant, DIGEST) is None
        remember(store, "r1", {"steps": 3}, 1.0)
        with store.read() as conn:
            assert study_of(conn, store.tenant, DIGEST) is None, "nobody distilled"
        remember(store, "r2", {"steps": 3, "watch": watch, "teacher_audit": audit}, 2.0)
        remember(store, "r3", {"watch": {"sentence": "It failed."}}, 3.0, state="failed")
        with store.read() as conn:
            assert study_of(conn, store.tenant, DIGEST) == {"run": "r2", "watch": watch, "teacher_audit": audit}
            assert study_of(conn, "another", DIGEST) is None


def test_a_verdict_s_sentence_ends_with_what_the_watch_has_against_it() -> None:
    assert warning(None) == warning({"watch": {"stopped": None, "alarms": {}}}) == ""
    assert warning({"watch": {"stopped": "doubt is lost", "alarms": {}}}) == (
        " Its run was stopped by the watch, and ends before what it saw."
    )
    alarms = {"5": ["entropy 0.50 of what it was, below 0.6"], "9": ["drift of 3.00 nats, above 2"]}
    assert warning({"watch": {"stopped": None, "alarms": alarms}}) == " While it studied: drift of 3.00 nats, above 2."
