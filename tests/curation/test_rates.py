"""Success rates from the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from traffic import fix_splits, record_session, say

from nightschool.curation.dataset import Wanted
from nightschool.curation.rates import success_rates
from nightschool.store.database import Store
from nightschool.types import FeedbackKind, Json


@pytest.fixture
def store(place: Path | str) -> Iterator[Store]:
    with Store.open(place) as opened:
        fix_splits(opened)
        yield opened


def rates(store: Store) -> Json:
    with store.read() as conn:
        return success_rates(conn, store.tenant, Wanted("shop", "", time.time() + 1))


def test_who_speaks_of_hard_requests_is_reweighed(store: Store) -> None:
    """Of easy requests (all fine) one in five is spoken of, of hard ones (none fine) every one; as many of each."""
    chance = Random(1)
    for number in range(160):
        hard = number % 2 == 1
        request = "my parcel never came" if hard else "what are your hours"
        polled = ("polled",) if number % 4 < 2 else ()
        record_session(store, request, number, session=f"s{number}", user=f"u{number}", flags=polled)
        if hard or chance.random() < 0.2:
            say(store, FeedbackKind.THUMB, not hard, f"u{number}", session=f"s{number}")
    found = rates(store)
    assert found["judged"] < found["replies"] < 160  # the gate's tenth is not looked at
    assert found["spoken"]["high"] < 0.4
    assert abs(found["stratified"]["rate"] - 0.5) < 0.15
    assert found["polled"]["low"] < 0.5 < found["polled"]["high"]
    assert found["polled"]["asked"] == pytest.approx(found["replies"] / 2, abs=8)


def test_nothing_said_nothing_known(store: Store) -> None:
    record_session(store, "hello", 1)
    found = rates(store)
    assert found["judged"] == 0
    assert all("why" in found[way] for way in ("spoken", "stratified", "polled"))
