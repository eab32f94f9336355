"""What a run keeps on disk: checkpoints to resume from, states to come back to, and the anchor's scores.

Everything is a folder of safetensors and JSON that gets its name only when it is complete, so a run killed
at any instant finds its last whole checkpoint.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from nightschool.store.failpoints import fail_point
from nightschool.training.backend import Backend
from nightschool.types import Json, Sample

REFERENCE_VALUES, TEACHER = "reference_values", "teacher_logprobs"
TOP_IDS, TEACHER_TOP = WIDE = ("top_ids", "teacher_top")
NOTED = {"values": REFERENCE_VALUES, "teacher": TEACHER}  # by their names in the file
CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True)
class Position:
    """Where a loop stands. `step` counts within the window, `done` over all; `safe` is the `done` of the last
    state a stop may come back to, `None` where only the window's start is safe; `sound` that of the last one that an
    inspector found nothing against. `windows` are the summaries of the finished ones."""

    window: int = 0
    step: int = 0
    done: int = 0
    safe: int | None = None
    sound: int | None = None
    tokens: int = 0
    seconds: float = 0.0
    processor_s: float = 0.0
    windows: tuple[Json, ...] = field(default=())


def save_checkpoint(folder: Path, backend: Backend, position: Position) -> None:
    """Write a checkpoint, then remove older ones and states nobody can come back to any more."""
    target = folder / f"checkpoint-{position.done}"
    if not target.exists():
        staging = folder / "checkpoint.part"
        shutil.rmtree(staging, ignore_errors=True)
        backend.save_state(staging)
        (staging / "position.json").write_text(json.dumps(asdict(position)) + "\n")
        fail_point("checkpoint.written")
        staging.rename(target)
        fail_point("checkpoint.named")
    spared = (_safe(folder, position.safe), _safe(folder, position.sound))
    for other in folder.iterdir():
        old = CHECKPOINT.fullmatch(other.name) and other != target
        if old or (other.name.startswith("safe-") and other not in spared):
            shutil.rmtree(other)


def find_checkpoint(folder: Path) -> tuple[Path, Position] | None:
    """The newest complete checkpoint of a run."""
    found = {int(match[1]): path for path in folder.iterdir() if (match := CHECKPOINT.fullmatch(path.name))}
    if not found:
        return None
    path = found[max(found)]
    raw = json.loads((path / "position.json").read_text())
    return path, Position(**{**raw, "windows": tuple(raw["windows"])})


def save_safe(folder: Path, backend: Backend, done: int) -> None:
    """Keep the weights as they are after `done` steps."""
    staging = folder / "safe.part"
    shutil.rmtree(staging, ignore_errors=True)
    backend.save_weights(staging)
    target = _safe(folder, done)
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)


def safe_folder(folder: Path, window: int, position: Position) -> Path | None:
    """The adapter a stop comes back to: the last safe state of the window, else the window's start."""
    if position.safe is not None:
        return _safe(folder, position.safe)
    return start_folder(folder, window)


def start_folder(folder: Path, window: int) -> Path | None:
    """What a window starts from; `None` for the first, which starts from the parent."""
    return folder / f"window-{window}" if window else None


def save_start(folder: Path, backend: Backend, window: int) -> None:
    """Keep the weights that `window` starts from."""
    staging = folder / "window.part"
    shutil.rmtree(staging, ignore_errors=True)
    backend.save_weights(staging)
    target = folder / f"window-{window}"
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)


def save_anchor(folder: Path, window: int, scores: Mapping[str, Sequence[Any]]) -> None:
    """Write what the models of the window's start say of all samples of the buffer, missing values as NaN.

    `scores` by name: `logprobs`; `values` where a critic is asked, `teacher` where one is; arrays (T, K) of ids and
    of what a teacher says of them under `WIDE`.
    """
    flat = {
        name: np.concatenate(list(rows))
        if name in WIDE
        else np.array([np.nan if x is None else x for row in rows for x in row], dtype=np.float32)
        for name, rows in scores.items()
    }
    staging = folder / "anchor.part"
    save_file(flat, staging)
    staging.rename(folder / f"anchor-{window}.safetensors")


def load_anchor(folder: Path, window: int, samples: Sequence[Sample]) -> list[Sample] | None:
    """The samples with `reference_logprobs`, with `reference_values` where a critic was asked, and `teacher_logprobs`
    where a teacher was; `None` where nothing was computed yet."""
    path = folder / f"anchor-{window}.safetensors"
    if not path.exists():
        return None
    found, at, out = load_file(path), 0, []
    for sample in samples:
        here = slice(at, at + len(sample.token_ids))
        at = here.stop
        notes: dict[str, Any] = {name: _row(found[key][here]) for key, name in NOTED.items() if key in found}
        if not any(value is not None for value in notes.get(TEACHER, ())):
            notes.pop(TEACHER, None)  # a row that no teacher saw
        elif TOP_IDS in found:
            notes |= {name: found[name][here] for name in WIDE}
        out.append(
            replace(
                sample,
                reference_logprobs=_row(found["logprobs"][here]),
                token_annotations={**sample.token_annotations, **notes},
            )
        )
    return out


def _row(values: np.ndarray) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(x) else float(x) for x in values)


def _safe(folder: Path, done: int | None) -> Path:
    return folder / f"safe-{done}"
