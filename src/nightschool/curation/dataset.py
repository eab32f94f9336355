"""An immutable dataset: which trajectories train, which measure, and one reason for every other exchange."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from nightschool.curation.influence import EARLY, Claim, InfluenceRule, Limited, Limits, deciding
from nightschool.curation.lineage import learned_from, releases_behind
from nightschool.curation.readers import better_read
from nightschool.curation.texts import Texts
from nightschool.curation.trajectories import LeftOut, load_trajectories
from nightschool.curation.unspoken import Unspoken, read_unspoken
from nightschool.curation.votes import believe
from nightschool.errors import TooLittleDataError
from nightschool.feedback.reward import Reward, RewardRule, combine, pair
from nightschool.feedback.text import TextCalibrator, fit_text_calibrator
from nightschool.objectives.legality import GATE_SPLIT, SELECT_SPLIT
from nightschool.objectives.rollouts import TRUNCATED
from nightschool.rendering.renderer import Renderer
from nightschool.types import Feedback, Json, LedgerState, Sample, Split, Trajectory
from nightschool.valuation.models import find_value_model
from nightschool.valuation.reliability import notes

DAY_S = 86_400.0
SILENT_ROWS = 64
TRAINED, TRAINED_TEXT = "trained", "trained on its text"
USES = ("train", "held_out", "teacher", "placebo")


@dataclass(frozen=True, slots=True)
class CurationRule:
    """Which sessions a night studies.

    `max_staleness`: releases a session's version may be behind. `half_life_releases`, `half_life_days`:
    how fast an older label fades in the success model. `noise_rate`: measured share of thumbs that point the
    wrong way. `value_model`: which of `valuation.models` says what was to be expected. `replay`: take again what
    the incumbent's line was trained on. `max_replies`: the most rows of an objective that needs no judgement, the
    newest. `influence`: how much each voice may say. `signals`: let those stand for judgements that nobody gave,
    where they may.
    """

    max_staleness: int = 4
    half_life_releases: float = 1.0
    half_life_days: float = 30.0
    noise_rate: float | None = None
    value_model: str = "success"
    replay: bool = False
    max_replies: int = 2048
    influence: InfluenceRule = field(default_factory=InfluenceRule)
    signals: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """What became of one exchange: a row of the ledger before the run is known."""

    exchange_id: str
    session_id: str
    state: LedgerState
    reason: str
    reward: float | None = None
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """`train` and `held_out` carry `p_hat`, `p_lo` and `temperature` in their annotations.

    `held_out` rows are never trained on: first those of the select split, then the newest training rows
    without feedback; a row without reward measures drift only. `lines` covers every exchange that was considered.
    `teachers` are views of training rows, by their ids, that end in the same tokens behind another prompt; `placebos`
    the same behind the words about another row. `told` are facts about rows that have teachers.
    """

    agent: str
    anchor: str
    as_of: float
    train: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    lines: tuple[Line, ...]
    summary: Json
    teachers: tuple[Sample, ...] = ()
    placebos: tuple[Sample, ...] = ()
    told: tuple[Told, ...] = ()

    @property
    def rows(self) -> Rows:
        return Rows(self.train, self.held_out, self.teachers, self.placebos)


@dataclass(frozen=True, slots=True)
class Told:
    """A row with words about it: whose session it is of, which kinds of replies and words it is one of, and what it
    should have been, where somebody wrote that."""

    id: str
    principal: str
    slices: tuple[str, ...]
    wanted: str | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """A dataset's samples alone, as a run keeps them."""

    train: tuple[Sample, ...]
    held_out: tuple[Sample, ...] = ()
    teachers: tuple[Sample, ...] = ()
    placebos: tuple[Sample, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 over the rows; the same sessions and judgements give the same digest."""
        total = hashlib.sha256()
        for row in sorted(self.lines(), key=lambda row: (USES.index(row["use"]), row["id"])):
            total.update(json.dumps(row, sort_keys=True).encode() + b"\n")
        return total.hexdigest()

    def lines(self) -> list[Json]:
        """The rows of a dataset file."""
        return [
            row_of(sample, use)
            for use, samples in zip(USES, (self.train, self.held_out, self.teachers, self.placebos), strict=True)
            for sample in samples
        ]

    @staticmethod
    def of_lines(lines: Iterable[Json]) -> Rows:
        """The samples of a dataset file."""
        found: dict[str, list[Sample]] = {use: [] for use in USES}
        for line in lines:
            use, sample = sample_of(line)
            found[use].append(sample)
        return Rows(*(tuple(found[use]) for use in USES))


@dataclass(frozen=True, slots=True)
class _Judged:
    trajectory: Trajectory
    reward: Reward
    behind: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a dataset is for: an agent, the policy that its run starts from, and everything said by `as_of`.

    `valued`: rows need estimates of the success on their request. `temperature`: the only one that rows nobody judged
    may be drawn at. `texts` renders what may not be trained on by its tokens; without, it is left out.
    """

    agent: str
    anchor: str
    as_of: float
    rule: CurationRule = field(default_factory=CurationRule)
    valued: bool = True
    temperature: float | None = None
    texts: Renderer | None = None


def build_dataset(conn: sa.Connection, tenant: str, wanted: Wanted) -> Dataset:
    """Select from everything recorded and said, for a night whose anchor serves now.

    Raises:
        TooLittleDataError: the success model cannot be fitted; the message says what would do.
    """
    agent, anchor, as_of, rule = wanted.agent, wanted.anchor, wanted.as_of, wanted.rule
    texts = None if wanted.texts is None else Texts(conn, tenant, wanted.texts)
    loaded = load_trajectories(conn, tenant, agent, as_of, texts)
    visible = [t for t in loaded.trajectories if t.split != Split.GATE]
    limits = Limits.load(conn, tenant, as_of, rule.influence)
    judge, read = reward_rule(conn, tenant, wanted, visible)
    judged, signals = _heard(conn, tenant, wanted, visible, judge)
    fresh = [j for j in judged if j.behind <= rule.max_staleness]
    known = set() if rule.replay else learned_from(conn, tenant, anchor)
    new = [j for j in fresh if not known.intersection(j.trajectory.exchange_ids)]
    learned = [j for j in fresh if known.intersection(j.trajectory.exchange_ids)]
    votes = {split: _limited(limits, new, learned, split) for split in (Split.TRAIN, Split.SELECT)}
    held = {**votes[Split.TRAIN].held, **votes[Split.SELECT].held}
    waiting = [j for j in new if j.trajectory.vote in held]
    labelled = [j for j in fresh if j.reward.value is not None and j.trajectory.vote not in held]
    estimates, value_report = _estimates(labelled, as_of, rule) if wanted.valued else ({}, None)
    kept = [j for j in new if _trains(j) and j.trajectory.vote not in held]
    select = [j for j in new if j.trajectory.split == Split.SELECT and j.trajectory.vote not in held]
    silent = [j for j in new if j.trajectory.split == Split.TRAIN and j.reward.value is None]
    lines = [
        *(line_of(left) for left in loaded.left_out),
        *_lines((j for j in judged if j.behind > rule.max_staleness), LedgerState.EXCLUDED, "too stale"),
        *lines_of((t for t in loaded.trajectories if t.split == Split.GATE), LedgerState.HELD, GATE_SPLIT),
        *_lines(select, LedgerState.HELD, SELECT_SPLIT),
        *(line for j in silent for line in _lines([j], LedgerState.HELD, _unheard(j, loaded.early))),
        *(line for j in waiting for line in _lines([j], LedgerState.HELD, held[j.trajectory.vote])),
        *_lines((j for j in kept if not j.trajectory.rendered), LedgerState.TRAINED, TRAINED),
        *_lines((j for j in kept if j.trajectory.rendered), LedgerState.TRAINED, TRAINED_TEXT),
    ]
    summary: Json = {
        "sessions": len({t.session_id for t in loaded.trajectories}),
        "train": len(kept),
        "held_out": len(select) + len(silent[-SILENT_ROWS:]),
        "reasons": dict(sorted(Counter(f"{line.state.value}: {line.reason}" for line in lines).items())),
        "success_model": value_report,
        "signals": signals,
        **read,
        "influence": votes[Split.TRAIN].report,
    }
    train = tuple(_sample(j, estimates) for j in kept)
    measured = [*select, *silent[-SILENT_ROWS:]]
    held_out = tuple(_sample(j, estimates) for j in measured)
    return Dataset(agent, anchor, as_of, train, held_out, tuple(lines), summary)


def reward_rule(
    conn: sa.Connection, tenant: str, wanted: Wanted, visible: Sequence[Trajectory]
) -> tuple[RewardRule, Json]:
    """How judgements on these become rewards, learned from all that was said; and how far that can be believed."""
    limits = Limits.load(conn, tenant, wanted.as_of, wanted.rule.influence)
    calibrator, texts = _text_calibrator(list({t.vote: t for t in visible}.values()), limits)
    raters, believed = believe(visible)
    rule = RewardRule(wanted.rule.noise_rate, calibrator, raters=raters)
    rule, readers = better_read(conn, tenant, wanted.agent, wanted.as_of, rule)
    return rule, {"text_calibrator": texts, "readers": readers, "raters": believed}


def _heard(
    conn: sa.Connection, tenant: str, wanted: Wanted, visible: Sequence[Trajectory], judge: RewardRule
) -> tuple[list[_Judged], Json | None]:
    """What was said of each, else what its signals say where these may stand for it; and how these were weighed."""
    rule = wanted.rule
    behind = releases_behind(conn, tenant, wanted.agent)
    unspoken = read_unspoken(conn, tenant, wanted.agent, wanted.as_of, judge) if rule.signals else Unspoken()
    judged = [
        _Judged(t, unspoken.reward(t, combine(t.feedback, judge, t.principal)), _behind(t, behind, rule.max_staleness))
        for t in visible
    ]
    return judged, unspoken.report or None


def row_of(sample: Sample, use: str) -> Json:
    """A sample as a line of a dataset file. Masks are written as spans [first, end), what is not there is left out."""
    more = {name: getattr(sample, name) for name in ("group_id", "term", "token_annotations")}
    return {
        "id": sample.id,
        "use": use,
        "token_ids": list(sample.token_ids),
        "completion": spans(sample.completion_mask),
        "loss": spans(sample.loss_mask),
        "weight": sample.weight,
        "reward": sample.reward,
        "policy_version": sample.policy_version,
        "annotations": dict(sorted(sample.annotations.items())),
        **{name: value for name, value in more.items() if value},
    }


def sample_of(row: Json) -> tuple[str, Sample]:
    """The use and the sample of a line that `row_of` wrote."""
    length = len(row["token_ids"])
    sample = Sample(
        row["id"],
        tuple(row["token_ids"]),
        _mask(row["completion"], length),
        _mask(row["loss"], length),
        row["weight"],
        row["reward"],
        row["policy_version"],
        group_id=row.get("group_id"),
        annotations=row["annotations"],
        token_annotations={name: tuple(values) for name, values in row.get("token_annotations", {}).items()},
        term=row.get("term", ""),
    )
    return row["use"], sample


def spans(marked: Sequence[bool]) -> list[list[int]]:
    edges = [place for place in range(len(marked) + 1) if _at(marked, place) != _at(marked, place - 1)]
    return [[first, end] for first, end in zip(edges[::2], edges[1::2], strict=True)]


def _at(marked: Sequence[bool], place: int) -> bool:
    return 0 <= place < len(marked) and marked[place]


def _mask(found: Sequence[Sequence[int]], length: int) -> tuple[bool, ...]:
    marked = [False] * length
    for first, end in found:
        marked[first:end] = [True] * (end - first)
    return tuple(marked)


def _behind(trajectory: Trajectory, known: Mapping[str, int], max_staleness: int) -> int:
    """Releases since its oldest version served. What never was a release is too old for a ratio; a text that somebody
    else's model wrote counts as the oldest there may be."""
    unknown = max_staleness if trajectory.rendered else max_staleness + 1
    return max(known.get(version, unknown) for version in trajectory.policy_versions)


def _text_calibrator(trajectories: Sequence[Trajectory], limits: Limits) -> tuple[TextCalibrator | None, Json]:
    """Fitted on what the limits leave of the sessions that carry both."""
    told = [(found, t) for t in trajectories if (found := pair(t.feedback)) is not None]
    held = limits.hold([_claim(limits, [t], t.feedback) for _, t in told]).held
    pairs = [(found, t.principal) for found, t in told if t.vote not in held]
    texts, thumbs = [text for (text, _), _ in pairs], [thumb for (_, thumb), _ in pairs]
    try:
        calibrator = fit_text_calibrator(texts, thumbs, [principal for _, principal in pairs])
    except TooLittleDataError as error:
        return None, {"used": False, "why": error.why}
    return calibrator, {"used": True, "version": calibrator.version, **calibrator.report}


def _estimates(
    labelled: Sequence[_Judged], as_of: float, rule: CurationRule
) -> tuple[dict[tuple[str, ...], dict[str, float]], Json]:
    """What samples carry of the value model, cross-fitted, by their vote. It has to be right on what serves now."""
    labelled = _votes(labelled)
    model = find_value_model(rule.value_model)(
        [j.trajectory.request for j in labelled],
        [float(j.reward.value or 0.0) for j in labelled],
        [j.reward.confidence for j in labelled],
        [
            j.behind / rule.half_life_releases + (as_of - j.trajectory.last_at) / (DAY_S * rule.half_life_days)
            for j in labelled
        ],
        [j.trajectory.principal for j in labelled],
        ["serving version" if j.behind == 0 else "" for j in labelled],
    )
    rows = zip(labelled, notes(model.p_hat, model.p_lo, model.report), strict=True)
    return {j.trajectory.vote: row for j, row in rows}, model.report


def _votes(judged: Sequence[_Judged]) -> list[_Judged]:
    """One of the rows that share a judgement."""
    return list({j.trajectory.vote: j for j in reversed(judged)}.values())[::-1]


def _limited(limits: Limits, new: Sequence[_Judged], learned: Sequence[_Judged], split: Split) -> Limited:
    """The limits on what is new of a split, beside what of it was learned."""
    claims = [_claims(limits, [j for j in judged if j.trajectory.split == split]) for judged in (new, learned)]
    return limits.hold(*claims)


def _claims(limits: Limits, judged: Iterable[_Judged]) -> list[Claim]:
    """One for each vote that gave a reward, in the order of their last rows."""
    rows: dict[tuple[str, ...], list[Trajectory]] = {}
    for j in judged:
        if j.reward.value is not None:
            rows[j.trajectory.vote] = [*rows.pop(j.trajectory.vote, []), j.trajectory]
    return [_claim(limits, found, deciding(found[0].feedback)) for found in rows.values()]


def _claim(limits: Limits, rows: Sequence[Trajectory], said: Sequence[Feedback]) -> Claim:
    reply = [token for t in rows for token, used in zip(t.token_ids, t.completion_mask, strict=True) if used]
    return limits.claim(rows[0].vote, rows[0].principal, said, rows[0].request, reply)


def _unheard(j: _Judged, early: Container[str]) -> str | None:
    """Why a row without a reward has none, if that is not for what was said."""
    return EARLY if j.trajectory.exchange_ids[-1] in early else None


def _trains(j: _Judged) -> bool:
    return j.trajectory.split == Split.TRAIN and j.reward.value is not None


def _sample(j: _Judged, estimates: dict[tuple[str, ...], dict[str, float]]) -> Sample:
    t = j.trajectory
    said = {**drawn_notes(t), **estimates.get(t.vote, {})}
    if t.num_rows > 1:
        said["num_rows"] = float(t.num_rows)
    return Sample(
        id=t.exchange_ids[-1],
        token_ids=t.token_ids,
        completion_mask=t.completion_mask,
        loss_mask=t.completion_mask,
        weight=j.reward.confidence,
        reward=j.reward.value,
        policy_version=t.policy_versions[-1],
        annotations=said,
        token_annotations={"behavior_logprobs": t.behavior_logprobs} if _known(t) else {},
    )


def drawn_notes(t: Trajectory) -> dict[str, float]:
    """What a sample says of its drawing. One token that was asked for is whole, though the limit ended it."""
    cut = t.truncated and sum(t.completion_mask) > 1
    return {"temperature": t.sampler.temperature, **({TRUNCATED: 1.0} if cut else {})}


def _known(t: Trajectory) -> bool:
    """Whether the engine scored every sampled token."""
    return all(p is not None for p, used in zip(t.behavior_logprobs, t.completion_mask, strict=True) if used)


def _lines(judged: Iterable[_Judged], state: LedgerState, reason: str | None) -> list[Line]:
    """One line per exchange; without `reason`, the one why its feedback gave no reward."""
    return [
        Line(
            exchange_id, j.trajectory.session_id, state, reason or j.reward.reason, j.reward.value, j.reward.confidence
        )
        for j in judged
        for exchange_id in j.trajectory.exchange_ids
    ]


def lines_of(trajectories: Iterable[Trajectory], state: LedgerState, reason: str) -> list[Line]:
    return [Line(exchange_id, t.session_id, state, reason) for t in trajectories for exchange_id in t.exchange_ids]


def line_of(left: LeftOut) -> Line:
    if left.split == Split.GATE and left.reason != "exam":
        return Line(left.exchange_id, left.session_id, LedgerState.HELD, GATE_SPLIT)
    return Line(left.exchange_id, left.session_id, LedgerState.EXCLUDED, left.reason)
