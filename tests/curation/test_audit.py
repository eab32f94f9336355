"""Audits in the store, and what a run asks of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from traffic import audited, fix_splits, record_session, say

from nightschool.curation.audit import make_audit, newest_audit, require_audit
from nightschool.curation.dataset import CurationRule
from nightschool.errors import RefusedError
from nightschool.feedback.body import NewFeedback
from nightschool.feedback.record import insert_feedback
from nightschool.rendering.renderer import Renderer
from nightschool.store.database import Store
from nightschool.types import FeedbackKind, TargetKind


@pytest.fixture
def store(place: Path | str) -> Iterator[Store]:
    with Store.open(place) as opened:
        fix_splits(opened)
        yield opened


def trusted(store: Store, session: str, success: bool) -> None:
    """What an operator found out later."""
    item = NewFeedback(
        TargetKind.SESSION, session, FeedbackKind.OUTCOME, {"success": success}, name="outcome", author="desk",
        source="operator",
    )  # fmt: skip
    store.write(lambda conn: insert_feedback(conn, store.tenant, item, admin=False, now=time.time()))


def lived(store: Store, sessions: int = 60, lies: bool = False) -> None:
    """Sessions with a thumb and an operator's outcome; with `lies` the thumb says nothing."""
    for number in range(sessions):
        name = f"s{number}"
        record_session(store, f"request {number}", number, 7 + number % 2, session=name, user=f"user {number}")
        good = number % 2 == 0
        say(store, FeedbackKind.THUMB, number % 4 < 2 if lies else good, f"user {number}", session=name)
        trusted(store, name, good)


def test_an_audit_measures_and_is_kept(store: Store, renderer: Renderer) -> None:
    lived(store)
    made = make_audit(store, "shop", CurationRule(), renderer)
    checks = {check["name"]: check for check in made["checks"]}
    assert made["passed"]
    assert checks["noise"]["value"] == pytest.approx(1.0)
    assert checks["noise"]["rows"] == made["rows"] > 40  # the gate's tenth is not looked at
    with store.read() as conn:
        found = newest_audit(conn, store.tenant, "shop")
        assert found is not None
        assert found["checks"] == made["checks"]
        assert newest_audit(conn, store.tenant, "other") is None
        assert newest_audit(conn, "elsewhere", "shop") is None
        assert require_audit(conn, store.tenant, "shop", 60)["id"] == made["id"]


def test_a_reward_that_says_nothing_stops_runs(store: Store, renderer: Renderer) -> None:
    # sensitivity + specificity - 1 is 0 within 1.96 sqrt(0.25 / 100 + 0.25 / 100) = 0.14 on 200, below the 0.2 of use
    lived(store, sessions=220, lies=True)
    assert not make_audit(store, "shop", CurationRule(), renderer)["passed"]
    with store.read() as conn, pytest.raises(RefusedError, match="the reward is broken"):
        require_audit(conn, store.tenant, "shop", 60)


def test_runs_ask_for_one_that_is_recent_and_saw_enough(store: Store) -> None:
    def refusal(rewards: int) -> str:
        with store.read() as conn, pytest.raises(RefusedError) as refused:
            require_audit(conn, store.tenant, "shop", rewards)
        assert "nightschool audit --agent shop" in str(refused.value.next_step)
        return str(refused.value.why)

    assert "Nobody has looked" in refusal(50)
    audited(store, rewards=50, made_at=time.time() - 8 * 86_400)
    assert "8 days old" in refusal(50)
    audited(store, rewards=50)
    assert "saw 50 rewards, and there are 101" in refusal(101)
    with store.read() as conn:
        assert require_audit(conn, store.tenant, "shop", 100)["rows"] == 50
