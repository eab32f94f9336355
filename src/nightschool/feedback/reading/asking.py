"""Putting texts to a judge over HTTP: several votes each, again where a request fails, within a budget."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import orjson

from nightschool.errors import RefusedError, UpstreamError
from nightschool.feedback.reading.judge import PROMPT_VERSION, messages_about, read_vote, reader_name, settle
from nightschool.feedback.reading.settings import JudgeSettings
from nightschool.feedback.reading.values import Reading, Said
from nightschool.types import Json
from nightschool.upstream.client import EngineClient

RETRY_PAUSE_S = 0.5
AGAIN = (408, 409, 425, 429)  # and 500 and above: statuses that may be others the next time


class Judge:
    """A judge model behind a server of chat completions. Belongs to the event loop of its first question."""

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings
        self.name = reader_name(settings)
        self.requests = 0
        self._client = EngineClient(settings.url, settings.key)

    @property
    def texts_left(self) -> int:
        """How many texts the budget is still good for, if no request fails."""
        return (self.settings.budget - self.requests) // self.settings.votes

    async def close(self) -> None:
        await self._client.close()

    async def read(self, said: Said) -> Reading:
        """What the judge's votes say of a text.

        Raises:
            UpstreamError: the judge did not answer, after as many attempts as it is given.
            RefusedError: the budget is spent.
        """
        started = time.monotonic()
        messages = messages_about(said)
        answers = [await self._ask(messages, seed) for seed in range(self.settings.votes)]
        made = {
            "model": self.settings.model,
            "url": self.settings.url,
            "prompt": PROMPT_VERSION,
            "temperature": self.settings.temperature,
            "tokens": _sum(tokens for _, tokens in answers),
            "seconds": round(time.monotonic() - started, 3),
        }
        return settle(said, [read_vote(text) for text, _ in answers], self.name, made)

    async def _ask(self, messages: Sequence[Json], seed: int) -> tuple[str, int | None]:
        """One answer, and the tokens it took where the server tells."""
        settings = self.settings
        body = orjson.dumps(
            {
                "model": settings.model,
                "messages": messages,
                "temperature": settings.temperature,
                "max_tokens": settings.max_tokens,
                "seed": seed,
            }
        )
        why = ""
        for attempt in range(settings.attempts):
            if attempt:
                await asyncio.sleep(RETRY_PAUSE_S * 2 ** (attempt - 1))
            if self.requests >= settings.budget:
                raise RefusedError("The judge's budget is spent.", f"It is {settings.budget} requests.", "")
            self.requests += 1
            try:
                async with asyncio.timeout(settings.timeout_s):
                    with await self._client.chat(body) as answer:
                        raw = await answer.read()
            except TimeoutError:
                why = f"It took longer than {settings.timeout_s:g} s."
                continue
            except UpstreamError as error:
                why = error.why
                continue
            if answer.status < 400:
                return _content(raw)
            why = f"It answered {answer.status}: {raw[:300].decode('utf-8', 'replace')}"
            if answer.status < 500 and answer.status not in AGAIN:
                break
        raise UpstreamError("The judge did not answer.", why, "Correct [feedback.judge], or run the command again.")


def _content(raw: bytes) -> tuple[str, int | None]:
    """The text of a chat completion; empty where it has none, which is a vote that cannot be read."""
    try:
        reply: Any = orjson.loads(raw)
        message = reply["choices"][0]["message"]
        tokens = (reply.get("usage") or {}).get("total_tokens")
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return raw[:2000].decode("utf-8", "replace"), None
    text = message.get("content") if isinstance(message, dict) else None
    return (text if isinstance(text, str) else ""), tokens if isinstance(tokens, int) else None


def _sum(counts: Any) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
