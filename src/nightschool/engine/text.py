"""Text of a reply while its tokens arrive: valid UTF-8 pieces, stop strings, what may be shown already."""

from __future__ import annotations

from tokenizers import Tokenizer

CALL_MARK = "<tool_call>"
BROKEN = "\ufffd"  # what a decoder writes for half a character


class Decoder:
    """Token ids to text, one at a time. Special tokens have no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.text = ""
        self._tokenizer = tokenizer
        self._context: list[int] = []  # ids of the last piece: some decoders treat the first token apart
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that became certain; empty while a character is incomplete."""
        self._pending.append(token_id)
        piece = self._piece()
        if piece.endswith(BROKEN):
            return ""
        self._context, self._pending = self._pending, []
        self.text += piece
        return piece

    def flush(self) -> str:
        """The whole text, an incomplete last character included."""
        if self._pending:
            self.text += self._piece()
            self._pending = []
        return self.text

    def _piece(self) -> str:
        return self._decode(self._context + self._pending)[len(self._decode(self._context)) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def find_stop(text: str, new: int, stop: tuple[str, ...]) -> int | None:
    """Where the first stop string begins in `text`, whose last `new` characters were not searched yet."""
    found = [at for mark in stop if mark and (at := text.find(mark, max(0, len(text) - new - len(mark) + 1))) >= 0]
    return min(found) if found else None


def certain(text: str, stop: tuple[str, ...], calls: bool) -> str:
    """The part of an unfinished reply that can be shown: later tokens will not take it back.

    Held back: a tail that may become a stop string; with `calls`, everything from a tool call on (or
    from a tail that may become one) and white space at either end.
    """
    shown = text[: len(text) - max((_overlap(text, mark) for mark in stop), default=0)]
    if not calls:
        return shown
    shown = shown[: shown.find(CALL_MARK)] if CALL_MARK in shown else shown[: len(shown) - _overlap(shown, CALL_MARK)]
    return shown.strip()


def _overlap(text: str, mark: str) -> int:
    """Length of the longest tail of `text` that begins `mark`."""
    return next((n for n in range(min(len(mark), len(text)), 0, -1) if text.endswith(mark[:n])), 0)
