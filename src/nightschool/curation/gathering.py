"""A dataset for any objective: from what an agent lived through, or from a file."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa

from nightschool.curation.dataset import TRAINED, Dataset, Line, Wanted, build_dataset
from nightschool.curation.hindsight import Views, load_views, written_views
from nightschool.curation.influence import Limits, of_sessions, sessions_in_time
from nightschool.curation.replies import OTHER_VERSION, own_replies
from nightschool.curation.texts import OTHERWISE
from nightschool.curation.written import read_rows, read_written, samples_of
from nightschool.errors import InputError, TooLittleDataError
from nightschool.imports.paths import Session
from nightschool.imports.rows import demonstrations, preferences
from nightschool.objectives.clipping import BEHAVIOR
from nightschool.objectives.legality import NO_GROUP, Heard
from nightschool.objectives.loss import Material, Objective
from nightschool.objectives.rollouts import FAILED
from nightschool.rendering.renderer import Renderer
from nightschool.types import Json, LedgerState, LogprobProvenance, Sample
from nightschool.valuation.models import find_value_model
from nightschool.valuation.reliability import notes

Rows = Callable[[Session, Counter[str]], Iterator[Json]]
ROWS: dict[Material, Rows] = {Material.DEMONSTRATIONS: demonstrations, Material.PAIRS: preferences}


def gather(conn: sa.Connection, tenant: str, wanted: Wanted, objective: Objective, renderer: Renderer) -> Dataset:
    """Everything recorded that the objective may learn from.

    Raises:
        TooLittleDataError: there is none of it; the message says what would do.
    """
    if objective.material in ROWS:
        return _written_down(conn, tenant, wanted, objective, renderer)
    if objective.material == Material.WORDS:
        return _with_words(conn, tenant, wanted, renderer)
    if objective.material == Material.REPLIES:
        return own_replies(conn, tenant, wanted)
    texts = renderer if objective.material == Material.TEXTS else None
    dataset = build_dataset(conn, tenant, replace(wanted, valued=objective.valued, texts=texts))
    if not objective.weighs_behavior:
        dataset = replace(dataset, train=_without_behavior(dataset.train), held_out=_without_behavior(dataset.held_out))
    if objective.one_version:
        dataset = _of_version(dataset, wanted.anchor)
    return _grouped(dataset) if objective.material == Material.GROUPS else dataset


def from_file(path: Path, wanted: Wanted, objective: Objective, renderer: Renderer) -> Dataset:
    """The rows of a file, in the shape that the objective's material has, as if the anchor had drawn those that do not
    say who did. Rollouts that failed for no fault of the policy are left out.

    Raises:
        InputError, MissingError, TooLittleDataError: the file cannot be used.
    """
    material = objective.material
    if material == Material.WORDS:
        views = written_views(read_rows(path, material), renderer)
        told: Json = {"file": path.name, "train": len(views.students)}
        empty = Dataset(wanted.agent, wanted.anchor, wanted.as_of, views.students, (), (), told)
        return replace(empty, teachers=views.teachers, placebos=views.placebos, told=views.told)
    written = read_written(path, material.shape, renderer)
    drawn = [sample for sample in written if FAILED not in sample.annotations]
    samples = [replace(sample, policy_version=sample.policy_version or wanted.anchor) for sample in drawn]
    summary: Json = {"file": path.name, "train": len(samples), "left_out": {FAILED: len(written) - len(drawn)}}
    if not objective.weighs_behavior:
        samples = list(_without_behavior(samples))
    if objective.valued:
        samples, summary["success_model"] = _valued(samples, renderer, wanted.rule.value_model)
    scored = sum(BEHAVIOR in sample.token_annotations for sample in samples)
    summary[BEHAVIOR] = {LogprobProvenance.ENGINE.value: scored, LogprobProvenance.NONE.value: len(samples) - scored}
    dataset = Dataset(wanted.agent, wanted.anchor, wanted.as_of, tuple(samples), (), (), summary)
    return _grouped(dataset) if material == Material.GROUPS else dataset


def _written_down(
    conn: sa.Connection, tenant: str, wanted: Wanted, objective: Objective, renderer: Renderer
) -> Dataset:
    """Sessions told as rows, and rendered: what people wrote has no recorded tokens."""
    rows = ROWS[objective.material]
    left_out: Counter[str] = Counter()
    made: list[tuple[Session, list[Sample]]] = []
    for session in sessions_in_time(conn, tenant, wanted.agent):
        found: list[Sample] = []
        for number, row in enumerate(rows(session, left_out)):
            written = {**row, "tools": json.loads(row["tools"])}
            try:
                found += samples_of([(f"{session.id} {number}", written)], objective.material, renderer)
            except InputError:
                left_out[OTHERWISE] += 1
        made.append((session, found))
    limits = Limits.load(conn, tenant, wanted.as_of, wanted.rule.influence)
    replies = {session.id: _learned(found) for session, found in made if found}
    held, report = of_sessions(conn, tenant, limits, replies)
    samples = [sample for session, found in made if session.id not in held for sample in found]
    lines = [
        Line(exchange.id, session.id, *_became(session, bool(found), held))
        for session, found in made
        for exchange in session.exchanges
    ]
    if not samples:
        raise TooLittleDataError(
            "There is nothing to study.",
            f"{objective.name} learns from {objective.material}, and none is recorded.",
            "nightschool objectives says what is",
        )
    summary: Json = {"train": len(samples), "left_out": dict((+left_out).most_common()), "influence": report}
    return Dataset(wanted.agent, wanted.anchor, wanted.as_of, tuple(samples), (), tuple(lines), summary)


def _became(session: Session, useful: bool, held: Mapping[str, str]) -> tuple[LedgerState, str]:
    if session.id in held:
        return LedgerState.HELD, held[session.id]
    return (LedgerState.TRAINED, TRAINED) if useful else (LedgerState.HELD, "nothing of this kind in it")


def _learned(samples: Iterable[Sample]) -> list[int]:
    return [token for s in samples for token, used in zip(s.token_ids, s.loss_mask, strict=True) if used]


def _with_words(conn: sa.Connection, tenant: str, wanted: Wanted, renderer: Renderer) -> Dataset:
    """Replies with words about them; sessions that nothing is learned from tell how far the policy drifts."""
    views = load_views(conn, tenant, wanted.agent, renderer, wanted.rule.noise_rate)
    if not views.students:
        why = ", ".join(f"{count} {reason}" for reason, count in views.left_out.most_common(3))
        raise TooLittleDataError(
            "There is nothing to study.",
            f"No reply has words about it that may train ({why or 'none was said'}).",
            "nightschool feedback shows what was heard",
        )
    views, held, report = _within_limits(conn, tenant, wanted, views)
    judged = build_dataset(conn, tenant, replace(wanted, valued=False))
    sessions = {line.exchange_id: line.session_id for line in judged.lines}
    learned = set(views.sessions.values())
    lines = [
        replace(line, state=LedgerState.TRAINED, reason=TRAINED)
        if line.exchange_id in views.sessions
        else replace(line, state=LedgerState.HELD, reason=held[line.exchange_id])
        if line.exchange_id in held
        else replace(line, state=LedgerState.HELD, reason=Heard.WORDS.value)
        if line.state == LedgerState.TRAINED
        else line
        for line in judged.lines
    ]
    held_out = tuple(
        replace(sample, token_annotations={}) for sample in judged.held_out if sessions.get(sample.id) not in learned
    )
    left_out = dict((+views.left_out).most_common())
    summary: Json = {"train": len(views.students), "left_out": left_out, "influence": report}
    judged = replace(judged, train=views.students, held_out=held_out, lines=tuple(lines), summary=summary)
    return replace(judged, teachers=views.teachers, placebos=views.placebos, told=views.told)


def _within_limits(
    conn: sa.Connection, tenant: str, wanted: Wanted, views: Views
) -> tuple[Views, dict[str, str], Json]:
    """What the limits leave of the views, why each other exchange waits, and the report."""
    limits = Limits.load(conn, tenant, wanted.as_of, wanted.rule.influence)
    replies: dict[str, list[int]] = defaultdict(list)
    for student in views.students:
        replies[views.sessions[student.id]] += _learned([student])
    waiting, report = of_sessions(conn, tenant, limits, replies)
    held = {exchange: waiting[session] for exchange, session in views.sessions.items() if session in waiting}
    free = replace(
        views,
        students=_but(held, views.students),
        teachers=_but(held, views.teachers),
        placebos=_but(held, views.placebos),
        told=tuple(one for one in views.told if one.id not in held),
        sessions={exchange: session for exchange, session in views.sessions.items() if exchange not in held},
    )
    return free, held, report


def _but(held: Container[str], samples: Iterable[Sample]) -> tuple[Sample, ...]:
    return tuple(sample for sample in samples if sample.id not in held)


def _of_version(dataset: Dataset, version: str) -> Dataset:
    """Training rows that this version drew; a group's rewards say what its own sampler achieves."""
    train = tuple(sample for sample in dataset.train if sample.policy_version == version)
    left = {sample.id for sample in dataset.train} - {sample.id for sample in train}
    lines = tuple(
        replace(line, state=LedgerState.HELD, reason=OTHER_VERSION) if line.exchange_id in left else line
        for line in dataset.lines
    )
    return replace(dataset, train=train, lines=lines)


def _grouped(dataset: Dataset) -> Dataset:
    """Rows that answer one request, by one policy, in groups; who is alone is left out."""
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in dataset.train:
        groups[_request(sample)].append(sample)
    train = [replace(s, group_id=name) for name, group in groups.items() if len(group) > 1 for s in group]
    if not train:
        raise TooLittleDataError(
            "There is nothing to study.",
            f"No request has two judged replies; {len(dataset.train)} have one.",
            "nightschool objectives says what these are good for",
        )
    alone = {sample.id for sample in dataset.train} - {sample.id for sample in train}
    lines = [
        replace(line, state=LedgerState.HELD, reason=NO_GROUP) if line.exchange_id in alone else line
        for line in dataset.lines
    ]
    return replace(dataset, train=tuple(train), lines=tuple(lines), summary={**dataset.summary, "groups": len(groups)})


def _request(sample: Sample) -> str:
    """What names the request of a sample: everything before the first sampled token, and who answered."""
    prompt = sample.token_ids[: sample.completion_mask.index(True)]
    return hashlib.sha256(f"{sample.policy_version} {prompt}".encode()).hexdigest()[:16]


def _without_behavior(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    kept = ({k: v for k, v in s.token_annotations.items() if k != BEHAVIOR} for s in samples)
    return tuple(replace(s, token_annotations=own) for s, own in zip(samples, kept, strict=True))


def _valued(samples: Sequence[Sample], renderer: Renderer, value_model: str) -> tuple[list[Sample], Json]:
    """Samples of a file with cross-fitted estimates from the words of their requests, each its own principal; and how
    far these can be believed."""
    requests = [renderer.decode(s.token_ids[: s.completion_mask.index(True)]) for s in samples]
    rewards = [float(s.reward or 0.0) for s in samples]
    ones, none = [1.0] * len(samples), [0.0] * len(samples)
    model = find_value_model(value_model)(requests, rewards, ones, none, [sample.id for sample in samples])
    rows = zip(samples, notes(model.p_hat, model.p_lo, model.report), strict=True)
    return [replace(s, annotations={**s.annotations, **row}) for s, row in rows], model.report
