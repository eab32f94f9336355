"""What happens meanwhile, on stderr: one live line on a terminal, a line per phase elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

EVERY_S = 30.0
DONE, FAILED = "✓", "✗"


class Progress:
    """Tells people what is being done. Says nothing with NO_PROGRESS set; colors nothing when piped."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._muted = bool(os.environ.get("NO_PROGRESS"))
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = ""
        self._told_at = 0.0

    @contextmanager
    def phase(self, doing: str, done: str) -> Iterator[Progress]:
        """`doing` while the block runs, then `done` in the past tense with its duration; nothing if it raises."""
        started = time.monotonic()
        self.say(doing, always=True)
        try:
            yield self
        except BaseException:
            self._clear()
            raise
        self.tell(f"{DONE} {done}", time.monotonic() - started)

    def say(self, text: str, always: bool = False) -> None:
        """The current line. Away from a terminal it is written at most every `EVERY_S` seconds."""
        now = time.monotonic()
        if self._muted or text == self._shown or not (always or self._live or now - self._told_at >= EVERY_S):
            return
        self._told_at = now
        if self._live:
            self._clear()
            self._stream.write(encodable(f"  {text}"[: shutil.get_terminal_size().columns - 1], self._stream))
        else:
            self._stream.write(encodable(f"{text}\n", self._stream))
        self._shown = text
        self._stream.flush()

    def tell(self, text: str, took_s: float | None = None) -> None:
        """A line that stays."""
        if self._muted:
            return
        self._clear()
        took = "" if took_s is None else f"  {seconds(took_s)}"
        self._stream.write(f"{encodable(text, self._stream)}{took}\n")
        self._stream.flush()

    def _clear(self) -> None:
        if self._live and self._shown:
            self._stream.write("\r\x1b[K")
        self._shown = ""


def seconds(value: float) -> str:
    """`4 s`, `1 min 31 s`."""
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


PLAIN_GLYPHS = str.maketrans(
    {
        "✓": "ok", "✗": "x", "▲": "+", "▼": "-", "■": "=", "●": "o", "○": ".", "├": "|", "┤": "|", "─": "-",
        "┄": "-", "┊": ":", "│": "|", "−": "-", "…": "...", "·": ".", "→": "->", "×": "x", "±": "+/-"
    }
)  # fmt: skip


def encodable(text: str, stream: TextIO) -> str:
    """`text` in what `stream` can encode: our glyphs become ASCII ones, everything else a question mark."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    if encoding.lower().replace("-", "") == "utf8":
        return text.encode("utf-8", "replace").decode("utf-8")
    return text.translate(PLAIN_GLYPHS).encode(encoding, "replace").decode(encoding)
