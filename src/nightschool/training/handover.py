"""A policy from the trainer to an engine: saved after a step, loaded under its digest, unloaded for the next."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections import deque
from pathlib import Path

from nightschool import __version__
from nightschool.errors import UpstreamError
from nightschool.releases.adapters import MANIFEST, adapter_digest
from nightschool.releases.manifest import Manifest
from nightschool.training.backend import Backend
from nightschool.upstream.client import EngineClient


class EngineHandover:
    """Hands a backend's adapter to an engine that loads adapters from `folder`, each under its digest.

    The manifest names the adapter before as its parent, so every version has a name of its own. What was saved last
    stays in the folder.
    """

    def __init__(self, backend: Backend, client: EngineClient, folder: Path, agent: str) -> None:
        self.backend = backend
        self.client = client
        self.folder = folder
        self.agent = agent
        self._kept: deque[str] = deque()

    def save(self) -> str:
        part = self.folder / "next.part"
        shutil.rmtree(part, ignore_errors=True)
        self.backend.save_adapter(part)
        (part / MANIFEST).write_text(json.dumps(self._manifest().as_json()) + "\n")
        digest = adapter_digest(part)
        if not (self.folder / digest).exists():  # a run before this one may have left the same adapter
            part.rename(self.folder / digest)
        self._kept.append(digest)
        return digest

    async def serve(self, name: str) -> None:
        await self.client.load_adapter(name, self.folder / name)
        while self._kept[0] != name:
            older = self._kept.popleft()
            await self.client.unload_adapter(older)
            shutil.rmtree(self.folder / older)

    async def close(self) -> None:
        with contextlib.suppress(UpstreamError):  # an engine that is gone holds nothing
            for name in list(self._kept):  # a step that is cancelled may still save
                await self.client.unload_adapter(name)

    def _manifest(self) -> Manifest:
        fits, parent = self.backend.identity, self._kept[-1] if self._kept else None
        return Manifest(
            agent=self.agent,
            base_digest=fits.base_digest,
            tokenizer_digest=fits.tokenizer_digest,
            template_digest=fits.template_digest,
            targets=fits.targets,
            parent_digest=parent,
            dataset_digest=None,
            code_version=__version__,
            run_id=None,
        )
