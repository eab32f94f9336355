"""The formats that are read, in the order in which a record is tried against them."""

from __future__ import annotations

from nightschool.imports import atif, claude_code, codex, langfuse, messages, otlp, runs, who_and_when
from nightschool.imports.values import Format

FORMATS: tuple[Format, ...] = (
    *runs.FORMATS,
    who_and_when.FORMAT,
    atif.FORMAT,
    claude_code.FORMAT,
    codex.FORMAT,
    otlp.FORMAT,
    langfuse.FORMAT,
    messages.FORMAT,
)
