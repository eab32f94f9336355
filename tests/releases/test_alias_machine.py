"""Random promotions, overrides and roll backs against a model that is a list."""

import itertools

import pytest
import sqlalchemy as sa
from databases import ON_BOTH
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nightschool.errors import RefusedError
from nightschool.releases.aliases import current, history, promote, roll_back, start
from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.store.ids import new_id

DIGESTS = [letter * 64 for letter in "abcd"]


class Alias(RuleBasedStateMachine):
    """Each example is a tenant of its own; `shared` is set by the test."""

    shared: Store

    def __init__(self):
        super().__init__()
        self.store = self.shared.scoped(new_id())
        self.stack = []  # the model: what a roll back may return to, the serving digest on top
        self.served = []  # every digest that ever served, by first appearance
        self.num_moves = 0
        self.num_verdicts = 0

    @initialize(digest=st.sampled_from(DIGESTS))
    def begin(self, digest):
        for known in DIGESTS:
            row = {"digest": known, "agent": "shop", "manifest": {}, "created_at": 1.0}
            self.insert(schema.adapters, row)
        start(self.store, "shop", digest, by="m")
        self.moved(digest)

    @rule(digest=st.sampled_from(DIGESTS))
    def promote_with_fresh_verdict(self, digest):
        self.try_promote(digest, self.stack[-1], allowed=digest != self.stack[-1])

    @precondition(lambda self: len(self.stack) > 1)
    @rule(digest=st.sampled_from(DIGESTS))
    def promote_with_verdict_on_an_earlier_incumbent(self, digest):
        same = self.stack[-2] == self.stack[-1]
        self.try_promote(digest, self.stack[-2], allowed=same and digest != self.stack[-1])

    @rule(digest=st.sampled_from(DIGESTS))
    def override(self, digest):
        if digest == self.stack[-1]:
            with pytest.raises(RefusedError):
                promote(self.store, "shop", digest, by="m", reason="r", override=True)
            return
        promote(self.store, "shop", digest, by="m", reason="r", override=True)
        self.moved(digest)

    @rule()
    def go_back(self):
        if len(self.stack) < 2:
            with pytest.raises(RefusedError):
                roll_back(self.store, "shop", by="m")
            return
        self.stack.pop()
        self.num_moves += 1
        assert roll_back(self.store, "shop", by="m").digest == self.stack[-1]

    @invariant()
    def one_alias_and_it_is_the_newest_move(self):
        if not self.stack:
            return
        with self.store.read() as conn:
            moves = history(conn, self.store.tenant, "shop")
            aliases = conn.execute(sa.select(schema.aliases).filter_by(tenant=self.store.tenant)).all()
            serving = current(conn, self.store.tenant, "shop")
        assert serving == moves[-1].digest == self.stack[-1]
        assert len(moves) == self.num_moves
        assert len(aliases) == 1
        assert aliases[0].release_id == moves[-1].id
        assert [move.number for move in moves] == [self.served.index(move.digest) + 1 for move in moves]
        pairs = itertools.pairwise(moves)
        assert all(later.previous_digest == earlier.digest and later.at > earlier.at for earlier, later in pairs)

    def try_promote(self, digest, incumbent, allowed):
        self.num_verdicts += 1
        row = {"id": f"g-{self.num_verdicts}", "agent": "shop", "candidate": digest, "incumbent": incumbent}
        rest = {"decision": "promote", "sentence": "", "report": {}, "created_at": float(self.num_verdicts)}
        self.insert(schema.verdicts, row | rest)
        if allowed:
            promote(self.store, "shop", digest, row["id"], by="m")
            self.moved(digest)
            return
        with pytest.raises(RefusedError):
            promote(self.store, "shop", digest, row["id"], by="m")

    def insert(self, table, row):
        self.store.write(lambda conn: conn.execute(table.insert().values(tenant=self.store.tenant, **row)))

    def moved(self, digest):
        self.stack.append(digest)
        self.num_moves += 1
        if digest not in self.served:
            self.served.append(digest)


@pytest.fixture(scope="module", params=ON_BOTH)
def shared(request, new_place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("aliases")
    with new_place(request.param, folder) as place, Store.open(place) as opened:
        yield opened


def test_an_alias_is_where_its_moves_say(shared):
    machine = type("AliasOf", (Alias,), {"shared": shared})
    checked = settings(max_examples=8, stateful_step_count=15, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=checked)
