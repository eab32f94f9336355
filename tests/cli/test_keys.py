"""Keys, retention and posture from the command line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nightschool.access.keys import KeyRing, key_secret
from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchange
from nightschool.store.records import Caller, Record, Timing


def test_a_key_from_its_making_to_its_end(run, state):
    made = run("keys", "add", "bot", "--rate", "600", "--training", "deny", "--json", "--tenant", "acme").document[
        "data"
    ]
    with Store.open(state / "store.sqlite") as store:
        key = KeyRing(store, key_secret(state)).find(made["secret"].encode())
    assert key is not None
    assert (key.tenant, key.role, key.training, key.rate_per_minute) == ("acme", "data", "deny", 600)
    told = run("keys", "--tenant", "acme")
    assert "1 of 1 keys of tenant acme are active." in told.out
    assert made["secret"] not in told.out
    assert run("keys").out == "No keys.\n"
    assert run("keys", "revoke", "bot").code == 5
    assert run("keys", "revoke", "bot", "--tenant", "acme").out == "The key of bot is revoked.\n"
    assert run("keys", "add", "x", "--role", "king").code == 2


def test_retention_needs_a_number_and_says_what_it_did(run, state):
    with Store.open(state / "store.sqlite") as store:
        for age in (100, 1):
            record = Record(
                f"aged-{age}", Caller("shop"), Timing(time.time() - age * 86_400), "base", b'{"a": %d}' % age
            )
            store.write(lambda conn, r=record: insert_exchange(conn, store.tenant, r))
    assert run("retain").code == 2
    Path("nightschool.toml").write_text("[privacy]\nkeep_days = 30\n")
    rehearsed = run("retain", "--dry-run", "--json").document
    assert rehearsed["answer"] == "1 exchanges would go."
    assert rehearsed["data"]["tenants"][0]["exchanges"] == 1
    assert run("retain").out.startswith("1 exchanges are deleted.\n")
    assert run("retain").out.startswith("0 exchanges are deleted.\n")
    chain = run("doctor", "--security").out
    assert "1 entries, whole" in chain
    assert "30 days" in chain


def test_the_posture_names_what_is_wrong(run, state, monkeypatch):
    run("keys", "add", "bot")
    state.chmod(0o755)
    (state / "store.sqlite").chmod(0o644)
    Path("nightschool.toml").write_text('[upstream]\nurl = "http://models.example"\n[privacy]\nredact = ["ip"]\n')
    told = run("doctor", "--security")
    assert told.code == 5
    found = {line.split("\t")[1]: line.split("\t") for line in told.out.splitlines() if "\t" in line}
    assert found["files"][0] == "broken"
    assert "chmod 700" in found["files"][3]
    assert found["engine"][0] == "broken"
    assert found["reach"][2].endswith("agents need a key")
    assert found["keys"][2] == "1 data; 1 without a rate"
    assert found["redaction"][2] == "secrets, ip"
    state.chmod(0o700)
    Path("nightschool.toml").write_text("")
    assert run("doctor", "--security").code == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7"])
def test_a_public_address_without_a_key_is_seen(run, state, monkeypatch, host):
    run("keys", "add", "site", "--role", "feedback")
    state.chmod(0o700)
    monkeypatch.setenv("NIGHTSCHOOL_HOST", host)
    assert "no key is set" in run("doctor", "--security").out
    run("keys", "add", "bot")
    assert run("doctor", "--security").code == 0
