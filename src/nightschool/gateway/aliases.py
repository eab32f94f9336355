"""Which policy serves a name: the alias table and the open exams, never older than a fifth of a second.

While requests come, a task reads them ahead, so that no request waits for the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from nightschool.access.keys import Role
from nightschool.errors import StoreError
from nightschool.gateway.replies import refuse
from nightschool.releases.aliases import BASE
from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.types import Purpose

MAX_AGE_S = 0.2
AHEAD_S = 0.12  # between two readings ahead
IDLE_S = 10.0  # without a request, after which reading ahead ends

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes: the agent asked for, the policy that answers, and why it is asked.

    `model` is the upstream's own name where it is asked by that; the policy then carries it too.
    """

    agent: str
    policy: str
    purpose: Purpose = Purpose.SERVE
    exam_id: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Exam:
    """An open exam: its agent and the two policies it compares."""

    agent: str
    policies: frozenset[str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tables as they were at `read_at` (monotonic seconds)."""

    read_at: float
    aliases: dict[str, str]
    exams: dict[str, Exam]


class AliasTable:
    """Resolves names. When the store cannot be read, the last known table goes on serving (law 14)."""

    def __init__(self, store: Store, agent: str, any_model: bool = False) -> None:
        """`any_model`: a name that is no alias is the upstream's, and counts as `agent`'s traffic."""
        self._store = store
        self._agent = agent
        self._any_model = any_model
        self._snapshot: Snapshot | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ahead: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._others: dict[str, AliasTable] = {}

    def scoped(self, tenant: str) -> AliasTable:
        """The table of another tenant."""
        if tenant == self._store.tenant:
            return self
        if tenant not in self._others:
            self._others[tenant] = AliasTable(self._store.scoped(tenant), self._agent, self._any_model)
        return self._others[tenant]

    async def names(self) -> list[str]:
        """The names a client may ask for."""
        snapshot = await self._fresh()
        return sorted({*snapshot.aliases, self._agent})

    async def resolve(self, model: str, role: Role | None, exam_id: str | None) -> Route:
        """The route of a request for `model`. Raises: RequestRefused, also when an exam does not allow it."""
        snapshot = await self._fresh()
        route = self._serve(snapshot, model) if exam_id is None else self._examine(snapshot, model, role, exam_id)
        if route is None:  # perhaps younger than the snapshot
            snapshot = await self._fresh(max_age_s=0.0)
            route = self._serve(snapshot, model) if exam_id is None else self._examine(snapshot, model, role, exam_id)
        if route is not None:
            return route
        if exam_id is not None:
            raise refuse(
                403,
                "exam_refused",
                f"{model} was not asked.",
                f"No open exam {exam_id} compares that version of that agent.",
                "Open one with `nightschool gate`, and ask for agent@digest with its id.",
            )
        names = ", ".join(sorted({*snapshot.aliases, self._agent}))
        raise refuse(
            404,
            "model_not_found",
            f"No agent is called {model[:200]}.",
            f"The agents are: {names}.",
            "Put one of them into `model`, or set `agent` in nightschool.toml.",
        )

    def _serve(self, snapshot: Snapshot, model: str) -> Route | None:
        digest = snapshot.aliases.get(model)
        if digest is None and self._any_model:
            return Route(self._agent, model, model=model)
        if digest is None and model == self._agent:
            digest = BASE
        return None if digest is None else Route(model, digest)

    def _examine(self, snapshot: Snapshot, model: str, role: Role | None, exam_id: str) -> Route | None:
        if role != Role.ADMIN:
            raise refuse(
                403,
                "exam_refused",
                "The exam was not entered.",
                "An exam addresses versions that are not released.",
                "Send the admin token (the file `token` in the state folder) as the API key.",
            )
        agent, _, digest = model.rpartition("@")
        exam = snapshot.exams.get(exam_id)
        if exam is None or exam.agent != agent or digest not in exam.policies:
            return None
        return Route(agent, digest, Purpose.EXAM, exam_id)

    async def _fresh(self, max_age_s: float = MAX_AGE_S) -> Snapshot:
        """The snapshot, read again when it is older than `max_age_s`; one read serves all who wait."""
        self._asked_at = time.monotonic()
        if self._ahead is None or self._ahead.done():
            self._ahead = asyncio.create_task(self._read_ahead())
        wanted_from = self._asked_at - max_age_s
        while self._snapshot is None or self._snapshot.read_at < wanted_from:
            try:
                await self._read_once()
            except SQLAlchemyError as error:
                if self._snapshot is None:
                    raise StoreError(
                        "No agent can be looked up.", "The store cannot be read.", "nightschool doctor"
                    ) from error
                log.warning("The alias table could not be read (%s); the last one serves on.", type(error).__name__)
                return self._snapshot
        return self._snapshot

    async def _read_once(self) -> None:
        if self._reading is None:
            self._reading = asyncio.create_task(self._refresh())
        await asyncio.shield(self._reading)

    async def _read_ahead(self) -> None:
        while time.monotonic() - self._asked_at < IDLE_S:
            await asyncio.sleep(AHEAD_S)
            with contextlib.suppress(SQLAlchemyError):  # the next request meets it too, and says so
                await self._read_once()

    async def _refresh(self) -> None:
        try:
            self._snapshot = await asyncio.to_thread(self._read)
        finally:
            self._reading = None  # before this task is done: nobody may wait for a reading that is over

    def _read(self) -> Snapshot:
        read_at = time.monotonic()
        aliases, exams, tenant = schema.aliases.c, schema.exams.c, self._store.tenant
        with self._store.read() as conn:
            rows = conn.execute(sa.select(aliases.agent, aliases.digest).where(aliases.tenant == tenant)).all()
            columns = (exams.id, exams.agent, exams.candidate, exams.incumbent)
            opened = conn.execute(sa.select(*columns).where(exams.tenant == tenant, exams.state == "open")).all()
        return Snapshot(
            read_at,
            {row.agent: row.digest for row in rows},
            {row.id: Exam(row.agent, frozenset({row.candidate, row.incumbent})) for row in opened},
        )
