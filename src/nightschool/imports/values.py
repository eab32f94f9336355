"""What the readers of logs make of them, before anything is stored."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nightschool.feedback.values import NewFeedback
from nightschool.imports.reading import Raw
from nightschool.store.records import Record
from nightschool.store.tree import canonical
from nightschool.types import Json


class Refused(Exception):
    """A record, or a part of one, that cannot be taken; the text is the reason, counted as it stands."""


@dataclass(frozen=True, slots=True)
class Link:
    """A message and everything before it."""

    message: Json
    above: Link | None = None

    def path(self) -> list[Json]:
        """From the first message to this one."""
        messages: list[Json] = []
        at: Link | None = self
        while at is not None:
            messages.append(at.message)
            at = at.above
        return messages[::-1]


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call. `key` tells it from the others of its conversation; `above` is its request's last message.

    `record` has no id, messages and bodies: they are filled in when it is stored. `at` is `None` where the log
    gives no time.
    """

    key: str
    above: Link | None
    record: Record
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """Feedback from a log. `turn` is the key of the turn it is about, where this conversation has that.

    `external_keys` are further names of its target: the first that an exchange has is meant; but a session called
    `session` before them.
    """

    item: NewFeedback
    turn: str | None = None
    session: str | None = None
    external_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is taken or left whole. `key` names it; `named` when that name came from the log.

    Two conversations with one key are the same if they are named; otherwise they are samples of one task.
    `raw` is what it was read from, `tail` the last message where it comes after the last reply. `left_out` counts
    what is no part of a conversation, `repeated` the calls that the log tells twice, and `refused` what is lost.
    """

    key: str
    digest: str
    place: str
    turns: tuple[Turn, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    named: bool = True
    raw: bytes = b""
    tail: Link | None = None
    left_out: tuple[str, ...] = ()
    repeated: int = 0
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of log. `knows` recognizes a record; `convert` reads those of one group, and is told its name.

    `group` names the groups that a record belongs to, where several records make one conversation; `None` where
    every record stands alone.
    """

    name: str
    knows: Callable[[Json], bool]
    convert: Callable[[Sequence[Raw], str], Iterator[Conversation]]
    group: Callable[[Json], Sequence[str]] | None = None


def digest(value: object) -> str:
    """What two equal JSON values share, however they are spelled."""
    return hashlib.sha256(canonical(value)).hexdigest()


def exchange_id(key: str) -> str:
    """The id of an imported exchange: the same for the same call, whichever file brings it.

    A UUIDv7 whose time is zero and whose other bits are a hash of `key`.
    """
    bits = int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:10], "big")
    low = (bits >> 12) & (2**62 - 1)
    return str(uuid.UUID(int=0x7 << 76 | (bits & 0xFFF) << 64 | 0b10 << 62 | low))
