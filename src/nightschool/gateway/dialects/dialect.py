"""What the gateway knows of a wire format, as one value per format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from nightschool.errors import InputError
from nightschool.gateway import splice
from nightschool.gateway.replies import RequestRefused
from nightschool.gateway.splice import Member, NotJsonError
from nightschool.types import Choice, Json, Sampler

# What reading JSON of another shape than expected raises.
MISSHAPEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request in normal form: messages and tools as chat completions write them.

    `context_complete` is False when the request refers to messages that it does not carry.
    """

    messages: tuple[Json, ...] = ()
    tools: tuple[Json, ...] = ()
    sampler: Sampler = field(default_factory=Sampler)
    context_complete: bool = True


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """What an engine's reply says, in normal form.

    `ending` is ok for a complete answer, else error, truncated (it broke off), upstream_error (the engine
    told an error inside its reply) or incomplete (it says so itself); `error` is why. `tokens_missing` is
    why the token ids or log-probabilities cannot be used, `None` when they can. `usage` holds the counts
    that were told, as prompt_tokens, completion_tokens, cached_tokens, cache_write_tokens, reasoning_tokens.
    """

    choices: tuple[Choice, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    upstream_id: str | None = None
    ending: str = "ok"
    error: str | None = None
    tokens_missing: str | None = None
    usage: Json | None = None


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A client's request, parsed, with the places of its members."""

    raw: bytes = field(repr=False)
    text: str = field(repr=False)
    members: list[Member] = field(repr=False)
    fields: Json = field(repr=False)
    model: str

    @property
    def streamed(self) -> bool:
        return self.fields.get("stream") is True

    def with_fields(self, new: Json) -> bytes:
        """The body in which the members named by `new` have these values; every other byte stays."""
        if not new:
            return self.raw
        return splice.apply(self.text, splice.set_members(self.text, self.members, new)).encode()


class Reading(Protocol):
    """Turns what an engine answers into what the client expects."""

    def plain(self, raw: bytes) -> bytes:
        """A whole reply. Raises: RequestRefused (502) for one that cannot be read."""
        ...

    def event(self, raw: bytes) -> bytes:
        """One event of a stream, or what came after the last; perhaps nothing."""
        ...

    def end(self) -> bytes:
        """What follows the last event."""
        ...

    def failure(self, error: RequestRefused) -> bytes:
        """The event that ends a stream which the engine left unfinished."""
        ...


class SafeReading(Reading, Protocol):
    """A reading that raises nothing but RequestRefused, and that in `plain` alone."""

    fault: str | None  # why the client was told of an error where a stream could not be read further


@dataclass(frozen=True, slots=True)
class Translation:
    """How a dialect is spoken to an engine that knows chat completions alone.

    `request` makes the fields of a chat request from those of the client's, after the messages of `earlier`
    turns that an engine with a memory would know. `reading` begins a reply to these fields under the model
    name that the client knows; `refusal` puts an engine's error reply into the dialect's shape.
    """

    request: Callable[[Json, tuple[Json, ...]], Json]
    reading: Callable[[Json, str], Reading]
    refusal: Callable[[int, bytes], bytes]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wire format. `word` is its name in the configuration, `name` the one that is stored.

    `complaint` says what is wrong with a request's fields, `None` if nothing. `asked` reads them, after the
    messages of earlier turns that they name without carrying them. `token_fields` is what a request
    must carry so that the engine gives ids and log-probabilities, empty where the format has no room for them.
    `refusal` and `refusal_event` give an error its shape, as a reply and inside a stream.
    """

    name: str
    word: str
    path: str
    complaint: Callable[[Json], str | None]
    asked: Callable[[Json, tuple[Json, ...]], Asked]
    parse_plain: Callable[[bytes], ParsedReply]
    parse_stream: Callable[[bytes], ParsedReply]
    refusal: Callable[[RequestRefused], Json]
    refusal_event: Callable[[RequestRefused], bytes]
    token_fields: Json = field(default_factory=dict)
    translation: Translation | None = None

    def read(self, raw: bytes, is_stream: bool) -> ParsedReply:
        """What a reply's bytes say; bytes that have not the shape of the dialect are an error in words."""
        try:
            return self.parse_stream(raw) if is_stream else self.parse_plain(raw)
        except MISSHAPEN as error:  # boundary: an engine may send anything
            return ParsedReply(ending="error", error=f"The reply has another shape than {self.name}: {error!r}"[:500])


def read_request(raw: bytes, dialect: Dialect) -> ClientRequest:
    """Parse a body. Raises: InputError for one that is not a JSON object with what the dialect needs."""
    try:
        text = splice.decode(raw)
        members = splice.read_object(text)
    except NotJsonError as error:
        raise InputError(
            "The request was not read.", f"Its body is not a JSON object: {error}.", "Correct the body and send again."
        ) from error
    fields = splice.values(members)
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise InputError("The request was not read.", "It has no `model`.", "Name an agent in `model`.")
    complaint = dialect.complaint(fields)
    if complaint:
        raise InputError("The request was not read.", complaint, "Correct it and send again.")
    return ClientRequest(raw, text, members, fields, model)
