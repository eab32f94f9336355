"""A request's way to the engine and back: in its own dialect, or translated into chat completions."""

from __future__ import annotations

from typing import Protocol

from nightschool.gateway.dialects.chat import CHAT
from nightschool.gateway.dialects.dialect import ClientRequest, Dialect, SafeReading, Translation
from nightschool.gateway.dialects.hiding import Hidden, hide_in_event, hide_in_reply
from nightschool.gateway.dialects.sse import write_json
from nightschool.gateway.dialects.translating import Guarded
from nightschool.gateway.replies import RequestRefused, refuse
from nightschool.types import Json
from nightschool.upstream.settings import UpstreamSettings


class Passage(Protocol):
    """How one request reaches the engine. `dialect` is the one in which the engine is asked and answers."""

    dialect: Dialect

    def body(self, model: str) -> bytes:
        """What the engine is sent, when it knows the policy as `model`."""
        ...

    def reading(self, model: str, status: int) -> SafeReading:
        """How its answer, with this HTTP status, becomes the client's."""
        ...


def choose_passage(
    dialect: Dialect, request: ClientRequest, upstream: UpstreamSettings, earlier: tuple[Json, ...] = ()
) -> Passage:
    """The client's own dialect where the engine speaks it, else a translation.

    Raises: RequestRefused (404) where there is neither; InputError for a request that chat cannot express.
    """
    if dialect.word in upstream.speaks:
        return Direct(dialect, request, upstream.gives_tokens)
    if dialect.translation is not None and CHAT.word in upstream.speaks:
        return Translated(dialect.translation, request, upstream.gives_tokens, earlier)
    raise refuse(
        404,
        "dialect_not_spoken",
        f"{dialect.path} is not served here.",
        f"The engine speaks {', '.join(upstream.speaks)}.",
        "Ask in one of these, or set `speaks` below [upstream] in nightschool.toml.",
    )


class Direct:
    """Bytes pass; what is added for the recorder's sake is hidden again."""

    def __init__(self, dialect: Dialect, request: ClientRequest, wants_tokens: bool) -> None:
        self.dialect = dialect
        self._request = request
        fields, wanted = request.fields, dialect.token_fields if wants_tokens else {}
        self._added = {key: wanted[key] for key in wanted if fields.get(key) is None or fields[key] is False}

    def body(self, model: str) -> bytes:
        renamed = {"model": model} if model != self._request.model else {}
        return self._request.with_fields({**renamed, **self._added})

    def reading(self, model: str, status: int) -> SafeReading:
        if status >= 400:
            return HidingReading(self.dialect, Hidden())
        name = self._request.model if model != self._request.model else None
        return HidingReading(self.dialect, Hidden(name, "logprobs" in self._added, "return_token_ids" in self._added))


class HidingReading:
    """The engine's own reply without what the client did not ask for."""

    fault: str | None = None  # bytes that cannot be read pass

    def __init__(self, dialect: Dialect, hidden: Hidden) -> None:
        self._dialect = dialect
        self._hidden = hidden

    def plain(self, raw: bytes) -> bytes:
        return hide_in_reply(raw, self._hidden)

    def event(self, raw: bytes) -> bytes:
        return hide_in_event(raw, self._hidden)

    def end(self) -> bytes:
        return b""

    def failure(self, error: RequestRefused) -> bytes:
        return self._dialect.refusal_event(error)


class Translated:
    """The request as chat completions, and the reply in the client's dialect."""

    dialect = CHAT

    def __init__(
        self, translation: Translation, request: ClientRequest, wants_tokens: bool, earlier: tuple[Json, ...]
    ) -> None:
        self._translation = translation
        self._request = request
        self._fields = translation.request(request.fields, earlier)
        if wants_tokens:
            self._fields |= CHAT.token_fields

    def body(self, model: str) -> bytes:
        return write_json(self._fields | {"model": model})

    def reading(self, model: str, status: int) -> SafeReading:
        if status >= 400:
            return RefusalReading(self._translation, status)
        return Guarded(self._translation.reading(self._request.fields, self._request.model))


class RefusalReading:
    """An engine's error reply in the client's dialect."""

    fault: str | None = None

    def __init__(self, translation: Translation, status: int) -> None:
        self._translation = translation
        self._status = status

    def plain(self, raw: bytes) -> bytes:
        return self._translation.refusal(self._status, raw)

    def event(self, raw: bytes) -> bytes:
        return raw

    def end(self) -> bytes:
        return b""

    def failure(self, error: RequestRefused) -> bytes:
        return b""
