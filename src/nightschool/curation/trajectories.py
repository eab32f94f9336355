"""From a session's exchanges to what one judgement speaks about (design section 5.4).

A judgement on the session is about its main branch, all sampled tokens of it; a judgement on one exchange
about that turn's tokens alone. Everything else (titles, retries, sub-agents) is a side branch.

Where a turn's prompt does not begin with what was said before, token by token (a template strips earlier
reasoning, a harness shortens the history), the main branch is told in several rows, each with the context
that was seen; they share the vote.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from nightschool.curation.influence import in_time
from nightschool.curation.texts import OTHERWISE, Texts
from nightschool.curation.turns import Turn, load_turns
from nightschool.feedback.record import load_feedback
from nightschool.feedback.reward import judges
from nightschool.objectives.legality import RETRIED, SIDE_BRANCH
from nightschool.store.mainline import main_branch
from nightschool.store.matching import content_text
from nightschool.store.tree import load_branch
from nightschool.types import Branch, Feedback, Purpose, Sample, Sampler, Split, Trajectory


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An exchange that no trajectory covers, and why."""

    exchange_id: str
    session_id: str
    split: Split
    reason: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """Every exchange of an agent once: inside a trajectory, or left out. `early`: those of trajectories that were
    judged before they began, and not since."""

    trajectories: tuple[Trajectory, ...]
    left_out: tuple[LeftOut, ...]
    early: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Row:
    """Turns that go on from each other; `told` is what their texts are rendered to, where their tokens do not count."""

    turns: Sequence[Turn]
    told: Sample | None = None


def load_trajectories(
    conn: sa.Connection,
    tenant: str,
    agent: str,
    as_of: float,
    texts: Texts | None = None,
    heard: bool = True,
) -> Loaded:
    """The agent's sessions as trajectories, with the feedback received by `as_of`, oldest first.

    `texts` tells what may not be trained on by its tokens; without, it is left out. Not `heard`: nothing that was said
    counts, and each session is its whole main branch.

    A session whose main branch has a turn that may not be trained is left out whole: a sequence is
    refused, never shortened.
    """
    sessions = load_turns(conn, tenant, agent, as_of)
    feedback: dict[str, list[Feedback]] = defaultdict(list)
    for item in load_feedback(conn, tenant, list(sessions), as_of) if heard else ():
        feedback[str(item.session_id)].append(item)
    trajectories: list[Trajectory] = []
    left_out: list[LeftOut] = []
    early: set[str] = set()
    for session_id, turns in sessions.items():
        mine = [turn for turn in turns if turn.agent == agent]
        served = [turn for turn in mine if turn.purpose == Purpose.SERVE]
        left_out += [_left_out(turn, turn.purpose.value) for turn in mine if turn.purpose != Purpose.SERVE]
        said = list(in_time(feedback[session_id], {turn.id: turn.started_at for turn in turns}))
        found, rest = _of_session(conn, tenant, served, said, texts)
        if len(said) < len(feedback[session_id]):
            early.update(exchange_id for t in found if not t.feedback for exchange_id in t.exchange_ids)
        trajectories += found
        left_out += rest
    ordered = tuple(sorted(trajectories, key=lambda t: (t.last_at, t.exchange_ids)))
    return Loaded(ordered, tuple(left_out), frozenset(early))


def rows_of(main: Sequence[Turn]) -> list[list[Turn]]:
    """The main branch cut where a prompt does not begin with the tokens of the turn before it."""
    rows: list[list[Turn]] = []
    for turn in main:
        if rows and turn.parent_id == rows[-1][-1].id:
            rows[-1].append(turn)
        else:
            rows.append([turn])
    return rows


def _of_session(
    conn: sa.Connection, tenant: str, turns: Sequence[Turn], feedback: Sequence[Feedback], texts: Texts | None
) -> tuple[list[Trajectory], list[LeftOut]]:
    main = main_branch(turns)
    about_session = [item for item in feedback if item.exchange_id is None]
    by_exchange: dict[str, list[Feedback]] = defaultdict(list)
    for item in feedback:
        if item.exchange_id is not None:
            by_exchange[item.exchange_id].append(item)
    judged = {exchange_id for exchange_id, items in by_exchange.items() if any(map(judges, items))}
    whole = main and (any(map(judges, about_session)) or not any(turn.id in judged for turn in main))
    found: list[Trajectory] = []
    left_out: list[LeftOut] = []
    if whole:
        rows, broken = _rows(main, texts)
        left_out += [_left_out(turn, turn.reason_against or broken or "") for turn in main if not rows]
        request = _request(conn, tenant, main[0], first=True) if rows else ""
        found += [_trajectory(row, about_session, request, len(rows)) for row in rows]
    covered = {turn.id for turn in main} if whole else set()
    for turn in turns:
        if turn.id in covered:
            continue
        reason = None if turn.id in by_exchange else turn.reason_against or _unjudged(turn, turn in main)
        rows, broken = ([], reason) if reason else _rows([turn], texts)
        if broken:
            left_out.append(_left_out(turn, broken))
        request = _request(conn, tenant, turn, first=False) if rows else ""
        found += [_trajectory(row, by_exchange[turn.id], request) for row in rows]
    return found, left_out


def _rows(turns: Sequence[Turn], texts: Texts | None) -> tuple[list[Row], str | None]:
    """What a judgement on turns trains: their tokens, else their texts; or nothing, and why."""
    broken = next((turn.reason_against for turn in turns if turn.reason_against), None)
    if len({_temperature(turn) for turn in turns}) > 1:
        broken = broken or "mixed samplers"
    if broken is None:
        return [Row(turns=row) for row in rows_of(turns)], None
    if texts is None or any(turn.reason_against_text for turn in turns):
        return [], broken
    told = texts.rows(turns)
    return ([], OTHERWISE) if told is None else ([Row(row, sample) for row, sample in told], None)


def _unjudged(turn: Turn, on_main: bool) -> str:
    if turn.branch == Branch.RETRY:
        return RETRIED
    return "no feedback on this turn" if on_main else SIDE_BRANCH


def _trajectory(row: Row, feedback: Sequence[Feedback], request: str, num_rows: int = 1) -> Trajectory:
    turns, last = row.turns, row.turns[-1]
    if row.told is None:
        token_ids, completion_mask, logprobs = _sampled(turns)
    else:
        token_ids, completion_mask = row.told.token_ids, row.told.completion_mask
        logprobs = (None,) * len(token_ids)
    return Trajectory(
        session_id=last.session_id,
        exchange_ids=tuple(turn.id for turn in turns),
        agent=last.agent,
        principal=last.principal,
        split=last.split,
        policy_versions=tuple(dict.fromkeys(turn.policy_version for turn in turns)),
        token_ids=token_ids,
        completion_mask=completion_mask,
        behavior_logprobs=logprobs,
        request=request,
        last_at=last.started_at,
        sampler=last.sampler if row.told is None else Sampler(),
        feedback=tuple(feedback),
        num_rows=num_rows,
        rendered=row.told is not None,
        truncated=last.finish_reason == "length",
    )


def _sampled(turns: Sequence[Turn]) -> tuple[tuple[int, ...], tuple[bool, ...], tuple[float | None, ...]]:
    """The tokens of turns that go on from each other, which of them were sampled, and how the engine scored these."""
    last = turns[-1]
    token_ids = (*(last.prompt_ids or ()), *(last.completion_ids or ()))
    completion_mask = [False] * len(token_ids)
    logprobs: list[float | None] = [None] * len(token_ids)
    for turn in turns:
        begin = len(turn.prompt_ids or ())
        length = len(turn.completion_ids or ())
        completion_mask[begin : begin + length] = [True] * length
        if turn.behavior_logprobs is not None:
            logprobs[begin : begin + length] = turn.behavior_logprobs
    return token_ids, tuple(completion_mask), tuple(logprobs)


def _request(conn: sa.Connection, tenant: str, turn: Turn, first: bool) -> str:
    """What the user asked: the first user message of a session, the latest one before a turn."""
    if turn.leaf_hash is None:
        return ""
    texts = [
        content_text(message.get("content"))
        for message in load_branch(conn, tenant, turn.leaf_hash)
        if message.get("role") == "user"
    ]
    return "" if not texts else texts[0 if first else -1]


def _left_out(turn: Turn, reason: str) -> LeftOut:
    return LeftOut(turn.id, turn.session_id, turn.split, reason)


def _temperature(turn: Turn) -> float:
    return turn.sampler.temperature
