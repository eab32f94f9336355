"""The real runs at hand come in completely, as they are, once."""

import json
import zlib
from collections import Counter

import sqlalchemy as sa

from nightschool.feedback.record import load_feedback
from nightschool.store import schema
from nightschool.store.sessions import find_session
from nightschool.store.tree import load_branch
from nightschool.types import FeedbackKind, Fidelity


def conversations(store):
    """Every imported conversation whole, by its key: the log's bytes and all its messages."""
    items, x = schema.import_items.c, schema.exchanges.c
    found = {}
    with store.read() as conn:
        for row in conn.execute(sa.select(schema.import_items)).all():
            if row.session_id is None:
                continue
            last = conn.execute(
                sa.select(x.id, x.prompt_message).where(x.session_id == row.session_id).order_by(x.started_at.desc())
            ).first()
            reply = conn.execute(
                sa.select(schema.choices.c.message_hash).where(schema.choices.c.exchange_id == last.id)
            ).scalar()
            found[row.key] = (zlib.decompress(row.raw), load_branch(conn, store.tenant, row.leaf or reply))
        assert conn.scalar(sa.select(sa.func.count()).select_from(schema.import_items)) == len(
            set(conn.scalars(sa.select(items.digest)))
        )
    return found


def test_tau_bench(store, imported, data, rows):
    path = data / "tau_bench" / "gpt-4o-airline.json"
    runs = json.loads(path.read_bytes())
    report = imported(path)
    # 1,290 replies with text and 1,164 with calls
    assert report.taken == {"sessions": 200, "exchanges": 2454, "feedback": 200}
    assert (report.format, report.records, report.refused.total(), report.merged.total()) == ("tau_bench", 200, 0, 0)
    content = path.read_bytes()
    kept = conversations(store)
    assert len(kept) == 200
    for raw, messages in kept.values():
        run = json.loads(raw)
        assert raw in content
        assert list(messages) == run["traj"]
    assert Counter(json.dumps(json.loads(raw)) for raw, _ in kept.values()) == Counter(map(json.dumps, runs))
    exchanges = rows("exchanges")
    assert {row.fidelity for row in exchanges} == {Fidelity.TEXT}
    outcomes = Counter(row.value for row in rows("feedback"))
    assert outcomes == {0.0: 116, 1.0: 84}
    # the four trials of a task are of one split
    splits = {}
    for row in exchanges:
        splits.setdefault(row.principal, set()).add(row.split)
    assert len(splits) == 50
    assert {len(found) for found in splits.values()} == {1}
    before = {name: len(rows(name)) for name in schema.metadata.tables}
    again = imported(path)
    assert again.taken.total() == 0
    assert again.merged == report.taken
    assert {name: len(rows(name)) for name in schema.metadata.tables} == before


def test_agentrx_and_its_labels_in_any_order(store, imported, data, rows):
    folder = data / "agentrx"
    labels = imported(folder / "tau_ground_truth.json")
    # 29 runs: 39 failures, a root cause each
    assert labels.taken["feedback"] == labels.parked == 39 + 29
    failed = imported(folder / "tau_dataset_failed.json")
    assert (failed.taken["sessions"], failed.merged.total()) == (29, 0)
    full = imported(folder / "tau_dataset_full.json")
    assert (full.taken["sessions"], full.merged["sessions"]) == (73, 27)
    assert {raw.state for raw in rows("feedback") if raw.target_id.endswith("step-3")} == {"matched"}
    kept = conversations(store)
    runs = {run["task_id"]: run for name in ("failed", "full") for run in json.loads(
        (folder / f"tau_dataset_{name}.json").read_bytes())}  # fmt: skip
    assert len(kept) == len(runs) == 102
    for raw, messages in kept.values():
        assert list(messages) == runs[json.loads(raw)["task_id"]]["traj"]
    with store.read() as conn:
        session = find_session(conn, store.tenant, "agentrx:2")
        said = load_feedback(conn, store.tenant, [str(session)])
    # run 2: failures at steps 3 and 7, the second one its root cause, and reward 0
    assert Counter(item.kind for item in said) == {FeedbackKind.CATEGORY: 3, FeedbackKind.OUTCOME: 1}


def test_labels_after_their_runs_find_the_reply_they_are_about(store, imported, data, rows):
    folder = data / "agentrx"
    imported(folder / "tau_dataset_failed.json")
    report = imported(folder / "tau_ground_truth.json")
    assert (report.parked, report.refused.total()) == (0, 0)
    assert all(row.exchange_id for row in rows("feedback") if row.kind != "outcome")


def test_who_and_when(store, imported, data, rows):
    files = sorted((data / "who_and_when").glob("*.json"))
    total = Counter()
    for path in files:
        record = json.loads(path.read_bytes())
        report = imported(path)
        assert (report.format, report.refused.total(), report.parked) == ("who_and_when", 0, 0)
        replies = [m for m in record["history"] if m["name"] in record["system_prompt"]]
        assert report.taken == {"sessions": 1, "exchanges": len(replies), "feedback": 2}
        total += report.taken
    assert total["sessions"] == len(files) == 84
    raws = {zlib.decompress(row.raw) for row in rows("import_items")}
    assert raws == {path.read_bytes().strip() for path in files}
    culprits = [row for row in rows("feedback") if row.name == "culprit"]
    assert len(culprits) == 84
    assert all(row.exchange_id for row in culprits)
    for path in files:
        assert imported(path).taken.total() == 0
