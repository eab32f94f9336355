from collections.abc import Callable, Iterator

import numpy as np
import pytest
from exam_harness import CANDIDATE, INCUMBENT, Harness

from nightschool.gate.rule import PROBE_ANSWERS, PROBE_LIKELIHOOD
from nightschool.gate.suites import Pairs
from nightschool.releases.aliases import start
from nightschool.store import schema
from nightschool.store.database import Store


@pytest.fixture
def store(place) -> Iterator[Store]:
    with Store.open(place) as opened:
        for digest in (INCUMBENT, CANDIDATE):
            row = {"digest": digest, "agent": "shop", "manifest": {}, "created_at": 1.0}
            opened.write(lambda conn, row=row: conn.execute(schema.adapters.insert().values(tenant="default", **row)))
        start(opened, "shop", INCUMBENT, by="test")
        yield opened


@pytest.fixture
def harness(store) -> Callable[..., Harness]:
    return lambda exam_id, **fields: Harness(store, exam_id, **fields)


@pytest.fixture
def customers() -> Callable[..., list[tuple[bool, bool]]]:
    """Outcomes of n customers whose ease is shared by both arms: correlated, as people are."""

    def draw(n: int, candidate: float, incumbent: float, seed: int = 0) -> list[tuple[bool, bool]]:
        rng = np.random.default_rng(seed)
        hard = rng.random(n)
        mine, theirs = (np.where(rng.random(n) < 0.25, hard, rng.random(n)) for _ in range(2))
        return list(zip(mine < candidate, theirs < incumbent, strict=True))

    return draw


@pytest.fixture
def probe_suites() -> Callable[..., tuple[Pairs, Pairs]]:
    """Probe results of a candidate that is `shift` nats a token away from the incumbent."""

    def make(shift: float = 0.0, num_scored: int = 72, right: int = 20) -> tuple[Pairs, Pairs]:
        noise = np.random.default_rng(5).normal(0, 0.15, 72)
        scored = tuple((f"p{i}", -1.0 + shift + float(noise[i]), -1.0) for i in range(num_scored))
        answers = tuple((f"p{i}", float(i < right), float(i < 20)) for i in range(24))
        return Pairs(PROBE_LIKELIHOOD, scored), Pairs(PROBE_ANSWERS, answers)

    return make
