"""What may be learned from what there is, as a run would find it."""

from __future__ import annotations

import time
from pathlib import Path

from tiny import write_tiny_tokenizer
from traffic import busy_day, fix_splits, record_session, say

from nightschool.curation.dataset import Wanted
from nightschool.curation.legal import try_all
from nightschool.objectives.advice import advise
from nightschool.releases.aliases import BASE
from nightschool.rendering.renderer import Renderer
from nightschool.store.database import Store
from nightschool.types import FeedbackKind


def test_rewards_that_texts_were_read_for_may_train_as_they_do_in_a_run(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    with Store.open(tmp_path / "s.sqlite") as store:
        fix_splits(store)
        busy_day(store, 60)
        for seed in range(7000, 7060):
            good = seed % 2 == 0
            record_session(store, "please refund my order", seed, user=f"writer-{seed}")
            text = "thanks, great help" if good else "useless, still waiting"
            say(store, FeedbackKind.TEXT, text, f"writer-{seed}", session=f"session-{seed}")
            if seed < 7040:
                say(store, FeedbackKind.THUMB, good, f"writer-{seed}", session=f"session-{seed}")
        with store.read() as conn:
            wanted = Wanted("shop", BASE, time.time() + 1)
            found = {
                one.objective.name: one for one in try_all(conn, store.tenant, wanted, Renderer.from_folder(tmp_path))
            }
    for name in ("oapl", "kto", "bco", "dro", "apo"):
        assert found[name].against is None, (name, found[name].against)
    legal = {name: one.num_rows for name, one in found.items() if one.against is None}
    advice = advise(legal)
    assert advice is not None
    assert advice.name == "oapl"
