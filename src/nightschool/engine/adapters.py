"""Which adapters the engine may load, and which it has."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nightschool.engine.runner import Runner
from nightschool.engine.scheduler import Scheduler
from nightschool.errors import BusyError, InputError, MissingError
from nightschool.models.base import BaseModel
from nightschool.releases.adapters import MANIFEST, adapter_digest, check_adapter
from nightschool.releases.manifest import DIGEST, template_digest, tokenizer_digest


class Adapters:
    """Loads only folders below `root`; a folder with a manifest must name this base."""

    def __init__(self, runner: Runner, scheduler: Scheduler, root: Path | None) -> None:
        self.loaded: dict[str, Path] = {}
        self._runner = runner
        self._scheduler = scheduler
        self._root = root.resolve() if root else None
        self._lock = asyncio.Lock()
        folder = runner.base.folder
        self._running = (runner.base.digest, tokenizer_digest(folder), template_digest(runner.base.renderer))

    async def load(self, name: str, path: str) -> None:
        """Read and check in another thread while the batch runs on; afterwards `name` may be asked for.

        Edge: loading the same folder under the same name again changes nothing.

        Raises:
            InputError: the path is not below the adapters folder, or the name belongs to something else.
            MissingError: there is no such folder.
            AdapterError: the files do not fit this base, or not their manifest.
        """
        folder = self._inside(path)
        async with self._lock:
            if self.loaded.get(name) == folder:
                return
            if name in self.loaded or name in names_of(self._runner.base):
                raise InputError(f"{name} is loaded already.", "A name is never reused.", "Choose another name.")
            if name in self._scheduler.leaving:
                raise BusyError(f"{name} is being unloaded.", "A reply still uses it.", "Try again in a moment.")
            with ThreadPoolExecutor(1) as reading:  # a thread that ends: see `__main__._serve`
                await asyncio.get_running_loop().run_in_executor(reading, self._read, name, folder)
            self.loaded[name] = folder

    def unload(self, name: str) -> None:
        """No new request may use it; its weights go when the last running reply is done."""
        if self.loaded.pop(name, None) is None:
            raise MissingError(f"No adapter {name} is loaded.", "It never was, or it was unloaded.", "GET /v1/models")
        self._scheduler.unload(name)

    def _read(self, name: str, folder: Path) -> None:
        if (folder / MANIFEST).exists():
            check_adapter(folder, name if DIGEST.fullmatch(name) else adapter_digest(folder), *self._running)
        self._runner.load(name, folder)

    def _inside(self, path: str) -> Path:
        if self._root is None:
            raise InputError("This engine loads no adapters.", "It was started without --adapters.", "Start it anew.")
        try:
            folder = (self._root / path).resolve()
        except (OSError, ValueError) as error:
            raise InputError("The adapter's path is not a path.", str(error), "Send lora_path.") from error
        if folder == self._root or not folder.is_relative_to(self._root):
            raise InputError(
                "The adapter's path is refused.",
                "Only folders below the engine's adapters folder are loaded.",
                "Install the adapter first.",
            )
        if not folder.is_dir():
            raise MissingError(f"There is no adapter folder {folder.name}.", "It is absent.", "nightschool doctor")
        return folder


def names_of(base: BaseModel) -> tuple[str, ...]:
    """The names under which a client reaches the bare model."""
    return (base.name, "base")
