"""The engine inside its process: the network's thread on one side, the event loop on the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from nightschool.engine.adapters import Adapters, names_of
from nightschool.engine.replies import Spelling
from nightschool.engine.runner import Runner
from nightschool.engine.scheduler import BASE_ADAPTER, Done, Event, Failed, Request, Scheduler, Step
from nightschool.errors import InputError, MissingError, NightschoolError
from nightschool.models.base import BaseModel
from nightschool.releases.manifest import tokenizer_digest
from nightschool.types import Json


@dataclass(frozen=True, slots=True)
class Settings:
    """`capacity` bounds prompt and reply together; `kept_bytes` what finished sequences may hold."""

    adapters: Path | None = None
    key: str | None = None
    max_batch: int = 32
    capacity: int = 4096
    kept_bytes: int = 512 << 20
    max_body_bytes: int = 8 << 20


class Engine:
    """Admits requests, hands them to the scheduler and brings their events back to the event loop."""

    def __init__(self, base: BaseModel, settings: Settings) -> None:
        self.base = base
        self.settings = settings
        self.started_at = int(time.time())
        self.capacity = min(settings.capacity, base.network.config.max_position_embeddings)
        self.runner = Runner(base, settings.max_batch, self.capacity)
        self.scheduler = Scheduler(self.runner, self._deliver, stop_ids(base), settings.kept_bytes)
        self.adapters = Adapters(self.runner, self.scheduler, settings.adapters)
        self.spelling = Spelling(base.renderer.tokenizer)
        self.tokenizer_digest = tokenizer_digest(base.folder)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[Request, asyncio.Queue[Event]] = {}

    def start(self) -> None:
        """Call inside the event loop that serves the requests."""
        self._loop = asyncio.get_running_loop()
        self.scheduler.start()

    def stop(self) -> None:
        self.scheduler.stop()

    def adapter_of(self, model: str) -> str:
        """The adapter a client's model name stands for.

        Raises:
            MissingError: no such model is loaded.
        """
        if model in self.adapters.loaded:
            return model
        if model in names_of(self.base):
            return BASE_ADAPTER
        raise MissingError(
            f"The model {model} is not loaded.",
            f"Loaded are {', '.join([self.base.name, *self.adapters.loaded])}.",
            "POST /v1/load_lora_adapter",
        )

    def reply_tokens(self, prompt_ids: list[int], max_tokens: int | None) -> int:
        """How long a reply may get: as asked, or what is left.

        Raises:
            InputError: prompt and reply together are longer than a sequence may be, or the prompt is empty.
        """
        if not prompt_ids:
            raise InputError("The prompt is empty.", "It has no tokens.", "Send at least one token.")
        vocabulary = self.base.network.config.vocab_size
        if not all(0 <= token < vocabulary for token in prompt_ids):
            raise InputError("The prompt has unknown token ids.", f"Ids go to {vocabulary - 1}.", "Encode it anew.")
        wanted = max_tokens or max(1, self.capacity - len(prompt_ids))
        if len(prompt_ids) + wanted > self.capacity:
            raise InputError(
                "The request is longer than the engine's sequences.",
                f"{len(prompt_ids)} prompt tokens and {wanted} new ones exceed {self.capacity}.",
                "Shorten the conversation, lower max_tokens, or start the engine with a larger --capacity.",
            )
        return wanted

    async def events(self, request: Request) -> AsyncGenerator[tuple[int, Step | Done], None]:
        """Run a request; yields (choice, event) until each choice is done.

        Leaving the iteration early drops the request from the batch.

        Raises:
            EngineError: the network failed.
        """
        inbox = self._queues[request] = asyncio.Queue()
        open_choices = request.n
        try:
            self.scheduler.submit(request)
            while open_choices:
                event = await inbox.get()
                if isinstance(event, Failed):
                    raise EngineError(event.message, "See the engine's log.", "Send the request again.")
                open_choices -= isinstance(event, Done)
                yield event.choice, event
        finally:
            request.cancelled = True
            del self._queues[request]

    def health(self) -> Json:
        scheduler, runner = self.scheduler, self.runner
        return {
            "status": "ok",
            "model": self.base.name,
            "base_digest": self.base.digest,
            "tokenizer_digest": self.tokenizer_digest,
            "device": str(self.base.device),
            "dtype": str(self.base.dtype).removeprefix("torch."),
            "capacity": self.capacity,
            "queue": len(scheduler.waiting),
            "running": len(scheduler.rows),
            "adapters": sorted(self.adapters.loaded),
            "steps": scheduler.steps,
            "computed_tokens": runner.num_tokens,
            "reused_tokens": scheduler.reused_tokens,
            "kept_bytes": scheduler.store.used_bytes,
        }

    def _deliver(self, events: list[tuple[Request, Event]]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: list[tuple[Request, Event]]) -> None:
        for request, event in events:
            if request in self._queues:
                self._queues[request].put_nowait(event)


class EngineError(NightschoolError):
    """The network raised while it worked on a request."""


def stop_ids(base: BaseModel) -> frozenset[int]:
    """Ids that end a reply: end of turn, and what the model's own configuration names."""
    found = {base.renderer.end_id}
    for config in (base.network.config, base.network.generation_config):
        own = getattr(config, "eos_token_id", None)
        found |= set(own if isinstance(own, list) else [] if own is None else [own])
    return frozenset(found)
