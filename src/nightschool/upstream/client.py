"""One engine over HTTP: chat, adapters, scoring. The same requests work on the embedded engine and on vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from yarl import URL

from nightschool.errors import UpstreamError
from nightschool.types import Json

CONNECT_S = 5.0
FIRST_BYTE_S = 600.0
CONTROL_S = 120.0
# Shorter than the 5 s after which uvicorn closes an idle connection: a request never meets a closing one.
KEEP_ALIVE_S = 2.0
CONNECT_RETRIES = 2
BUSY_RETRIES = 6
RETRY_PAUSE_S = 0.1
LARGE_BYTES = 2**20
MAX_URLS = 64
JSON_BODY = {"content-type": "application/json"}


class Answer:
    """An engine's answer whose body has not been read yet. `headers` keeps order and repeated names."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = [(name.lower(), value) for name, value in response.raw_headers]

    @property
    def content_type(self) -> str:
        return self._response.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def read(self) -> bytes:
        """The whole body. Raises: UpstreamError when the engine goes away before its end."""
        try:
            return await self._response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _cut(error) from error

    async def some(self) -> bytes:
        """The next bytes as they arrive, empty at the end. Raises: UpstreamError as `read` does."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise _cut(error) from error


class EngineClient:
    """An engine at `base_url` (without `/v1`). Belongs to the event loop of its first request.

    Raises: UpstreamError from every method, when the engine cannot be reached or refuses.
    """

    def __init__(self, base_url: str, key: str | None = None) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._headers = {"accept-encoding": "identity"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}

    async def close(self) -> None:
        """Close the connections. A later request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def post(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> contextlib.AbstractAsyncContextManager[Answer]:
        """POST JSON, as `request` does."""
        return self.request("POST", path, body, {**headers, **JSON_BODY} if headers else JSON_BODY)

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> AsyncIterator[Answer]:
        """Send `body` byte for byte, with these headers besides our own. Leaving the block early drops the request.

        Edge: an HTTP error status is an answer, not an exception. A connection that could not be opened is
        tried again; once the request may have been seen, it is never sent twice.
        """
        response = await self._send(method, path, data=body, headers=headers)
        try:
            yield Answer(response)
        finally:
            # Not `release`: that would wait for the rest of a stream that nobody wants any more.
            if response.content.is_eof():
                response.release()
            else:
                response.close()

    def chat(self, body: bytes) -> contextlib.AbstractAsyncContextManager[Answer]:
        """POST to /v1/chat/completions, as `post` does."""
        return self.post("/v1/chat/completions", body)

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
                response = await self._send(method, path, data=data, headers=JSON_BODY)
                async with response:
                    raw = await response.read()
        except TimeoutError as error:
            raise UpstreamError(
                f"The engine did not answer {path}.", f"It took longer than {CONTROL_S:.0f} s.", "nightschool doctor"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _cut(error) from error
        try:
            return response.status, orjson.loads(raw)
        except orjson.JSONDecodeError:
            return response.status, raw.decode("utf-8", "replace")

    async def _send(self, method: str, path: str, data: bytes | None, **request: Any) -> aiohttp.ClientResponse:
        """The response's head. Connecting is tried again, since nothing was sent; everything later is not."""
        session = self._open()
        for attempt in range(CONNECT_RETRIES + 1):
            try:
                # A large body goes out in pieces, so that other requests go on meanwhile.
                body = io.BytesIO(data) if data is not None and len(data) > LARGE_BYTES else data
                url = self._url(path)
                return await session.request(method, url, data=body, allow_redirects=False, **request)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
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
                    f"No byte came within {FIRST_BYTE_S:.0f} s.",
                    "See `nightschool doctor`.",
                ) from error
            except (aiohttp.ClientError, OSError) as error:
                raise _cut(error) from error
        raise AssertionError("unreachable")

    def _url(self, path: str) -> URL:
        """The address as it is: nothing in it is quoted again."""
        url = self._urls.get(path)
        if url is None:
            url = URL(self.base_url + path, encoded=True)
            if "?" not in path and len(self._urls) < MAX_URLS:
                self._urls[path] = url
        return url

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=FIRST_BYTE_S),
                headers=self._headers,
                auto_decompress=False,
                read_bufsize=2**18,
                cookie_jar=aiohttp.DummyCookieJar(),  # what a provider sets is one caller's, never the next one's
                skip_auto_headers=("User-Agent",),
            )
        return self._session


def _completion_scores(reply: Json, num_prompt_tokens: int, completion_ids: Sequence[int]) -> list[float]:
    entries = reply["choices"][0].get("prompt_logprobs") or []
    scores: list[float] = []
    for position, token in enumerate(completion_ids, start=num_prompt_tokens):
        entry = entries[position] if position < len(entries) else None
        value = (entry or {}).get(str(token), {}).get("logprob")
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise UpstreamError(
                "The completion was not scored.",
                f"The engine gave no log-probability for token {token} at position {position}.",
                "Ask an engine that supports `prompt_logprobs` on /v1/completions.",
            )
        scores.append(float(value))
    return scores


def _cut(error: BaseException) -> UpstreamError:
    return UpstreamError(
        "The engine went away before its answer was complete.",
        f"The connection broke ({type(error).__name__}).",
        "Send the request again; see `nightschool doctor` if it happens again.",
    )


def _refused(what: str, status: int, reply: Any) -> UpstreamError:
    message = reply.get("error", reply) if isinstance(reply, dict) else reply
    if isinstance(message, dict):
        message = message.get("message", message)
    return UpstreamError(what, f"It answered {status}: {str(message)[:500]}", "See `nightschool doctor`.")
