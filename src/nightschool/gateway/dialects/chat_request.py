"""A chat completions request: what it asks for, and the bytes that go to the engine for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nightschool.errors import InputError
from nightschool.gateway import splice
from nightschool.gateway.splice import Member, NotJsonError
from nightschool.types import Json, Sampler

# Request fields that shape the sampled distribution in ways a trainer cannot apply again.
CONSTRAINTS = (
    "repetition_penalty",
    "logit_bias",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "bad_words",
    "allowed_token_ids",
    "min_tokens",
    "ignore_eos",
    "typical_p",
    "use_beam_search",
)


@dataclass(frozen=True, slots=True)
class Hidden:
    """What the gateway changed in a request, and so must hide in the reply.

    `model` is the client's own name where the engine was asked for another; `logprobs` and `ids` are True
    when the client did not ask for them and the gateway did.
    """

    model: str | None = None
    logprobs: bool = False
    ids: bool = False

    def __bool__(self) -> bool:
        return self.model is not None or self.logprobs or self.ids


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The client's request, parsed, with the places of its members. `wants_tokens`: see `read_request`."""

    raw: bytes
    text: str = field(repr=False)
    members: list[Member] = field(repr=False)
    fields: Json = field(repr=False)
    model: str
    wants_tokens: bool

    @property
    def streamed(self) -> bool:
        return self.fields.get("stream") is True

    def hidden(self, model: str) -> Hidden:
        """What must be hidden when the engine knows the policy as `model`."""
        return Hidden(
            model=self.model if model != self.model else None,
            logprobs=self.wants_tokens and not self.fields.get("logprobs"),
            ids=self.wants_tokens and not self.fields.get("return_token_ids"),
        )

    def for_engine(self, model: str) -> bytes:
        """The body for an engine that knows the policy as `model`; bytes that need no change stay."""
        hidden = self.hidden(model)
        if not hidden:
            return self.raw
        new: dict[str, Any] = {"model": model} if hidden.model is not None else {}
        if hidden.logprobs:
            new["logprobs"] = True
        if hidden.ids:
            new["return_token_ids"] = True
        return splice.apply(self.text, splice.set_members(self.text, self.members, new)).encode()


def read_request(raw: bytes, wants_tokens: bool) -> ChatRequest:
    """Parse a body. `wants_tokens`: the engine gives ids and log-probabilities, so ask for them.

    Raises: InputError for a body that is not one JSON object with a model and messages.
    """
    try:
        text = splice.decode(raw)
        members = splice.read_object(text)
    except NotJsonError as error:
        raise InputError(
            "The request was not read.", f"Its body is not a JSON object: {error}.", "Correct the body and send again."
        ) from error
    fields = splice.values(members)
    model, messages = fields.get("model"), fields.get("messages")
    if not isinstance(model, str) or not model:
        raise InputError("The request was not read.", "It has no `model`.", "Name an agent in `model`.")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InputError("The request was not read.", "`messages` is not a list of objects.", "Correct `messages`.")
    return ChatRequest(raw, text, members, fields, model, wants_tokens)


def resolve_sampler(fields: Mapping[str, Any]) -> Sampler:
    """The distribution the request asks for, with the defaults of the API where it is silent."""
    constraints = [name for name in CONSTRAINTS if _constrains(name, fields.get(name))]
    if fields.get("tool_choice") not in (None, "auto", "none"):
        constraints.append("tool_choice")
    top_k = _number(fields, "top_k")
    seed = _number(fields, "seed")
    return Sampler(
        temperature=_or(_number(fields, "temperature"), 1.0),
        top_p=_or(_number(fields, "top_p"), 1.0),
        top_k=int(top_k) if top_k is not None and top_k > 0 else None,
        min_p=_number(fields, "min_p") or None,
        presence_penalty=_or(_number(fields, "presence_penalty"), 0.0),
        frequency_penalty=_or(_number(fields, "frequency_penalty"), 0.0),
        seed=int(seed) if seed is not None else None,
        constraints=",".join(constraints) or None,
    )


def _constrains(name: str, value: object) -> bool:
    if name == "repetition_penalty":
        return value is not None and value != 1
    if name == "response_format":
        return isinstance(value, dict) and value.get("type") != "text"
    if name == "typical_p":
        return value is not None and value != 1
    return bool(value)


def _number(fields: Mapping[str, Any], name: str) -> float | int | None:
    value = fields.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)
