"""What a run is asked for, and the settings it runs with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

from nightschool.curation.dataset import CurationRule
from nightschool.objectives.catalog import find_objective
from nightschool.objectives.loss import Material, Objective
from nightschool.objectives.teacher import AuditRule
from nightschool.training.backend import AdamConfig
from nightschool.training.drift import DriftRule
from nightschool.training.epistemic import WatchRule
from nightschool.training.limits import TOKEN_BUDGET
from nightschool.training.loop import LoopConfig
from nightschool.training.runs import Run


class NumberFormat(StrEnum):
    """Of the base's weights. AUTO is what the device is quickest in."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """The base model and the adapter's shape. `dtype`: of the base alone."""

    model: str = "smollm2-135m"
    dtype: NumberFormat = NumberFormat.AUTO
    rank: int = 16
    alpha: int = 32
    token_budget: int = TOKEN_BUDGET


@dataclass(frozen=True, slots=True)
class ScorerConfig:
    """Another model that scores a run's rows before it begins.

    `model`: a base, as the run's own is named, "" for that one; `adapter`: the digest of one that is installed, "" for
    none. `url`: an engine that answers instead; then they are the names it serves them by, and `key_env` the
    environment variable that holds its key. `tokenizer`: the model folder, or name, whose tokenizer that engine has,
    where it does not tell."""

    model: str = ""
    adapter: str = ""
    url: str = ""
    key_env: str = ""
    tokenizer: str = ""

    @property
    def is_named(self) -> bool:
        return bool(self.model or self.adapter or self.url)


@dataclass(frozen=True, slots=True)
class StudyConfig:
    """A run's settings. `rule` are the objective's own.

    `rehearsal_weight`: how much each of the shipped general conversations counts beside what is studied, where the
    objective has an anchor; 0 leaves them out. `teacher` scores the rows of a distillation, `origin` is the fixed
    reference of a penalty, the bare base where none is named. `audit` says when a teacher who was told feedback may
    teach, `watch` when a distillation is looked at and what ends it.
    """

    rule: Any
    backend: BackendConfig = field(default_factory=BackendConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    drift: DriftRule = field(default_factory=DriftRule)
    curation: CurationRule = field(default_factory=CurationRule)
    rehearsal_weight: float = 1.0
    teacher: ScorerConfig = field(default_factory=ScorerConfig)
    origin: ScorerConfig = field(default_factory=ScorerConfig)
    audit: AuditRule = field(default_factory=AuditRule)
    watch: WatchRule = field(default_factory=WatchRule)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be studied. `data` is a file instead of the store; `start` the adapter to begin at: "serving",
    "base", or a digest. A handbook is taught to the bare base unless another start is named."""

    agent: str
    objective: str = "oapl"
    data: Path | None = None
    start: str | None = None


def default_config(objective: Objective) -> StudyConfig:
    """Settings that suit what the objective learns from.

    With feedback the steps are short: at 3e-4 four of them moved a 135M model by more than its whole drift budget.
    """
    rule = objective.rule()
    if objective.material == Material.DEMONSTRATIONS:
        return StudyConfig(rule, loop=LoopConfig(epochs=1, batch_size=12, optimizer=AdamConfig(learning_rate=1e-3)))
    steps = LoopConfig(epochs=2, batch_size=objective.batch_size, optimizer=AdamConfig(learning_rate=5e-5))
    return StudyConfig(rule, loop=steps)


def config_of(run: Run) -> StudyConfig:
    """The configuration a run was started with, from its row."""
    raw: Any = run.config
    rule = built(type(find_objective(run.objective).rule()), raw["rule"])
    return replace(built(StudyConfig, raw), rule=rule)


def built(kind: type, raw: Mapping[str, Any]) -> Any:
    """A frozen value from what `asdict` and JSON made of it. A setting that there is no more says nothing."""
    hints, values = get_type_hints(kind), {}
    for name, value in raw.items():
        hint = hints.get(name)
        if hint is None:
            continue
        if is_dataclass(hint) and isinstance(hint, type):
            value = built(hint, value)
        elif isinstance(hint, type) and issubclass(hint, StrEnum):
            value = hint(value)
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return kind(**values)
