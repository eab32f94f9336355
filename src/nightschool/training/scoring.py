"""What another model says of a run's rows: a teacher's log-probabilities, or those of a fixed reference.

They are taken once, before the run, and kept in a file beside it, a line a row, as they come: a run that was
interrupted asks for what is missing. Log-probabilities of other tokens mean nothing, so who has another tokenizer is
refused.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from nightschool.config import check_engine_url
from nightschool.errors import ConfigError, InputError, InterruptedRun, RefusedError
from nightschool.models.fetch import find_model
from nightschool.objectives.off_policy import ORIGIN
from nightschool.objectives.on_policy_distillation import TEACHER
from nightschool.releases.adapters import check_adapter
from nightschool.releases.manifest import tokenizer_digest
from nightschool.rendering.renderer import Renderer
from nightschool.training.backend import Backend
from nightschool.training.plans import BackendConfig, ScorerConfig, StudyConfig
from nightschool.training.watching import Halt, Progress
from nightschool.types import Sample
from nightschool.upstream.client import EngineClient

AT_ONCE = 16  # rows that are asked for together, and kept together
STAGES = {TEACHER: "asking the teacher", ORIGIN: "scoring under the fixed reference"}
PROBE = 'Order 4711: "näïve" café, 12,50 €?\n\tif x >= 3:  return [x] * 2  # 你好'

Scores = Sequence[tuple[float, ...]]  # of the tokens that were sampled, row by row
Score = Callable[[Sequence[Sample]], Scores]
Open = Callable[[BackendConfig], Backend]


@dataclass(frozen=True, slots=True)
class Scorers:
    """Who scores for a run. `backend` is the run's own, `adapters` the folder of installed ones."""

    backend: BackendConfig
    named: Mapping[str, ScorerConfig]
    adapters: Path

    @staticmethod
    def of(config: StudyConfig, wanted: frozenset[str], state: Path) -> Scorers:
        """Raises: InputError where a teacher is needed and none is named; see `check`."""
        if TEACHER in wanted and not config.teacher.is_named:
            raise InputError(
                "No teacher is named.",
                "This objective draws the policy to what a stronger model makes of its replies.",
                "nightschool train --objective on_policy_distillation --teacher MODEL",
            )
        known = {TEACHER: config.teacher, ORIGIN: config.origin}
        return Scorers(config.backend, {name: known[name] for name in sorted(wanted)}, state / "adapters")

    def check(self) -> None:
        """Raises: RefusedError for another tokenizer; what is raised where a model or an engine is not there."""
        for scorer in self.named.values():
            if scorer.url:
                with _asked(scorer, self.backend):
                    pass
            else:
                self._folder(scorer)

    def score(self, rows: Sequence[Sample], folder: Path, open_backend: Open, watch: Watching) -> tuple[Sample, ...]:
        """The rows with what each of the models says of them.

        Raises:
            InterruptedRun: the watch asked for a halt; what was scored is kept.
            UpstreamError: the engine scored a token not at all.
        """
        for name, scorer in self.named.items():
            lacking = [row for row in rows if name not in row.token_annotations]
            kept = Kept(folder / f"{name}.jsonl", lacking)
            if kept.missing:
                watch.progress.stage(STAGES[name])
                with self._opened(scorer, open_backend) as score:
                    kept.fill(score, watch)
            rows = [kept.annotated(row, name) for row in rows]
        return tuple(rows)

    @contextmanager
    def _opened(self, scorer: ScorerConfig, open_backend: Open) -> Iterator[Score]:
        if scorer.url:
            with _asked(scorer, self.backend) as score:
                yield score
            return
        backend = open_backend(replace(self.backend, model=str(self._folder(scorer))))
        adapter = self.adapters / scorer.adapter if scorer.adapter else None
        backend.open(None)
        if adapter is not None:
            check_adapter(adapter, scorer.adapter, backend.identity.base_digest)
            backend.open(adapter)
        yield lambda rows: [tuple(x for x in row if x is not None) for row in backend.forward(rows)]

    def _folder(self, scorer: ScorerConfig) -> Path:
        folder = find_model(scorer.model or self.backend.model)
        _require_same(tokenizer_digest(folder), self.backend, scorer.model)
        return folder


@dataclass(frozen=True, slots=True)
class Watching:
    """Who is told how far the scoring is, and who may halt it."""

    progress: Progress
    halt: Halt


class Kept:
    """The scores of rows in a file. A line that was cut off by a kill is asked for again."""

    def __init__(self, path: Path, rows: Sequence[Sample]) -> None:
        self.path = path
        self.rows = rows
        lengths = {row.id: sum(row.completion_mask) for row in rows}
        self.known: dict[str, list[float]] = {}
        for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
            if line.endswith("\n"):
                said = json.loads(line)
                if lengths.get(said["id"]) == len(said["logprobs"]):
                    self.known[said["id"]] = said["logprobs"]

    @property
    def missing(self) -> list[Sample]:
        return [row for row in self.rows if row.id not in self.known]

    def fill(self, score: Score, watch: Watching) -> None:
        """Ask for every row that is missing, some at a time."""
        self._write(self.known)
        missing = self.missing
        for first in range(0, len(missing), AT_ONCE):
            part = missing[first : first + AT_ONCE]
            found = {row.id: list(said) for row, said in zip(part, score(part), strict=True)}
            self.known |= found
            with self.path.open("a") as handle:
                handle.writelines(_line(row_id, said) for row_id, said in found.items())
            watch.progress.rows(len(self.known), len(self.rows))
            if watch.halt.requested and first + AT_ONCE < len(missing):
                raise InterruptedRun("The run halted before its first step.", "You asked for it.", "")

    def annotated(self, row: Sample, name: str) -> Sample:
        """The row with its scores, each where its token stands. A row that came with its own keeps them."""
        if name in row.token_annotations:
            return row
        told = iter(self.known[row.id])
        values = tuple(next(told) if used else None for used in row.completion_mask)
        return replace(row, token_annotations={**row.token_annotations, name: values})

    def _write(self, known: Mapping[str, Sequence[float]]) -> None:
        part = self.path.with_suffix(".part")
        part.write_text("".join(_line(row_id, said) for row_id, said in known.items()))
        part.rename(self.path)


@contextmanager
def _asked(scorer: ScorerConfig, backend: BackendConfig) -> Iterator[Score]:
    """An engine that scores tokens at temperature 1, and has the tokenizer of the policy."""
    check_engine_url(scorer.url)
    key = os.environ.get(scorer.key_env) if scorer.key_env else None
    if scorer.key_env and not key:
        raise ConfigError(f"key_env = {scorer.key_env!r} names a variable that is not set.", "", "Set it.")
    with asyncio.Runner() as runner:
        client = EngineClient(scorer.url, key)

        async def ask(rows: Sequence[Sample]) -> Scores:
            return await asyncio.gather(*(_one(client, model, row) for row in rows))

        try:
            model = scorer.adapter or scorer.model or runner.run(client.models())[0]
            runner.run(_require_tokenizer(client, scorer, backend))
            yield lambda rows: runner.run(ask(rows))
        finally:
            runner.run(client.close())


async def _one(client: EngineClient, model: str, row: Sample) -> tuple[float, ...]:
    temperature = row.annotations.get("temperature", 1.0)
    if temperature != 1.0:
        raise RefusedError(
            "The run is refused: an engine scores tokens at temperature 1.",
            f"Row {row.id} was drawn at {temperature:g}.",
            "Name the scoring model by its folder instead of a URL.",
        )
    first = row.completion_mask.index(True)
    said = await client.score(model, row.token_ids[:first], row.token_ids[first:])
    return tuple(value for value, used in zip(said, row.completion_mask[first:], strict=True) if used)


async def _require_tokenizer(client: EngineClient, scorer: ScorerConfig, backend: BackendConfig) -> None:
    """What an engine tells of its tokenizer is believed; what is declared of one that does not tell, is tried."""
    told = await client.tokenizer_digest()
    if told is not None:
        return _require_same(told, backend, scorer.url)
    if not scorer.tokenizer:
        raise RefusedError(
            "The run is refused: whose tokens the engine scores is not known.",
            f"{scorer.url} does not tell its tokenizer's digest.",
            "Set tokenizer beside url to the folder or name of the model that it serves.",
        )
    folder = find_model(scorer.tokenizer)
    _require_same(tokenizer_digest(folder), backend, scorer.tokenizer)
    spelled = Renderer.from_folder(folder).tokenizer.encode(PROBE, add_special_tokens=False).ids
    if await client.tokenize({"prompt": PROBE, "add_special_tokens": False}) != tuple(spelled):
        raise RefusedError(
            "The run is refused: the engine has another tokenizer than the one that is declared.",
            f"{scorer.url} encodes a text differently than {scorer.tokenizer}.",
            "Correct tokenizer beside url.",
        )
    return None


def _require_same(digest: str, backend: BackendConfig, whose: str) -> None:
    own = tokenizer_digest(find_model(backend.model))
    if digest != own:
        raise RefusedError(
            "The run is refused: policy and scoring model share one tokenizer.",
            f"{whose} has tokenizer {digest[:12]}, {backend.model} has {own[:12]}; "
            "log-probabilities of other tokens mean nothing.",
            "Name a model of the same family.",
        )


def _line(row_id: str, said: Sequence[float]) -> str:
    return json.dumps({"id": row_id, "logprobs": list(said)}) + "\n"
