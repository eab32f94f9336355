"""The policies an engine holds: the base model, and adapters loaded when first asked for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nightschool.errors import MissingError, UpstreamError
from nightschool.releases.adapters import check_adapter
from nightschool.releases.aliases import BASE
from nightschool.upstream.client import EngineClient

DIGEST = re.compile(r"[0-9a-f]{64}")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """A policy in use: the engine's name for it, and which loading of it this is."""

    policy: str
    model: str
    loading: int


class PolicyPool:
    """Loads each adapter once, keeps `limit` of them, and never unloads one that a request is using.

    An engine that restarted has forgotten its adapters: `renew` loads again what it says it does not know.
    """

    def __init__(self, engine: EngineClient, folder: Path, limit: int, base_model: str | None = None) -> None:
        self._engine = engine
        self._folder = folder
        self._limit = limit
        self._configured_base = base_model
        self._loaded: dict[str, Lease] = {}  # in order of last use
        self._num_loadings = 0
        self._in_use: Counter[str] = Counter()
        self._locks: dict[str, asyncio.Lock] = {}

    @contextlib.contextmanager
    def using(self, policy: str) -> Iterator[None]:
        """The policy, once loaded, stays so for the length of the block."""
        self._in_use[policy] += 1
        try:
            yield
        finally:
            self._in_use[policy] -= 1
            if not self._in_use[policy]:
                del self._in_use[policy]

    async def lease(self, policy: str, model: str | None = None) -> Lease:
        """The policy, loaded; an upstream's own `model` needs no loading. Call it inside `using`.

        Raises: UpstreamError when the engine does not load it, AdapterError or MissingError when its folder
        is not what its name says.
        """
        return await self._ready(policy, older_than=None) if model is None else Lease(policy, model, 0)

    async def renew(self, lease: Lease) -> Lease:
        """The policy after the engine said that it does not know it; of many who ask, one loads."""
        return await self._ready(lease.policy, older_than=lease)

    async def _ready(self, policy: str, older_than: Lease | None) -> Lease:
        lease = self._loaded.get(policy)
        if lease is None or lease is older_than:
            async with self._locks.setdefault(policy, asyncio.Lock()):
                lease = self._loaded.get(policy)
                if lease is None or lease is older_than:
                    model = await (self._find_base() if policy == BASE else self._load(policy))
                    self._num_loadings += 1
                    lease = Lease(policy, model, self._num_loadings)
        self._loaded.pop(policy, None)
        self._loaded[policy] = lease
        return lease

    async def _find_base(self) -> str:
        if self._configured_base is not None:
            return self._configured_base
        names = await self._engine.models()
        if not names:
            raise UpstreamError("There is no base model.", "The engine serves no model.", "nightschool doctor")
        return names[0]

    async def _load(self, digest: str) -> str:
        path = self._folder / digest
        if not DIGEST.fullmatch(digest) or not path.is_dir():
            raise MissingError(
                f"Adapter {digest[:12]} cannot be served.",
                f"It does not lie in {self._folder}.",
                "Roll back with `nightschool rollback`, or restore the folder.",
            )
        await asyncio.to_thread(check_adapter, path, digest)
        await self._make_room()
        await self._engine.load_adapter(digest, path.resolve())
        return digest

    async def _make_room(self) -> None:
        """Unload the least recently used adapters that no request uses, until one more fits."""
        adapters = [policy for policy in self._loaded if policy != BASE]
        idle = [policy for policy in adapters if not self._in_use[policy]]
        for policy in idle[: max(0, len(adapters) - self._limit + 1)]:
            async with self._locks.setdefault(policy, asyncio.Lock()):
                if self._in_use[policy]:  # asked for again while we waited
                    continue
                self._loaded.pop(policy, None)
                try:
                    await self._engine.unload_adapter(policy)
                except UpstreamError as error:
                    log.warning("Adapter %s stays in the engine: %s", policy[:12], error)
