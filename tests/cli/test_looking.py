"""status, explain, doctor and models, on stores in every condition."""

import json
import os
import sqlite3

import pytest
from exam_harness import CANDIDATE, INCUMBENT, Harness
from traffic import record_session, record_turn

from nightschool.cli.main import main
from nightschool.store.database import Store
from nightschool.store.schema import adapters, exchanges, ledger, runs
from nightschool.types import Purpose


def check(document, name):
    return next(found for found in document["data"]["checks"] if found["name"] == name)


def test_no_store_names_the_next_command(run):
    for words in (("status",), ("explain", "x"), ("gate", "80c2"), ("promote", "80c2"), ("rollback",), ("train",)):
        told = run(*words)
        assert told.code == 5
        assert "nightschool up" in told.err


def test_an_empty_store_has_an_answer(run, state):
    Store.open(state / "store.sqlite").close()
    told = run("status", "--json")
    assert (told.code, told.document["answer"]) == (0, "assistant: No exchanges yet.")
    assert run("status").err == "nightschool up\n"


def test_status_says_the_dashboards_sentence(run, store):
    harness = Harness(store, None, Purpose.SERVE)
    for number in range(3):
        harness.session(INCUMBENT, f"customer {number}")
    harness.flush()
    told = run("status")
    assert told.out.startswith("shop: Not enough data on v1: 0 of 30 judged sessions.\n")
    assert "recording\t3 exchanges in 24 h\tnot running: nightschool up" in told.out
    assert "v1 serving\tmissing\t\t0 of 30\tnot enough data" in told.out
    assert run("status", "--agent", "bank").code == 5


def test_status_says_which_tokens_may_train(run, store):
    record_session(store, "where is my parcel", seed=1)  # two replies of three tokens
    record_turn(store, [{"role": "user", "content": "hi"}], "a", (3,), (7, 2), status="truncated")
    told = run("status", "--json").document["data"]["kept"]["shop"]
    assert (told["sampled_tokens"], told["kept_tokens"], told["share"]) == (8, 6, 0.75)
    assert "tokens\t75 % of 8 sampled tokens in 24 h may train\ttruncated 25 %" in run("status").out


def test_explain_tells_whether_a_prompt_was_written_anew(run, store):
    """B14: a template that strips reasoning begins the second prompt differently."""
    ask = [{"role": "user", "content": "hi"}]
    history = [*ask, {"role": "assistant", "content": "a"}, {"role": "user", "content": "more"}]
    for name, second in (("kept", (3, 4, 50, 5, 2, 6)), ("stripped", (3, 4, 5, 2, 6))):
        record_turn(store, ask, "a", (3, 4), (50, 5, 2), session=name)
        last = record_turn(store, history, "b", second, (7, 2), session=name)
        told = "6 tokens, 5 of them" if name == "kept" else "5 tokens, none of them"
        assert f"context\t{told} as the turn before it left them" in run("explain", last).out


def test_explain_tells_what_every_run_did(run, store):
    harness = Harness(store, None, Purpose.SERVE)
    harness.session(INCUMBENT, "customer", {"success": True})
    harness.flush()
    with store.read() as conn:
        exchange = conn.scalar(exchanges.select().with_only_columns(exchanges.c.id))
        session = conn.scalar(exchanges.select().with_only_columns(exchanges.c.session_id))
    assert f"Exchange {exchange}: Not yet looked at by any run." in run("explain", exchange).out

    row = {"id": "r-18", "agent": "shop", "objective": "oapl", "state": "done", "config": {}, "summary": {}}
    times = {"adapter_digest": CANDIDATE, "started_at": 1.0, "updated_at": 2.0}
    line = {
        "run_id": "r-18",
        "exchange_id": exchange,
        "session_id": session,
        "state": "held",
        "reason": "influence cap",
    }

    def write(conn):
        conn.execute(runs.insert().values(tenant="default", **row, **times))
        conn.execute(ledger.insert().values(tenant="default", **line, reward=0.25))

    store.write(write)
    told = run("explain", exchange)
    assert told.out.startswith(f"Exchange {exchange}: Held by run r-18: influence cap.\n")
    assert "r-18\toapl\theld\tinfluence cap\t0.25\t" in told.out
    assert '{"success": true}' in told.out
    assert run("explain", exchange, "--json").document["data"]["ledger"][0]["state"] == "held"
    missing = run("explain", "x-44e0")
    assert (missing.code, missing.err.splitlines()[0]) == (5, "There is no exchange x-44e0.")


def test_doctor_before_the_first_start(run):
    told = run("doctor", "--json")
    assert told.code == 0
    assert told.document["answer"].startswith("All 11 checks passed")
    assert check(told.document, "store")["state"] == "note"


def test_doctor_finds_an_open_token_a_damaged_store_and_a_changed_adapter(run, store, state):
    (state / "token").write_text("ns-admin-x\n")
    os.chmod(state / "token", 0o644)
    told = run("doctor", "--json")
    assert told.code == 5
    assert check(told.document, "token")["mend"].startswith(f"rm {state / 'token'}")
    # v1 serves, and its folder is not there
    assert check(told.document, "adapters")["mend"] == "nightschool rollback --agent shop"
    assert told.document["answer"].startswith("2 of 11 checks failed")
    assert run("doctor").out.splitlines()[2].startswith("broken\t"), "failures come first"


def test_doctor_finds_a_store_that_is_none(run, state):
    (state / "store.sqlite").write_bytes(b"this is no database at all" * 100)
    told = run("doctor", "--json")
    assert told.code == 5
    assert "not a database" in check(told.document, "store")["fact"]


def test_doctor_finds_a_public_bind_a_missing_model_and_a_silent_engine(run, state):
    settings = 'host = "0.0.0.0"\nmodel = "no/such/model"\n'
    (state.parent / "nightschool.toml").write_text(settings)
    document = run("doctor", "--json").document
    assert check(document, "model")["state"] == "broken"
    assert {found["state"] for found in document["data"]["checks"] if "0.0.0.0" in found["fact"]} == {"broken"}
    (state.parent / "nightschool.toml").write_text('engine_url = "http://127.0.0.1:9"\n')
    assert check(run("doctor", "--json").document, "engine")["state"] == "broken"


def test_a_store_that_is_locked_is_an_error_not_a_traceback(run, store, state, monkeypatch):
    monkeypatch.setattr("nightschool.store.database.BUSY_TIMEOUT_S", 0.1)
    holder = sqlite3.connect(state / "store.sqlite", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        told = run("promote", "80c2")
    finally:
        holder.close()
    assert told.code == 5
    assert "Traceback" not in told.err
    assert told.err.splitlines()[-1].startswith("nightschool doctor")


def test_models_lists_what_is_here(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert run("models", "--json").document["answer"] == "0 of 1 known models on this machine."
    folder = tmp_path / "cache" / "nightschool" / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    told = run("models", "list", "--json").document
    assert told["data"]["models"][0]["folder"] == str(folder)
    assert run("models", "fetch", "--json").document["answer"] == f"smollm2-135m lies in {folder}."
    assert run("models", "fetch", "gpt-5").code == 2


@pytest.mark.parametrize("words", [["status"], ["models", "list"], ["doctor"], ["gate", "80c2"], ["promote"], ["x"]])
def test_json_is_always_one_document(words, state, capsys):
    main([*words, "--json", "--state", str(state)])
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["schema", "kind", "answer", "data", "refusal", "error", "as_of"]


def test_an_adapter_row_alone_is_no_agent(run, store):
    row = {"tenant": "default", "digest": "f" * 64, "agent": "bank", "manifest": {}, "created_at": 1.0}
    store.write(lambda conn: conn.execute(adapters.insert().values(**row)))
    assert run("status", "--json").document["data"]["agent"] == "shop"
