import threading
import time

import pytest
import sqlalchemy as sa

from nightschool.errors import MissingError, NightschoolError, RefusedError
from nightschool.releases import aliases
from nightschool.releases.aliases import current, history, promote, roll_back, start, version_name
from nightschool.store import schema
from nightschool.store.database import Store

A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def shop(store):
    """Three installed adapters, the first of which serves."""
    for digest in (A, B, C):
        install(store, digest)
    start(store, "shop", A, by="ada")
    return store


def install(store, digest):
    row = {"digest": digest, "agent": "shop", "manifest": {}, "created_at": 1.0}
    store.write(lambda conn: conn.execute(schema.adapters.insert().values(tenant=store.tenant, **row)))


def give_verdict(store, name, candidate, incumbent, decision="promote", agent="shop", at=1.0):
    row = {"id": name, "agent": agent, "candidate": candidate, "incumbent": incumbent, "decision": decision}
    rest = {"sentence": f"{decision} it.", "report": {}, "created_at": at}
    store.write(lambda conn: conn.execute(schema.verdicts.insert().values(tenant=store.tenant, **row, **rest)))
    return name


def serving(store, agent="shop"):
    with store.read() as conn:
        return current(conn, store.tenant, agent)


def moves(store, agent="shop"):
    with store.read() as conn:
        return history(conn, store.tenant, agent)


def test_a_first_release(shop):
    (release,) = moves(shop)
    assert (release.kind, release.number, release.digest, release.by) == ("first", 1, A, "ada")
    assert release.previous_digest is None
    assert serving(shop) == A


def test_starting_again_changes_nothing_and_starting_another_is_refused(shop):
    assert start(shop, "shop", A, by="bob") == moves(shop)[0]
    with pytest.raises(RefusedError, match="already serves v1"):
        start(shop, "shop", B, by="bob")
    assert len(moves(shop)) == 1


def test_promotion_moves_the_alias_on_its_verdict(shop):
    verdict = give_verdict(shop, "g-1", B, A)
    release = promote(shop, "shop", B, verdict, by="night", reason="better")
    assert (release.kind, release.number, release.previous_digest, release.verdict_id) == ("promote", 2, A, "g-1")
    assert serving(shop) == B
    assert moves(shop)[-1] == release


def test_repeating_a_promotion_changes_nothing(shop):
    verdict = give_verdict(shop, "g-1", B, A)
    first = promote(shop, "shop", B, verdict, by="night")
    assert promote(shop, "shop", B, verdict, by="night") == first
    assert len(moves(shop)) == 2


def test_without_a_verdict_nothing_moves(shop):
    with pytest.raises(RefusedError, match="No verdict on it is stored"):
        promote(shop, "shop", B, by="ada")
    with pytest.raises(RefusedError, match="No verdict"):
        promote(shop, "shop", B, "g-unknown", by="ada")
    assert serving(shop) == A


@pytest.mark.parametrize("decision", ["refuse", "need_data"])
def test_a_verdict_that_says_something_else_is_quoted(shop, decision):
    verdict = give_verdict(shop, "g-1", B, A, decision)
    with pytest.raises(RefusedError, match=f"Verdict g-1 says: {decision} it"):
        promote(shop, "shop", B, verdict, by="ada")


def test_a_verdict_against_an_older_incumbent_refuses(shop):
    on_b = give_verdict(shop, "g-1", B, A)
    on_c = give_verdict(shop, "g-2", C, A)
    promote(shop, "shop", B, on_b, by="ada")
    with pytest.raises(RefusedError, match=r"(?i)the incumbent has changed since"):
        promote(shop, "shop", C, on_c, by="ada")
    assert serving(shop) == B


def test_a_verdict_on_another_agent_or_another_candidate_does_not_count(shop):
    give_verdict(shop, "g-1", B, A, agent="bank")
    give_verdict(shop, "g-2", C, A)
    for verdict in (None, "g-1", "g-2"):
        with pytest.raises(RefusedError):
            promote(shop, "shop", B, verdict, by="ada")


def test_a_verdict_of_another_tenant_does_not_count(shop, place):
    with Store.open(place, tenant="other") as other:
        give_verdict(other, "g-1", B, A)
        with pytest.raises(MissingError):
            promote(other, "shop", B, "g-1", by="ada")
    with pytest.raises(RefusedError):
        promote(shop, "shop", B, "g-1", by="ada")


def test_without_an_id_the_newest_verdict_on_the_pair_counts(shop):
    give_verdict(shop, "g-1", B, A, "promote", at=1.0)
    give_verdict(shop, "g-2", B, A, "refuse", at=2.0)
    with pytest.raises(RefusedError, match="g-2"):
        promote(shop, "shop", B, by="ada")
    give_verdict(shop, "g-3", B, A, "promote", at=3.0)
    assert promote(shop, "shop", B, by="ada").verdict_id == "g-3"


def test_an_override_is_recorded_with_who_and_why(shop):
    give_verdict(shop, "g-1", B, A, "refuse")
    with pytest.raises(RefusedError, match="recorded with its reason"):
        promote(shop, "shop", B, by="ada", override=True)
    with pytest.raises(RefusedError, match="nobody was named"):
        promote(shop, "shop", B, by=" ", reason="known better", override=True)
    release = promote(shop, "shop", B, "g-1", by="ada", reason="known better", override=True)
    assert (release.kind, release.by, release.reason, release.verdict_id) == ("override", "ada", "known better", "g-1")
    assert serving(shop) == B


def test_an_adapter_that_is_not_installed_never_serves(shop):
    with pytest.raises(MissingError, match="not installed"):
        promote(shop, "shop", "f" * 64, by="ada", reason="try", override=True)
    with pytest.raises(MissingError, match="not installed"):
        start(shop, "bank", "f" * 64, by="ada")
    assert serving(shop, "bank") is None


def test_the_bare_base_may_serve_first(shop):
    assert start(shop, "bank", aliases.BASE, by="ada").digest == "base"


def test_rolling_back_twice_goes_further_back_and_then_stops(shop):
    promote(shop, "shop", B, give_verdict(shop, "g-1", B, A), by="n")
    promote(shop, "shop", C, give_verdict(shop, "g-2", C, B), by="n")
    first, second = roll_back(shop, "shop", by="ada", reason="bad"), roll_back(shop, "shop", by="ada")
    assert (first.digest, first.number, first.previous_digest, first.reason) == (B, 2, C, "bad")
    assert (second.digest, second.number) == (A, 1)
    with pytest.raises(RefusedError, match="as far back"):
        roll_back(shop, "shop", by="ada")
    assert serving(shop) == A
    assert [move.number for move in moves(shop)] == [1, 2, 3, 2, 1]


def test_what_was_rolled_back_can_be_promoted_again_and_left_again(shop):
    verdict = give_verdict(shop, "g-1", B, A)
    promote(shop, "shop", B, verdict, by="n")
    roll_back(shop, "shop", by="ada")
    assert promote(shop, "shop", B, verdict, by="ada").number == 2  # no third number for the same adapter
    assert roll_back(shop, "shop", by="ada").digest == A


def test_promoting_what_serves_is_refused(shop):
    with pytest.raises(RefusedError, match="already serves"):
        promote(shop, "shop", A, by="ada", reason="again", override=True)


def test_moves_keep_their_order_when_the_clock_steps_back(shop, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 5.0)
    promote(shop, "shop", B, give_verdict(shop, "g-1", B, A), by="n")
    assert [move.digest for move in moves(shop)] == [A, B]
    assert serving(shop) == moves(shop)[-1].digest


def test_names_for_people(shop):
    with shop.read() as conn:
        assert version_name(conn, shop.tenant, "shop", A) == "v1"
        assert version_name(conn, shop.tenant, "shop", "80c2" + "0" * 58 + "1f") == "80c2…1f"
        assert version_name(conn, shop.tenant, "shop", "base") == "base"


def test_of_two_promotions_at_once_exactly_one_wins(shop, place):
    """Two processes' worth of writers on one database; both verdicts name the same incumbent."""
    verdicts = {B: give_verdict(shop, "g-b", B, A), C: give_verdict(shop, "g-c", C, A)}
    barrier, won, lost = threading.Barrier(2), [], []

    def go(digest):
        with Store.open(place) as own:
            barrier.wait()
            try:
                won.append(promote(own, "shop", digest, verdicts[digest], by="race").digest)
            except NightschoolError as error:
                lost.append(error)

    threads = [threading.Thread(target=go, args=(digest,)) for digest in (B, C)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 1)
    assert serving(shop) == won[0]
    assert [move.digest for move in moves(shop)] == [A, won[0]]
    with shop.read() as conn:
        (alias,) = conn.execute(sa.select(schema.aliases)).all()
    assert alias.release_id == moves(shop)[-1].id
