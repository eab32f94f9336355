"""The dashboard's routes: HTML and JSON of the same answers, with the headers that keep a page harmless."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from importlib import resources
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from nightschool.access.keys import Role
from nightschool.access.privacy import Privacy
from nightschool.dashboard import inbox, pages
from nightschool.dashboard.admission import CHALLENGE, MAY_ACT, MAY_LOOK, MAY_SEE_INBOX, Acting, tenant_shown, who_acts
from nightschool.dashboard.counts import Counts
from nightschool.dashboard.formatting import iso
from nightschool.dashboard.html import render, static_version
from nightschool.dashboard.pages import Bytes, Elsewhere, Page, View
from nightschool.dashboard.queries.scope import Scope
from nightschool.errors import InputError, MissingError, NightschoolError, RefusedError
from nightschool.feedback.inbox import Inbox
from nightschool.store.database import Store
from nightschool.types import Json

logger = logging.getLogger(__name__)

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SAFE = {"content-security-policy": CSP, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
PRIVATE = {**SAFE, "cache-control": "no-store"}
# A browser says where a form comes from (its Origin) only on pages that let it.
ACTED_ON = {**PRIVATE, "referrer-policy": "same-origin"}
STATIC = {
    "style.css": "text/css; charset=utf-8",
    "inbox.js": "text/javascript; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "plots.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uPlot.min.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "LICENSE-htmx.txt": "text/plain; charset=utf-8",
    "LICENSE-uPlot.txt": "text/plain; charset=utf-8",
}
SECRETS_ONLY = Privacy()
SEEN = "x-nightschool-seen"  # what the poller shows already
STRANGER = InputError(
    "This dashboard asks who you are.",
    "It can be reached from other machines, or a data token is set.",
    "Give any name and, as password, the admin token: the file `token` in the state folder.",
)
NO_ACTOR = InputError(
    "This takes a key.",
    "Looking is free on this machine; changing something takes a key with the role feedback, or an admin's.",
    "Give any name and, as password, such a key, or the admin token: the file `token` in the state folder.",
)
TOO_OFTEN = InputError("Nothing was changed.", "The key has used up its requests per minute.", "Wait a minute.")
TITLES = {400: "Not done", 401: "Not known", 403: "Not allowed", 404: "Not here", 429: "Too often", 503: "Not answered"}
FRESH_S = 600  # relative times are redrawn at least this often

VIEWS: tuple[tuple[str, View], ...] = (
    ("/agents/{agent:path}", pages.overview_page),
    ("/sessions", pages.sessions_page),
    ("/sessions/{id}", pages.session_page),
    ("/ledger", pages.ledger_page),
    ("/imports", pages.imports_page),
    ("/keys", pages.keys_page),
    ("/runs", pages.runs_page),
    ("/runs/{id}", pages.run_page),
    ("/releases", pages.releases_page),
    ("/verdicts/{id}", pages.verdict_page),
)
INBOX_VIEWS: tuple[tuple[str, View], ...] = (("/feedback", pages.feedback_page), ("/feedback/{id}", inbox.inbox_page))


def build_dashboard(store: Store, facts: Callable[[], dict[str, Any]], privacy: Privacy = SECRETS_ONLY) -> list[Route]:
    """Routes of every page, each also as `.json`. Add them after the gateway's own: the last one answers 404.

    `facts` is asked once a page for what only the running process knows; each key may be absent:
    `base_url` (where agents send their calls), `agent` (the default one), `engine` (a short sentence),
    `lost` (exchanges that could not be recorded), `model_folder` (whose tokenizer spells the tokens).
    `privacy`: what is not stored of the texts that people write in the inbox.
    """
    desk = Desk(store, facts, privacy)
    routes = [
        Route("/", desk.endpoint(pages.index_page, "html")),
        Route("/index.json", desk.endpoint(pages.index_page, "json")),
    ]
    for path, view in VIEWS:
        routes.append(Route(f"{path}.json", desk.endpoint(view, "json")))
        routes.append(Route(path, desk.endpoint(view, "html")))
    routes.append(Route("/feedback.csv", desk.endpoint(inbox.csv_file, "html", MAY_SEE_INBOX)))
    for path, view in INBOX_VIEWS:
        routes.append(Route(f"{path}.json", desk.endpoint(view, "json", MAY_SEE_INBOX)))
        routes.append(Route(path, desk.endpoint(view, "html", MAY_SEE_INBOX)))
    routes.append(Route("/feedback/{id}/{act}", desk.act, methods=["POST"]))
    routes.append(Route("/sign-in", desk.endpoint(inbox.sign_in_page, "html", MAY_ACT)))
    routes.append(Route("/exchanges/{id}/{part:str}.txt", desk.endpoint(pages.body_page, "html")))
    routes.append(Route("/exchanges/{id}", desk.endpoint(pages.exchange_page, "html")))
    routes.append(Route("/static/{name}", static))
    routes.append(Route("/{name}", desk.endpoint(no_page, "html")))
    return routes


class Desk:
    """Answers one view after another from one store."""

    def __init__(self, store: Store, facts: Callable[[], dict[str, Any]], privacy: Privacy) -> None:
        self.store = store
        self.facts = facts
        self.privacy = privacy
        self.counts = Counts()

    def endpoint(self, view: View, form: str, roles: Collection[Role | None] = MAY_LOOK) -> Callable[[Request], Any]:
        """An endpoint; the queries run in a thread, in one snapshot of the store."""

        async def handle(request: Request) -> Response:
            return await run_in_threadpool(self._answer, view, form, roles, request)

        return handle

    async def act(self, request: Request) -> Response:
        """A form of the inbox: done in one write, then the way to the next item."""
        acting = who_acts(request, take=True)
        if acting is None:
            return refusal(NO_ACTOR, 401, "html", Scope("", time.time(), {}), request)
        scope = Scope(acting.tenant, time.time(), {}, self.facts(), self.counts)
        if acting.wait_s > 0:
            return refusal(TOO_OFTEN, 429, "html", scope, request)
        try:
            asked = await inbox.read_act(request, acting)
            return await run_in_threadpool(self._do, asked, acting, scope)
        except MissingError as error:
            return refusal(error, 404, "html", scope, request)
        except (InputError, RefusedError) as error:
            return refusal(error, 403 if isinstance(error, RefusedError) else 400, "html", scope, request)
        except (SQLAlchemyError, NightschoolError) as error:  # boundary: the store is busy, full or damaged
            return broken(error, "html", scope, request)

    def _do(self, asked: inbox.Act, acting: Acting, scope: Scope) -> Response:
        store = self.store.scoped(acting.tenant)
        person, privacy = acting.person, self.privacy
        shown = store.write(lambda conn: inbox.do(asked, Inbox(conn, acting.tenant, person, time.time(), privacy)))
        with store.read() as conn:
            filtered = replace(scope, params=inbox.filters_of(asked))
            return RedirectResponse(inbox.afterwards(conn, filtered, asked, shown).url, 303, PRIVATE)

    def _answer(self, view: View, form: str, roles: Collection[Role | None], request: Request) -> Response:
        tenant = tenant_shown(request, self.store.tenant, roles)
        if tenant is None:
            stranger = NO_ACTOR if roles is MAY_ACT else STRANGER
            return refusal(stranger, 401, form, Scope("", time.time(), {}), request)
        scope = Scope(tenant, time.time(), request.query_params, self.facts(), self.counts)
        try:
            with self.store.read() as conn:
                made = view(conn, scope, request.path_params)
        except MissingError as error:
            return refusal(error, 404, form, scope, request)
        except (SQLAlchemyError, NightschoolError) as error:  # boundary: the store is busy, full or damaged
            return broken(error, form, scope, request)
        if isinstance(made, Elsewhere):
            return RedirectResponse(made.url, 302, PRIVATE)
        if isinstance(made, Bytes):
            named = {"content-disposition": f'attachment; filename="{made.name}"'} if made.name else {}
            return Response(made.data, headers={**PRIVATE, **named}, media_type=made.media_type)
        if form == "json":
            return as_json_response(envelope(made, scope.now))
        return page_response(made, scope, request)


def page_response(page: Page, scope: Scope, request: Request) -> Response:
    """The page, or 204 when the poller shows it already."""
    seen = digest_of(page, scope.now)
    if request.headers.get(SEEN) == seen:
        return Response(status_code=204, headers=PRIVATE)
    context = {"page": page, "scope": scope, "seen": seen, "path": request.url.path, "acting": who_acts(request)}
    headers = ACTED_ON if page.kind == "inbox" else PRIVATE
    return Response(render(f"{page.kind}.html", context), headers=headers, media_type="text/html; charset=utf-8")


def refusal(
    error: NightschoolError, status: int, form: str, scope: Scope, request: Request, reference: str = ""
) -> Response:
    """What, why and the next command, in the page's own form."""
    told = error.as_dict() | ({"reference": reference} if reference else {})
    if form == "json":
        body = {"schema": 1, "kind": "error", "answer": error.what, "error": told, "as_of": iso(scope.now)}
        response = as_json_response(body, status)
    else:
        page = Page("refusal", TITLES[status], error.what, told, error.next_step)
        context = {"page": page, "scope": scope, "seen": "", "path": request.url.path}
        html = render("refusal.html", context)
        response = Response(html, status, headers=PRIVATE, media_type="text/html; charset=utf-8")
    if status == 401:
        response.headers.update(CHALLENGE)
    return response


def broken(error: Exception, form: str, scope: Scope, request: Request) -> Response:
    """The store did not answer; the page says so and the log says why, under one reference."""
    reference = secrets.token_hex(4)
    cause = getattr(error, "orig", None) or error  # without the parameters of the query
    logger.error("dashboard %s: %s: %s", reference, request.url.path, cause)
    told = (
        error
        if isinstance(error, NightschoolError)
        else NightschoolError(
            "The store did not answer.", "The database is busy, full or damaged.", "nightschool doctor"
        )
    )
    return refusal(told, 503, form, scope, request, reference)


def no_page(_conn: sa.Connection, _scope: Scope, path: Mapping[str, str]) -> Page:
    raise MissingError("No such page.", "The dashboard has nothing at this address.", "nightschool status")


def envelope(page: Page, now: float) -> Json:
    """One document: the answer, then the same data that the HTML page draws. Times in UTC, missing is null."""
    return {"schema": 1, "kind": page.kind, "answer": page.answer, "data": clean(page.data), "as_of": iso(now)}


def clean(value: Any, key: str = "") -> Any:
    """JSON has no NaN; times (`…_at`, `as_of`) are written in UTC."""
    if isinstance(value, dict):
        return {str(name): clean(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return iso(value) if key.endswith("_at") or key in ("at", "as_of") else value
    return value


def as_json_response(body: Json, status: int = 200) -> Response:
    # ASCII with escapes: a lone surrogate from a client is valid JSON and no valid UTF-8
    text = json.dumps(body, allow_nan=False, default=str)
    return Response(text, status, headers=PRIVATE, media_type="application/json")


def digest_of(page: Page, now: float) -> str:
    """What is shown, as one word: the poller sends it back and gets nothing when nothing changed."""
    shown = [page.answer, clean(page.data), int(now // FRESH_S)]
    return hashlib.blake2b(json.dumps(shown, default=str).encode(), digest_size=12).hexdigest()


async def static(request: Request) -> Response:
    """One of the packaged files, by name from a fixed list; cached for as long as its version stays the same."""
    name = request.path_params["name"]
    if name not in STATIC:
        return Response("Not found\n", 404, headers=SAFE, media_type="text/plain")
    kept = "max-age=31536000, immutable" if request.query_params.get("v") == static_version() else "no-cache"
    data = resources.files("nightschool.dashboard").joinpath("static", name).read_bytes()
    return Response(data, headers={**SAFE, "cache-control": kept}, media_type=STATIC[name])
