"""Records out of a file, one at a time: JSON lines, a JSON array, or JSON documents one after another.

Never more than one record is in memory. A bad line is told and the next one is read; after a mistake inside
an array or a document nothing can be trusted, so there the file is refused.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nightschool.errors import InputError, MissingError

MAX_RECORD_BYTES = 128 * 2**20
CHUNK_BYTES = 2**20
HEAD_BYTES = 2**16
LINE_SUFFIXES = (".jsonl", ".ndjson")
BOM = b"\xef\xbb\xbf"
FOREIGN = (
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"PAR1", "a Parquet file"),
    (b"PK\x03\x04", "a zip archive"),
)

_space = re.compile(r"[ \t\n\r]*")
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Raw:
    """One record as the file spells it, from byte `offset` on. `problem` says why there is no `value`."""

    line: int
    offset: int
    data: bytes
    value: Any = None
    problem: str | None = None


def read_records(path: Path) -> Iterator[Raw]:
    """Every record of the file, in order.

    Raises:
        MissingError: there is no such file.
        InputError: it is empty, no UTF-8 text, or broken inside an array or a document; the message names the line.
    """
    if not path.is_file():
        raise MissingError(f"There is no file {path}.", "", "nightschool import FILE")
    with path.open("rb") as handle:
        head = handle.read(HEAD_BYTES)
        start = len(BOM) if head.startswith(BOM) else 0
        _check(path, head)
        handle.seek(start)
        if _by_lines(path, head[start:]):
            yield from _lines(handle)
        else:
            window = _Window(path, handle, start)
            yield from _array(window) if window.peek() == "[" else _documents(window)


def read_again(path: Path, places: list[tuple[int, int, int]]) -> list[Raw]:
    """The records at these (line, offset, size), which were read before."""
    found = []
    with path.open("rb") as handle:
        for line, offset, size in places:
            handle.seek(offset)
            found.append(_parsed(line, offset, handle.read(size)))
    return found


def _check(path: Path, head: bytes) -> None:
    if not head.strip():
        raise _broken(path, "It is empty." if not head else "It holds nothing but space.")
    kind = next((name for mark, name in FOREIGN if head.startswith(mark)), None)
    if kind is None and b"\0" in head:
        kind = "not text: it holds zero bytes"
    if kind:
        raise _broken(path, f"It is {kind}, and JSON in UTF-8 is read.")


def _by_lines(path: Path, head: bytes) -> bool:
    """Whether each line is a record of its own."""
    if path.suffix in LINE_SUFFIXES:
        return True
    text = head.lstrip()
    if text.startswith(b"["):
        return False
    first, newline, _ = text.partition(b"\n")
    if not newline:
        return True
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return not first.rstrip().endswith((b"{", b"[", b",", b":"))
    return True


def _lines(handle: BinaryIO) -> Iterator[Raw]:
    number = 0
    while True:
        offset = handle.tell()
        data = handle.readline(MAX_RECORD_BYTES + 1)
        if not data:
            return
        number += 1
        if len(data) > MAX_RECORD_BYTES:
            while data and not data.endswith(b"\n"):
                data = handle.readline(CHUNK_BYTES)
            yield Raw(number, offset, b"", problem=f"longer than {MAX_RECORD_BYTES >> 20} MiB")
        elif data.strip():
            yield _parsed(number, offset, data.rstrip(b"\r\n"))


def _parsed(line: int, offset: int, data: bytes) -> Raw:
    try:
        return Raw(line, offset, data, json.loads(data.decode()))
    except UnicodeDecodeError:
        problem = "not UTF-8"
    except json.JSONDecodeError as error:
        problem = "cut off" if _ends_early(error) else "not JSON"
    except ValueError:
        problem = "a number too long to read"
    except RecursionError:
        problem = "nested too deeply"
    return Raw(line, offset, data, problem=problem)


def _ends_early(error: json.JSONDecodeError) -> bool:
    """Whether the text was right as far as it went."""
    return error.msg.startswith("Unterminated string") or error.pos >= len(error.doc.rstrip())


class _Window:
    """A stretch of the file's text and a place in it; what lies before the place is forgotten on reading on."""

    def __init__(self, path: Path, handle: BinaryIO, offset: int) -> None:
        self.path = path
        self.line = 1
        self._offset = offset
        self._handle = handle
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._text = ""
        self._at = 0
        self._ended = False

    def peek(self) -> str:
        """The next character that is no space; empty at the end of the file."""
        while True:
            space = _space.match(self._text, self._at)
            self._pass(space.end() if space else self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def skip(self) -> None:
        """Go past one character."""
        self._pass(self._at + 1)

    def take(self) -> Raw:
        """The value that begins here. Raises: InputError where there is none."""
        while True:
            begin = self._at
            try:
                value, end = _decoder.raw_decode(self._text, self._at)
            except RecursionError:
                raise self.broken("A value is nested too deeply") from None
            except json.JSONDecodeError as error:
                if self._fill():
                    continue
                self.line += error.doc.count("\n", begin, error.pos)
                raise self.broken("It is cut off" if _ends_early(error) else "It is not JSON") from error
            except ValueError as error:
                raise self.broken("A number is too long to read") from error
            if end == len(self._text) and self._fill():
                continue  # a number may go on
            line, offset, text = self.line, self._offset, self._text[self._at : end]
            self._pass(end)
            return Raw(line, offset, text.encode(), value)

    def broken(self, what: str) -> InputError:
        return _broken(self.path, f"{what} at line {self.line}.")

    def _pass(self, at: int) -> None:
        done = self._text[self._at : at]
        self._offset += len(done.encode())
        self.line += done.count("\n")
        self._at = at

    def _fill(self) -> bool:
        """Read on, as much again as is there; False at the end of the file."""
        if self._ended:
            return False
        rest = self._text[self._at :]
        if len(rest) > MAX_RECORD_BYTES:
            raise self.broken(f"A value is longer than {MAX_RECORD_BYTES >> 20} MiB")
        data = self._handle.read(max(CHUNK_BYTES, len(rest)))
        self._ended = not data
        try:
            self._text, self._at = rest + self._decode(data, final=self._ended), 0
        except UnicodeDecodeError as error:
            self.line += rest.count("\n") + data.count(b"\n", 0, error.start)
            raise self.broken("It is not UTF-8") from error
        return not self._ended


def _array(window: _Window) -> Iterator[Raw]:
    window.skip()
    if window.peek() != "]":
        yield window.take()
        while window.peek() == ",":
            window.skip()
            window.peek()
            yield window.take()
    if window.peek() != "]":
        raise window.broken("The array has no end" if window.peek() == "" else "The array goes on without a comma")
    window.skip()
    if window.peek():
        raise window.broken("Something follows the array")


def _documents(window: _Window) -> Iterator[Raw]:
    while window.peek():
        yield window.take()


def _broken(path: Path, why: str) -> InputError:
    return InputError(f"{path.name} cannot be read.", why, "Nothing was taken. Correct it and run it again.")
