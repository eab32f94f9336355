"""What an adapter says about itself, and the digests that tie it to one base, tokenizer and template."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from nightschool.errors import AdapterError, MissingError
from nightschool.rendering.renderer import Renderer
from nightschool.types import Json

DIGEST = re.compile(r"[0-9a-f]{64}")

# One conversation with every part a template can spell: system text, tools, a call, its result, a reply.
SPECIMEN_MESSAGES: tuple[Json, ...] = (
    {"role": "system", "content": "You help.\nBe brief."},
    {"role": "user", "content": "Is it raining in Bern?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "dry"},
    {"role": "assistant", "content": "No, it is dry."},
    {"role": "user", "content": "Thanks."},
)
SPECIMEN_TOOLS: tuple[Json, ...] = (
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "day": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Where an adapter comes from and what it fits. All of it is part of the adapter's digest.

    `parent_digest` is the adapter that training continued from, `None` from the bare base.
    `dataset_digest` and `run_id` are `None` for an adapter brought in from outside.
    """

    agent: str
    base_digest: str
    tokenizer_digest: str
    template_digest: str
    targets: tuple[str, ...]
    parent_digest: str | None
    dataset_digest: str | None
    code_version: str
    run_id: str | None

    def as_json(self) -> Json:
        return {**asdict(self), "targets": sorted(self.targets)}


def read_manifest(path: Path) -> Manifest:
    """Parse a `manifest.json`.

    Raises:
        AdapterError: it is absent, not JSON, or has other keys than a manifest.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(
            f"The manifest of {path.parent.name[:12]} cannot be read.", str(error), "nightschool doctor"
        ) from error
    names = {field.name for field in fields(Manifest)}
    if not isinstance(raw, dict) or set(raw) != names or not isinstance(raw["targets"], list):
        raise AdapterError(
            f"The manifest of {path.parent.name[:12]} is not an adapter's manifest.",
            f"It must hold exactly {', '.join(sorted(names))}.",
            "nightschool doctor",
        )
    return Manifest(**{**raw, "targets": tuple(raw["targets"])})


def tokenizer_digest(model_folder: Path) -> str:
    """SHA-256 of the model folder's `tokenizer.json`."""
    path = model_folder / "tokenizer.json"
    if not path.exists():
        raise MissingError(
            f"{model_folder.name} holds no tokenizer.json.",
            "It is not a model folder.",
            "nightschool models fetch smollm2-135m",
        )
    return hashlib.sha256(path.read_bytes()).hexdigest()


def template_digest(renderer: Renderer) -> str:
    """SHA-256 of the ids that one fixed conversation renders to.

    Any change of the chat format or of the tool-call syntax changes it; a rewrite of the code that keeps
    the format does not.
    """
    ids = renderer.prompt_ids(SPECIMEN_MESSAGES, SPECIMEN_TOOLS)
    return hashlib.sha256(array("i", ids).tobytes()).hexdigest()
