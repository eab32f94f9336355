"""A judge over HTTP: speaks chat completions, answers what a test tells it, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def vote(polarity: str, **more: Any) -> str:
    return json.dumps({"polarity": polarity, "wish": None, "turn": None, "hint": None} | more)


@dataclass
class FakeJudge:
    """`answers` are given in turn and then `usual` for ever: a text is an answer, a number a failure of that status."""

    answers: deque[str | int] = field(default_factory=deque)
    usual: str | int = vote("bad")
    delay_s: float = 0.0
    asked: list[Any] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self.chat, methods=["POST"])])

    async def chat(self, request: Request) -> Response:
        self.asked.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        await asyncio.sleep(self.delay_s)
        answer = self.answers.popleft() if self.answers else self.usual
        if isinstance(answer, int):
            return JSONResponse({"error": {"message": "busy"}}, answer)
        message = {"role": "assistant", "content": answer}
        return JSONResponse({"choices": [{"index": 0, "message": message}], "usage": {"total_tokens": 100}})
