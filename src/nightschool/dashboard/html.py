"""The templates and what they may call. Every text that reaches a page goes through `marks`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from nightschool.dashboard import formatting, marks, sentences
from nightschool.objectives.legality import OBJECTIVES

NAVIGATION = (
    ("Overview", "/", ("overview", "agents")),
    ("Sessions", "/sessions", ("sessions", "session")),
    ("Feedback", "/feedback", ("feedback", "inbox")),
    ("Ledger", "/ledger", ("ledger",)),
    ("Runs", "/runs", ("runs", "run")),
    ("Releases", "/releases", ("releases", "verdict")),
)
CARE = (("Imports", "/imports", ("imports",)), ("Keys", "/keys", ("keys",)))
BRANCHES = {
    "main": "main",
    "retry": "retry",
    "title": "title generation",
    "compaction": "compaction",
    "sub_agent": "sub-agent",
}
HTMX = {
    "includeIndicatorStyles": False,
    "allowEval": False,
    "allowScriptTags": False,
    "selfRequestsOnly": True,
    "historyCacheSize": 0,
    "refreshOnHistoryMiss": True,
    "responseHandling": [{"code": "204", "swap": False}, {"code": ".*", "swap": True}],
}


def render(name: str, context: dict[str, Any]) -> bytes:
    """One page as UTF-8."""
    return environment().get_template(name).render(context).encode("utf-8", "replace")


@lru_cache(maxsize=1)
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("nightschool.dashboard", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_text,
    )
    made.filters |= {
        "visible": marks.visible,
        "one_line": marks.one_line,
        "number": formatting.number,
        "percent": formatting.percent,
        "plural": formatting.plural,
        "count": formatting.count,
        "duration": formatting.duration,
        "relative": formatting.relative,
        "clock": formatting.clock,
        "iso": formatting.iso,
        "later": formatting.later,
        "size": formatting.size,
        "short_id": formatting.short_id,
        "objective": sentences.objective,
        "part": _part,
        "show_json": show_json,
        "show_value": show_value,
    }
    made.globals |= {
        "navigation": NAVIGATION,
        "care": CARE,
        "BRANCHES": BRANCHES,
        "OBJECTIVES": {objective.name: objective.title for objective in OBJECTIVES},
        "htmx_config": json.dumps(HTMX),
        "link": link,
        "static": lambda name: f"/static/{name}?v={static_version()}",
        "OUTCOMES": sentences.OUTCOMES,
    }
    return made


@lru_cache(maxsize=1)
def static_version() -> str:
    """One digest over all packaged files: a new version of the program asks for new ones."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(
        resources.files("nightschool.dashboard").joinpath("static").iterdir(), key=lambda path: path.name
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def link(path: str, params: Mapping[str, str] | None = None, **changes: object) -> str:
    """A URL with the parameters of another, changed: None and empty drop one."""
    merged = {**(params or {}), **{key.rstrip("_"): value for key, value in changes.items()}}
    query = urlencode([(key, str(value)) for key, value in merged.items() if value not in (None, "")], errors="replace")
    return f"{path}?{query}" if query else path


def show_json(value: object) -> str:
    """A JSON value as people read it."""
    return json.dumps(value, ensure_ascii=False, indent=1, default=str)


def show_value(value: object) -> str:
    """One configured or summarized value on one line."""
    if value is None:
        return formatting.MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"  # settings are read as they were written: 5e-05, 0.999
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _part(text: object) -> str:
    """A text as one segment of a path."""
    return quote(str(text), safe="", errors="replace")


def _text(value: object) -> object:
    """What every `{{ … }}` goes through: hidden characters become marks, also where nobody thought of it."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return marks.plain(value)
    return value
