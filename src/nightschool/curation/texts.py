"""Turns told by their texts, in the model's own template, for objectives that need no log-probabilities of a sampler.

An engine without ids, a sampler that the trainer cannot recompute: their tokens bear no ratio to who drew them. A
log-ratio to an anchor that the trainer scores itself asks for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from nightschool.curation.drawn import without_end
from nightschool.curation.turns import Turn
from nightschool.curation.written import render
from nightschool.errors import InputError
from nightschool.rendering.renderer import Renderer
from nightschool.store.exchanges import session_exchanges
from nightschool.store.matching import match_key
from nightschool.types import Exchange, Sample

OTHERWISE = "its text is rendered differently with what comes after it"


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a tenant's sessions, and how the model that is trained writes them."""

    conn: sa.Connection
    tenant: str
    renderer: Renderer

    def rows(self, turns: Sequence[Turn]) -> list[tuple[list[Turn], Sample]] | None:
        """Turns of one session, in order, as rows that each go on from history to history, with the sample that their
        last one's history and reply are rendered to; its masks cover the replies of these turns.

        `None` where one has no reply, or its reply is written differently as a history.
        """
        told = {e.id: e for e in session_exchanges(self.conn, self.tenant, turns[0].session_id) if e.choices}
        if not all(turn.id in told for turn in turns):
            return None
        rows: list[list[Turn]] = []
        for turn in turns:
            if rows and turn.above_id == rows[-1][-1].id and _goes_on(told[rows[-1][-1].id], told[turn.id]):
                rows[-1].append(turn)
            else:
                rows.append([turn])
        try:
            return [(row, self._sample([told[turn.id] for turn in row])) for row in rows]
        except InputError:
            return None

    def _sample(self, row: Sequence[Exchange]) -> Sample:
        last = row[-1]
        written = {"messages": [*last.messages, last.choices[0].message], "tools": last.tools}
        sample = render(written, self.renderer, last.id, {len(exchange.messages) for exchange in row})
        return without_end(sample) if last.choices[0].finish_reason == "length" else sample


def _goes_on(before: Exchange, after: Exchange) -> bool:
    """Whether the later history holds the earlier one and its reply, as they were said."""
    place = len(before.messages)
    return (
        place < len(after.messages)
        and after.messages[:place] == before.messages
        and match_key(after.messages[place]) == match_key(before.choices[0].message)
    )
