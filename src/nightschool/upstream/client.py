"""One engine over HTTP: chat, adapters, scoring. The same requests work on the embedded engine and on vLLM."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from nightschool.errors import UpstreamError
from nightschool.types import UNTOLD_LOGPROB, Json
from nightschool.upstream.connections import SILENCE_S, Answer, Connections, NotConnectedError, cut

CONTROL_S = 120.0
CONNECT_RETRIES = 2
BUSY_RETRIES = 6
RETRY_PAUSE_S = 0.1
JSON_BODY = {"content-type": "application/json"}


class EngineClient:
    """An engine at `base_url` (without `/v1`). Belongs to the event loop of its first request.

    Raises: UpstreamError from every method, when the engine cannot be reached or refuses.
    """

    def __init__(self, base_url: str, key: str | None = None) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._headers = {"accept-encoding": "identity"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._connections: Connections | None = None

    async def close(self) -> None:
        """Close the connections. A later request opens new ones."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """POST JSON, as `request` does."""
        return await self.request("POST", path, body, {**headers, **JSON_BODY} if headers else JSON_BODY)

    async def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        """Send `body` byte for byte, with these headers besides our own; the answer, whose body is still to come.

        Edge: an HTTP error status is an answer, not an exception. A connection that could not be opened is
        tried again; once the request may have been seen, it is never sent twice.
        """
        if self._connections is None:
            self._connections = Connections(self.base_url)
        headers = {**self._headers, **headers}
        for attempt in range(CONNECT_RETRIES + 1):
            try:
                return await self._connections.ask(method, path, headers, body)
            except NotConnectedError as error:
                if attempt == CONNECT_RETRIES:
                    raise UpstreamError(
                        "The engine cannot be reached.",
                        f"Nothing answers at {self.base_url}.",
                        "Start it, or correct its address; `nightschool doctor` looks at it.",
                    ) from error
                await asyncio.sleep(RETRY_PAUSE_S * 2**attempt)
            except TimeoutError as error:
                raise UpstreamError(
                    "The engine did not answer.",
                    f"No byte came within {SILENCE_S:.0f} s.",
                    "See `nightschool doctor`.",
                ) from error
            except OSError as error:
                raise cut(error) from error
        raise AssertionError("unreachable")

    async def chat(self, body: bytes) -> Answer:
        """POST to /v1/chat/completions, as `post` does."""
        return await self.post("/v1/chat/completions", body)

    async def load_adapter(self, digest: str, path: Path) -> None:
        """Load the adapter folder at `path` under the name `digest`; already loaded is success."""
        request = {"lora_name": digest, "lora_path": str(path)}
        status, reply = await self._json("POST", "/v1/load_lora_adapter", request)
        for attempt in range(BUSY_RETRIES):
            if status != 409:  # the engine is still letting go of an earlier loading
                break
            await asyncio.sleep(RETRY_PAUSE_S * 2**attempt)
            status, reply = await self._json("POST", "/v1/load_lora_adapter", request)
        if status >= 400 and digest not in await self.models():
            raise _refused(f"The engine did not load adapter {digest[:12]}.", status, reply)

    async def unload_adapter(self, digest: str) -> None:
        """Unload adapter `digest`; not loaded is success."""
        status, reply = await self._json("POST", "/v1/unload_lora_adapter", {"lora_name": digest})
        if status >= 400 and digest in await self.models():
            raise _refused(f"The engine did not unload adapter {digest[:12]}.", status, reply)

    async def models(self) -> tuple[str, ...]:
        """The names the engine serves, the base model first."""
        reply = await self._demand("GET", "/v1/models", None)
        entries = [entry for entry in reply.get("data", ()) if isinstance(entry, dict) and "id" in entry]
        entries.sort(key=lambda entry: bool(entry.get("parent")))
        return tuple(str(entry["id"]) for entry in entries)

    async def tokenize(self, request: Json) -> tuple[int, ...]:
        """The ids of `request` ({messages | prompt, tools?, add_generation_prompt?, model?})."""
        reply = await self._demand("POST", "/tokenize", request)
        return tuple(reply["tokens"])

    async def tokenizer_digest(self) -> str | None:
        """The digest of the model's tokenizer as /health tells it; `None` where it does not."""
        status, reply = await self._json("GET", "/health", None)
        told = reply.get("tokenizer_digest") if status < 400 and isinstance(reply, dict) else None
        return told if isinstance(told, str) else None

    async def health(self, timeout_s: float = 2.0, any_answer: bool = False) -> bool:
        """Whether the engine answers /health within `timeout_s`; `any_answer` takes a refusal for one."""
        try:
            async with asyncio.timeout(timeout_s):
                status, _ = await self._json("GET", "/health", None)
        except (UpstreamError, TimeoutError):
            return False
        return any_answer or status < 400

    async def score(self, model: str, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> list[float]:
        """Log-probability (temperature 1) of each of `completion_ids` after `prompt_ids`, under `model`.

        Edge: the first token of an empty prompt has no predecessor; such a request is refused here.
        Raises: UpstreamError also when the engine leaves one out or gives something that is no number.
        """
        if not prompt_ids:
            raise UpstreamError(
                "Nothing was scored.", "A completion needs at least one token before it.", "Give prompt ids."
            )
        if not completion_ids:
            return []
        request = {
            "model": model,
            "prompt": [*prompt_ids, *completion_ids],
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": 0,
        }
        reply = await self._demand("POST", "/v1/completions", request)
        return _completion_scores(reply, len(prompt_ids), completion_ids)

    async def _demand(self, method: str, path: str, request: Json | None) -> Json:
        status, reply = await self._json(method, path, request)
        if status >= 400 or not isinstance(reply, dict):
            raise _refused(f"The engine refused {method} {path}.", status, reply)
        return reply

    async def _json(self, method: str, path: str, request: Json | None) -> tuple[int, Any]:
        """Send and read one control request: its status and its JSON (or text, where it is none)."""
        data = None if request is None else orjson.dumps(request)
        try:
            async with asyncio.timeout(CONTROL_S):
                with await self.request(method, path, data, JSON_BODY) as answer:
                    raw = await answer.read()
        except TimeoutError as error:
            raise UpstreamError(
                f"The engine did not answer {path}.", f"It took longer than {CONTROL_S:.0f} s.", "nightschool doctor"
            ) from error
        try:
            return answer.status, orjson.loads(raw)
        except orjson.JSONDecodeError:
            return answer.status, raw.decode("utf-8", "replace")


def _completion_scores(reply: Json, num_prompt_tokens: int, completion_ids: Sequence[int]) -> list[float]:
    entries = reply["choices"][0].get("prompt_logprobs") or []
    scores: list[float] = []
    for position, token in enumerate(completion_ids, start=num_prompt_tokens):
        entry = entries[position] if position < len(entries) else None
        value = (entry or {}).get(str(token), {}).get("logprob")
        if not isinstance(value, int | float) or not math.isfinite(value) or value == UNTOLD_LOGPROB:
            raise UpstreamError(
                "The completion was not scored.",
                f"The engine gave no log-probability for token {token} at position {position}.",
                "Ask an engine that supports `prompt_logprobs` on /v1/completions.",
            )
        scores.append(float(value))
    return scores


def _refused(what: str, status: int, reply: Any) -> UpstreamError:
    message = reply.get("error", reply) if isinstance(reply, dict) else reply
    if isinstance(message, dict):
        message = message.get("message", message)
    return UpstreamError(what, f"It answered {status}: {str(message)[:500]}", "See `nightschool doctor`.")
