"""The reward audit of an agent: made from everything judged, stored, and asked for before a run learns from rewards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict

import sqlalchemy as sa

from nightschool.curation.dataset import CurationRule, Wanted, reward_rule
from nightschool.curation.trajectories import load_trajectories
from nightschool.errors import NightschoolError, RefusedError
from nightschool.feedback.record import current_view
from nightschool.feedback.reward import RewardRule, combine
from nightschool.rendering.renderer import Renderer
from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.store.ids import new_id
from nightschool.types import FeedbackKind, Json, Split, Trajectory
from nightschool.valuation.audit import Rewarded, Standing, audit
from nightschool.valuation.success import fit_success_model

TRUSTED = frozenset({"operator", "annotator", "code"})  # sources whose word is taken
LASTS_S = 7 * 86_400.0
GROWTH = 2  # times as many rewards as were audited ask for another audit


def make_audit(store: Store, agent: str, rule: CurationRule, renderer: Renderer) -> Json:
    """Measure the rewards of an agent, store what was found, and return it.

    Rows of the gate's split are not looked at. The report: `checks` (`valuation.audit.Check`), `rows`, `passed`, how
    texts are read and how raters are weighed.
    """
    now = time.time()
    with store.read() as conn:
        loaded = load_trajectories(conn, store.tenant, agent, now)
        visible = list({t.vote: t for t in loaded.trajectories if t.split != Split.GATE}.values())
        first_chosen = list(_first_chosen(conn, store.tenant, agent))
        judge, told = reward_rule(conn, store.tenant, Wanted(agent, "", now, rule), visible)
    rows = _rewarded(visible, judge, renderer)
    checks = audit(rows, first_chosen)
    passed = all(check.standing is not Standing.BROKEN for check in checks)
    report: Json = {"rows": len(rows), "passed": passed, "checks": [asdict(check) for check in checks], **told}
    row = {"tenant": store.tenant, "id": new_id(), "agent": agent, "made_at": now, "passed": passed, "report": report}
    store.write(lambda conn: conn.execute(schema.audits.insert().values(**row)))
    return {"id": row["id"], "agent": agent, "made_at": now, **report}


def newest_audit(conn: sa.Connection, tenant: str, agent: str) -> Json | None:
    """The last one made of an agent, or `None`."""
    a = schema.audits.c
    query = sa.select(schema.audits).where(a.tenant == tenant, a.agent == agent)
    row = conn.execute(query.order_by(a.made_at.desc(), a.id.desc()).limit(1)).mappings().first()
    return None if row is None else {"id": row["id"], "made_at": row["made_at"], **row["report"]}


def require_audit(conn: sa.Connection, tenant: str, agent: str, num_rewards: int) -> Json:
    """The audit that a run over so many rewards may rest on.

    Raises:
        RefusedError: there is none, it is older than a week, it saw less than half of the rewards, or it found the
            reward broken.
    """
    found = newest_audit(conn, tenant, agent)
    again = f"nightschool audit --agent {agent}"
    if found is None:
        why = f"Nobody has looked at what the {num_rewards} rewards of {agent} are worth."
    elif time.time() - found["made_at"] > LASTS_S:
        why = f"The reward audit is {(time.time() - found['made_at']) / 86_400:.0f} days old; it lasts 7."
    elif num_rewards > GROWTH * found["rows"]:
        why = f"The reward audit saw {found['rows']} rewards, and there are {num_rewards} to learn from."
    elif not found["passed"]:
        broken = next(check for check in found["checks"] if check["standing"] == Standing.BROKEN)
        what = f"The run is refused: the reward is broken ({broken['name']})."
        raise RefusedError(what, broken["sentence"], again)
    else:
        return found
    raise RefusedError("The run is refused: rewards are audited first.", why, again)


def _rewarded(visible: list[Trajectory], judge: RewardRule, renderer: Renderer) -> list[Rewarded]:
    """What is rewarded, by whom, and what trusted sources say beside it."""
    known = []
    for t in visible:
        said = current_view(t.feedback)
        users = combine([item for item in said if item.source not in TRUSTED], judge, t.principal)
        trusted = combine([item for item in said if item.source in TRUSTED], RewardRule(), t.principal)
        both = users.value is not None and trusted.value is not None
        reward = users if both else combine(said, judge, t.principal)
        if reward.value is not None:
            known.append((t, reward, trusted.value if both else None))
    try:
        expected = fit_success_model(
            [t.request for t, _, _ in known],
            [reward.value or 0.0 for _, reward, _ in known],
            [reward.confidence for _, reward, _ in known],
            [0.0] * len(known),
            [t.principal for t, _, _ in known],
        ).p_hat.tolist()
    except NightschoolError:  # too few, or not to be believed: then nothing is compared with what was expected
        expected = [None] * len(known)
    return [
        Rewarded(
            reward=float(reward.value or 0.0),
            by=reward.reason.partition(" (")[0],
            principal=t.principal,
            reply=renderer.tokenizer.decode(_sampled(t), skip_special_tokens=True),
            expected=p,
            trusted=trusted,
        )
        for (t, reward, trusted), p in zip(known, expected, strict=True)
    ]


def _sampled(t: Trajectory) -> list[int]:
    return [token for token, used in zip(t.token_ids, t.completion_mask, strict=True) if used]


def _first_chosen(conn: sa.Connection, tenant: str, agent: str) -> Iterator[tuple[str, bool]]:
    """Who preferred one of two choices of a reply, and whether it was the first; what was superseded is left out."""
    f, x = schema.feedback.c, schema.exchanges.c
    gone = sa.select(f.supersedes).where(f.tenant == tenant, f.supersedes.is_not(None))
    query = (
        sa.select(f.value, f.author, x.principal)
        .join(schema.exchanges, (x.tenant == f.tenant) & (x.id == f.exchange_id))
        .where(f.tenant == tenant, x.agent == agent, f.kind == FeedbackKind.PREFERENCE.value, f.id.not_in(gone))
    )
    for value, author, principal in conn.execute(query):
        chosen, rejected = (value[side].get("choice") for side in ("chosen", "rejected"))
        if chosen is not None and rejected is not None:
            yield author or principal, chosen < rejected
