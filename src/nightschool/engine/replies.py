"""From sampled tokens to replies: messages with tool calls, log-probabilities, and chunks of a stream."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from nightschool.engine.scheduler import Done, Token
from nightschool.engine.text import Decoder, certain
from nightschool.rendering.renderer import Renderer
from nightschool.rendering.toolcalls import parse_reply
from nightschool.types import Json


@dataclass(slots=True)
class Speaker:
    """Turns the tokens of one choice into text, showing each character once.

    `calls` says whether tool calls are looked for; `stop` are the request's stop strings.
    """

    decoder: Decoder
    stop: tuple[str, ...] = ()
    calls: bool = False
    shown: str = ""

    def push(self, token: Token) -> str:
        """Take a token; the text that may be shown now."""
        if not self.decoder.push(token.id):
            return ""
        return self._show(certain(self.decoder.text, self.stop, self.calls))

    def finish(self, done: Done) -> tuple[str, Json, str]:
        """The rest of the text, the whole message, and the finish reason, once all tokens were pushed."""
        text = self.decoder.flush()[: done.cut]
        message: Json = {"role": "assistant", "content": text}
        reason = done.reason
        if self.calls:
            parsed = parse_reply(text)
            message["content"] = parsed.content if parsed.valid else text.strip()
            if parsed.calls:
                reason = "tool_calls" if reason == "stop" else reason
                message["tool_calls"] = [call_json(name, arguments) for name, arguments in parsed.calls]
        return self._show(message["content"] or ""), message, reason

    def _show(self, text: str) -> str:
        new, self.shown = text[len(self.shown) :], text
        return new


def call_json(name: str, arguments: str) -> Json:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


@dataclass(slots=True)
class Spelling:
    """How single tokens are written in log-probabilities: their text and their bytes."""

    tokenizer: Tokenizer
    _known: dict[int, tuple[str, list[int]]] = field(default_factory=dict)

    def of(self, token_id: int) -> tuple[str, list[int]]:
        if token_id not in self._known:
            text = self.tokenizer.decode([token_id], skip_special_tokens=False)
            piece = self.tokenizer.id_to_token(token_id) or ""
            known = all(char in BYTES for char in piece)
            raw = bytes(BYTES[char] for char in piece) if known and "\ufffd" in text else text.encode()
            self._known[token_id] = (text, list(raw))
        return self._known[token_id]

    def content(self, token: Token) -> Json:
        """One entry of a chat reply's `logprobs.content`."""
        return {**self._entry(token.id, token.logprob), "top_logprobs": [self._entry(*pair) for pair in token.best]}

    def _entry(self, token_id: int, logprob: float) -> Json:
        text, raw = self.of(token_id)
        return {"token": text, "logprob": logprob, "bytes": raw}

    def completion(self, tokens: list[Token] | tuple[Token, ...]) -> Json:
        """The `logprobs` object of a text completion."""
        texts = [self.of(token.id)[0] for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{self.of(i)[0]: p for i, p in t.best} or None for t in tokens],
            "text_offset": [sum(map(len, texts[:at])) for at in range(len(texts))],
        }


def _byte_letters() -> dict[str, int]:
    """The letters byte-level tokenizers write bytes as: printable ones stand for themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + at): b for at, b in enumerate(other)}


BYTES = _byte_letters()


def remember(renderer: Renderer, prompt_ids: list[int], message: Json, done: Done) -> None:
    """Keep a reply's ids for the day it comes back in the history.

    Edge: a reply cut by a stop string is not kept: its ids say more than its text.
    """
    if done.cut is None:
        renderer.remember(prompt_ids, message, tuple(token.id for token in done.tokens))


def prompt_scores_json(prompt_ids: list[int], scores: tuple[float, ...], spelling: Spelling) -> list[Json | None]:
    """vLLM's `prompt_logprobs`: nothing for the first id, one entry by id for each later one."""
    entries: list[Json | None] = [None]
    for token_id, score in zip(prompt_ids[1:], scores, strict=True):
        entries.append({str(token_id): {"logprob": score, "decoded_token": spelling.of(token_id)[0]}})
    return entries
