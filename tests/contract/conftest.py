from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from engines import Contracted

from nightschool.upstream.client import EngineClient


@pytest.fixture
def client(engine: Contracted) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def upstream(engine: Contracted) -> Callable[..., Any]:
    """`upstream("score", ...)`: one call of the gateway's own client."""

    def call(method: str, *words: Any) -> Any:
        async def run() -> Any:
            async with EngineClient(engine.url) as client:
                return await getattr(client, method)(*words)

        return asyncio.run(run())

    return call


@pytest.fixture
def clerk(engine: Contracted, upstream: Callable[..., Any]) -> Iterator[str]:
    """The name under which the taught adapter is loaded for this test."""
    upstream("load_adapter", "clerk", Path(engine.lesson.adapter))
    yield "clerk"
    upstream("unload_adapter", "clerk")
