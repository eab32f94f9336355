"""From chat messages to prompt ids, exactly as the model saw them before.

`Renderer` writes ChatML. A reply that comes back in the history as it was sent keeps the ids that were
sampled (the token splice of design law 2): encoding is not the inverse of decoding, so re-encoding it
would train on tokens that nobody sampled.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from pathlib import Path

from tokenizers import Tokenizer

from nightschool.errors import InputError, MissingError
from nightschool.rendering.toolcalls import announce, write_calls
from nightschool.store.matching import content_text, match_key
from nightschool.types import Json

START, END = "<|im_start|>", "<|im_end|>"
ROLES = {"system", "developer", "user", "assistant", "tool", "function"}


class Renderer:
    """Renders for one tokenizer. Thread-safe. Remembers up to `capacity` sampled replies."""

    def __init__(self, tokenizer: Tokenizer, capacity: int = 4096) -> None:
        tokenizer.encode_special_tokens = True  # a marker typed by a customer is text, not a marker
        self.tokenizer = tokenizer
        self.start_id, self.end_id = self._special(START), self._special(END)
        self._replies: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()
        self._capacity = capacity
        self._lock = threading.Lock()

    @classmethod
    def from_folder(cls, folder: Path) -> Renderer:
        """Load `tokenizer.json` from a model folder."""
        path = Path(folder) / "tokenizer.json"
        if not path.exists():
            raise MissingError(
                f"{folder} holds no tokenizer.json.",
                "It is not a model folder.",
                "nightschool models fetch smollm2-135m",
            )
        return cls(Tokenizer.from_file(str(path)))

    def prompt_ids(self, messages: tuple[Json, ...], tools: tuple[Json, ...] = ()) -> list[int]:
        """Ids of the conversation, ending where the assistant's next reply begins."""
        ids: list[int] = []
        newline = self._encode("\n")
        reply_head = [self.start_id, *self._encode("assistant\n")]
        for message in with_tools(messages, tools):
            role = message["role"]
            if role != "assistant":
                text = f"{role}\n{content_text(message.get('content'))}"
                ids += [self.start_id, *self._encode(text), self.end_id, *newline]
                continue
            ids += reply_head
            ids += self._recall(ids, message) or self._encode(write_calls(message))
            ids += newline if ids[-1] == self.end_id else [self.end_id, *newline]
        return ids + reply_head

    def completion_ids(self, text: str) -> list[int]:
        """Ids of an assistant's reply written by somebody else (a demonstration), end of turn included."""
        return [*self._encode(text), self.end_id]

    def decode(self, ids: list[int] | tuple[int, ...]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def remember(self, prompt_ids: list[int], message: Json, completion_ids: tuple[int, ...]) -> None:
        """Keep the sampled ids of a reply for the day it comes back in the history."""
        if not completion_ids:
            return
        with self._lock:
            self._replies[_reply_key(prompt_ids, message)] = completion_ids
            while len(self._replies) > self._capacity:
                self._replies.popitem(last=False)

    def _recall(self, prompt_ids: list[int], message: Json) -> tuple[int, ...] | None:
        key = _reply_key(prompt_ids, message)
        with self._lock:
            if key in self._replies:
                self._replies.move_to_end(key)
            return self._replies.get(key)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _special(self, token: str) -> int:
        token_id = self.tokenizer.token_to_id(token)
        if token_id is None:
            raise InputError(
                f"The tokenizer has no {token} token.",
                "Only ChatML models are rendered here.",
                "nightschool models list",
            )
        return token_id


def with_tools(messages: tuple[Json, ...], tools: tuple[Json, ...]) -> list[Json]:
    """The conversation with its tools announced at the end of the system message."""
    rows = [check_message(message) for message in messages]
    if not tools:
        return rows
    if rows and rows[0]["role"] in ("system", "developer"):
        head = {**rows[0], "content": f"{content_text(rows[0].get('content'))}\n\n{announce(tools)}"}
        return [head, *rows[1:]]
    return [{"role": "system", "content": announce(tools)}, *rows]


def check_message(message: Json) -> Json:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise InputError("A message has no known role.", f"It reads {str(message)[:80]}.", "Send role and content.")
    return message


def _reply_key(prompt_ids: list[int], message: Json) -> bytes:
    digest = hashlib.blake2b(array("i", prompt_ids).tobytes(), digest_size=16)
    digest.update(match_key(message))
    return digest.digest()
