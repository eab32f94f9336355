from __future__ import annotations

import pytest
import sqlalchemy as sa
from traffic import record_turn

from nightschool.curation.kept import kept_share
from nightschool.store.database import Store
from nightschool.store.schema import exchanges
from nightschool.types import Branch, Purpose, Sampler

SHOP = {"role": "system", "content": "You are the agent of a shop."}
x = exchanges.c
ASK = [SHOP, {"role": "user", "content": "hi"}]


def test_nothing_is_no_share(store: Store) -> None:
    with store.read() as conn:
        kept = kept_share(conn, store.tenant, "shop")
    assert (kept.share, kept.total.exchanges, kept.lost) == (None, 0, {})


def test_every_sampled_token_is_kept_or_lost_for_one_reason(store: Store) -> None:
    def turn(text: str, tokens: int, **more: object) -> str:
        ask = [SHOP, {"role": "user", "content": text}]
        return record_turn(store, ask, "a", (3,), tuple(range(9, 9 + tokens)), at=100.0 + len(text), **more)

    turn("kept", 6)
    turn("title", 1, branch=Branch.TITLE)
    turn("helper", 2, branch=Branch.SUB_AGENT)
    turn("cut off", 3, status="truncated")
    turn("top_p", 4, sampler=Sampler(top_p=0.5))
    turn("marked", 5, flags=("suspect_empty_args",))
    turn("marked, but harmless", 7, flags=("time of import",))
    turn("no context", 1, context_complete=False)
    turn("denied", 1, training_allowed=False)
    turn("exam", 50, purpose=Purpose.EXAM)
    turn("other", 50, agent="bank")
    turn("older", 50, training_allowed=False, user="ann")
    store.write(lambda conn: conn.execute(sa.update(exchanges).where(x.principal == "ann").values(started_at=1.0)))
    with store.read() as conn:
        kept = kept_share(conn, store.tenant, "shop", since=50.0)
    assert {reason: (count.exchanges, count.tokens) for reason, count in kept.lost.items()} == {
        "suspect empty arguments": (1, 5),
        "truncated support": (1, 4),
        "side branch": (2, 3),
        "truncated": (1, 3),
        "context incomplete": (1, 1),
        "training denied": (1, 1),
    }
    assert next(iter(kept.lost)) == "suspect empty arguments"  # the largest first
    assert (kept.kept.exchanges, kept.kept.tokens) == (2, 13)
    assert (kept.total.exchanges, kept.total.tokens) == (9, 30)
    assert kept.share == pytest.approx(13 / 30)
    assert kept.as_json()["lost"][0] == {"reason": "suspect empty arguments", "exchanges": 1, "tokens": 5}


def test_tokens_without_ids_are_counted_by_the_engines_own_word(store: Store) -> None:
    record_turn(store, ASK, "a", (), None, usage={"completion_tokens": 8})
    record_turn(store, ASK, "a", (), None)  # neither ids nor usage: one exchange, no known token
    record_turn(store, ASK, "a", (3,), (9, 2))
    with store.read() as conn:
        kept = kept_share(conn, store.tenant, "shop")
    assert {reason: (count.exchanges, count.tokens) for reason, count in kept.lost.items()} == {"text only": (2, 8)}
    assert kept.share == pytest.approx(2 / 10)


def test_a_repeated_attempt_is_lost_as_such(store: Store) -> None:
    """B19. An SDK missed the reply and asked again: two replies, one turn."""
    record_turn(store, ASK, "a", (3,), (9, 2), session="s", at=100.0)
    record_turn(store, ASK, "a", (3,), (9, 2), session="s", at=103.0, is_retry=True)
    with store.read() as conn:
        kept = kept_share(conn, store.tenant, "shop")
    assert {reason: count.exchanges for reason, count in kept.lost.items()} == {"retried": 1}
    assert kept.share == 0.5
