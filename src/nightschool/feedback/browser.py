"""Tokens with which a web page may judge one exchange or session: signed, short-lived, good for nothing else."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import orjson
import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nightschool.errors import RefusedError
from nightschool.feedback.body import Name
from nightschool.feedback.values import NewFeedback, checked_value, wrong
from nightschool.store.database import Store
from nightschool.store.schema import feedback, meta
from nightschool.types import FeedbackKind, TargetKind

META_KEY = "browser_key"
PREFIX = "nsb1"
LONGEST_S = 86_400.0
MAX_PER_TOKEN = 20

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Pass:
    """What a token allows: thumbs and texts on one target of one tenant, by `author`, until `expires_at`."""

    tenant: str
    kind: TargetKind
    target_id: str
    author: str | None
    expires_at: float
    nonce: str


class PassBody(BaseModel):
    """What POST /v1/feedback/tokens takes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    exchange: Name | None = None
    session: Name | None = None
    author: Name | None = None
    expires_in_s: Annotated[float, Field(gt=0, le=LONGEST_S)] = 3600.0


class BrowserBody(BaseModel):
    """What POST /v1/feedback/browser takes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token: Annotated[str, Field(min_length=1, max_length=4096)]
    kind: Literal["thumb", "text"]
    value: Any


def new_pass(body: object, tenant: str, now: float) -> Pass:
    """Raises: InputError naming what is wrong."""
    given = _checked(PassBody, body)
    if (given.exchange is None) == (given.session is None):
        raise wrong("exactly one of exchange and session says what the token is for")
    kind = TargetKind.SESSION if given.exchange is None else TargetKind.EXCHANGE
    target_id = given.exchange or given.session or ""
    return Pass(tenant, kind, target_id, given.author, now + given.expires_in_s, secrets.token_urlsafe(12))


def sign(given: Pass, key: bytes) -> str:
    """The token: a prefix, what it says and its HMAC-SHA256, each readable in a URL."""
    said = [given.tenant, given.kind.value, given.target_id, given.author, given.expires_at, given.nonce]
    content = _armored(orjson.dumps(said))
    return f"{PREFIX}.{content}.{_armored(_mac(content, key))}"


def read_token(token: str, store: Store, now: float) -> Pass:
    """What a token allows. Raises: RefusedError when it is none of ours, was changed, or has expired."""
    forged = _refused("It was not made here, or it was changed.")
    prefix, _, rest = token.partition(".")
    content, _, mac = rest.partition(".")
    try:
        tenant, kind, target_id, author, expires_at, nonce = orjson.loads(_plain(content))
        with store.read() as conn:  # by the name that the token claims: nothing is written for it
            key = _signing_key(conn, str(tenant))
        sound = prefix == PREFIX and key is not None and hmac.compare_digest(_plain(mac), _mac(content, key))
    except (ValueError, TypeError) as error:  # no base64, no JSON, or JSON of another shape
        raise forged from error
    if not sound:
        raise forged
    if expires_at <= now:
        raise _refused("It has expired.")
    return Pass(tenant, TargetKind(kind), target_id, author, expires_at, nonce)


def read_judgement(body: object) -> tuple[str, FeedbackKind, Any]:
    """Token, kind and value of what a page sent. Raises: InputError."""
    given = _checked(BrowserBody, body)
    kind = FeedbackKind(given.kind)
    return given.token, kind, checked_value(kind, given.value)


def judgement_of(given: Pass, kind: FeedbackKind, value: Any) -> NewFeedback:
    return NewFeedback(
        given.kind,
        given.target_id,
        kind,
        value,
        name=kind.value,
        author=given.author,
        origin="browser",
        key_id=f"browser:{given.nonce}",
    )


def check_count(conn: sa.Connection, given: Pass) -> None:
    """Raises: RefusedError when the page has said enough: what holds is the last of each kind anyway."""
    f = feedback.c
    query = sa.select(sa.func.count()).select_from(feedback)
    query = query.where(f.tenant == given.tenant, f.state.in_(("matched", "parked", "refused")))
    said = conn.scalar(query.where(f.target_id == given.target_id, f.key_id == f"browser:{given.nonce}"))
    if said is not None and said >= MAX_PER_TOKEN:
        raise RefusedError("The feedback was not taken.", f"This token was used {said} times.", "Ask for a new token.")


def make_signing_key(store: Store) -> bytes:
    """The key of the store's tenant, made at its first token."""

    def make(conn: sa.Connection) -> bytes:
        known = _signing_key(conn, store.tenant)
        if known is None:
            known = secrets.token_bytes(32)
            row = {"tenant": store.tenant, "key": META_KEY, "value": known.hex()}
            conn.execute(sa.insert(meta), row)
        return known

    with store.read() as conn:
        known = _signing_key(conn, store.tenant)
    return known or store.write(make)


def _signing_key(conn: sa.Connection, tenant: str) -> bytes | None:
    query = sa.select(meta.c.value).where(meta.c.tenant == tenant, meta.c.key == META_KEY)
    value = conn.scalar(query)
    return None if value is None else bytes.fromhex(value)


def _checked(model: type[Body], body: object) -> Body:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise wrong(f"{where}: {first['msg']}") from error


def _refused(why: str) -> RefusedError:
    return RefusedError("The token is not accepted.", why, "The application asks for a new one (docs/feedback.md).")


def _mac(content: str, key: bytes) -> bytes:
    return hmac.new(key, f"{PREFIX}.{content}".encode(), hashlib.sha256).digest()


def _armored(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _plain(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
