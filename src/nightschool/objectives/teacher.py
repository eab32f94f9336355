"""Whether a teacher who was told feedback may teach: an audit of what the words change in how it scores replies.

A model that cannot read the words scores all replies behind them alike, and drawing the policy there teaches noise. So
before any gradient: does the shift that the words cause separate replies that people accepted from those they
rejected, and more than the words about another reply do? What is left is checked reply by reply.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from nightschool.objectives.loss import Loss, Material, Objective
from nightschool.objectives.on_policy_distillation import TEACHER
from nightschool.types import Json, Sample
from nightschool.valuation.clustered import Interval, Separation, mean_over, separate

CHANCE = 0.5
SEAM_TOKENS = 2  # that may be spelled otherwise where words were put into a prompt
WHOLE = "all"

LOCALITY = "teacher check: it rewrites what was accepted"
PLACEBO = "teacher check: another reply's words do as much"
CONSENSUS = "teacher check: its replies do not do what was said"
TEMPLATES = "teacher check: its prompt differs by more than the words"
SLICE = "teacher check: it does not read the words about {name}"
LIFT = "teacher check: no lift on {name}"
REFUSED = "the teacher does not read the words"
UNPROVEN = "the teacher is not audited"

NO_JUDGE = "not measured: nothing can judge what is drawn"


@dataclass(frozen=True, slots=True)
class AuditRule:
    """When a teacher may teach.

    `least`: people with accepted replies that carry words, and as many with rejected ones; of a slice too, that is to
    be read by itself. `level`: of the intervals. `far`: nats by which a token is rewritten, `far_share` the largest
    part of an accepted reply that may be. `draws`: replies that are drawn for each judged item without words, behind
    its own and behind another's, for at most `judged` items; `agree`: the share of them that must do what was said,
    `lift_level` the level of the interval of their lift.
    """

    least: int = 8
    level: float = 0.95
    far: float = 0.5
    far_share: float = 0.3
    draws: int = 4
    judged: int = 24
    agree: float = 0.75
    lift_level: float = 0.8


@dataclass(frozen=True, slots=True)
class Judged:
    """What a judge made of replies that were drawn without words, behind an item's own, and behind another's: within 0
    and 1, how far each does what was said."""

    alone: tuple[float, ...]
    told: tuple[float, ...]
    placebo: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One reply with words about it, as it was scored. `accepted`: what people said of it otherwise, `None` where they
    said nothing. `cluster`: whose words. `slices`: the kinds of replies and words it is one of.

    Shapes: log-probabilities (T,) of its tokens without words, behind its own, and behind those about another reply.
    """

    id: str
    cluster: str
    slices: tuple[str, ...]
    accepted: bool | None
    alone: tuple[float, ...]
    told: tuple[float, ...]
    placebo: tuple[float, ...]
    judged: Judged | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """`against`: why the teacher may not teach, `None` where it may; `enough`: whether that rests on enough replies.
    `left_out`: why not from an item, by its id. `report`: what a run keeps."""

    against: str | None
    enough: bool
    left_out: Mapping[str, str]
    report: Json


def distills(objective: Objective, loss: Loss) -> bool:
    """Whether the policy is drawn to what a teacher says."""
    return objective.material == Material.WORDS or TEACHER in loss.scored


def same_but_words(student: Sample, teacher: Sample) -> bool:
    """Whether both prompts are one template: the teacher's is the student's with something put in, up to how the seam
    is spelled, and both lead to one reply in the same way.

    Edge: what a template adds before a reply (a mark for thinking, say) must stand in both.
    """
    ours, theirs = (list(s.token_ids[: s.completion_mask.index(True)]) for s in (student, teacher))
    if _reply(student) != _reply(teacher) or student.annotations.get("temperature") != teacher.annotations.get(
        "temperature"
    ):
        return False
    shorter = min(len(ours), len(theirs))
    begins = next((n for n in range(shorter) if ours[n] != theirs[n]), shorter)
    ends = next((n for n in range(shorter) if ours[-1 - n] != theirs[-1 - n]), shorter)
    return ends > 0 and begins + ends >= len(ours) - SEAM_TOKENS


def audit(items: Sequence[Item], rule: AuditRule, clip: float) -> Audit:
    """Read the teacher by its items. `clip`: nats; a token's shift counts no further, as in the loss.

    The teacher is refused where the area between accepted and rejected replies, or what is left of it once the shift
    behind another reply's words is taken off, is not above chance; a slice that has enough of both kinds is left out
    where it is not.
    """
    own = {item.id: _shift(item.told, item.alone, clip) for item in items}
    other = {item.id: _shift(item.placebo, item.alone, clip) for item in items}
    counted, people = Counter(item.accepted for item in items), _people(items)
    report: Json = {
        "items": len(items),
        "accepted": counted[True],
        "rejected": counted[False],
        "unlabelled": counted[None],
        "least": rule.least,
        "level": rule.level,
    }
    if min(people[True], people[False]) < rule.least:
        against = (
            f"accepted replies with words come from {people[True]} people, rejected ones from {people[False]}; "
            f"{rule.least} of each would do"
        )
        return Audit(against, False, {}, {**report, "passed": False, "against": against})
    groups = _groups(items, rule)
    read = {name: _separation(members, own, other, rule) for name, members in groups.items()}
    lifts = {name: lift for name, members in groups.items() if (lift := _lift(members, rule)) is not None}
    reads = {name: _above(found) for name, found in read.items()}
    left_out = _left_out(items, (own, other), {name for name, ok in reads.items() if not ok}, lifts, rule)
    against = None if reads[WHOLE] else _told(*read[WHOLE])
    if against is None and WHOLE in lifts and not _lifts(lifts[WHOLE]):
        against = f"what it draws behind the words is no better: {_spelled(lifts[WHOLE]['own'])}"
    if against is None and len(left_out) == len(items):
        against = "no reply passed its checks"
    report |= {
        "passed": against is None,
        "against": against,
        "separation": {name: _as_json(*found, passed=reads[name]) for name, found in read.items()},
        "lift": {name: {key: asdict(one) for key, one in lift.items()} for name, lift in lifts.items()} or NO_JUDGE,
        "judged": sum(item.judged is not None for item in items) or NO_JUDGE,
        "left_out": dict(Counter(left_out.values()).most_common()),
        "admitted": 0 if against else len(items) - len(left_out),
    }
    return Audit(against, True, left_out, report)


def sentence(report: Json) -> str:
    """What an audit found, for people."""
    if "separation" not in report:
        return f"The teacher is not audited: {report['against']}."
    whole = report["separation"][WHOLE]
    area = whole["own"]["area"]
    numbers = f"{area['value']:.2f} [{area['low']:.2f}, {area['high']:.2f}]"
    counts = f"{report['accepted']} accepted and {report['rejected']} rejected replies"
    if report["passed"]:
        told = f"The teacher reads the words: they tell {counts} apart at {numbers}, chance is 0.5"
        return f"{told}. {report['admitted']} of {report['items']} replies passed."
    return f"The teacher is refused: {report['against']} ({counts})."


def _left_out(
    items: Sequence[Item],
    shifts: tuple[Mapping[str, float], Mapping[str, float]],
    deaf: set[str],
    lifts: Mapping[str, Mapping[str, Interval]],
    rule: AuditRule,
) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in items:
        slices = [name for name in item.slices if name in deaf]
        flat = [name for name in item.slices if name in lifts and not _lifts(lifts[name])]
        if slices:
            found[item.id] = SLICE.format(name=slices[0])
        elif flat:
            found[item.id] = LIFT.format(name=flat[0])
        elif reason := _against(item, shifts[0][item.id], shifts[1][item.id], rule):
            found[item.id] = reason
    return found


def _against(item: Item, own: float, other: float, rule: AuditRule) -> str | None:
    """Why the teacher may not teach from one item.

    An accepted reply is changed in few places, and its own words speak for it more than another's do; any other is
    moved more by its own words than by another's.
    """
    if item.accepted:
        far = fmean(abs(told - alone) > rule.far for told, alone in zip(item.told, item.alone, strict=True))
        if far >= rule.far_share:
            return LOCALITY
        if own <= other:
            return PLACEBO
    elif _moved(item.told, item.alone) <= _moved(item.placebo, item.alone):
        return PLACEBO
    if item.judged is not None:
        if fmean(score > CHANCE for score in item.judged.told) < rule.agree:
            return CONSENSUS
        if fmean(item.judged.told) <= fmean(item.judged.placebo):
            return PLACEBO
    return None


def _groups(items: Sequence[Item], rule: AuditRule) -> dict[str, list[Item]]:
    """All items, and those of each slice that has enough of both kinds to be read by itself, and is not all."""
    slices: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        for name in item.slices:
            slices[name].append(item)
    groups = {WHOLE: list(items)}
    for name, members in sorted(slices.items()):
        people = _people(members)
        if min(people[True], people[False]) >= rule.least and len(members) < len(items):
            groups[name] = members
    return groups


def _people(items: Sequence[Item]) -> Counter[bool | None]:
    """How many clusters there are with accepted, rejected and unlabelled replies."""
    return Counter(accepted for _, accepted in {(item.cluster, item.accepted) for item in items})


def _separation(
    items: Sequence[Item], own: Mapping[str, float], other: Mapping[str, float], rule: AuditRule
) -> tuple[Separation, Separation]:
    """Of the shift behind an item's own words, and of what is left of it beside another's."""
    known = [item for item in items if item.accepted is not None]
    accepted, clusters = [bool(item.accepted) for item in known], [item.cluster for item in known]
    shift = [own[item.id] for item in known]
    beyond = [own[item.id] - other[item.id] for item in known]
    return separate(shift, accepted, clusters, rule.level), separate(beyond, accepted, clusters, rule.level)


def _lift(items: Sequence[Item], rule: AuditRule) -> dict[str, Interval] | None:
    """How much better drawn replies do what was said behind the words; `None` where too little was judged."""
    judged = [(item.judged, item.cluster) for item in items if item.judged is not None]
    clusters = [cluster for _, cluster in judged]
    if len(set(clusters)) < rule.least:
        return None
    gains = {
        "own": [fmean(one.told) - fmean(one.alone) for one, _ in judged],
        "placebo": [fmean(one.placebo) - fmean(one.alone) for one, _ in judged],
    }
    return {name: mean_over(values, clusters, rule.lift_level) for name, values in gains.items()}


def _lifts(lift: Mapping[str, Interval]) -> bool:
    return lift["own"].low > 0 and lift["own"].value > lift["placebo"].value


def _above(found: tuple[Separation, Separation]) -> bool:
    return all(one.area.low > CHANCE for one in found)


def _told(own: Separation, beyond: Separation) -> str:
    if own.area.low <= CHANCE:
        return f"behind the words, accepted replies gain on rejected ones no more than by chance: {_spelled(own.area)}"
    return f"beside another reply's words, they tell accepted from rejected no better: {_spelled(beyond.area)}"


def _spelled(one: Interval) -> str:
    return f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]"


def _as_json(own: Separation, beyond: Separation, passed: bool) -> Json:
    return {"passed": passed, "own": asdict(own), "beyond_placebo": asdict(beyond)}


def _shift(told: Sequence[float], alone: Sequence[float], clip: float) -> float:
    """Mean over tokens of the clipped log-ratio, in nats."""
    return fmean(max(-clip, min(clip, one - before)) for one, before in zip(told, alone, strict=True))


def _moved(told: Sequence[float], alone: Sequence[float]) -> float:
    return fmean(abs(one - before) for one, before in zip(told, alone, strict=True))


def _reply(sample: Sample) -> list[int]:
    return [token for token, used in zip(sample.token_ids, sample.completion_mask, strict=True) if used]
