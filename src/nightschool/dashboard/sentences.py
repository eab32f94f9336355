"""The sentence each page opens with. Pure functions of what the page knows; the words of the design's table."""

from __future__ import annotations

from nightschool.dashboard import marks
from nightschool.dashboard.formatting import count, duration, later, number, plural, relative, share
from nightschool.types import Json

OUTCOMES = {"up": "Went well", "down": "Failed", "silent": "Silent"}
STATES = {"running": "is running", "done": "is done", "interrupted": "was interrupted", "failed": "failed"}


def overview(data: Json) -> str:
    """Is it getting better, and how sure are we?"""
    if data["recording"] is None:
        return "No exchanges yet."
    row = serving_row(data)
    if row is None:
        judged = sum(row["judged"] for row in data["releases"])
        return f"Recording. {data['agent']} has no release yet; {plural(judged, 'session')} judged."
    label = row["version"]["label"]
    if not row["enough"]:
        return f"Not enough data on {label}: {row['judged']} of {data['needed_judged']} judged sessions."
    difference = row["since_first"]
    if difference is None or not _first(data)["enough"]:
        at = row["share"]
        return f"{label} succeeds in {share(at['estimate'], at['low'], at['high'])} % of judged sessions."
    one, low, high = (100 * difference[key] for key in ("estimate", "low", "high"))
    start = _first(data)["version"]["label"]
    points = f"{number(one, 0, sign=True)} points since {start}, "
    bounds = f"between {number(low, 0, sign=True)} and {number(high, 0, sign=True)}."
    if low > 0:
        return f"Getting better: {points}{bounds}"
    if high < 0:
        return f"Getting worse: {points}{bounds}"
    return f"Cannot tell yet: {points}{bounds}"


def serving_row(data: Json) -> Json | None:
    """The row of the version that serves, among the releases of an overview."""
    return next((row for row in data["releases"] if row["version"]["serving"]), None)


def session_list(data: Json) -> str:
    counts, cap = data["counts"], data["cap"]
    if not counts["total"]:
        return "No session matches these filters." if data["filters"] else "No sessions yet."
    name = "session" if counts["total"] == 1 else "sessions"
    if counts["total"] > cap:
        return f"{count(counts['total'], cap)} {name}."
    parts = [
        f"{number(counts['up'])} went well",
        f"{number(counts['down'])} failed",
        f"{number(counts['silent'])} silent",
    ]
    return f"{number(counts['total'])} {name}: {', '.join(parts)}."


def session(data: Json) -> str:
    """How it ended, according to whom, how long after."""
    outcome = data["outcome"]
    if outcome["outcome"] == "silent":
        heard = len(data["session_feedback"]) + sum(len(message["feedback"]) for message in data["messages"])
        return "No thumb on this session." if heard else "Silent: nobody has judged this session."
    thumb = "thumb up" if outcome["outcome"] == "up" else "thumb down"
    when = later(outcome["at"] - data["last_at"]) if outcome["at"] else ""
    several = f" by {outcome['num_thumbs']} people" if outcome["num_thumbs"] > 1 else ""
    return f"{OUTCOMES[outcome['outcome']]}: {thumb}{several}, {when}."


def feedback_list(data: Json) -> str:
    counts, cap = data["counts"], data["cap"]
    if not counts["all"]:
        return "No feedback yet."
    heard = "1 item of feedback" if counts["all"] == 1 else f"{count(counts['all'], cap)} items of feedback"
    parked = counts["parked"]
    unread = f", {count(counts['unread'], data['inbox_cap'])} unread" if counts["unread"] else ", none unread"
    if not parked:
        return f"{heard}{unread}, each with its exchange or session."
    waits = "1 waits" if parked == 1 else f"{number(parked)} wait"
    return f"{heard}{unread}; {waits} for an exchange that has not arrived."


def ledger(data: Json) -> str:
    """What became of everything, each exchange counted once."""
    counts = data["counts"]
    total = sum(counts.values())
    if not total:
        return "No exchanges yet."
    parts = [
        f"{number(counts[state])} {name}"
        for state, name in (("trained", "trained"), ("held", "held back"), ("excluded", "excluded"))
        if counts[state]
    ]
    parts += [f"{number(counts['open'])} not looked at yet"] if counts["open"] else []
    return f"{plural(total, 'exchange')}: {', '.join(parts)}."


def material(data: Json) -> str:
    """What the recorded material would already be good for."""
    good = [line["title"] for line in data["objectives"] if line["usable"]]
    if not good:
        return "Good for no objective yet."
    return f"Already good for {', '.join(good[:-1])}{' and ' if len(good) > 1 else ''}{good[-1]}."


def import_list(data: Json) -> str:
    if not data["rows"]:
        return "Nothing was imported."
    return f"{plural(len(data['rows']), 'import')}, each with what was taken, merged and refused."


def key_list(data: Json) -> str:
    live = sum(row["revoked_at"] is None for row in data["rows"])
    if not data["rows"]:
        return "No keys yet."
    return f"{plural(live, 'key')} in use; {number(len(data['rows']) - live)} revoked."


def run_list(data: Json) -> str:
    counts = data["counts"]
    total = sum(counts.values())
    if not total:
        return "No runs yet."
    parts = [
        f"{number(counts[state])} {state}"
        for state in ("running", "done", "interrupted", "failed")
        if counts.get(state)
    ]
    return f"{plural(total, 'run')}: {', '.join(parts)}."


def run(data: Json, now: float) -> str:
    """What it did, how long it took, what came out of it."""
    name = f"{objective(data['objective'])} run {STATES.get(data['state'], data['state'])}".replace(" is done", " done")
    steps = max((points[-1][0] for points in data["metrics"].values() if points), default=None)
    if data["state"] == "running":
        at = f", at step {steps}" if steps is not None else ""
        return f"{objective(data['objective'])} run, {duration(now - data['started_at'])} so far{at}."
    took = f" in {duration(data['finished_at'] - data['started_at'])}" if data["finished_at"] else ""
    adapter = data["adapter"]
    parts = [plural(steps, "step")] if steps else []
    parts += [f"made {adapter['label']}"] if adapter and data["state"] == "done" else []
    return f"{name}{took}{': ' if parts else ''}{', '.join(parts)}."


def release_list(data: Json) -> str:
    serving = [section for section in data["sections"] if section["serving"]]
    if not serving:
        return "Nothing is released yet."
    if len(serving) == 1:
        section = serving[0]
        back = f" Roll back takes it to {section['back_to']['label']}." if section["back_to"] else ""
        return f"{section['serving']['label']} serves {section['agent']}.{back}"
    named = ", ".join(f"{section['agent']} on {section['serving']['label']}" for section in serving[:4])
    more = f" and {len(serving) - 4} more" if len(serving) > 4 else ""
    return f"{len(serving)} agents are served: {named}{more}."


def agent_rows(data: Json) -> str:
    return f"{len(data['rows'])} agents are recorded."


def last_night(data: Json, now: float) -> list[str]:
    """The newest run and what the gate last said, the newer one first."""
    newest, examined = data["last_night"]["run"], data["last_night"]["verdict"]
    said = [] if examined is None else [examined["sentence"]]
    if newest is None:
        return said
    name = f"{objective(newest['objective'])} run {STATES.get(newest['state'], newest['state'])}"
    if newest["state"] == "running":
        told = f"{name}, {duration(now - newest['started_at'])} so far."
    else:
        told = f"{name}, {relative(newest['finished_at'] or newest['updated_at'], now)}."
    return [told, *said] if examined is None or examined["created_at"] < newest["started_at"] else [*said, told]


def objective(name: str) -> str:
    """Short objectives are acronyms: `OAPL`, `SFT`; others stay as they are."""
    head, _, rest = name.partition("-")
    return (
        (head.upper() + (f" {rest.replace('-', ' ')}" if rest else "")) if head.isalpha() and len(head) <= 4 else name
    )


def _first(data: Json) -> Json:
    """The row that the others are compared with: the first released version that was judged."""
    released = [row for row in data["releases"] if row["version"]["released"] and row["judged"]]
    return released[0]


def inbox(data: Json) -> str:
    """What the item is, whether it waits, and how many others do."""
    item = data["item"]
    heard = {"thumb": "Thumb up" if item["value"] in (True, "up", 1) else "Thumb down"}.get(item["kind"])
    who = f"{heard or item['kind'].capitalize()} from {item['source'].replace('_', ' ')}"
    live = [told for told in data["history"] if not told["undone"]]
    if live:
        return f"{who}: {live[-1]['act']} by {marks.one_line(marks.plain(live[-1]['by']), 40)}."
    if item["state"] != "matched":
        return f"{who}: {'it waits for its exchange' if item['state'] == 'parked' else item['state']}."
    unread = data["counts"]["unread"]
    others = f"{count(unread, data['cap'])} unread in all" if unread != 1 else "the only one unread"
    return f"{who}: {others if data['current'] else 'it does not hold any more'}."
