"""Sessions as rows: what each signal says of them, and what people said of them in so many words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nightschool.feedback.implicit.seen import Found, Seen, Span
from nightschool.feedback.implicit.signals import EVENT, names_of, read_signals
from nightschool.feedback.reward import RewardRule, combine, judges

QUOTES = 3  # examples kept of each signal


class About(NamedTuple):
    """A session: whose it is, the exchanges of its main branch, and whether nobody judged anything of it."""

    session_id: str
    principal: str
    main: frozenset[str] = frozenset()
    is_silent: bool = True


@dataclass(frozen=True, slots=True)
class Rows:
    """N sessions, oldest first, and S signals.

    Shapes: `values` (N, S), NaN where a signal cannot be known; `labels` (N,) success in [0, 1], NaN where nobody said.
    `examples` are the newest spans of each signal, with their sessions.
    """

    names: tuple[str, ...]
    values: np.ndarray
    labels: np.ndarray
    about: tuple[About, ...]
    examples: Mapping[str, tuple[tuple[str, Span], ...]] = field(default_factory=dict)

    @property
    def principals(self) -> list[str]:
        return [one.principal for one in self.about]

    @property
    def judged(self) -> np.ndarray:
        """Rows with a label that says one or the other: (N,) of bool."""
        return ~np.isnan(self.labels) & (self.labels != 0.5)


def rows_of(sessions: Iterable[Seen], rule: RewardRule) -> Rows:
    """Read every session once; of their messages only the examples are kept."""
    read: list[dict[str, Found | None]] = []
    labels: list[float] = []
    about: list[About] = []
    examples: dict[str, list[tuple[str, Span]]] = {}
    for seen in sessions:
        found = read_signals(seen)
        for name, one in found.items():
            spans = () if one is None else one.spans
            examples[name] = [*((seen.id, span) for span in spans[:1]), *examples.get(name, [])][:QUOTES]
        read.append({name: None if one is None else Found(one.value) for name, one in found.items()})
        label = label_of(seen, rule)
        labels.append(np.nan if label is None else label)
        about.append(About(seen.id, seen.principal, seen.main, not any(map(judges, seen.feedback))))
    names = tuple(names_of(read))
    columns = [_column(name, read) for name in names]
    return Rows(
        names=names,
        values=np.array(columns, dtype=float).reshape(len(names), len(read)).T,
        labels=np.array(labels, dtype=float),
        about=tuple(about),
        examples={name: tuple(found) for name, found in examples.items()},
    )


def label_of(seen: Seen, rule: RewardRule) -> float | None:
    """Success as it was said on purpose: of the session, else of the turns of its main branch, where these agree."""
    whole = combine([item for item in seen.feedback if item.exchange_id is None], rule, seen.principal)
    if whole.value is not None:
        return whole.value
    return combine([item for item in seen.feedback if item.exchange_id in seen.main], rule, seen.principal).value


def _column(name: str, read: Sequence[Mapping[str, Found | None]]) -> list[float]:
    """A signal's values. A client that reports only what happens says with its silence, from the first report on, that
    it did not; one that also reports the contrary says nothing by it."""
    found = [one.get(name) for one in read]
    values = [np.nan if one is None else one.value for one in found]
    told = [value for value in values if not np.isnan(value)]
    if not name.startswith(EVENT) or not told or min(told) <= 0:
        return values
    first = next(place for place, value in enumerate(values) if not np.isnan(value))
    return [0.0 if np.isnan(value) and place > first else value for place, value in enumerate(values)]
