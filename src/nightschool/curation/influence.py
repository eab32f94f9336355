"""How far any one voice may move a run: whom to trust, how many votes each may have, who has to wait.

What is limited is votes: one judgement, or several, on one session or turn. A vote that a limit holds back teaches
nothing and informs no estimate; its exchanges have the limit's name in the ledger, and the next run considers it again.
Nothing here reads what was said: a limit holds for good votes as for bad ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import sqlalchemy as sa

from nightschool.access.keys import Role
from nightschool.curation.resemblance import groups, template
from nightschool.errors import ConfigError
from nightschool.feedback.body import CLOCK_SKEW_S
from nightschool.feedback.record import current_view, load_feedback
from nightschool.feedback.reward import judges
from nightschool.imports.paths import Session, each_session
from nightschool.store.blobs import in_parts
from nightschool.store.schema import keys, sessions
from nightschool.types import Feedback, FeedbackKind, Json, Purpose

INFLUENCE_CAP = "influence cap"
AUTHOR_CAP = "author cap"
TEMPLATE_CAP = "template cap"
DUPLICATE_CAP = "near-duplicate cap"
TENANT_CAP = "tenant cap"
NEWCOMER = "new principal"
EARLY = "judged before it was served"

DAY_S = 86_400.0
DECIDING = (FeedbackKind.OUTCOME, FeedbackKind.THUMB, FeedbackKind.TEXT)
TEACHING = (*DECIDING, FeedbackKind.CORRECTION, FeedbackKind.PREFERENCE)

Vote = tuple[str, ...]
Key = tuple[str, str]


class Tier(StrEnum):
    """Who speaks, the most trusted first. BROWSER is an end user with a signed token for one target."""

    OPERATOR = "operator"
    ANNOTATOR = "annotator"
    CODE = "code"
    JUDGE = "judge"
    IMPLICIT = "implicit"
    END_USER = "end_user"
    BROWSER = "browser"


TIERS = tuple(Tier)
PEOPLE = (Tier.END_USER, Tier.BROWSER)  # each of them one person; a program speaks of everybody's sessions


@dataclass(frozen=True, slots=True)
class Cap:
    """The most votes of one kind: a share of the run's, but `floor` at least. With what the serving adapter learned
    already of the last releases, never more than `ceiling`: a poison needs a number of rows, not a share."""

    share: float
    floor: int
    ceiling: int

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0 or self.floor < 0 or self.ceiling < 0:
            why = f"share = {self.share}, floor = {self.floor}, ceiling = {self.ceiling}."
            raise ConfigError("A cap on influence is out of range.", why, "docs/training.md")

    def leaves_room(self, votes: int, used: int, learned: int) -> bool:
        """Whether one more of a run's `votes` may count."""
        return used < max(self.floor, int(self.share * votes)) and used + learned < self.ceiling


@dataclass(frozen=True, slots=True)
class InfluenceRule:
    """Who is limited, and how.

    `principal`: one person, as whose session it is or as who judges it. `template`: one request, numbers aside.
    `duplicate`: one request with one reply, nearly. `tenant`: all that one run learns. `quarantine_days`: how long a
    principal must be known; while most of those who vote are newer, nobody is. `trusted`: sources without limits.
    """

    principal: Cap = Cap(share=0.01, floor=2, ceiling=50)
    template: Cap = Cap(share=0.25, floor=50, ceiling=2000)
    duplicate: Cap = Cap(share=0.02, floor=10, ceiling=200)
    tenant: Cap = Cap(share=1.0, floor=0, ceiling=20_000)
    quarantine_days: float = 1.0
    trusted: tuple[str, ...] = (Tier.OPERATOR.value, Tier.ANNOTATOR.value)

    def __post_init__(self) -> None:
        unknown = set(self.trusted) - {tier.value for tier in TIERS}
        if unknown:
            why = f"Known are {', '.join(TIERS)}."
            raise ConfigError(f"{min(unknown)!r} is no source of feedback to trust.", why, "docs/training.md")


@dataclass(frozen=True, slots=True)
class Claim:
    """A vote as limits see it. `authors`: people who judge somebody else's session. `words`: request and reply."""

    vote: Vote
    principal: str
    tier: Tier
    authors: frozenset[str]
    template: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limited:
    """`held` has the reason of each vote that waits."""

    held: Mapping[Vote, str] = field(default_factory=dict)
    report: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """The rule with what it needs to know of a tenant: since when each principal is known, and the keys that may do
    nothing but judge, whose word about the source counts for nothing."""

    rule: InfluenceRule
    as_of: float
    known_since: Mapping[str, float] = field(default_factory=dict)
    judging_keys: frozenset[str] = frozenset()

    @classmethod
    def load(cls, conn: sa.Connection, tenant: str, as_of: float, rule: InfluenceRule) -> Limits:
        s, k = sessions.c, keys.c
        seen = sa.select(s.principal, sa.func.min(s.first_at).label("at")).group_by(s.principal)
        rows = conn.execute(seen.where(s.tenant == tenant, s.purpose == Purpose.SERVE.value)).all()
        judging = conn.scalars(sa.select(k.id).where(k.tenant == tenant, k.role == Role.FEEDBACK.value))
        return cls(rule, as_of, {row.principal: row.at for row in rows}, frozenset(judging))

    def claim(self, vote: Vote, principal: str, said: Sequence[Feedback], request: str, reply: Sequence[int]) -> Claim:
        """`said`: what the vote rests on; the least trusted of it is the vote's tier. `reply`: tokens to be learned."""
        spoken = [(self.tier_of(item), item.author) for item in said]
        tier = max((tier for tier, _ in spoken), key=TIERS.index, default=Tier.END_USER)
        authors = frozenset(author for tier, author in spoken if author and tier in PEOPLE) - {principal}
        plain = template(request)
        return Claim(vote, principal, tier, authors, plain, (*plain.split(), *map(str, reply)))

    def tier_of(self, item: Feedback) -> Tier:
        if item.origin == Tier.BROWSER:
            return Tier.BROWSER
        vouched = item.key_id not in self.judging_keys and item.source in TIERS
        return Tier(item.source) if vouched else Tier.END_USER

    def hold(self, claims: Sequence[Claim], learned: Sequence[Claim] = ()) -> Limited:
        """Which votes wait. Of those that share a limit the newest count.

        `claims`: one a vote, oldest first. `learned`: what the serving adapter was taught already.
        """
        new = self._newcomers(claims)
        numbers = groups([claim.words for claim in (*learned, *claims)])
        caps = {claim.vote: self._caps(claim, n) for claim, n in zip((*learned, *claims), numbers, strict=True)}
        before = Counter(key for claim in learned for key in {key for key, _, _ in caps[claim.vote]})
        used: Counter[Key] = Counter()
        held: dict[Vote, str] = {}
        for claim in reversed(claims):
            if claim.tier in self.rule.trusted:
                continue
            reason = NEWCOMER if claim.principal in new else None
            for key, cap, name in caps[claim.vote]:
                if reason is None and not cap.leaves_room(len(claims), used[key], before[key]):
                    reason = name
            if reason is None:
                used.update(key for key, _, _ in caps[claim.vote])
            else:
                held[claim.vote] = reason
        return Limited(held, _report(claims, held))

    def _caps(self, claim: Claim, group: int) -> list[tuple[Key, Cap, str]]:
        """What counts this vote, how far it may count, and what the ledger calls it."""
        rule = self.rule
        return [
            (("person", claim.principal), rule.principal, INFLUENCE_CAP),
            *((("person", author), rule.principal, AUTHOR_CAP) for author in sorted(claim.authors)),
            (("duplicate", str(group)), rule.duplicate, DUPLICATE_CAP),
            (("template", claim.template), rule.template, TEMPLATE_CAP),
            (("tenant", ""), rule.tenant, TENANT_CAP),
        ]

    def _newcomers(self, claims: Sequence[Claim]) -> set[str]:
        """Principals that have to wait. Where most of those who vote are new, as with a service that was just started
        or whose users have no names, being new says nothing."""
        limited = {claim.principal for claim in claims if claim.tier not in self.rule.trusted}
        latest = self.as_of - DAY_S * self.rule.quarantine_days
        new = {principal for principal in limited if self.known_since.get(principal, self.as_of) > latest}
        return new if 2 * len(new) < len(limited) else set()


def of_sessions(
    conn: sa.Connection, tenant: str, limits: Limits, replies: Mapping[str, Sequence[int]]
) -> tuple[dict[str, str], Json]:
    """The limits on what is learned from whole sessions, `replies` by session: the reason of each that waits, and the
    report."""
    heard: dict[str, list[Feedback]] = {session_id: [] for session_id in replies}
    for item in load_feedback(conn, tenant, list(replies), limits.as_of):
        heard[str(item.session_id)].append(item)
    s = sessions.c
    columns = sa.select(s.id, s.principal, s.preview, s.first_at)
    rows = [
        row
        for part in in_parts(list(replies))
        for row in conn.execute(columns.where(s.tenant == tenant, s.id.in_(part)))
    ]
    claims = [
        limits.claim((row.id,), row.principal, teaching(heard[row.id]), row.preview, replies[row.id])
        for row in sorted(rows, key=lambda row: (row.first_at, row.id))
    ]
    limited = limits.hold(claims)
    return {session_id: reason for (session_id,), reason in limited.held.items()}, limited.report


def deciding(items: Iterable[Feedback]) -> list[Feedback]:
    """Of what was said about a target, what its reward is made of: the strongest kind of those that hold."""
    current = [item for item in current_view(items) if judges(item)]
    return next((found for kind in DECIDING if (found := [item for item in current if item.kind == kind])), [])


def teaching(items: Iterable[Feedback]) -> list[Feedback]:
    """Of what was said about a session, what anything could be learned from."""
    return [item for item in current_view(items) if item.kind in TEACHING]


def in_time(items: Iterable[Feedback], begun: Mapping[str, float]) -> Iterator[Feedback]:
    """Without what was said before there was anything to judge: whoever guesses the name of a session that is still to
    come would judge it blindly. `begun`: when each exchange of the session began; clocks may differ by five minutes."""
    first = min(begun.values(), default=0.0)
    for item in items:
        start = begun.get(item.exchange_id or "", first)
        if item.received_at is None or item.received_at + CLOCK_SKEW_S >= start:
            yield item


def sessions_in_time(conn: sa.Connection, tenant: str, agent: str) -> Iterator[Session]:
    """The agent's sessions, with what was said `in_time`."""
    for session in each_session(conn, tenant, agent):
        begun = {exchange.id: exchange.started_at for exchange in session.exchanges}
        yield replace(session, feedback=tuple(in_time(session.feedback, begun)))


def in_words(report: Json) -> str:
    """Who would be heard, before a run."""
    taught, people, loudest = report["taught"], report["people"], report["loudest"]
    said = f"{taught} of {report['votes']} votes may teach, of {people} {'person' if people == 1 else 'people'}"
    said += f"; the loudest has {loudest}" if taught else ""
    held = ", ".join(f"{count} {reason}" for reason, count in report["held"].items())
    return f"{said}. Held back: {held}." if held else f"{said}."


def _report(claims: Sequence[Claim], held: Mapping[Vote, str]) -> Json:
    taught = [claim for claim in claims if claim.vote not in held]
    people = Counter(claim.principal for claim in taught)
    tiers = Counter(claim.tier for claim in taught)
    return {
        "votes": len(claims),
        "taught": len(taught),
        "people": len(people),
        "loudest": max(people.values(), default=0),
        "sources": {tier.value: tiers[tier] for tier in TIERS if tiers[tier]},
        "held": dict(Counter(held.values()).most_common()),
    }
