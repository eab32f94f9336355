"""Steps of drawing and studying, side by side: while a batch is studied, the next ones are drawn.

The policy of version v has studied v steps. The batch of step k is drawn by a version from k - `max_staleness` to k,
the newest that there is when its drawing begins; with a bound of 0 both sides take turns. Whoever studies holds each
token against the version that drew it (`training.groups`, with a correction of `objectives.off_policy`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from nightschool.errors import ConfigError
from nightschool.objectives.legality import refused
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class Batch:
    """What is studied in a step. `staleness`: how many versions behind the oldest policy is that drew a sample."""

    step: int
    samples: tuple[Sample, ...]
    staleness: int


class Handover(Protocol):
    """How a policy gets from where it is trained to where it draws."""

    def save(self) -> str:
        """Keep the policy as it is now, under the name that is returned, until a later one is served."""
        ...

    async def serve(self, name: str) -> None:
        """Draw with this one from now on. Nothing is being drawn meanwhile."""
        ...

    async def close(self) -> None:
        """Nothing will be drawn any more."""
        ...


Draw = Callable[[int, str], Awaitable[Sequence[Sample]]]  # of a step, with the policy of that name
Study = Callable[[Batch], object]


async def run_steps(draw: Draw, study: Study, handover: Handover, num_steps: int, max_staleness: int) -> None:
    """Draw and study `num_steps` batches in their order, studying in a thread of its own.

    An error of either side, or a cancellation (Ctrl-C under `asyncio.run`), ends both: what is being drawn is
    cancelled, and the step that is being studied is finished. The error is raised as it was where it happened.

    Raises:
        RefusedError: a sample does not name a policy that was handed over, or one beyond the bound.
    """
    if max_staleness < 0:
        raise ConfigError("A policy cannot be ahead of itself.", f"max_staleness is {max_staleness}.", "Say 0 or more.")
    batches: asyncio.Queue[tuple[int, Sequence[Sample]] | None] = asyncio.Queue()
    allowed = asyncio.Semaphore(max_staleness + 1)
    names: list[str] = []

    async def draw_all() -> None:
        try:
            for step in range(num_steps):
                await allowed.acquire()
                name = names[-1]
                await handover.serve(name)
                batches.put_nowait((step, await draw(step, name)))
        finally:
            batches.put_nowait(None)  # wakes who waits for a batch that will not come

    def study_one(batch: Batch) -> str:
        study(batch)
        return handover.save()

    with ThreadPoolExecutor(1, "study") as thread:  # its end waits for the step that is being studied
        in_thread = asyncio.get_running_loop().run_in_executor
        names.append(await in_thread(thread, handover.save))
        drawing = asyncio.create_task(draw_all())
        try:
            while (drawn := await batches.get()) is not None:
                batch = _require_fresh(*drawn, {name: version for version, name in enumerate(names)}, max_staleness)
                names.append(await in_thread(thread, study_one, batch))
                allowed.release()
                if drawing.done():
                    drawing.result()
            await drawing
        finally:
            drawing.cancel()
            await asyncio.wait({drawing})
            await handover.close()


def _require_fresh(step: int, samples: Sequence[Sample], versions: Mapping[str, int], max_staleness: int) -> Batch:
    behind = [0]
    for sample in samples:
        version = versions.get(sample.policy_version or "")
        if version is None:
            raise refused("a sample names the policy that drew it", f"{sample.id} names {sample.policy_version}")
        if step - version > max_staleness:
            why = f"{sample.id} of step {step} was drawn by version {version}"
            raise refused(f"a policy that draws is at most {max_staleness} versions behind", why)
        behind.append(step - version)
    return Batch(step, tuple(samples), max(behind))
