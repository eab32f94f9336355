import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from nightschool.access.audit import Entry, append, check_chain, read_chain
from nightschool.access.identity import Access, Identity
from nightschool.access.keys import KeyRing, NewKey, Role, Training, add_key, key_secret, list_keys, revoke_key
from nightschool.access.rates import Rates
from nightschool.errors import ConfigError, InputError, MissingError
from nightschool.store.database import Store
from nightschool.store.schema import keys as table

SECRET = b"a secret of this installation"
HERE = (b"host", b"127.0.0.1:8700")


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [HERE, (b"authorization", f"Bearer {key}".encode())]


def access_of(store: Store, data_token: str | None = None) -> Access:
    return Access("admin-token", data_token, KeyRing(store, SECRET))


def test_a_key_is_stored_as_a_hash_alone(file_store, tmp_path):
    store = file_store
    key, text = add_key(store, SECRET, NewKey("bot"), "me")
    assert text.startswith("ns-data-")
    assert len(text) >= len("ns-data-") + 43  # 256 bits in base64 without padding are 43 characters
    with store.read() as conn:
        assert list_keys(conn, store.tenant) == [key]
        assert conn.scalar(sa.select(table.c.hash)) not in (text, "")
    store.close()
    raw = (tmp_path / "store.sqlite").read_bytes()
    assert text.encode() not in raw
    assert text.removeprefix("ns-data-").encode() not in raw


def test_a_key_says_tenant_and_role(store):
    acme = store.scoped("acme")
    key, text = add_key(acme, SECRET, NewKey("judge", Role.FEEDBACK), "me")
    access = access_of(store)
    assert access.identify(bearer(text), "10.0.0.7") == Identity("acme", Role.FEEDBACK, key.id, True)
    for headers in ([HERE, (b"x-api-key", text.encode())], [HERE, (b"x-nightschool-key", text.encode())]):
        assert access.identify(headers, "10.0.0.7") == Identity("acme", Role.FEEDBACK, key.id, True)
    assert access.identify(bearer(text[:-1]), "10.0.0.7") is None
    assert Access("x", None, KeyRing(store, b"another secret")).identify(bearer(text), "10.0.0.7") is None


def test_the_providers_key_and_ours_travel_side_by_side(store):
    key, text = add_key(store, SECRET, NewKey("bot"), "me")
    access = access_of(store)
    provider = (b"authorization", b"Bearer sk-of-the-provider")
    both = [HERE, provider, (b"x-nightschool-key", text.encode())]
    found = access.identify(both, "10.0.0.7")
    assert found is not None
    assert found.key_id == key.id
    assert access.identify([HERE, provider, (b"x-nightschool-key", b"wrong")], "127.0.0.1") is None


def test_tokens_keep_working(store):
    access = access_of(store, "data-token")
    assert access.identify(bearer("admin-token"), "10.0.0.7") == Identity("default", Role.ADMIN, None, True)
    assert access.identify(bearer("data-token"), "10.0.0.7") == Identity("default", Role.DATA, None, True)
    for headers in ([HERE], bearer(""), bearer("x"), [HERE, (b"authorization", b"Basic admin-token")]):
        assert access.identify(headers, "127.0.0.1") is None
    assert Access("a").identify(bearer(""), "10.0.0.7") is None


def test_this_machine_needs_no_key_until_there_is_one(store):
    open_access = access_of(store)
    assert open_access.identify([HERE], "127.0.0.1") == Identity("default", None, None, True)
    assert open_access.identify(bearer("any"), "127.0.0.1") == Identity("default", None, None, True)
    assert open_access.identify([HERE], "10.0.0.7") is None
    add_key(store, SECRET, NewKey("site", Role.FEEDBACK), "me")
    assert not access_of(store).needs_key  # agents have none
    add_key(store, SECRET, NewKey("bot"), "me")
    assert access_of(store).identify([HERE], "127.0.0.1") is None
    revoke_key(store, "bot", "me")
    assert access_of(store).identify([HERE], "127.0.0.1") is None  # revoking the last key opens nothing


@pytest.mark.parametrize("header", [b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip"])
def test_a_proxy_on_this_machine_is_not_this_machine(header):
    assert Access("a").identify([HERE, (header, b"203.0.113.9")], "127.0.0.1") is None
    assert Access("a").identify([(b"host", b"night.example")], "127.0.0.1") is None
    assert Access("a").identify([], "127.0.0.1") is None


def test_a_revoked_key_is_refused_where_none_is_needed(store):
    key, text = add_key(store, SECRET, NewKey("site", Role.FEEDBACK), "me")
    revoke_key(store, key.id, "me")
    access = access_of(store)
    assert access.identify([HERE], "127.0.0.1") is not None
    assert access.identify(bearer(text), "127.0.0.1") is None


def test_the_ring_notices_changes(store):
    ring = KeyRing(store, SECRET)
    _, text = add_key(store, SECRET, NewKey("bot"), "me")
    assert ring.find(text.encode()) is None
    ring.refresh()
    found = ring.find(text.encode())
    assert found is not None
    assert found.revoked_at is None
    revoke_key(store, "bot", "me")
    ring.refresh()
    found = ring.find(text.encode())
    assert found is not None
    assert found.revoked_at is not None


def test_consent_by_tenants(store):
    """One tenant: allowed unless the key denies. Two: denied unless the key allows."""
    texts = {training: add_key(store, SECRET, NewKey(training, training=training), "me")[1] for training in Training}

    def allowed() -> dict[str, bool]:
        access = access_of(store)
        found = {training.value: access.identify(bearer(text), "10.0.0.7") for training, text in texts.items()}
        return {name: identity.training_allowed for name, identity in found.items() if identity}

    assert allowed() == {"default": True, "allow": True, "deny": False}
    other, _ = add_key(store.scoped("acme"), SECRET, NewKey("bot"), "me")
    assert allowed() == {"default": False, "allow": True, "deny": False}
    token = access_of(store).identify(bearer("admin-token"), "10.0.0.7")
    assert token is not None
    assert not token.training_allowed
    revoke_key(store.scoped("acme"), other.id, "me")
    assert allowed()["default"]


def test_what_cannot_be_a_key(store):
    for new in (NewKey(" "), NewKey("x" * 201), NewKey("x", rate_per_minute=0)):
        with pytest.raises(InputError):
            add_key(store, SECRET, new, "me")
    with pytest.raises(MissingError):
        revoke_key(store, "nobody", "me")
    add_key(store, SECRET, NewKey("twin"), "me")
    add_key(store, SECRET, NewKey("twin"), "me")
    with pytest.raises(InputError, match="2 keys"):
        revoke_key(store, "twin", "me")
    key, _ = add_key(store.scoped("acme"), SECRET, NewKey("bot"), "me")
    with pytest.raises(MissingError):
        revoke_key(store, key.id, "me")  # another tenant's


def test_the_secret_is_no_row_of_the_store(tmp_path, monkeypatch):
    assert key_secret(tmp_path) == key_secret(tmp_path)
    assert (tmp_path / "keys.secret").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("NIGHTSCHOOL_KEY_SECRET", "x" * 32)
    assert key_secret(tmp_path) == b"x" * 32
    monkeypatch.setenv("NIGHTSCHOOL_KEY_SECRET", "short")
    with pytest.raises(ConfigError, match="shorter"):
        key_secret(tmp_path)


def test_a_rate_is_a_minutes_worth_that_refills():
    now = 0.0
    rates = Rates(lambda: now)
    assert [rates.take("k", 60) for _ in range(60)] == [0.0] * 60
    assert rates.take("k", 60) == pytest.approx(1.0)  # 60 per minute: the next one is there after a second
    assert rates.take("other", 60) == 0.0
    now = 1.0
    assert rates.take("k", 60) == 0.0
    assert rates.take("k", 60) == pytest.approx(1.0)
    now = 61.0
    assert sum(rates.take("k", 60) == 0.0 for _ in range(100)) == 60


@given(st.integers(1, 600), st.lists(st.floats(0, 30), max_size=300))
def test_no_rate_is_exceeded(per_minute, pauses):
    """In `s` seconds at most a saved minute's worth and what refilled in them is allowed; waiting helps."""
    now = 0.0
    rates = Rates(lambda: now)
    taken = 0
    for pause in pauses:
        now += pause
        wait = rates.take("k", per_minute)
        taken += wait == 0
        assert 0 <= wait <= 60 / per_minute + 1e-6
    assert taken <= per_minute * (1 + now / 60) + 1e-6


def test_acts_are_chained(store):
    key, _ = add_key(store, SECRET, NewKey("bot", Role.ADMIN, rate_per_minute=9), "ann")
    revoke_key(store, "bot", "bob")
    store.scoped("acme").write(lambda conn: append(conn, "acme", Entry("eve", "retention", {"exchanges": 1})))
    with store.read() as conn:
        rows = read_chain(conn, store.tenant)
        chain = check_chain(conn, store.tenant)
        other = check_chain(conn, "acme")
    assert [(row.by, row.action) for row in rows] == [("ann", "key.made"), ("bob", "key.revoked")]
    made = {"key": key.id, "name": "bot", "role": "admin", "training": "default", "rate_per_minute": 9}
    assert rows[0].detail == made
    assert (chain.length, chain.head, chain.broken_at) == (2, rows[1].hash, None)
    assert (other.length, other.broken_at) == (1, None)


@pytest.mark.parametrize("change", ["UPDATE audit SET by = 'x'", "DELETE FROM audit"])
def test_the_log_refuses_changes(store, change):
    add_key(store, SECRET, NewKey("bot"), "me")
    with pytest.raises(sa.exc.DBAPIError, match="append-only"):
        store.write(lambda conn: conn.exec_driver_sql(change))
    with store.read() as conn:
        assert check_chain(conn, store.tenant).length == 1


@pytest.mark.parametrize(
    ("damage", "length", "broken"),
    [
        ("UPDATE audit SET by = 'x' WHERE id = '{ids[1]}'", 1, 2),
        ("""UPDATE audit SET detail = '{{"a": 1}}' WHERE id = '{ids[2]}'""", 2, 3),
        ("DELETE FROM audit WHERE id = '{ids[1]}'", 1, 3),
        ("DELETE FROM audit WHERE id = '{ids[0]}'", 0, 2),
    ],
)
def test_damage_below_the_triggers_is_seen(store, damage, length, broken):
    for name in "abc":
        add_key(store, SECRET, NewKey(name), "me")
    with store.read() as conn:
        ids = [row.id for row in read_chain(conn, store.tenant)]

    def harm(conn: sa.Connection) -> None:
        of_table = " ON audit" if conn.dialect.name == "postgresql" else ""
        for act in ("update", "delete"):
            conn.exec_driver_sql(f"DROP TRIGGER audit_no_{act}{of_table}")
        conn.exec_driver_sql(damage.format(ids=ids))

    store.write(harm)
    with store.read() as conn:
        chain = check_chain(conn, store.tenant)
    assert (chain.length, chain.broken_at) == (length, ids[broken - 1])


def test_one_act_and_its_entry_are_one_transaction(store, monkeypatch):
    def fails(*_args) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr("nightschool.access.keys.append", fails)
    with pytest.raises(RuntimeError):
        add_key(store, SECRET, NewKey("bot"), "me")
    with store.read() as conn:
        assert list_keys(conn, store.tenant) == []
