"""Random promotions, overrides and roll backs against a model that is a list."""

import itertools
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nightschool.errors import RefusedError
from nightschool.releases.aliases import current, history, promote, roll_back, start
from nightschool.store import schema
from nightschool.store.database import Store

DIGESTS = [letter * 64 for letter in "abcd"]


class Alias(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store.open(Path(self.folder.name) / "store.sqlite")
        self.stack = []  # the model: what a roll back may return to, the serving digest on top
        self.served = []  # every digest that ever served, by first appearance
        self.num_moves = 0
        self.num_verdicts = 0

    def teardown(self):
        self.store.close()
        self.folder.cleanup()

    @initialize(digest=st.sampled_from(DIGESTS))
    def begin(self, digest):
        for known in DIGESTS:
            row = {"digest": known, "agent": "shop", "manifest": {}, "created_at": 1.0}
            self.store.write(
                lambda conn, row=row: conn.execute(schema.adapters.insert().values(tenant="default", **row))
            )
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
            moves = history(conn, "default", "shop")
            aliases = conn.execute(sa.select(schema.aliases)).all()
            serving = current(conn, "default", "shop")
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
        self.store.write(lambda conn: conn.execute(schema.verdicts.insert().values(tenant="default", **row, **rest)))
        if allowed:
            promote(self.store, "shop", digest, row["id"], by="m")
            self.moved(digest)
            return
        with pytest.raises(RefusedError):
            promote(self.store, "shop", digest, row["id"], by="m")

    def moved(self, digest):
        self.stack.append(digest)
        self.num_moves += 1
        if digest not in self.served:
            self.served.append(digest)


TestAlias = Alias.TestCase
TestAlias.settings = settings(
    max_examples=8, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
