"""Outcomes that other systems report by themselves: a ticket reopened, a refund, a merge."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any

from nightschool.errors import RefusedError
from nightschool.feedback.paths import ABSENT, Path, follow
from nightschool.feedback.settings import Webhook
from nightschool.feedback.times import read_time
from nightschool.feedback.values import NewFeedback, checked_value, wrong
from nightschool.types import FeedbackKind, Json

TOLERANCE_S = 300.0
SECRET_PREFIX = "whsec_"
MAX_NAME_CHARS = 256


def check_signature(hook: Webhook, headers: Mapping[str, str], body: bytes, now: float) -> str:
    """The delivery's own id: the same delivery, sent again, has the same. `headers` by lower-case name.

    Raises: RefusedError when the sender's secret did not sign it, or it was signed too long ago.
    """
    delivery = hashlib.sha256(body).hexdigest()
    if hook.signature == "github":
        given, signed = [headers.get("x-hub-signature-256", "").removeprefix("sha256=")], body
        expected = _hex(hook.secret.encode(), signed)
    elif hook.signature == "stripe":
        parts = [part.strip().partition("=") for part in headers.get("stripe-signature", "").split(",")]
        stamp = next((value for name, _, value in parts if name == "t"), "")
        _check_age(stamp, now)
        given = [value for name, _, value in parts if name == "v1"]
        expected = _hex(hook.secret.encode(), f"{stamp}.".encode() + body)
    else:
        delivery, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        _check_age(stamp, now)
        given = [part.removeprefix("v1,") for part in headers.get("webhook-signature", "").split()]
        mac = hmac.new(_standard_key(hook.secret), f"{delivery}.{stamp}.".encode() + body, hashlib.sha256)
        expected = base64.b64encode(mac.digest()).decode()
    if not any(hmac.compare_digest(one.encode(), expected.encode()) for one in given):
        raise _refused("Its signature was not made with this webhook's secret.")
    return delivery


def read_delivery(hook: Webhook, document: Any, delivery: str) -> NewFeedback | None:
    """The outcome that a delivery reports; `None` when it is about something else.

    Raises: InputError when what the mapping names is not there.
    """
    for path, wanted in hook.when:
        if not _is_one_of(follow(document, path), wanted):
            return None
    key = _need(document, hook.key, "key")
    if isinstance(key, bool) or not isinstance(key, str | int) or not str(key).strip():
        raise wrong("key: what stands there is neither a text nor a whole number")
    name = hook.outcome if isinstance(hook.outcome, str) else _need(document, hook.outcome, "name")
    if not isinstance(name, str) or not name.strip():
        raise wrong("name: what stands there is no text")
    time = None if hook.time is None else read_time(_need(document, hook.time, "time")).at
    return NewFeedback(
        hook.key_type,
        str(key).strip()[:MAX_NAME_CHARS],
        FeedbackKind.OUTCOME,
        checked_value(FeedbackKind.OUTCOME, _outcome(hook, name, _need(document, hook.value, "value"))),
        name=name[:MAX_NAME_CHARS],
        source="code",
        author=f"webhook {hook.name}",
        observed_at=time,
        key=f"webhook:{hook.name}:{delivery}",
        origin="webhook",
    )


def _outcome(hook: Webhook, name: str, value: Any) -> Json:
    """What was reported, under its name; with a verdict only where the settings say which value is which."""
    reported: Json = {name: value}
    good = hook.success is not None and _is_one_of(value, hook.success)
    bad = hook.failure is not None and _is_one_of(value, hook.failure)
    if hook.failure is None and hook.success is not None:
        bad = not good
    if hook.success is None and hook.failure is not None:
        good = not bad
    return {**reported, "success": good} if good != bad else reported


def _is_one_of(value: Any, wanted: Iterable[Any]) -> bool:
    """Equal and of one type: true is not 1."""
    return any(isinstance(value, bool) == isinstance(one, bool) and value == one for one in wanted)


def _need(document: Any, path: Path, name: str) -> Any:
    value = follow(document, path)
    if value is ABSENT or value is None:
        raise wrong(f"{name}: nothing stands where the settings of this webhook look for it")
    return value


def _check_age(stamp: str, now: float) -> None:
    if not stamp.isascii() or not stamp.isdecimal() or abs(now - int(stamp)) > TOLERANCE_S:
        raise _refused(f"It was not signed within the last {TOLERANCE_S:.0f} seconds.")


def _standard_key(secret: str) -> bytes:
    if secret.startswith(SECRET_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error:
            pass  # a secret that happens to begin so
    return secret.encode()


def _hex(key: bytes, signed: bytes) -> str:
    return hmac.new(key, signed, hashlib.sha256).hexdigest()


def _refused(why: str) -> RefusedError:
    return RefusedError("The delivery was not taken.", why, "Compare the secret and the clock of both sides.")
