"""An engine without a model: speaks the reply shapes of the engine contract, does what a test tells it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import repeat

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PROMPT_IDS = [1, 2, 3]


@contextlib.contextmanager
def serve(app: Starlette) -> Iterator[str]:
    """Run `app` on a free loopback port in a thread; yields its URL."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=2, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until = time.monotonic() + 10
            while not server.started and time.monotonic() < until:
                time.sleep(0.01)
            assert server.started
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@dataclass
class FakeEngine:
    """What it was asked, what it holds, and how it misbehaves."""

    base: str = "tiny-base"
    words: tuple[str, ...] = ("Hel", "lo ✓")
    calls: tuple[tuple[str, str], ...] = ()
    gives_ids: bool = True
    logprobs_missing: int = 0
    delay_s: float = 0.0
    event_delay_s: float = 0.0
    failure: tuple[int, bytes, dict[str, str]] | None = None
    raw_reply: bytes | None = None
    ids: Iterator[str] = field(default_factory=lambda: repeat("chatcmpl-1"))
    completion: dict | None = None
    events: list[bytes] | None = None
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    adapters: dict[str, str] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    cut_off: threading.Event = field(default_factory=threading.Event)
    num_running: int = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/v1/load_lora_adapter", self.load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self.unload, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/health", self.health),
            ]
        )

    async def health(self, _request: Request) -> Response:
        return JSONResponse({})

    async def models(self, _request: Request) -> Response:
        data = [{"id": name, "parent": self.base} for name in self.adapters] + [{"id": self.base, "parent": None}]
        return JSONResponse({"object": "list", "data": data})

    async def tokenize(self, request: Request) -> Response:
        body = await request.json()
        prompt = body["prompt"] if "prompt" in body else "".join(m["content"] for m in body["messages"])
        return JSONResponse({"tokens": list(prompt.encode()), "count": len(prompt)})

    async def load(self, request: Request) -> Response:
        body = await request.json()
        await asyncio.sleep(0.02)
        if body["lora_name"] in self.adapters:
            return _error(400, "It has already been loaded.")
        self.adapters[body["lora_name"]] = body["lora_path"]
        self.loads.append(body["lora_name"])
        return JSONResponse({})

    async def unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return _error(404, "It is not loaded.")
        self.unloads.append(name)
        return JSONResponse({})

    async def complete(self, request: Request) -> Response:
        """Scores every id i with -i / 10."""
        if self.completion is not None:
            return JSONResponse(self.completion)
        ids = (await request.json())["prompt"]
        scores = [None, *({str(token): {"logprob": -token / 10}} for token in ids[1:])]
        return JSONResponse({"choices": [{"text": "x", "prompt_logprobs": scores}]})

    async def chat(self, request: Request) -> Response:
        raw = await request.body()
        self.bodies.append(raw)
        self.headers.append(dict(request.headers))
        body = json.loads(raw)
        if self.failure:
            status, content, headers = self.failure
            return Response(content, status, headers, "application/json")
        if body["model"] != self.base and body["model"] not in self.adapters:
            return _error(404, f"The model `{body['model']}` does not exist.")
        self.num_running += 1
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cut_off.set()
            raise
        finally:
            self.num_running -= 1
        if body.get("stream"):
            return StreamingResponse(self.stream(body), media_type="text/event-stream")
        if self.raw_reply is not None:
            return Response(self.raw_reply, media_type="application/json")
        return Response(json.dumps(self.reply(body), indent=1), media_type="application/json")

    def reply(self, body: dict) -> dict:
        """The plain reply to `body`; two fields no dialect knows ride along."""
        message = {"role": "assistant", "content": None if self.calls else "".join(self.words), "refusal": None}
        if self.calls:
            message["tool_calls"] = [self._call(i) for i in range(len(self.calls))]
        choices = [
            {"index": i, "message": message, **self._tokens(body, self.words), "finish_reason": self._reason()}
            for i in range(body.get("n") or 1)
        ]
        reply = {
            "id": next(self.ids),
            "model": body["model"],
            "x_cost": 1.50,
            "choices": choices,
            "usage": {"total": 5},
        }
        if body.get("return_token_ids") and self.gives_ids:
            reply["prompt_token_ids"] = PROMPT_IDS
        return reply

    async def stream(self, body: dict) -> AsyncIterator[bytes]:
        try:
            for event in self.events if self.events is not None else self.stream_events(body):
                if event == b"CUT":
                    raise ConnectionResetError
                yield event
                await asyncio.sleep(self.event_delay_s)
        except (asyncio.CancelledError, GeneratorExit):
            self.cut_off.set()
            raise

    def stream_events(self, body: dict) -> list[bytes]:
        """One event per word, calls split in two, ids and log-probabilities beside them."""
        pieces: list[tuple[dict, tuple[str, ...]]] = [({"role": "assistant", "content": ""}, ())]
        if self.calls:
            for i in range(len(self.calls)):
                call, half = self._call(i), len(self.calls[i][1]) // 2
                arguments = call["function"].pop("arguments")
                pieces.append(({"tool_calls": [{"index": i, **call}]}, ()))
                pieces.append(({"tool_calls": [{"index": i, "function": {"arguments": arguments[:half]}}]}, ("a",)))
                pieces.append(({"tool_calls": [{"index": i, "function": {"arguments": arguments[half:]}}]}, ("b",)))
        else:
            pieces += [({"content": word}, (word,)) for word in self.words]
        events: list[bytes] = []
        name = next(self.ids)
        for position, (delta, words) in enumerate(pieces):
            last = position == len(pieces) - 1
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": self._reason() if last else None}
            if words:
                choice |= self._tokens(body, words)
            piece = {"id": name, "object": "chat.completion.chunk", "model": body["model"], "choices": [choice]}
            if not events and body.get("return_token_ids") and self.gives_ids:
                piece["prompt_token_ids"] = PROMPT_IDS
            events.append(b"data: " + json.dumps(piece).encode() + b"\n\n")
        return [*events, b"data: [DONE]\n\n"]

    def _tokens(self, body: dict, words: tuple[str, ...]) -> dict:
        ids = [10 + i for i in range(len(words))]
        tokens: dict = {"logprobs": None}
        if body.get("logprobs"):
            scored = list(zip(words, ids, strict=True))[: len(ids) - self.logprobs_missing]
            tokens["logprobs"] = {"content": [{"token": w, "logprob": -i / 8, "top_logprobs": []} for w, i in scored]}
        if body.get("return_token_ids") and self.gives_ids:
            tokens["token_ids"] = ids
        return tokens

    def _call(self, i: int) -> dict:
        name, arguments = self.calls[i]
        return {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}

    def _reason(self) -> str:
        return "tool_calls" if self.calls else "stop"


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "NotFoundError", "code": status}}, status)
