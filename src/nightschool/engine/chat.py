"""Chat and text completions: from a parsed body to a reply or a stream of chunks."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

import orjson

from nightschool.engine.protocol import ChatBody, CompletionBody, envelope, sampling_of, usage_json
from nightschool.engine.replies import Speaker, prompt_scores_json, remember
from nightschool.engine.scheduler import Done, Request, Step, Token
from nightschool.engine.service import Engine
from nightschool.engine.text import Decoder
from nightschool.errors import InputError
from nightschool.rendering.renderer import Renderer
from nightschool.types import Json


class Chat:
    """One chat completion request."""

    kind = "chat.completion"

    def __init__(self, engine: Engine, body: ChatBody) -> None:
        self.engine, self.body = engine, body
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self.calls = bool(body.tools) and body.tool_choice != "none"
        tools = tuple(body.tools) if self.calls else ()
        prompt_ids = render(engine.base.renderer, tuple(body.messages), tools)
        max_tokens = engine.reply_tokens(prompt_ids, body.max_completion_tokens or body.max_tokens)
        top = body.top_logprobs if body.logprobs else 0
        self.request = Request(
            engine.adapter_of(body.model), prompt_ids, sampling_of(body, max_tokens, top), body.n, body.stream
        )

    async def reply(self) -> Json:
        choices: list[Json] = []
        used = 0
        async with aclosing(self.engine.events(self.request)) as events:
            async for index, event in events:
                if isinstance(event, Done):
                    choices.append(self._choice(index, event))
                    used += len(event.tokens)
        choices.sort(key=lambda choice: choice["index"])
        fields: Json = {"choices": choices, "usage": self._usage(used)}
        if self.body.return_token_ids:
            fields["prompt_token_ids"] = self.request.prompt_ids
        return envelope(self.kind, self.id, self.body.model, **fields)

    async def chunks(self) -> AsyncGenerator[Json, None]:
        """Chunks in vLLM's shape: a first one per choice, one per token, one with the finish reason."""
        speakers = [self._speaker() for _ in range(self.request.n)]
        prompt: Json = {"prompt_token_ids": self.request.prompt_ids} if self.body.return_token_ids else {}
        for index in range(self.request.n):
            yield self._chunk(index, {"role": "assistant", "content": ""}, **(prompt if index == 0 else {}))
        used = 0
        async with aclosing(self.engine.events(self.request)) as events:
            async for index, event in events:
                if isinstance(event, Step):
                    used += 1
                    yield self._token_chunk(index, speakers[index].push(event.token), event.token)
                else:
                    for chunk in self._last_chunks(index, speakers[index], event):
                        yield chunk
        if self.body.include_usage:
            yield envelope(f"{self.kind}.chunk", self.id, self.body.model, choices=[], usage=self._usage(used))

    def _last_chunks(self, index: int, speaker: Speaker, done: Done) -> list[Json]:
        """What was held back: the rest of the text, the calls, then the finish reason."""
        rest, message, reason = speaker.finish(done)
        remember(self.engine.base.renderer, self.request.prompt_ids, message, done)
        chunks = [self._chunk(index, {"content": rest})] if rest else []
        if calls := message.get("tool_calls"):
            chunks.append(self._chunk(index, {"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]}))
        return [*chunks, self._chunk(index, {}, finish_reason=reason)]

    def _speaker(self) -> Speaker:
        return Speaker(Decoder(self.engine.base.renderer.tokenizer), self.body.stop, self.calls)

    def _choice(self, index: int, done: Done) -> Json:
        speaker = self._speaker()
        for token in done.tokens:
            speaker.decoder.push(token.id)
        _, message, reason = speaker.finish(done)
        remember(self.engine.base.renderer, self.request.prompt_ids, message, done)
        choice: Json = {"index": index, "message": message, "logprobs": None, "finish_reason": reason}
        if self.body.logprobs:
            choice["logprobs"] = {"content": [self.engine.spelling.content(token) for token in done.tokens]}
        if self.body.return_token_ids:
            choice["token_ids"] = [token.id for token in done.tokens]
        return choice

    def _token_chunk(self, index: int, text: str, token: Token) -> Json:
        extra: Json = {"token_ids": [token.id]} if self.body.return_token_ids else {}
        if self.body.logprobs:
            extra["logprobs"] = {"content": [self.engine.spelling.content(token)]}
        return self._chunk(index, {"content": text}, choice=extra)

    def _chunk(
        self, index: int, delta: Json, choice: Json | None = None, finish_reason: str | None = None, **fields: object
    ) -> Json:
        entry = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **(choice or {})}
        return envelope(f"{self.kind}.chunk", self.id, self.body.model, choices=[entry], **fields)

    def _usage(self, used: int) -> Json:
        return usage_json(len(self.request.prompt_ids), used, self.request.cached_tokens)


class Completion:
    """One text completion request, of one or several prompts."""

    kind = "text_completion"

    def __init__(self, engine: Engine, body: CompletionBody) -> None:
        if body.prompt_logprobs is not None and (body.stream or body.n > 1):
            raise InputError(
                "prompt_logprobs goes with one plain reply.", "The request streams or asks for n > 1.", "Change that."
            )
        self.engine, self.body = engine, body
        self.id = f"cmpl-{uuid.uuid4().hex}"
        adapter = engine.adapter_of(body.model)
        self.requests: list[Request] = []
        for prompt in prompts_of(body):
            ids = encode(engine, prompt) if isinstance(prompt, str) else prompt
            sampling = sampling_of(body, engine.reply_tokens(ids, body.max_tokens), body.logprobs or 0)
            scored = body.prompt_logprobs is not None
            self.requests.append(Request(adapter, ids, sampling, body.n, body.stream, score=scored))

    async def reply(self) -> Json:
        lists = await asyncio.gather(*(self._run(request) for request in self.requests))
        choices = [choice for request_choices in lists for choice in request_choices]
        for index, choice in enumerate(choices):
            choice["index"] = index
        used = sum(choice.pop("num_tokens") for choice in choices)
        return envelope(self.kind, self.id, self.body.model, choices=choices, usage=self._usage(used))

    async def chunks(self) -> AsyncGenerator[Json, None]:
        if len(self.requests) > 1:
            raise InputError("A stream has one prompt.", f"{len(self.requests)} were sent.", "Send them one by one.")
        request = self.requests[0]
        speakers = [self._speaker() for _ in range(request.n)]
        used = 0
        async with aclosing(self.engine.events(request)) as events:
            async for index, event in events:
                if isinstance(event, Step):
                    used += 1
                    yield self._chunk(index, speakers[index].push(event.token), [event.token], None)
                else:
                    rest, _, reason = speakers[index].finish(event)
                    yield self._chunk(index, rest, [], reason)
        if self.body.include_usage:
            yield envelope(self.kind, self.id, self.body.model, choices=[], usage=self._usage(used))

    async def _run(self, request: Request) -> list[Json]:
        choices: dict[int, Json] = {}
        async with aclosing(self.engine.events(request)) as events:
            async for index, event in events:
                if isinstance(event, Done):
                    choices[index] = self._choice(request, event)
        return [choices[index] for index in range(request.n)]

    def _choice(self, request: Request, done: Done) -> Json:
        speaker = self._speaker()
        for token in done.tokens:
            speaker.decoder.push(token.id)
        _, message, reason = speaker.finish(done)
        choice: Json = {"text": message["content"], "logprobs": None, "finish_reason": reason}
        choice["num_tokens"] = len(done.tokens)
        if self.body.logprobs is not None:
            choice["logprobs"] = self.engine.spelling.completion(done.tokens)
        if self.body.return_token_ids:
            choice |= {"token_ids": [token.id for token in done.tokens], "prompt_token_ids": request.prompt_ids}
        if request.score:
            choice["prompt_logprobs"] = prompt_scores_json(request.prompt_ids, done.prompt_scores, self.engine.spelling)
        return choice

    def _chunk(self, index: int, text: str, tokens: list[Token], reason: str | None) -> Json:
        choice: Json = {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
        if self.body.logprobs is not None and tokens:
            choice["logprobs"] = self.engine.spelling.completion(tokens)
        if self.body.return_token_ids:
            choice["token_ids"] = [token.id for token in tokens]
        return envelope(self.kind, self.id, self.body.model, choices=[choice])

    def _speaker(self) -> Speaker:
        return Speaker(Decoder(self.engine.base.renderer.tokenizer), self.body.stop)

    def _usage(self, used: int) -> Json:
        prompt = sum(len(request.prompt_ids) for request in self.requests)
        return usage_json(prompt, used, sum(request.cached_tokens for request in self.requests))


def render(renderer: Renderer, messages: tuple[Json, ...], tools: tuple[Json, ...]) -> list[int]:
    """The prompt's ids.

    Raises:
        InputError: a message or a tool has parts of an unknown shape.
    """
    try:
        return renderer.prompt_ids(messages, tools)
    except (AttributeError, KeyError, TypeError) as error:  # boundary: clients send anything as a message
        raise InputError(
            "A message or a tool cannot be read.",
            f"{type(error).__name__}: {error}.",
            "Send them as the OpenAI API defines them.",
        ) from error


def prompts_of(body: CompletionBody) -> list[str] | list[list[int]]:
    """The prompts of a completion body, which may be one or many, as text or as ids."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(part, int) for part in prompt):
        return [list(prompt)]  # pyright: ignore[reportReturnType]
    return prompt  # pyright: ignore[reportReturnType]


def event_line(chunk: Json) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def encode(engine: Engine, text: str) -> list[int]:
    """Ids of plain text; a chat marker in it is text, too."""
    return engine.base.renderer.tokenizer.encode(text, add_special_tokens=False).ids
