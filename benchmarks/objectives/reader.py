"""A tiny transformer that can read: what the experiments train that need a teacher who was told something.

A world says what a writer would reply, with which chances, to a request alone and to one that something was said about.
A random Llama is taught to write like that; the rest is the library's: rendered prompts, adapters on the local backend,
`curation.hindsight`'s way of telling words, objectives, the training loop with its teachers.

`Codes` is the world of requests with a right sequence of words; `solutions.py` has one of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import torch
from harness import OUT, tell
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from nightschool.curation.hindsight import SHOULD, TOLD, hinted
from nightschool.models.base import load_base, quiet
from nightschool.models.lora import LoraConfig
from nightschool.objectives.loss import Anchored, Objective
from nightschool.rendering.renderer import END, START, Renderer
from nightschool.training.local import LocalBackend
from nightschool.training.loop import Course, LoopConfig, Now, as_seen, run_loop, spread
from nightschool.training.states import start_folder
from nightschool.types import Sample

SPECIAL = ("<|endoftext|>", START, END, "<|unknown|>")
Chances = Mapping[str, float]  # of the next word; END ends the reply


@dataclass(frozen=True, slots=True)
class School:
    """The network and how it is taught: `lessons` drawn once, `steps` batches of `batch_size` of them."""

    hidden: int = 64
    layers: int = 3
    lessons: int = 12_000
    steps: int = 800
    batch_size: int = 64
    rate: float = 4e-3
    rank: int = 8


@dataclass(frozen=True, slots=True)
class Lesson:
    """A reply with END, and for each of its words the chances that the writer gave to what it could have been."""

    request: str
    told: str | None
    reply: tuple[str, ...]
    chances: tuple[Chances, ...]


class World(Protocol):
    """What a reader is taught."""

    @property
    def words(self) -> Sequence[str]:
        """All that are ever said in it."""
        ...

    def lesson(self, rng: random.Random) -> Lesson: ...


@dataclass(frozen=True, slots=True)
class Codes:
    """Requests "kind thing", each with one right sequence of words; the untaught writer has an idea of each place.

    Shapes: `right` (R, L) numbers of words, `belief` (R, L, K), a writer's chances for every place before it is told
    anything. What can be said about an earlier reply: what it should have been, what one place should be, or what one
    place is not. A writer who was told believes it, up to `doubt`.
    """

    kinds: tuple[str, ...]
    things: tuple[str, ...]
    codes: tuple[str, ...]
    right: np.ndarray
    belief: np.ndarray
    doubt: float = 0.03

    @classmethod
    def make(
        cls,
        seed: int,
        kinds: int = 3,
        things: int = 12,
        places: int = 3,
        codes: int = 8,
        skill: float | Sequence[float] = 2.4,
    ) -> Codes:
        """`skill`: how far the right word stands out, in logits, beside noise of deviation 1; or that of each kind."""
        rng = np.random.default_rng(seed)
        shape = (kinds * things, places, codes)
        right = rng.integers(codes, size=shape[:2])
        skills = np.repeat(np.broadcast_to(skill, kinds), things)[:, None, None]
        logits = rng.normal(size=shape) + skills * (np.arange(codes) == right[..., None])
        belief = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        return cls(KINDS[:kinds], THINGS[:things], COLORS[:codes], right, belief)

    @property
    def words(self) -> Sequence[str]:
        said = [self.should(0), self.wanted(0, 0), self.unwanted(0, 0)]
        return [*self.kinds, *self.things, *self.codes, *ORDINALS, *(word for text in said for word in text.split())]

    @property
    def requests(self) -> list[str]:
        return [f"{kind} {thing}" for kind in self.kinds for thing in self.things]

    def reply(self, request: int) -> tuple[str, ...]:
        """The right one."""
        return (*(self.codes[code] for code in self.right[request]), END)

    def reward(self, request: int, reply: Sequence[str]) -> float:
        return float(tuple(reply) == self.reply(request))

    def should(self, request: int) -> str:
        return SHOULD.format(words=" ".join(self.reply(request)[:-1]))

    def wanted(self, place: int, code: int) -> str:
        return f"the {ORDINALS[place]} word should be {self.codes[code]}"

    def unwanted(self, place: int, code: int) -> str:
        return f"the {ORDINALS[place]} word is not {self.codes[code]}"

    def lesson(self, rng: random.Random) -> Lesson:
        """A third of them without words, the others with any of the three kinds of them. Words may say anything, so
        that they have to be read; those about what is not name what the writer would have said."""
        request = rng.randrange(len(self.right))
        belief, told = self.belief[request].copy(), None
        places, codes = belief.shape
        place, code = rng.randrange(places), rng.randrange(codes)
        match rng.randrange(6):
            case 0:
                told = self.wanted(place, code)
                belief[place] = self._told(belief[place], np.arange(codes) == code)
            case 1 | 2:
                code = rng.choices(range(codes), belief[place])[0]
                told = self.unwanted(place, code)
                belief[place] = self._told(belief[place], np.arange(codes) != code)
            case 3:
                said = [rng.randrange(codes) for _ in range(places)]
                told = SHOULD.format(words=" ".join(self.codes[one] for one in said))
                belief = np.stack([self._told(b, np.arange(codes) == one) for b, one in zip(belief, said, strict=True)])
        reply = [rng.choices(range(codes), row)[0] for row in belief]
        chances = [dict(zip(self.codes, map(float, row), strict=True)) for row in belief]
        return Lesson(self.requests[request], told, (*(self.codes[one] for one in reply), END), (*chances, {END: 1.0}))

    def _told(self, belief: np.ndarray, possible: np.ndarray) -> np.ndarray:
        kept = belief * possible
        return (1 - self.doubt) * kept / kept.sum() + self.doubt * belief


KINDS = ("paint", "weave", "print", "dye")
THINGS = (
    "boat", "chair", "door", "fence", "gate", "hat", "jar", "kite", "lamp", "mask", "nest", "oar", "pipe", "quilt",
    "rope", "sail",
)  # fmt: skip
COLORS = ("red", "blue", "green", "white", "black", "gold", "pink", "gray")
ORDINALS = ("first", "second", "third", "fourth")


@dataclass(frozen=True, slots=True)
class Reader:
    """A base that was taught a world, and the backend with an adapter on it."""

    backend: LocalBackend
    folder: Path

    @property
    def renderer(self) -> Renderer:
        return self.backend.base.renderer

    def prompt(self, request: str, told: str | None = None) -> list[int]:
        return self.renderer.prompt_ids(_messages(request, told))

    def ids(self, reply: Sequence[str]) -> list[int]:
        """Of a reply's words, END among them."""
        return [self._id(word) for word in reply]

    def words(self, ids: Sequence[int]) -> list[str]:
        return [self.renderer.tokenizer.id_to_token(one) or "" for one in ids]

    def chances(self, prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]) -> list[float]:
        """The probability of each reply behind its prompt, under the adapter that is open."""
        rows = [said(str(n), *pair) for n, pair in enumerate(zip(prompts, replies, strict=True))]
        return [float(np.exp(sum(x for x in row if x is not None))) for row in self.backend.forward(rows)]

    def draw(self, prompts: Sequence[Sequence[int]], longest: int, seed: int) -> list[Drawn]:
        """A reply to each prompt, by the adapter that is open, from whole distributions."""
        generator = torch.Generator().manual_seed(seed)
        found = [Drawn([], [], []) for _ in prompts]
        for _ in range(longest):
            going = [n for n, one in enumerate(found) if self.renderer.end_id not in one.ids]
            if not going:
                break
            for n, logprobs in zip(going, self.next([(*prompts[n], *found[n].ids) for n in going]), strict=True):
                token = int(torch.multinomial(logprobs.exp(), 1, generator=generator))
                found[n].ids.append(token)
                found[n].logprobs.append(float(logprobs[token]))
                found[n].entropies.append(float(-(logprobs.exp() * logprobs).sum()))
        return found

    def next(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        """Log-probabilities (N, V) of what may come next."""
        vocabulary = np.arange(self.renderer.tokenizer.get_vocab_size(), dtype=np.int32)
        asked = []
        for n, context in enumerate(contexts):
            ids = (*context, 0)  # the place of a token that is not there yet
            place = (False,) * len(context) + (True,)
            top_ids = np.broadcast_to(vocabulary, (len(ids), len(vocabulary)))
            asked.append(Sample(str(n), ids, place, place, token_annotations={"top_ids": top_ids}))
        return torch.from_numpy(np.stack([scores[-1] for scores in self.backend.forward_top(asked)]))

    def _id(self, word: str) -> int:
        found = self.renderer.tokenizer.token_to_id(word)
        assert found is not None, word
        return found


@dataclass(frozen=True, slots=True)
class Drawn:
    """A reply's tokens, their log-probabilities, and the entropy in nats of the distribution of each."""

    ids: list[int]
    logprobs: list[float]
    entropies: list[float]


def said(name: str, prompt: Sequence[int], reply: Sequence[int], **fields: Any) -> Sample:
    """A training row; with another prompt and the same name, a teacher's view of it."""
    sampled = (False,) * len(prompt) + (True,) * len(reply)
    return Sample(name, (*prompt, *reply), sampled, sampled, **fields)


def drawn(name: str, prompt: Sequence[int], one: Drawn, **fields: Any) -> Sample:
    """The row of a reply that the policy drew, with what it gave to each token."""
    behavior = {"behavior_logprobs": (*[None] * len(prompt), *one.logprobs)}
    return said(name, prompt, one.ids, token_annotations=behavior, **fields)


def hire(name: str, world: World, seed: int, school: School = School(), settings: Any = None) -> Reader:
    """A fresh adapter on a reader of this world; taught once per name, seed and settings, and kept."""
    key = json.dumps([name, seed, asdict(school), settings], default=str)
    folder = OUT / "objectives" / "readers" / f"{name}-{seed}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    torch.set_default_dtype(torch.float32)  # the harness computes in float64
    if not folder.exists():
        tell(f"teaching a reader of {name}, seed {seed}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=folder.parent))
        _teach(staging, world, seed, school)
        with contextlib.suppress(OSError):  # somebody else was faster
            staging.rename(folder)
        shutil.rmtree(staging, ignore_errors=True)
    with quiet():
        backend = LocalBackend(
            load_base(folder, torch.float32, "cpu"), LoraConfig(rank=school.rank, alpha=16), seed=seed
        )
    backend.open(None)
    return Reader(backend, folder)


def taught(rows: Sequence[Sample], views: Sequence[Sample], reader: Reader, teacher: Reader, k: int) -> list[Sample]:
    """Rows with what a teacher that stays as it is says behind the prompts of their views: of the tokens, and of the
    `k` that the reader finds likeliest in their places."""
    scores, likeliest = as_seen(rows, views, teacher.backend.forward(views)), reader.backend.top(rows, k)
    chosen = [ids[list(row.completion_mask)] for row, ids in zip(rows, likeliest, strict=True)]
    asking = [
        replace(view, token_annotations={"top_ids": spread(ids, view.completion_mask, 0)})
        for view, ids in zip(views, chosen, strict=True)
    ]
    told = [
        answer[list(view.completion_mask)]
        for view, answer in zip(views, teacher.backend.forward_top(asking), strict=True)
    ]
    found = []
    for row, of_tokens, ids, of_top in zip(rows, scores, likeliest, told, strict=True):
        more = {
            "teacher_logprobs": of_tokens,
            "top_ids": ids,
            "teacher_top": spread(of_top, row.completion_mask, np.nan),
        }
        found.append(replace(row, token_annotations={**row.token_annotations, **more}))
    return found


@dataclass(frozen=True, slots=True)
class Study:
    """What a night makes of rows: an objective, its rule, how the rows are gone through. `beside`: by `Sample.term`,
    what else is learned in the same steps."""

    objective: Objective
    rule: Any
    config: LoopConfig
    beside: Mapping[str, tuple[Objective, Any]] = field(default_factory=dict)

    def night(
        self, reader: Reader, rows: Sequence[Sample], teachers: Sequence[Sample], parent: Path | None, folder: Path
    ) -> Path:
        """Train from `parent` on rows and on what the policy says behind their teachers' prompts. Returns the adapter,
        which the reader has open then."""
        named = {"": (self.objective, self.rule), **self.beside}
        own = {term: [row for row in rows if row.term == term] for term in named}
        used = {term: pair for term, pair in named.items() if own[term]}
        course = Course(
            tuple(row for term, (objective, rule) in used.items() for row in objective.annotate(own[term], rule)),
            (),
            {term: objective.loss(rule) for term, (objective, rule) in used.items()},
            any(objective.anchored for objective, _ in used.values()),
            parent,
            self.config,
            teachers=tuple(teachers),
            after_anchor={term: later for term, pair in used.items() if (later := _after_anchor(*pair))},
        )
        run_loop(reader.backend, course, folder, Unwatched())
        found = start_folder(folder, self.config.windows)
        assert found is not None
        return found


def _after_anchor(objective: Objective, rule: Any) -> Callable[[Sequence[Sample]], Anchored] | None:
    annotate = objective.after_anchor
    return None if annotate is None else lambda rows: annotate(rows, rule)


class Unwatched:
    """Nobody looks on."""

    def step(self, now: Now) -> None:
        del now

    def wants_halt(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Audit:
    """How often replies are right: without words, with those about an own failing reply, with those about the failing
    reply to another request."""

    alone: float
    told: float
    placebo: float


def audit(reader: Reader, alone: Sequence[str], told: Sequence[str], right: Sequence[Sequence[str]]) -> Audit:
    """Of requests, each with what it is told and its right reply; the placebo is what the request before is told."""
    replies = [reader.ids(reply) for reply in right]

    def rate(words: Sequence[str | None]) -> float:
        prompts = [reader.prompt(*pair) for pair in zip(alone, words, strict=True)]
        return fmean(reader.chances(prompts, replies))

    return Audit(rate([None] * len(alone)), rate(told), rate([told[-1], *told[:-1]]))


def _messages(request: str, told: str | None) -> Any:
    messages = ({"role": "user", "content": request},)
    return messages if told is None else hinted(messages, told)


def _teach(folder: Path, world: World, seed: int, school: School) -> None:
    """Train all weights of a random model on what the writer would say, and write it with its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    renderer = _write_tokenizer(folder, world)
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    vocab_size = renderer.tokenizer.get_vocab_size()
    ids, places, targets = _lessons([world.lesson(rng) for _ in range(school.lessons)], renderer)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=school.hidden,
        intermediate_size=3 * school.hidden,
        num_hidden_layers=school.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
        initializer_range=0.1,  # the default of 0.02 takes ten times the steps
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LlamaForCausalLM(config)
    optimizer = torch.optim.Adam(network.parameters(), lr=school.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, school.rate, total_steps=school.steps)
    for _ in range(school.steps):
        rows = torch.randint(len(ids), (school.batch_size,), generator=generator)
        logprobs = network(input_ids=ids[rows]).logits.log_softmax(-1)
        asked = logprobs.gather(1, places[rows, :, None].expand(-1, -1, vocab_size))
        loss = -(targets[rows] * asked).sum() / targets[rows].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with quiet():
        network.save_pretrained(folder)


def _lessons(lessons: Sequence[Lesson], renderer: Renderer) -> tuple[Tensor, Tensor, Tensor]:
    """Ids (N, T), places before the words of replies (N, L), and the chances of these (N, L, V), zero where none is."""
    number = renderer.tokenizer.token_to_id
    rows = [
        (renderer.prompt_ids(_messages(one.request, one.told)), [number(word) for word in one.reply]) for one in lessons
    ]
    length, longest = max(len(prompt) + len(reply) for prompt, reply in rows), max(len(reply) for _, reply in rows)
    ids, places = torch.zeros(len(rows), length, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.long)
    targets = torch.zeros(len(rows), longest, renderer.tokenizer.get_vocab_size())
    for n, ((prompt, reply), one) in enumerate(zip(rows, lessons, strict=True)):
        ids[n, : len(prompt) + len(reply)] = torch.tensor(prompt + reply)
        for place, chances in enumerate(one.chances):
            places[n, place] = len(prompt) - 1 + place
            for word, chance in chances.items():
                targets[n, place, number(word)] += chance
    return ids, places, targets


def _write_tokenizer(folder: Path, world: World) -> Renderer:
    """One token a word, of all words that are ever said in a world."""
    words = dict.fromkeys([*TOLD.format(words="").split(), "user", "assistant", *world.words])
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return Renderer(tokenizer)
