"""What goes over the wire: request bodies, replies, chunks and errors, in the shape of OpenAI and vLLM."""

from __future__ import annotations

import time
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nightschool.engine.sampling import Sampling
from nightschool.errors import InputError
from nightschool.types import Json

MAX_CHOICES = 128
# Fields that would change the distribution: their harmless values, everything else is refused.
NOT_HERE: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
}


class Generation(BaseModel):
    """Fields that chat and completion requests share. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    model: str
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    stop: tuple[str, ...] = ()
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    return_token_ids: bool = False
    ignore_eos: bool = False

    @model_validator(mode="before")
    @classmethod
    def check(cls, body: Any) -> Any:
        """Nulls mean absent; what changes the distribution and is not implemented is refused, not ignored."""
        if not isinstance(body, dict):
            raise ValueError("the body must be a JSON object")
        body = {key: value for key, value in body.items() if value is not None}
        for name, harmless in NOT_HERE.items():
            if name in body and body[name] not in harmless:
                raise ValueError(f"{name} is not supported by the embedded engine; leave it out")
        if body.get("response_format", {"type": "text"}) != {"type": "text"}:
            raise ValueError("response_format is not supported by the embedded engine; leave it out")
        return body

    @field_validator("stop", mode="before")
    @classmethod
    def one_or_many(cls, stop: Any) -> Any:
        return tuple(s for s in stop if s) if isinstance(stop, list) else (stop,) if stop else ()

    @property
    def include_usage(self) -> bool:
        return bool((self.stream_options or {}).get("include_usage"))


class ChatBody(Generation):
    messages: list[Json] = Field(min_length=1)
    tools: list[Json] = []
    tool_choice: Literal["none", "auto"] = "auto"
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)

    @field_validator("tools")
    @classmethod
    def named(cls, tools: list[Json]) -> list[Json]:
        for tool in tools:
            if not isinstance(tool.get("function"), dict) or not isinstance(tool["function"].get("name"), str):
                raise ValueError('each tool needs {"type": "function", "function": {"name": ...}}')
        return tools


class CompletionBody(Generation):
    prompt: str | list[int] | list[str] | list[list[int]] = Field(min_length=1)
    logprobs: int | None = Field(None, ge=0, le=20)
    prompt_logprobs: int | None = Field(None, ge=0, le=20)
    max_tokens: int | None = Field(16, ge=1)


class TokenizeBody(BaseModel):
    model: str | None = None
    prompt: str | None = None
    messages: list[Json] | None = None
    tools: list[Json] | None = None
    add_generation_prompt: bool = True


class AdapterBody(BaseModel):
    lora_name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    lora_path: str = ""


Body = TypeVar("Body", bound=BaseModel)


def parse(kind: type[Body], raw: bytes) -> Body:
    """Read a body.

    Raises:
        InputError: not JSON, or not the fields the route needs.
    """
    try:
        return kind.model_validate(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        raise InputError("The request body is not JSON.", f"{error}.", "Send a JSON object.") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "body"
        raise InputError(
            "The request is not understood.", f"{place}: {first['msg']}.", "Correct that field."
        ) from error


def sampling_of(body: Generation, max_tokens: int, top_logprobs: int) -> Sampling:
    return Sampling(body.temperature, body.top_p, max_tokens, body.stop, body.seed, body.ignore_eos, top_logprobs)


def error_json(message: str, kind: str, code: int) -> Json:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def usage_json(prompt: int, completion: int, cached: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def envelope(kind: str, reply_id: str, model: str, **fields: object) -> Json:
    return {"id": reply_id, "object": kind, "created": int(time.time()), "model": model, **fields}
