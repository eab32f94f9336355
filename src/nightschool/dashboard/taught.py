"""What a run saw of its teacher and of its policy: the audit of the words, slice by slice, and the watch."""

from __future__ import annotations

from nightschool.dashboard.formatting import interval, number
from nightschool.types import Json

TITLES = {"own": "behind its words", "beyond_placebo": "beside another reply's words"}


def taught(found: Json | None) -> Json | None:
    """Sentences of the audit and the watch, and the audit's table; nothing where nobody distilled."""
    told = [(found or {})[name] for name in ("teacher_audit", "watch") if name in (found or {})]
    if not told:
        return None
    audit = (found or {}).get("teacher_audit", {})
    return {
        "sentences": [part["sentence"] for part in told],
        "table": [line for name, part in audit.get("separation", {}).items() for line in _lines(name, part)],
        "left_out": [{"reason": reason, "rows": number(count)} for reason, count in audit.get("left_out", {}).items()],
    }


def _lines(name: str, part: Json) -> list[Json]:
    return [
        {
            "name": f"{name}, {title}",
            "area": interval(*(part[key]["area"][end] for end in ("value", "low", "high"))),
            "difference": interval(*(part[key]["difference"][end] for end in ("value", "low", "high"))),
            "rows": f"{number(part[key]['num_accepted'])} and {number(part[key]['num_rejected'])}",
            "passed": "passed" if part["passed"] else "not above chance",
        }
        for key, title in TITLES.items()
    ]
