"""Replies that somebody put into words, each as it was given, and behind a prompt that tells those words.

The second is a teacher's view of the first. Both end in the same tokens; only what stands before them differs. A third
view, the placebo, tells the words about another reply: what it changes, no teacher has read.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from nightschool.curation.dataset import Told
from nightschool.curation.influence import sessions_in_time
from nightschool.curation.written import render_reply
from nightschool.errors import InputError
from nightschool.feedback.reading.stored import current_readings, replies_of, said_of, text_of
from nightschool.feedback.reading.values import Reading
from nightschool.feedback.record import current_view
from nightschool.feedback.reward import RewardRule, combine
from nightschool.imports.paths import Session, why_not
from nightschool.objectives.legality import TEXT_ONLY, reason_against
from nightschool.rendering.renderer import Renderer
from nightschool.store.matching import content_text
from nightschool.types import Exchange, Feedback, FeedbackKind, Json, Sample

MAX_CHARS = 2000  # of what was said: a prompt must stay a prompt
TOLD = "\n\nAbout an earlier answer to this, somebody said:\n{words}\nAnswer with that in mind."
SHOULD = "It should have been: {words}"
OTHER_TEMPLATE = "its prompt is rendered differently here"
UNFIT = "words that are not fit for a teacher"
TEXTS, CORRECTIONS = "texts", "corrections"
CALLS, PLAIN = "replies with tool calls", "replies in words"


@dataclass(frozen=True, slots=True)
class Views:
    """`students` and their `teachers` and `placebos` by the id of the exchange, with what is known of each in `told`;
    and why other exchanges with words are in neither. A student's `reward` is what people said of it otherwise."""

    students: tuple[Sample, ...]
    teachers: tuple[Sample, ...]
    placebos: tuple[Sample, ...]
    told: tuple[Told, ...]
    sessions: dict[str, str]
    left_out: Counter[str]


@dataclass(frozen=True, slots=True)
class _Said:
    """An exchange with words about it. `items` is all that was said about it or its session."""

    exchange: Exchange
    words: str
    session_id: str
    items: tuple[Feedback, ...]


def load_views(
    conn: sa.Connection, tenant: str, agent: str, renderer: Renderer, noise_rate: float | None = None
) -> Views:
    """Every reply of the agent with words about it, or about the session whose main branch it is on. `noise_rate`: of
    thumbs, as in `RewardRule`; words are no judgement here. What a teacher hears are the hints of readings: what steers
    its reader, and what is no statement, is not among them."""
    left_out: Counter[str] = Counter()
    said: list[_Said] = []
    teachers: list[Sample] = []
    for session in sessions_in_time(conn, tenant, agent):
        for one in _told(conn, tenant, session, left_out):
            reason = why_not(session, one.exchange) or _why_no_tokens(one.exchange)
            hint = None if reason else _with_words(one.exchange, one.words, renderer)
            if hint is None:
                left_out[reason or OTHER_TEMPLATE] += 1
                continue
            said.append(one)
            teachers.append(_ending_in_reply(one.exchange, hint))
    judge = RewardRule(noise_rate)
    students = (
        replace(_ending_in_reply(one.exchange, one.exchange.prompt_ids or ()), reward=combine(one.items, judge).value)
        for one in said
    )
    others = another_s([one.exchange.id for one in said], [one.exchange.principal for one in said])
    placebos = (
        _ending_in_reply(one.exchange, _behind(one.exchange, said[other].words, renderer))
        for one, other in zip(said, others, strict=True)
        if other is not None
    )
    return Views(
        tuple(students),
        tuple(teachers),
        tuple(placebos),
        tuple(map(_facts, said)),
        {one.exchange.id: one.session_id for one in said},
        left_out,
    )


def written_views(rows: Iterable[tuple[str, Json]], renderer: Renderer) -> Views:
    """Views of named rows {prompt, completion, feedback, label?}; each is its own principal's.

    Raises:
        InputError: a prompt has no user.
    """
    found = list(rows)
    others = another_s([name for name, _ in found], [name for name, _ in found])
    students, teachers, placebos = [], [], []
    for (name, row), other in zip(found, others, strict=True):
        student = render_reply(row, row["completion"], renderer, name)
        students.append(replace(student, reward=float(row["label"])) if isinstance(row.get("label"), bool) else student)
        teachers.append(_written(name, row, row["feedback"], renderer))
        if other is not None:
            placebos.append(_written(name, row, found[other][1]["feedback"], renderer))
    told = (Told(name, name, (TEXTS, _kind(row["completion"][0]))) for name, row in found)
    return Views(tuple(students), tuple(teachers), tuple(placebos), tuple(told), {}, Counter())


def hinted(messages: Sequence[Json], words: str) -> tuple[Json, ...] | None:
    """The messages with words about an earlier answer behind the last thing the user said; `None` without a user."""
    last = next((i for i in reversed(range(len(messages))) if messages[i].get("role") == "user"), None)
    if last is None:
        return None
    text = content_text(messages[last].get("content")) + TOLD.format(words=words[:MAX_CHARS])
    return (*messages[:last], {**messages[last], "content": text}, *messages[last + 1 :])


def another_s(names: Sequence[str], principals: Sequence[str]) -> list[int | None]:
    """For each row the place of another one, of another principal, in an order that only the names decide; `None` where
    all are one principal's."""
    order = sorted(range(len(names)), key=lambda place: hashlib.sha256(names[place].encode()).digest())
    found: list[int | None] = [None] * len(names)
    for rank, place in enumerate(order):
        following = (order[(rank + step) % len(order)] for step in range(1, len(order)))
        found[place] = next((other for other in following if principals[other] != principals[place]), None)
    return found


def _told(conn: sa.Connection, tenant: str, session: Session, left_out: Counter[str]) -> Iterator[_Said]:
    """Exchanges with what a teacher may hear of them; what means no one reply goes to the rest of the main branch."""
    readings = _readings(conn, tenant, session)
    left_out.update(UNFIT for reading in readings.values() if reading.hint is None)
    about: dict[str | None, list[Feedback]] = defaultdict(list)
    for item in session.feedback:
        about[_meant(item, readings)].append(item)
    on_main = set() if session.main is None else {exchange.id for exchange in session.main.calls.values()}
    for exchange in session.exchanges:
        own, shared = about[exchange.id], about[None] if exchange.id in on_main else []
        words = _words(own, readings) or _words(shared, readings)
        if words:
            yield _Said(exchange, words, session.id, tuple(own if _judged(own) else (*own, *shared)))


def _readings(conn: sa.Connection, tenant: str, session: Session) -> dict[str, Reading]:
    """What the texts and corrections of a session that hold mean, by their ids."""
    replies = replies_of(session.exchanges)
    said = (said_of(item, replies) for item in current_view(session.feedback))
    return current_readings(conn, tenant, [one for one in said if one is not None])


def _meant(item: Feedback, readings: Mapping[str, Reading]) -> str | None:
    """The exchange that an item is about: the one it names, else the one its words show."""
    reading = readings.get(item.id)
    if item.exchange_id is not None or reading is None or reading.place is None:
        return item.exchange_id
    return reading.place.exchange_id


def _judged(items: Sequence[Feedback]) -> bool:
    return any(item.kind in (FeedbackKind.OUTCOME, FeedbackKind.THUMB) for item in items)


def _words(items: Sequence[Feedback], readings: Mapping[str, Reading]) -> str:
    """What a teacher may hear: the hints of readings, never the words as they came."""
    said = []
    for item in current_view(items):
        hint = readings[item.id].hint if item.id in readings else None
        if hint is not None:
            said.append(SHOULD.format(words=hint) if item.kind == FeedbackKind.CORRECTION else hint)
    return "\n".join(said)


def _facts(one: _Said) -> Told:
    corrections = [text_of(item) for item in current_view(one.items) if item.kind == FeedbackKind.CORRECTION]
    wanted = next((text for text in reversed(corrections) if text is not None), None)
    kinds = (TEXTS if wanted is None else CORRECTIONS, _kind(one.exchange.choices[0].message))
    return Told(one.exchange.id, one.exchange.principal, kinds, wanted)


def _kind(message: Json) -> str:
    return CALLS if message.get("tool_calls") else PLAIN


def _why_no_tokens(exchange: Exchange) -> str | None:
    if exchange.prompt_ids is None or not exchange.choices[0].completion_ids:
        return TEXT_ONLY
    return reason_against(exchange.fidelity, exchange.sampler)


def _with_words(exchange: Exchange, words: str, renderer: Renderer) -> tuple[int, ...] | None:
    """The ids of the prompt with the words in it; `None` where our template does not render the recorded prompt."""
    if tuple(renderer.prompt_ids(exchange.messages, exchange.tools)) != exchange.prompt_ids:
        return None
    return None if hinted(exchange.messages, words) is None else _behind(exchange, words, renderer)


def _behind(exchange: Exchange, words: str, renderer: Renderer) -> tuple[int, ...]:
    return tuple(renderer.prompt_ids(hinted(exchange.messages, words) or (), exchange.tools))


def _written(name: str, row: Json, words: str, renderer: Renderer) -> Sample:
    prompt = hinted(row["prompt"], words)
    if prompt is None:
        raise InputError(f"The data cannot be used: {name}.", "Its prompt has no message of a user.", "Correct it.")
    return render_reply({**row, "prompt": prompt}, row["completion"], renderer, name)


def _ending_in_reply(exchange: Exchange, prompt_ids: Sequence[int]) -> Sample:
    reply = exchange.choices[0].completion_ids or ()
    sampled = (False,) * len(prompt_ids) + (True,) * len(reply)
    return Sample(
        exchange.id,
        (*prompt_ids, *reply),
        sampled,
        sampled,
        policy_version=exchange.policy_version,
        annotations={"temperature": exchange.sampler.temperature},
    )
