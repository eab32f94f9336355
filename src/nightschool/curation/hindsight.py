"""Replies that somebody put into words, each twice: as it was given, and behind a prompt that tells those words.

The second is a teacher's view of the first. Both end in the same tokens; only what stands before them differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from nightschool.curation.written import render_reply
from nightschool.errors import InputError
from nightschool.feedback.record import current_view
from nightschool.imports.paths import Session, each_session, why_not
from nightschool.objectives.legality import TEXT_ONLY, reason_against
from nightschool.rendering.renderer import Renderer
from nightschool.store.matching import content_text
from nightschool.types import Exchange, Feedback, FeedbackKind, Json, Sample

MAX_CHARS = 2000  # of what was said: a prompt must stay a prompt
TOLD = "\n\nAbout an earlier answer to this, somebody said:\n{words}\nAnswer with that in mind."
SHOULD = "It should have been: {words}"
OTHER_TEMPLATE = "its prompt is rendered differently here"


@dataclass(frozen=True, slots=True)
class Views:
    """`students` and their `teachers` by the id of the exchange; and why other exchanges with words are in neither."""

    students: tuple[Sample, ...]
    teachers: tuple[Sample, ...]
    sessions: dict[str, str]
    left_out: Counter[str]


def load_views(conn: sa.Connection, tenant: str, agent: str, renderer: Renderer) -> Views:
    """Every reply of the agent with words about it, or about the session whose main branch it is on."""
    left_out: Counter[str] = Counter()
    students: list[Sample] = []
    teachers: list[Sample] = []
    sessions: dict[str, str] = {}
    for session in each_session(conn, tenant, agent):
        for exchange, words in _told(session):
            reason = why_not(session, exchange) or _why_no_tokens(exchange)
            hint = None if reason else _with_words(exchange, words, renderer)
            if hint is None:
                left_out[reason or OTHER_TEMPLATE] += 1
                continue
            sessions[exchange.id] = session.id
            students.append(_ending_in_reply(exchange, exchange.prompt_ids or ()))
            teachers.append(_ending_in_reply(exchange, hint))
    return Views(tuple(students), tuple(teachers), sessions, left_out)


def written_views(rows: Iterable[tuple[str, Json]], renderer: Renderer) -> tuple[list[Sample], list[Sample]]:
    """Students and teachers of named rows {prompt, completion, feedback}.

    Raises:
        InputError: a prompt has no user.
    """
    students, teachers = [], []
    for name, row in rows:
        prompt = hinted(row["prompt"], row["feedback"])
        if prompt is None:
            raise InputError(f"The data cannot be used: {name}.", "Its prompt has no message of a user.", "Correct it.")
        students.append(render_reply(row, row["completion"], renderer, name))
        teachers.append(render_reply({**row, "prompt": prompt}, row["completion"], renderer, name))
    return students, teachers


def hinted(messages: Sequence[Json], words: str) -> tuple[Json, ...] | None:
    """The messages with words about an earlier answer behind the last thing the user said; `None` without a user."""
    last = next((i for i in reversed(range(len(messages))) if messages[i].get("role") == "user"), None)
    if last is None:
        return None
    text = content_text(messages[last].get("content")) + TOLD.format(words=words[:MAX_CHARS])
    return (*messages[:last], {**messages[last], "content": text}, *messages[last + 1 :])


def _told(session: Session) -> Iterator[tuple[Exchange, str]]:
    """Exchanges with what was said about them, in words; what was said about the whole goes to its main branch."""
    whole = _words(session.about(None))
    on_main = set() if session.main is None else {exchange.id for exchange in session.main.calls.values()}
    for exchange in session.exchanges:
        words = _words(session.about(exchange.id)) or (whole if exchange.id in on_main else "")
        if words:
            yield exchange, words


def _words(items: Sequence[Feedback]) -> str:
    said = []
    for item in current_view(items):
        text = content_text(item.value.get("content")) if isinstance(item.value, dict) else item.value
        if isinstance(text, str) and text.strip() and item.kind in (FeedbackKind.TEXT, FeedbackKind.CORRECTION):
            said.append(SHOULD.format(words=text) if item.kind == FeedbackKind.CORRECTION else text)
    return "\n".join(said)


def _why_no_tokens(exchange: Exchange) -> str | None:
    if exchange.prompt_ids is None or not exchange.choices[0].completion_ids:
        return TEXT_ONLY
    return reason_against(exchange.fidelity, exchange.sampler)


def _with_words(exchange: Exchange, words: str, renderer: Renderer) -> tuple[int, ...] | None:
    """The ids of the prompt with the words in it; `None` where our template does not render the recorded prompt."""
    if tuple(renderer.prompt_ids(exchange.messages, exchange.tools)) != exchange.prompt_ids:
        return None
    messages = hinted(exchange.messages, words)
    return None if messages is None else tuple(renderer.prompt_ids(messages, exchange.tools))


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
