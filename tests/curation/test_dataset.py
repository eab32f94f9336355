from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from traffic import busy_day, fix_splits, record_session, record_turn, release, say

from nightschool.curation.dataset import CurationRule, Dataset, Wanted, build_dataset, row_of, sample_of, spans
from nightschool.errors import TooLittleDataError
from nightschool.releases.aliases import BASE
from nightschool.store.database import Store
from nightschool.store.schema import exchanges, feedback, ledger, runs
from nightschool.types import FeedbackKind, LedgerState, Split

THUMB, TEXT = FeedbackKind.THUMB, FeedbackKind.TEXT
DIGEST = "a" * 64


@pytest.fixture
def store(place: Path | str) -> Iterator[Store]:
    with Store.open(place) as opened:
        fix_splits(opened)
        yield opened


def build(store: Store, anchor: str = BASE, rule: CurationRule | None = None) -> Dataset:
    with store.read() as conn:
        return build_dataset(conn, store.tenant, Wanted("shop", anchor, time.time() + 1, rule or CurationRule()))


def state_of(dataset: Dataset) -> dict[str, tuple[LedgerState, str]]:
    return {line.exchange_id: (line.state, line.reason) for line in dataset.lines}


def rows(store: Store) -> dict[str, sa.Row]:
    with store.read() as conn:
        return {row.id: row for row in conn.execute(sa.select(exchanges))}


def test_splits_are_respected_and_every_exchange_has_one_line(store: Store) -> None:
    busy_day(store, 120)
    dataset = build(store)
    stored = rows(store)
    assert Counter(line.exchange_id for line in dataset.lines) == Counter(stored.keys())
    for line in dataset.lines:
        split = Split(stored[line.exchange_id].split)
        if split == Split.TRAIN:
            expected = (LedgerState.HELD, "no feedback") if line.reward is None else (LedgerState.TRAINED, "trained")
        else:
            reason = "gate split" if split == Split.GATE else "select split: measures drift"
            expected = (LedgerState.HELD, reason)
        assert (line.state, line.reason) == expected
    train = {sample.id for sample in dataset.train}
    assert train == {row.id for row in stored.values() if row.id in train and row.split == "train"}
    assert not train.intersection(sample.id for sample in dataset.held_out)
    assert all(stored[sample.id].split != "gate" for sample in dataset.held_out)
    assert all(sample.reward is None for sample in dataset.held_out if stored[sample.id].split == "train")


def test_estimates_come_with_every_rated_row(store: Store) -> None:
    busy_day(store, 120)
    dataset = build(store)
    rated = [s for s in (*dataset.train, *dataset.held_out) if s.reward is not None]
    assert all(0 < s.annotations["p_lo"] < s.annotations["p_hat"] < 1 for s in rated)
    assert dataset.summary["success_model"]["rows"] == len(rated)
    assert dataset.summary["text_calibrator"] == {
        "used": False, "why": "0 sessions carry a text and a thumb; 30 would do.",
    }  # fmt: skip


def test_the_digest_names_the_content(store: Store) -> None:
    busy_day(store, 80)
    one, again = build(store), build(store, rule=CurationRule())
    assert one.rows.digest == again.rows.digest or one.as_of != again.as_of
    with store.read() as conn:
        fixed = [build_dataset(conn, store.tenant, Wanted("shop", BASE, one.as_of)).rows.digest for _ in range(2)]
    assert fixed[0] == fixed[1] == one.rows.digest
    record_session(store, "where is my parcel 5", seed=9999, user="newcomer-1")
    say(store, THUMB, True, session="session-9999")
    later = build(store)
    assert later.rows.digest != one.rows.digest


def test_rows_survive_the_file(store: Store) -> None:
    busy_day(store, 80)
    for sample in build(store).train:
        assert sample_of(json.loads(json.dumps(row_of(sample, "train")))) == ("train", sample)
    assert spans((True, False, True, True)) == [[0, 1], [2, 4]]
    assert spans((False,)) == []


def test_a_loud_principal_is_capped_to_the_newest(store: Store) -> None:
    busy_day(store, 100)
    for seed in range(5000, 5020):
        record_session(store, "please refund my order", seed, user="loud", at=time.time() - 500 + seed - 5000)
        say(store, THUMB, False, session=f"session-{seed}", author="loud")
    dataset = build(store)
    mine = [r for r in rows(store).values() if r.principal == "loud"]
    if mine[0].split != "train":
        pytest.skip("the secret split key put this user elsewhere")
    trained = [line for line in dataset.lines if line.session_id in {r.session_id for r in mine}]
    states = Counter(line.reason for line in trained)
    assert states == {"trained": 4, "influence cap": 36}  # two sessions of two exchanges; 1 % of 100 is below two
    newest = sorted({(row.started_at, row.session_id) for row in mine})[-3:]
    assert {line.session_id for line in trained if line.reason == "trained"} <= {session for _, session in newest}


def test_a_session_told_in_rows_has_one_vote(store: Store) -> None:
    """Three rows of one session: one judgement for the success model and the cap, each row told how many they are."""
    busy_day(store, 100)
    asked = {"role": "user", "content": "please refund my order"}
    for seed in range(5000, 5004):
        history = [asked]
        for turn in range(3):  # prompts that never extend each other, as where a template strips reasoning
            record_turn(
                store, list(history), f"r{turn}", (60, 61 + turn), (7, 2), session=f"session-{seed}", user="loud",
                at=time.time() - 500 + seed - 5000 + turn / 10,
            )  # fmt: skip
            history += [{"role": "assistant", "content": f"r{turn}"}, {"role": "user", "content": "and?"}]
        say(store, THUMB, True, session=f"session-{seed}", author="loud")
    one = busy_rows(store)
    dataset = build(store)
    assert dataset.summary["success_model"]["rows"] == one + 2  # what the cap holds back informs no estimate
    mine = {row.id for row in rows(store).values() if row.principal == "loud"}  # in the train split by the fixed key
    trained = [sample for sample in dataset.train if sample.id in mine]
    assert len(trained) == 6  # two sessions under the cap, three rows each
    assert {sample.annotations["num_rows"] for sample in trained} == {3.0}
    assert len({(sample.annotations["p_hat"], sample.annotations["p_lo"]) for sample in trained}) <= 2
    assert all("num_rows" not in sample.annotations for sample in dataset.train if sample.id not in mine)


def busy_rows(store: Store) -> int:
    """Judged sessions of the busy day that the success model may see."""
    stored = rows(store)
    with store.read() as conn:
        judged = {
            row.session_id
            for row in conn.execute(
                sa.select(feedback).where(sa.or_(feedback.c.author.is_(None), feedback.c.author != "loud"))
            )
        }
    return len({row.session_id for row in stored.values() if row.session_id in judged and row.split != "gate"})


def test_too_little_feedback_names_the_number(store: Store) -> None:
    busy_day(store, 20)
    with pytest.raises(TooLittleDataError, match="40 would do"):
        build(store)


def test_equal_thumbs_are_refused(store: Store) -> None:
    for seed in range(60):
        record_session(store, "hello", seed, user=f"u{seed}")
        say(store, THUMB, True, session=f"session-{seed}")
    with pytest.raises(TooLittleDataError, match="judgements are equal"):
        build(store)


def test_texts_become_soft_rewards_once_enough_pairs_exist(store: Store) -> None:
    busy_day(store, 60)
    for seed in range(7000, 7060):
        good = seed % 2 == 0
        record_session(store, "please refund my order", seed, user=f"writer-{seed}")
        say(store, TEXT, "thanks, great help" if good else "useless, still waiting", session=f"session-{seed}")
        if seed < 7040:
            say(store, THUMB, good, session=f"session-{seed}")
    dataset = build(store)
    used = dataset.summary["text_calibrator"]
    assert used["used"]
    assert used["brier"] < 0.1
    soft = [s for s in (*dataset.train, *dataset.held_out) if s.reward not in (None, 0.0, 1.0)]
    assert len(soft) > 10
    assert all(s.reward is not None and (s.reward > 0.8 or s.reward < 0.2) for s in soft)


def test_what_the_incumbents_line_has_learned_is_not_taught_again(store: Store) -> None:
    busy_day(store, 80)
    trained = [line for line in build(store).lines if line.state == LedgerState.TRAINED]
    release(store, DIGEST, None, 1)
    run = {
        "tenant": store.tenant, "id": "run", "agent": "shop", "objective": "oapl", "state": "done", "config": {},
        "summary": {}, "adapter_digest": DIGEST, "started_at": 0.0, "updated_at": 0.0,
    }  # fmt: skip
    store.write(lambda conn: conn.execute(sa.insert(runs), run))
    lines = [
        {
            "tenant": store.tenant, "run_id": "run", "exchange_id": line.exchange_id, "session_id": line.session_id,
            "state": "trained", "reason": "trained",
        }
        for line in trained
    ]  # fmt: skip
    store.write(lambda conn: conn.execute(sa.insert(ledger), lines))
    dataset = build(store, DIGEST)
    assert not dataset.train
    assert not {line.exchange_id for line in trained}.intersection(state_of(dataset))
    assert len(build(store, DIGEST, CurationRule(replay=True)).train) == len(trained) // 2


def test_what_is_too_old_says_so(store: Store) -> None:
    busy_day(store, 60, seed=1)
    for number in range(1, 4):
        release(store, str(number) * 64, None, number)
    busy_day(store, 60, seed=2, version="3" * 64)
    dataset = build(store, "3" * 64, CurationRule(max_staleness=2))
    stale = [line for line in dataset.lines if line.reason == "too stale"]
    assert {line.state for line in stale} == {LedgerState.EXCLUDED}
    # the base served three releases ago; its gate rows keep their own reason
    by_version = {row.id: row.policy_version for row in rows(store).values()}
    assert {by_version[line.exchange_id] for line in stale} == {"base"}
    assert {sample.policy_version for sample in dataset.train} == {"3" * 64}
