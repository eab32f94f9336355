"""Legacy text completions. The prompt is kept as a user's message, the text as the assistant's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nightschool.gateway.dialects.chat import refusal_event
from nightschool.gateway.dialects.dialect import Asked, Dialect, ParsedReply
from nightschool.gateway.dialects.growing import Frame, Growing, finish, read_reply
from nightschool.gateway.dialects.sampler import resolve_sampler
from nightschool.gateway.dialects.sse import read_events
from nightschool.gateway.replies import error_object
from nightschool.types import Json


def complaint(fields: Json) -> str | None:
    prompt = fields.get("prompt")
    return None if isinstance(prompt, str | list) and prompt != [] else "`prompt` is neither a text nor a list."


def asked(fields: Json, earlier: tuple[Json, ...] = ()) -> Asked:
    """One user's message: a text prompt as it is, anything else as parts."""
    prompt = fields.get("prompt")
    content = prompt if isinstance(prompt, str) else [_part(one) for one in _prompts(prompt)]
    return Asked((*earlier, {"role": "user", "content": content}), (), resolve_sampler(fields))


def parse_plain(raw: bytes) -> ParsedReply:
    reply = read_reply(raw)
    if isinstance(reply, ParsedReply):
        return reply
    texts = _Texts()
    texts.take(reply)
    return texts.close(Frame(upstream_id=reply.get("id"), usage=reply.get("usage")))


def parse_stream(raw: bytes) -> ParsedReply:
    frame, texts, done = Frame(), _Texts(), False
    for event in read_events(raw):
        done = done or event.done
        piece = frame.take(event)
        if piece is not None:
            texts.take(piece)
    if not done and not (texts.growing and all(choice.finish_reason for choice in texts.growing.values())):
        frame.fail("truncated", "The stream ended before its last event.")
    return texts.close(frame)


@dataclass(slots=True)
class _Texts:
    """The texts by index. Prompt ids stand in the choices here, and all of them must be the same."""

    growing: dict[int, Growing] = field(default_factory=dict)
    prompts: list[Any] = field(default_factory=list)

    def take(self, piece: Json) -> None:
        for position, choice in enumerate(piece.get("choices") or ()):
            growing = self.growing.setdefault(choice.get("index", position), Growing({"role": "assistant"}))
            growing.message["content"] = growing.message.get("content", "") + (choice.get("text") or "")
            growing.finish_reason = choice.get("finish_reason") or growing.finish_reason
            scores: list[Any] | None = (choice.get("logprobs") or {}).get("token_logprobs")
            entries = None if scores is None else [{"logprob": score} for score in scores]
            growing.add_tokens(choice.get("token_ids"), entries)
            if choice.get("prompt_token_ids") and choice["prompt_token_ids"] not in self.prompts:
                self.prompts.append(choice["prompt_token_ids"])

    def close(self, frame: Frame) -> ParsedReply:
        frame.prompt_ids = self.prompts[0] if len(self.prompts) == 1 else frame.prompt_ids
        return finish(self.growing, frame)


def _prompts(prompt: Any) -> list[Any]:
    """The prompts of a request that is not one text: texts or lists of ids, of which one may stand alone."""
    listed = prompt if isinstance(prompt, list) else []
    return [listed] if listed and all(isinstance(token, int) for token in listed) else listed


def _part(prompt: Any) -> Json:
    return {"type": "text", "text": prompt} if isinstance(prompt, str) else {"type": "token_ids", "token_ids": prompt}


COMPLETIONS = Dialect(
    name="openai.completions",
    word="completions",
    path="/v1/completions",
    complaint=complaint,
    asked=asked,
    parse_plain=parse_plain,
    parse_stream=parse_stream,
    refusal=error_object,
    refusal_event=refusal_event,
    token_fields={"logprobs": 0, "return_token_ids": True},
)
