"""What a verdict tells of the held-out replies that the candidate's run scored."""

from __future__ import annotations

import numpy as np
import pytest
from exam_harness import CANDIDATE, INCUMBENT
from traffic import record_session

from nightschool.gate.exam import close_exam, open_exam
from nightschool.gate.logs import read_logs, what_logs_say
from nightschool.gate.off_policy import Logged, Standing
from nightschool.gate.verdicts import verdict_report
from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.types import Json


def made_by(store: Store, windows: list[list[Json]], parent: str | None = INCUMBENT) -> None:
    """The candidate comes from a run that scored these held-out rows, window by window."""
    row = {
        "tenant": store.tenant, "id": "run", "agent": "shop", "objective": "oapl", "state": "done",
        "parent_digest": parent, "adapter_digest": CANDIDATE, "config": {}, "started_at": 1.0, "updated_at": 1.0,
        "summary": {"windows": [{"held_out": rows} for rows in windows]},
    }  # fmt: skip
    t = schema.adapters
    store.write(lambda conn: conn.execute(schema.runs.insert().values(**row)))
    store.write(lambda conn: conn.execute(t.update().where(t.c.digest == CANDIDATE).values(run_id="run")))


def scored(exchange: str, ratio: float, reward: float = 1.0, version: str = INCUMBENT, **more: float) -> Json:
    return {"exchange": exchange, "version": version, "log_ratio": ratio, "reward": reward, "expected": None, **more}


def read(store: Store) -> Logged | None:
    with store.read() as conn:
        return read_logs(conn, store.tenant, CANDIDATE, INCUMBENT)


def test_ratios_of_windows_add_up_and_others_rows_stay_out(store: Store) -> None:
    first, second = (record_session(store, "Where is it?", seed, user=f"u{seed}")[-1] for seed in (1, 2))
    rows = [scored(first, 0.1, 1.0, expected=0.7), scored(second, -0.2, 0.0), scored("gone", 1.0)]
    made_by(store, [[*rows, scored(second, 9.0, version="other")], [scored(first, 0.05), scored(second, -0.1, 0.0)]])
    found = read(store)
    assert found is not None
    order = sorted([first, second])
    assert found.log_ratios == pytest.approx([{first: 0.15, second: -0.3}[name] for name in order])
    assert found.rewards.tolist() == [{first: 1.0, second: 0.0}[name] for name in order]
    assert found.clusters == [{first: "u1", second: "u2"}[name] for name in order]


@pytest.mark.parametrize("parent", [None, "2" * 64])
def test_a_candidate_made_from_something_else_has_no_logs(store: Store, parent: str | None) -> None:
    made_by(store, [[scored("x", 0.1)]], parent)
    assert read(store) is None
    assert what_logs_say(None) is None


def of(count: int, drift: float, gain: float = 0.0) -> Logged:
    """Replies whose chance rose were rated good more often, by as much as moves the mean reward by about `gain`."""
    rng = np.random.default_rng(3)
    ratios = rng.normal(-drift, np.sqrt(2 * drift), count)
    lift = gain / max(np.expm1(2 * drift), 1e-9) * np.expm1(ratios)
    rewards = (rng.random(count) < np.clip(0.6 + lift, 0, 1)).astype(float)
    return Logged(ratios, rewards, np.full(count, 0.6), [str(i) for i in range(count)])


def test_logs_that_are_close_tell_a_gain() -> None:
    told = what_logs_say(of(4000, 0.05, 0.02))
    assert told is not None
    assert told["standing"] is Standing.LEVEL
    assert told["gain"]["low"] < 0.02 < told["gain"]["high"]
    assert told["least"]["low"] < told["gain"]["value"]
    assert "gains +" in told["sentence"]


def test_logs_farther_off_tell_a_sign_and_no_size() -> None:
    told = what_logs_say(of(4000, 0.35, 0.1))
    assert told is not None
    assert (told["standing"], told["better"]) == (Standing.SIGN, True)
    assert "gain" not in told
    nothing = what_logs_say(of(4000, 0.35))
    assert nothing is not None
    assert not nothing["better"]


def test_a_handful_of_rows_tells_nothing_and_says_how_many_would() -> None:
    told = what_logs_say(of(24, 0.1))
    assert told is not None
    assert told["standing"] is Standing.REFUSE
    assert "of 200 needed" in told["sentence"]
    assert not {"gain", "better"} & told.keys()


def test_one_user_tells_nothing() -> None:
    told = what_logs_say(Logged(np.zeros(3), np.ones(3), np.zeros(3), ["ann"] * 3))
    assert told == {
        "standing": Standing.REFUSE,
        "sentence": "Held-out replies do not tell its gain: 3 of one user.",
        "rows": 3,
    }


def test_a_verdict_keeps_what_the_logs_say(store: Store, harness, customers, probe_suites) -> None:
    rows = [record_session(store, "Where is it?", seed, user=f"u{seed}")[-1] for seed in range(1, 9)]
    made_by(store, [[scored(name, 0.01 * place) for place, name in enumerate(rows)]])
    exam = open_exam(store, "shop", CANDIDATE)
    shop = harness(exam)
    for number, (mine, theirs) in enumerate(customers(120, 0.9, 0.5)):
        shop.session(CANDIDATE, f"c{number}", bool(mine))
        shop.session(INCUMBENT, f"c{number}", bool(theirs))
    shop.flush()
    verdict = close_exam(store, exam, probe_suites())
    with store.read() as conn:
        report = verdict_report(conn, store.tenant, verdict.id)
    assert report is not None
    assert report["logs"]["rows"] == 8
    assert report["logs"]["sentence"].startswith("Held-out replies do not tell its gain")
