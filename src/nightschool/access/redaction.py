"""Taking secrets, and by policy personal data, out of an exchange before anything of it is stored.

What is removed leaves a mark such as `[redacted:api_key]`. An exchange that was touched loses its token ids
and log-probabilities, for they spell what was removed; one whose reply was touched never trains. The same
text always becomes the same text, so a redacted history still finds the conversation it continues.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import orjson

from nightschool.access.personal import KINDS
from nightschool.access.privacy import Privacy
from nightschool.access.secrets import Span, find_secrets, is_placeholder, is_secret_name
from nightschool.store.records import Caller, Record
from nightschool.types import Choice, Fidelity, Json, LogprobProvenance

FLAG, REPLY_FLAG = "redacted", "redacted_reply"
MAX_KNOWN = 50_000
LARGEST_KEPT = 4_000  # characters of a redacted text that are remembered
# Fields that spell tokens, as numbers or as text.
TOKEN_FIELDS = frozenset({"token_ids", "prompt_token_ids", "prompt_logprobs", "logprobs"})
PLAIN = frozenset({int, float, bool, type(None)})
# Fields whose pieces, event by event, make one text.
PIECES = frozenset(
    {"content", "text", "arguments", "partial_json", "reasoning_content", "reasoning", "thinking", "refusal", "delta"}
)

log = logging.getLogger(__name__)


def redact(record: Record, privacy: Privacy) -> Record:
    """`record` without secrets and without the personal data that `privacy` names; itself when it has none.

    Units: 36 µs of one core at the median for the exchanges of tau-bench (requests of 12.6 kB), 76 µs with every kind
    of personal data. Linear in the new text: what was found clean once is known by its hash.
    Edge: an exchange that cannot be searched is kept without its text, never with it.
    """
    try:
        return redactor(privacy).record(record)
    except Exception as error:  # boundary: no fault here may store what was to be removed
        log.error("Exchange %s could not be searched (%s); its text is not kept.", record.id, type(error).__name__)
        return _emptied(record)


@lru_cache(maxsize=16)
def redactor(privacy: Privacy) -> Redactor:
    """The redactor of a policy; it remembers what it has seen."""
    return Redactor(privacy)


class Redactor:
    """Searches texts, JSON values and whole exchanges for what `privacy` does not let in."""

    def __init__(self, privacy: Privacy) -> None:
        self.finders: list[Callable[[str], Iterable[Span]]] = [find_secrets]
        self.finders += [KINDS[kind] for kind in privacy.redact]
        self._key = privacy.pseudonym_key
        self._known: dict[int, str | None] = {}  # by the text's hash, which nobody can aim at; None: clean

    def text(self, text: str) -> str:
        """`text` with marks in place of what must go; the same object when nothing does."""
        key = hash(text)
        known = self._known.get(key, text)
        if known is not text:
            return text if known is None else known
        found = [span for finder in self.finders for span in finder(text)]
        cleaned = _marked(text, found) if found else text
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        if not found or len(cleaned) <= LARGEST_KEPT:
            self._known[key] = cleaned if found else None
        return cleaned

    def value(self, value: Any, name: str = "") -> Any:
        """A JSON value; the same object when nothing in it has to go. A field named like a secret is one."""
        if isinstance(value, str):
            if name and value and is_secret_name(name) and not is_placeholder(value):
                return "[redacted:secret]"
            return value if value.startswith("data:") and ";base64," in value[:100] else self.text(value)
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, list | tuple):
            items = [self.value(item, name) for item in value]
            return value if all(map(_is, items, value)) else type(value)(items)
        return value

    def _object(self, value: Json) -> Json:
        """Its members, of which nearly all are texts that were found clean before: for these no call is made."""
        changed: Json = {}
        for key, old in value.items():
            kind = type(old)
            if kind is str and not is_secret_name(key) and self._known.get(hash(old), old) is None:
                continue
            if kind in PLAIN or key in TOKEN_FIELDS:
                continue
            new = self.value(old, key)
            if new is not old:
                changed[key] = new
        return {**value, **changed} if changed else value

    def name(self, name: str | None) -> str | None:
        """A name by which rows are found (a user, a session): what goes is replaced by a pseudonym, so that two
        persons stay two."""
        if name is None or (cleaned := self.text(name)) is name:
            return name
        return f"{cleaned}#{hmac.digest(self._key, name.encode('utf-8', 'replace'), hashlib.sha256).hex()[:16]}"

    def body(self, raw: bytes, without_tokens: bool = False) -> bytes:
        """A body, JSON or any text; the same object when nothing in it has to go."""
        try:
            read = orjson.loads(raw)
            value = self.value(_without_tokens(read) if without_tokens else read)
            return raw if value is read else orjson.dumps(value)
        except (orjson.JSONDecodeError, RecursionError, TypeError):
            text = raw.decode("utf-8", "surrogateescape")
            cleaned = self.text(text)
            return raw if cleaned is text else cleaned.encode("utf-8", "surrogateescape")

    def reply(self, raw: bytes, without_tokens: bool = False) -> bytes:
        """A reply, plain or as server-sent events; the same object when nothing in it has to go."""
        return self._stream(raw, without_tokens) if _is_stream(raw) else self.body(raw, without_tokens)

    def _stream(self, raw: bytes, without_tokens: bool) -> bytes:
        """A text in pieces is searched as one; if something goes, its first piece carries it, the others are empty."""
        lines = raw.split(b"\n")
        read = {number: event for number, line in enumerate(lines) if (event := _event(line)) is not None}
        events = {
            number: self.value(_without_tokens(event) if without_tokens else event) for number, event in read.items()
        }
        texts: dict[tuple[object, ...], list[tuple[Json, str]]] = {}
        for event in events.values():
            for where, holder, name in _pieces(event):
                texts.setdefault(where, []).append((holder, name))
        changed = any(events[number] is not read[number] for number in read)
        for places in texts.values():
            whole = "".join(holder[name] for holder, name in places)
            if (cleaned := self.text(whole)) is not whole:
                changed = True
                for number, (holder, name) in enumerate(places):
                    holder[name] = "" if number else cleaned
        cleaned_lines = [
            b"data: " + orjson.dumps(events[number]) if number in events else self.body(line)
            for number, line in enumerate(lines)
        ]
        changed = changed or any(
            new is not old for new, old in zip(cleaned_lines, lines, strict=True) if _event(old) is None
        )
        return b"\n".join(cleaned_lines) if changed else raw

    def record(self, record: Record) -> Record:
        """See `redact`."""
        request, reply = self.body(record.request_body), record.reply_body
        choices = tuple(map(self._choice, record.choices))
        if reply is not None and not choices:  # what was parsed says all that a whole reply says
            reply = self.reply(reply)
        reply_touched = reply is not record.reply_body or not all(map(_is, choices, record.choices))
        caller = self._caller(record.caller)
        error = None if record.error is None else self.text(record.error)
        if request is record.request_body and not reply_touched:
            same = caller is record.caller and error is record.error
            return record if same else replace(record, caller=caller, error=error)
        if record.reply_body is not None:
            reply = self.reply(record.reply_body, without_tokens=True)
        return replace(
            record,
            request_body=request,
            reply_body=reply,
            messages=self.value(record.messages),
            tools=self.value(record.tools),
            choices=tuple(replace(choice, completion_ids=None, behavior_logprobs=None) for choice in choices),
            prompt_ids=None,
            caller=replace(caller, training_allowed=caller.training_allowed and not reply_touched),
            error=error,
            fidelity=Fidelity.TEXT,
            fidelity_reason=FLAG,
            logprob_provenance=LogprobProvenance.NONE,
            flags=(*record.flags, FLAG, *((REPLY_FLAG,) if reply_touched else ())),
        )

    def _choice(self, choice: Choice) -> Choice:
        message = self.value(choice.message)
        return choice if message is choice.message else replace(choice, message=message)

    def _caller(self, caller: Caller) -> Caller:
        names = ("session", "header_user", "body_user", "external_key", "parent_session", "previous_response")
        changed: dict[str, Any] = {
            name: new for name in names if (new := self.name(old := getattr(caller, name))) is not old
        }
        tags = tuple(map(self.text, caller.tags))
        if not all(map(_is, tags, caller.tags)):
            changed["tags"] = tags
        return replace(caller, **changed) if changed else caller


def _emptied(record: Record) -> Record:
    caller = record.caller
    known = Caller(caller.agent, purpose=caller.purpose, exam_id=caller.exam_id, key_id=caller.key_id)
    return replace(
        record,
        caller=replace(known, training_allowed=False),
        request_body=b"",
        reply_body=None,
        messages=(),
        tools=(),
        choices=(),
        prompt_ids=None,
        fidelity=Fidelity.TEXT,
        fidelity_reason=FLAG,
        logprob_provenance=LogprobProvenance.NONE,
        status="error",
        error="It could not be searched for secrets; its text is not kept.",
        flags=(*record.flags, FLAG, REPLY_FLAG),
    )


def _marked(text: str, found: list[Span]) -> str:
    """`text` with one mark for each stretch of overlapping spans, named after its first."""
    parts: list[str] = []
    done = 0
    for start, end, kind in sorted(found, key=lambda span: (span.start, -span.end)):
        if start >= done:
            parts += [text[done:start], f"[redacted:{kind}]"]
        done = max(done, end)
    return "".join([*parts, text[done:]])


def _is(new: object, old: object) -> bool:
    return new is old


def _without_tokens(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: None if key in TOKEN_FIELDS else _without_tokens(item) for key, item in value.items()}
    return [_without_tokens(item) for item in value] if isinstance(value, list) else value


def _is_stream(raw: bytes) -> bool:
    return raw.lstrip()[:1] in (b"d", b"e", b":", b"i", b"r")  # data, event, a comment, id, retry


def _event(line: bytes) -> Json | None:
    """The JSON object of a line `data: ...`."""
    if not line.startswith(b"data:"):
        return None
    try:
        value = orjson.loads(line[5:])
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _pieces(value: Any, where: tuple[object, ...] = ()) -> Iterator[tuple[tuple[object, ...], Json, str]]:
    """The fields that hold a piece of a text: where it belongs, and the object and name that hold it."""
    if isinstance(value, dict):
        here = (*where, *(value.get(name) for name in ("type", "index", "output_index", "content_index", "item_id")))
        for name, item in value.items():
            if isinstance(item, str) and name in PIECES:
                yield (*here, name), value, name
            else:
                yield from _pieces(item, (*here, name))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            numbered = isinstance(item, dict) and "index" in item
            yield from _pieces(item, where if numbered else (*where, place))
