"""Continuous batching: requests join and leave the running batch between decode steps.

One thread owns the network. A turn takes what arrived, fills the new rows (each distinct prefix once),
then decodes one token for every row; the last prompt token of a new row is part of that same step, so
a request that arrives during a step has its first token after the next one.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from nightschool.engine.cache import MIN_SHARED, PrefixStore, common_prefix
from nightschool.engine.runner import FILL_TOKENS, SCORE_TOKENS, Row, Runner
from nightschool.engine.sampling import Drawn, Sampling, draw
from nightschool.engine.text import Decoder, find_stop

BASE_ADAPTER = ""
logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Request:
    """What a client asked for. `cancelled` may be set from any thread."""

    adapter: str
    prompt_ids: list[int]
    sampling: Sampling
    n: int = 1
    stream: bool = False
    score: bool = False
    cancelled: bool = False
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token, with its log-probability and the best alternatives as (id, log-probability)."""

    id: int
    logprob: float
    best: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A streamed choice grew by one token."""

    choice: int
    token: Token


@dataclass(frozen=True, slots=True)
class Done:
    """A choice is complete: all its tokens, why it ended, where a stop string cuts its text."""

    choice: int
    tokens: tuple[Token, ...]
    reason: str
    cut: int | None = None
    prompt_scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The network raised; the request has no answer."""

    message: str


Event = Step | Done | Failed
Deliver = Callable[[list[tuple[Request, Event]]], None]


@dataclass(slots=True, eq=False, kw_only=True)
class Seat(Row):
    """A row and the request it answers."""

    request: Request
    choice: int
    random: np.random.Generator
    tokens: list[Token] = field(default_factory=list)
    decoder: Decoder | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """What is known already of a seat's prompt: keys and values of its first `length` tokens."""

    seat: Seat
    pieces: list[Tensor]
    length: int

    @property
    def missing(self) -> int:
        return len(self.seat.prompt) - self.length


class Scheduler:
    """Runs requests in one thread (`start`), or turn by turn (`turn`, for tests).

    `deliver` gets the events of a step at once, from the scheduler's thread.
    """

    def __init__(self, runner: Runner, deliver: Deliver, stop_ids: frozenset[int], kept_bytes: int) -> None:
        self.runner = runner
        self.store = PrefixStore(kept_bytes, runner.cache.token_bytes)
        self.rows: list[Seat] = []
        self.waiting: deque[Seat] = deque()
        self.leaving: set[str] = set()
        self.steps = 0
        self.reused_tokens = 0
        self._deliver = deliver
        self._stop_ids = stop_ids
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._events: list[tuple[Request, Event]] = []
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the running step, drop everything else, end the thread."""
        self._inbox.put(None)
        self._thread.join()

    def submit(self, request: Request) -> None:
        """Queue a request (any thread)."""
        self._inbox.put(partial(self._enqueue, request))

    def unload(self, adapter: str) -> None:
        """Drop an adapter and its kept sequences once no row uses it (any thread)."""
        self.leaving.add(adapter)
        self._inbox.put(lambda: None)  # wakes the thread

    def turn(self, wait: bool = False) -> bool:
        """Take what arrived, fill, decode one step, deliver. False when told to stop."""
        if not self._take(wait and not self.rows and not self.waiting):
            return False
        self._drop_cancelled()
        self._forget_adapters()
        try:
            self._join()
            if self.rows:
                self._decode()
        except Exception as error:  # boundary: one broken step must not end the server
            logger.exception("a step failed")
            self._fail(error)
        if self._events:
            self._deliver(self._events)
            self._events = []
        return True

    def _run(self) -> None:
        with torch.inference_mode():
            while self.turn(wait=True):
                pass

    def _take(self, block: bool) -> bool:
        try:
            while True:
                act = self._inbox.get(block=block)
                if act is None:
                    return False
                act()
                block = False
        except queue.Empty:
            return True

    def _enqueue(self, request: Request) -> None:
        if request.adapter not in (BASE_ADAPTER, *self.runner.lora.loaded):
            self._events.append((request, Failed(f"The adapter {request.adapter} was unloaded meanwhile.")))
            return
        for choice in range(request.n):
            seat = Seat(
                adapter=request.adapter,
                ids=list(request.prompt_ids),
                sampling=request.sampling,
                request=request,
                choice=choice,
                prompt=np.array(request.prompt_ids[:-1], np.int32),
                random=request.sampling.stream(choice),
                decoder=Decoder(self.runner.base.renderer.tokenizer) if request.sampling.stop else None,
            )
            self.waiting.append(seat)

    def _forget_adapters(self) -> None:
        used = {seat.adapter for seat in (*self.rows, *self.waiting)}
        for adapter in self.leaving - used:
            self.store.drop(adapter)
            self.runner.unload(adapter)
            self.leaving.remove(adapter)

    def _drop_cancelled(self) -> None:
        if any(seat.request.cancelled for seat in (*self.rows, *self.waiting)):
            self.rows = [seat for seat in self.rows if not seat.request.cancelled]
            self.waiting = deque(seat for seat in self.waiting if not seat.request.cancelled)

    def _join(self) -> None:
        """Give waiting seats their rows and fill them, each distinct prefix once."""
        self._settle()
        pending = list(islice(self.waiting, self.runner.cache.max_rows - len(self.rows)))
        while pending:
            found, pending = self._first_of_each_prefix(pending)
            *others, last = batches(found)
            for batch in others:
                self._place(batch)
            self._place(last, waits=not pending)
        self._settle()

    def _first_of_each_prefix(self, seats: list[Seat]) -> tuple[list[Match], list[Seat]]:
        """Seats to fill now, and those that find more to reuse once the former are filled."""
        now: list[Match] = []
        later: list[Seat] = []
        for seat in seats:
            match = self._match(seat)
            siblings = (m.seat.prompt for m in now if m.seat.adapter == seat.adapter)
            shared = max((common_prefix(prompt, seat.prompt) for prompt in siblings), default=0)
            if shared >= match.length + MIN_SHARED and not seat.request.score:
                later.append(seat)
            else:
                now.append(match)
        return now, later

    def _match(self, seat: Seat) -> Match:
        """The longest known prefix of a seat's prompt, among kept sequences and running rows."""
        if seat.request.score:
            return Match(seat, [], 0)  # scoring needs the logits of every token
        pieces, length = self.store.longest(seat.adapter, seat.prompt)
        for row in self.rows:
            if row.adapter == seat.adapter:
                shared = min(row.computed, common_prefix(row.prompt, seat.prompt))
                if shared > length:
                    pieces, length = [self.runner.cache.view(row.slot, shared)], shared
        return Match(seat, pieces, length) if length >= MIN_SHARED else Match(seat, [], 0)

    def _place(self, batch: list[Match], waits: bool = False) -> None:
        """Move seats into the next free rows, copy what is known, compute the rest.

        If it `waits`, a rest that costs the decode step little is left to it.
        """
        for match in batch:
            seat = match.seat
            self.waiting.remove(seat)
            seat.slot = len(self.rows)
            self.rows.append(seat)
            if match.length:
                self.runner.cache.write(seat.slot, match.pieces)
                seat.computed = match.length
                self.reused_tokens += match.length
                seat.request.cached_tokens = max(seat.request.cached_tokens, match.length)
        seats: list[Row] = [match.seat for match in batch]
        if batch[0].seat.request.score:
            self.runner.score(seats)
        elif not (waits and fits_step(batch[0].missing, len(batch), len(self.rows))):
            self.runner.fill(seats)

    def _settle(self) -> None:
        """Make rows compact, those of one adapter neighbors, and among them those that begin alike; move few."""
        alike = Counter((seat.adapter, seat.head) for seat in self.rows)
        places = [(seat.adapter, seat.head if alike[seat.adapter, seat.head] > 1 else b"") for seat in self.rows]
        free: dict[tuple[str, bytes], set[int]] = {}
        start = 0
        for place, size in sorted(Counter(places).items()):
            free[place] = set(range(start, start + size))
            start += size
        misplaced: list[tuple[Seat, tuple[str, bytes]]] = []
        for seat, place in zip(self.rows, places, strict=True):
            if seat.slot in free[place]:
                free[place].remove(seat.slot)
            else:
                misplaced.append((seat, place))
        if misplaced:
            targets = [free[place].pop() for _, place in misplaced]
            sources, length = [seat.slot for seat, _ in misplaced], max(seat.computed for seat, _ in misplaced)
            self.runner.cache.move(sources, targets, length)
            for (seat, _), slot in zip(misplaced, targets, strict=True):
                seat.slot = slot
        self.rows.sort(key=lambda seat: seat.slot)

    def _decode(self) -> None:
        logits = self.runner.decode(list(self.rows))
        drawn = draw(logits, [seat.sampling for seat in self.rows], [seat.random.random() for seat in self.rows])
        self.steps += 1
        running: list[Seat] = []
        for line, seat in enumerate(self.rows):
            done = self._grow(seat, token_at(drawn, line, seat.sampling.top_logprobs))
            if done is None:
                running.append(seat)
            else:
                self._events.append((seat.request, done))
                self._keep(seat)
        self.rows = running

    def _grow(self, seat: Seat, token: Token) -> Done | None:
        """Append a token; the finished choice if it was the last."""
        seat.ids.append(token.id)
        seat.tokens.append(token)
        if seat.request.stream:
            self._events.append((seat.request, Step(seat.choice, token)))
        sampling = seat.sampling
        cut = None
        if seat.decoder is not None:
            piece = seat.decoder.push(token.id)
            cut = find_stop(seat.decoder.text, len(piece), sampling.stop)
        ended = token.id in self._stop_ids and not sampling.ignore_eos
        if cut is None and not ended and len(seat.tokens) < sampling.max_tokens:
            return None
        scores = tuple(torch.cat(seat.prompt_scores).tolist()) if seat.prompt_scores else ()
        reason = "stop" if ended or cut is not None else "length"
        return Done(seat.choice, tuple(seat.tokens), reason, cut, scores)

    def _keep(self, seat: Seat) -> None:
        """Keep a finished sequence's keys and values for the session's next turn."""
        if seat.request.score:
            return
        ids = np.array(seat.ids[: seat.computed], np.int32)
        self.store.keep(seat.adapter, ids, partial(self.runner.cache.read, seat.slot))

    def _fail(self, error: Exception) -> None:
        message = f"The engine could not finish the step: {type(error).__name__}: {error}"
        requests = {id(seat.request): seat.request for seat in (*self.rows, *self.waiting)}
        self._events += [(request, Failed(message)) for request in requests.values()]
        self.rows, self.waiting = [], deque()


def fits_step(missing: int, num_new: int, num_rows: int) -> bool:
    """Whether a step of all rows, as long as the new ones need, computes little more than two forwards would."""
    return num_rows * (missing + 1) <= min(1.25 * (num_new * missing + num_rows), FILL_TOKENS)


def token_at(drawn: Drawn, line: int, count: int) -> Token:
    best: tuple[tuple[int, float], ...] = ()
    if count and drawn.top_ids is not None and drawn.top_logprobs is not None:
        best = tuple(zip(drawn.top_ids[line][:count], drawn.top_logprobs[line][:count], strict=True))
    return Token(drawn.ids[line], drawn.logprobs[line], best)


def batches(matches: list[Match]) -> list[list[Match]]:
    """Seats for one forward each: of similar length, within the token budget, scored ones apart."""
    found: list[list[Match]] = []
    for match in sorted(matches, key=lambda m: (m.seat.request.score, -m.missing)):
        scored = match.seat.request.score
        first = found[-1][0] if found else None
        if (
            first is None
            or first.seat.request.score != scored
            or 2 * match.missing < first.missing
            or (len(found[-1]) + 1) * first.missing > (SCORE_TOKENS if scored else FILL_TOKENS)
        ):
            found.append([])
        found[-1].append(match)
    return found
