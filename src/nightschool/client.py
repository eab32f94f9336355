"""Send feedback from an application, in one line and without dependencies.

from nightschool.client import Client

Client().feedback(exchange=response.id, thumb=True)
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any, TypedDict, Unpack

from nightschool.errors import InputError, MissingError, NightschoolError, RefusedError

DEFAULT_URL = "http://127.0.0.1:8700"
KINDS = ("thumb", "number", "category", "text", "correction", "preference", "outcome")
TARGETS = ("exchange", "session", "external_key")
TIMEOUT_S = 10.0
NUM_TRIES = 4


class Said(TypedDict, total=False):
    """What `Client.feedback` takes: one target, at least one judgement, and what is known about it.

    `turn` (1 is the first, or "last") narrows a session, `tool_call` (its position, 0 is the first, or its id) an
    exchange or a turn. `scale` is a number's lowest and highest; `supersedes` the `id` of a former receipt.
    """

    exchange: str  # the X-Nightschool-Exchange header, or the reply's own `id`
    session: str
    external_key: str
    turn: int | str
    tool_call: int | str
    thumb: bool
    number: float
    scale: tuple[float, float]
    category: str
    text: str
    correction: str | dict[str, Any]
    preference: dict[str, Any]  # {"chosen": answer, "rejected": answer}
    outcome: Any
    name: str
    source: str
    author: str
    confidence: float
    observed_at: float
    supersedes: str
    evidence: str | dict[str, Any]
    idempotency_key: str


class About(TypedDict, total=False):
    """What a browser token is for: one exchange or session, and who will judge it."""

    exchange: str
    session: str
    author: str


class Client:
    """A gateway at `base_url`. Defaults: NIGHTSCHOOL_URL, and NIGHTSCHOOL_API_KEY or the state folder's token."""

    def __init__(self, base_url: str | None = None, token: str | None = None) -> None:
        url = base_url or os.environ.get("NIGHTSCHOOL_URL") or DEFAULT_URL
        self.base_url = url.rstrip("/").removesuffix("/v1")
        self._token = token or os.environ.get("NIGHTSCHOOL_API_KEY") or _state_token()

    def feedback(self, **said: Unpack[Said]) -> list[dict[str, Any]]:
        """Send each judgement given; returns the gateway's receipts, in the order of `KINDS`.

        Each delivery carries its own key, so that sending it again after a broken connection, which happens
        here, counts once. An `idempotency_key` or a `name` of your own is for one judgement at a time.

        Raises: InputError, RefusedError (no permission), MissingError (nothing answers, also after retries).
        """
        details = {key: value for key, value in said.items() if key not in (*KINDS, "scale")}
        judgements = [(kind, said.get(kind)) for kind in KINDS if kind in said]
        if not judgements or sum(target in said for target in TARGETS) != 1:
            raise InputError(
                "No feedback was sent.",
                f"It needs one of {', '.join(TARGETS)}, and at least one of {', '.join(KINDS)}.",
                "For example: feedback(exchange=response.id, thumb=True)",
            )
        if len(judgements) > 1 and not details.keys().isdisjoint(("name", "idempotency_key", "supersedes")):
            raise InputError(
                "No feedback was sent.", "One name or key would stand for several judgements.", "Send them one by one."
            )
        bodies = []
        for kind, value in judgements:
            scale = {"scale": said["scale"]} if kind == "number" and "scale" in said else {}
            bodies.append(
                _encode({"idempotency_key": str(uuid.uuid4()), **details, **scale, "kind": kind, "value": value})
            )
        return [self._post("/v1/feedback", body) for body in bodies]

    def browser_token(self, expires_in_s: float = 3600.0, **about: Unpack[About]) -> str:
        """A token with which a web page can send thumbs and texts about one exchange or session, without a key.

        Raises: InputError, RefusedError, MissingError.
        """
        body = _encode({**about, "expires_in_s": expires_in_s})
        return self._post("/v1/feedback/tokens", body)["token"]

    def _post(self, path: str, body: bytes) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(f"{self.base_url}{path}", body, headers)
        why = ""
        for attempt in range(NUM_TRIES):
            if attempt:
                time.sleep(0.1 * 4 ** (attempt - 1))
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                with error:
                    refusal = _refusal(error.code, error.read())
                if error.code < 500:
                    raise refusal from error
                why = str(refusal)
            except (urllib.error.URLError, OSError) as error:
                why = f"Nothing answers at {self.base_url} ({error})."
        raise MissingError("The feedback was not taken.", why, "Start the gateway with `nightschool up`.")


def _encode(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (ValueError, TypeError) as error:
        raise InputError("No feedback was sent.", f"It is not JSON: {error}.", "Give plain, finite values.") from error


def _refusal(status: int, raw: bytes) -> NightschoolError:
    kind = RefusedError if status in (401, 403) else InputError
    try:
        error = json.loads(raw)["error"]
        return kind(error["what"], error["why"], error["next"])
    except (ValueError, KeyError, TypeError):
        return kind(f"The gateway answered {status}.", raw[:200].decode("utf-8", "replace"), "nightschool doctor")


def _state_token() -> str | None:
    path = Path(os.environ.get("NIGHTSCHOOL_STATE") or ".nightschool") / "token"
    return path.read_text(encoding="ascii").strip() if path.is_file() else None
