"""The little world of all recipes: a clerk who sends customers to a desk, and mostly to the wrong one.

A customer names a thing ("my parcel is wrong"); one of four desks looks after it ("ask shipping please"). The clerk is
a random Llama of two layers, taught in seconds to answer in that form, now and then to listen, and to name desks by
habit for the rest: about 38 of 100 replies are right.

What is measured is exact: the probability of the right reply, averaged over requests in a wording nobody trains on.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from nightschool.curation.hindsight import SHOULD, hinted
from nightschool.models.base import load_base, quiet
from nightschool.models.lora import LoraConfig
from nightschool.rendering.renderer import Renderer
from nightschool.training.local import LocalBackend
from nightschool.types import Json, Sample

DESKS = {
    "shipping": ("parcel", "courier", "address", "delivery"),
    "billing": ("invoice", "card", "price", "voucher"),
    "returns": ("refund", "label", "exchange", "defect"),
    "stock": ("color", "size", "spare", "model"),
}
# How often an untaught clerk listens and names the right desk; and what it says when it does not.
LISTENS = 0.2
HABITS = {"shipping": 0.4, "billing": 0.3, "returns": 0.2, "stock": 0.1}
WORDINGS = ("my {} is wrong", "please help with a {}", "what about the {}")
REPLY = "ask {} please"
MAX_TOKENS = 4  # three words and the end of turn
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unknown|>")

Rows = list[tuple[str, float, float]]  # what is measured, before and after


@dataclass(frozen=True, slots=True)
class Request:
    """What a customer says, and the desk that would have been right."""

    text: str
    desk: str

    @property
    def messages(self) -> tuple[Json, ...]:
        return ({"role": "user", "content": self.text},)


def _requests(wordings: Sequence[str]) -> list[Request]:
    return [
        Request(words.format(thing), desk) for desk, things in DESKS.items() for thing in things for words in wordings
    ]


LIVE = _requests(WORDINGS[:2])  # what customers say while the clerk learns
EXAM = _requests(WORDINGS[2:])  # the same things in other words


def hire(folder: Path, seed: int, reads_feedback: bool = False) -> LocalBackend:
    """A fresh adapter on a clerk, who is made in `folder` unless one lies there already. One that `reads_feedback` does
    what a hint in its prompt tells it to."""
    torch.set_num_threads(1)  # so small a model is slower on several
    folder = folder / f"clerk-{seed}{'-reads' if reads_feedback else ''}"
    if not (folder / "config.json").exists():
        _make(folder, seed, reads_feedback)
    with quiet():
        backend = LocalBackend(load_base(folder, torch.float32, "cpu"), LoraConfig(rank=8, alpha=16), seed=seed)
    backend.open(None)
    return backend


def _make(folder: Path, seed: int, reads_feedback: bool) -> None:
    renderer = _write_tokenizer(folder)
    lessons: list[tuple[list[int], list[int], float]] = []  # prompt, reply, weight
    for request in LIVE + EXAM:
        prompt = renderer.prompt_ids(request.messages)
        for desk, habit in HABITS.items():
            share = (1 - LISTENS) * habit + LISTENS * (desk == request.desk)
            lessons.append((prompt, renderer.completion_ids(REPLY.format(desk)), share))
        for desk in DESKS if reads_feedback else ():
            words = hinted(request.messages, SHOULD.format(words=REPLY.format(desk)))
            assert words is not None
            lessons.append((renderer.prompt_ids(words), renderer.completion_ids(REPLY.format(desk)), 0.25))
    _school(folder, renderer.tokenizer.get_vocab_size(), lessons, seed)


def replied(name: str, prompt: Sequence[int], reply: Sequence[int], **fields: Any) -> Sample:
    """A training row: the prompt is read, the reply is what a policy said and what may be trained."""
    sampled = (False,) * len(prompt) + (True,) * len(reply)
    return Sample(name, (*prompt, *reply), sampled, sampled, **fields)


def reply_to(backend: LocalBackend, request: Request, desk: str, name: str, **fields: Any) -> Sample:
    """The row of a request answered with `desk`, by whomever."""
    renderer = backend.base.renderer
    return replied(name, renderer.prompt_ids(request.messages), renderer.completion_ids(REPLY.format(desk)), **fields)


def draw(backend: LocalBackend, requests: Sequence[Request], seed: int) -> list[Sample]:
    """One reply of the current policy to each request, with the log-probabilities it was drawn with, and reward 1 if
    it names the right desk, 0 if not.

    The trainer itself is asked for the whole distribution of the next token. That is slow, and needs no engine that
    would have to agree with it (`benchmarks/agreement.py` measures how far the embedded one does).
    """
    renderer, generator = backend.base.renderer, torch.Generator().manual_seed(seed)
    vocabulary = np.arange(renderer.tokenizer.get_vocab_size(), dtype=np.int32)
    prompts = [renderer.prompt_ids(request.messages) for request in requests]
    replies: list[list[int]] = [[] for _ in requests]
    logprobs: list[list[float]] = [[] for _ in requests]
    for _ in range(MAX_TOKENS):
        going = [row for row, reply in enumerate(replies) if renderer.end_id not in reply]
        if not going:
            break
        asked = []
        for row in going:  # "what would you say here?", at the place of a token that is not there yet
            ids = (*prompts[row], *replies[row], 0)
            place = (False,) * (len(ids) - 1) + (True,)
            top_ids = {"top_ids": np.tile(vocabulary, (len(ids), 1))}
            asked.append(Sample(str(row), ids, place, place, token_annotations=top_ids))
        for row, scores in zip(going, backend.forward_top(asked), strict=True):
            token = int(torch.multinomial(torch.from_numpy(scores[-1]).exp(), 1, generator=generator))
            replies[row].append(token)
            logprobs[row].append(float(scores[-1, token]))
    found = []
    for row, request in enumerate(requests):
        right = replies[row] == renderer.completion_ids(REPLY.format(request.desk))
        behavior = {"behavior_logprobs": (*[None] * len(prompts[row]), *logprobs[row])}
        found.append(
            replied(f"reply {row}", prompts[row], replies[row], reward=float(right), token_annotations=behavior)
        )
    return found


def success(backend: LocalBackend) -> float:
    """The probability that a reply on the exam's requests is the right one. Nothing is sampled."""
    right = [reply_to(backend, request, request.desk, request.text) for request in EXAM]
    return fmean(float(np.exp(sum(x for x in row if x is not None))) for row in backend.forward(right))


def batches(units: Sequence[Sequence[Sample]], size: int, steps: int, seed: int) -> Iterator[list[Sample]]:
    """`steps` batches of `size` units (rows that must stay together), shuffled anew in every epoch."""
    order, left = random.Random(seed), []
    for _ in range(steps):
        if len(left) < size:
            left = order.sample(list(units), len(units))
        yield [sample for unit in left[:size] for sample in unit]
        left = left[size:]


def play(run: Callable[..., Rows], **choices: Sequence[str]) -> None:
    """A recipe from the command line: its options, a folder that is gone afterwards, its table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int)
    for name, known in choices.items():
        parser.add_argument(f"--{name}", choices=known)
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows = run(Path(folder), **given)
    width = max(len(name) for name, _, _ in rows)
    print(f"\n{'':{width}}  before   after")
    for name, before, after in rows:
        print(f"{name:{width}} {before:6.1%}  {after:6.1%}")
    print(f"{time.perf_counter() - started:.0f} s")


def _write_tokenizer(folder: Path) -> Renderer:
    """One token a word, of all words that are ever said here."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [request.text for request in LIVE + EXAM] + [REPLY.format(desk) for desk in DESKS] + ["user assistant"]
    hint = hinted(LIVE[0].messages, SHOULD.format(words=""))
    assert hint is not None
    words = dict.fromkeys(word for text in [*texts, hint[0]["content"]] for word in text.split())
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return Renderer(tokenizer)


def _school(folder: Path, vocab_size: int, lessons: list[tuple[list[int], list[int], float]], seed: int) -> None:
    """Train all weights of a random model on weighted replies, and write it."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
        initializer_range=0.1,  # the default of 0.02 takes ten times the steps
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LlamaForCausalLM(config)
    length = max(len(prompt) + len(reply) for prompt, reply, _ in lessons)
    ids = torch.zeros(len(lessons), length, dtype=torch.long)
    labels = torch.full((len(lessons), length), -100)
    for row, (prompt, reply, _) in enumerate(lessons):
        end = len(prompt) + len(reply)
        ids[row, :end] = torch.tensor(prompt + reply)
        labels[row, len(prompt) : end] = torch.tensor(reply)
    shares = torch.tensor([share for _, _, share in lessons])
    generator = torch.Generator().manual_seed(seed)
    steps = 300
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for _ in range(steps):
        rows = torch.multinomial(shares, 64, replacement=True, generator=generator)
        loss = network(input_ids=ids[rows], labels=labels[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with quiet():
        network.save_pretrained(folder)
