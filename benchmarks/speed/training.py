"""Forward and backward of agent workloads: prefix tree here, padded rows in TRL's GRPO step, in turns on one machine.

    python benchmarks/speed/training.py [--rounds 3] [--only NAME ...] [--json]

Groups of rollouts of one task (a prompt and G completions of 48 tokens) and a session of ten turns, random tokens, on
SmolLM2-135M with one random adapter of rank 8 on all linear layers, the same on both sides: base in bfloat16, adapter
in float32, GRPO's loss on the policy that sampled (ratio one, no KL term), gradients added up over micro-batches.
Generation is excluded on both sides.

TRL's step is `GRPOTrainer._compute_loss` of a real trainer and its backward. Neither side checkpoints activations;
TRL's defaults (micro-batches of 8 rows, checkpointing) are shown beside with `--defaults`. Rows go through TRL in
micro-batches of as many tokens as a pack here may have (4,096). Each side lives in a process of its own and waits while
the other computes; both run the same work in each round, and the ratio is that of the medians, its interval a bootstrap
over rounds. Memory is the peak of a process in the step above what it held with model and adapter loaded.

Workloads at a prompt of 2,048 tokens are measured on one of their four groups: no pack and no micro-batch holds rows of
two, so four cost four times as much on either side.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "2000")
sys.path.append(str(Path(__file__).parents[1]))

from common import Row, at_least, at_most, machine_facts, options_of, random_adapter, ratio_of, report, tell

MODEL = "smollm2-135m"
TOKENS_OF_REPLY = 48
BUDGET = 4096


@dataclass(frozen=True, slots=True)
class Rows:
    """Rollouts as token ids: `prompts[i]` and what was sampled after it; `groups[i]` names the task."""

    prompts: list[list[int]]
    replies: list[list[int]]
    groups: list[str]
    advantages: list[float]

    @property
    def batches(self) -> list[list[int]]:
        """Neighbors whose padded tokens stay within the budget; at least one row each."""
        lengths = [len(prompt) + len(reply) for prompt, reply in zip(self.prompts, self.replies, strict=True)]
        found: list[list[int]] = []
        for row, length in enumerate(lengths):
            if found and (len(found[-1]) + 1) * max(length, *(lengths[i] for i in found[-1])) <= BUDGET:
                found[-1].append(row)
            else:
                found.append([row])
        return found


def groups_of(prompt: int, group_size: int, num_groups: int, seed: int = 0) -> Rows:
    dice = random.Random(seed)
    made = Rows([], [], [], [])
    for group in range(num_groups):
        shared = ids(dice, prompt)
        advantages = [1.0 if member % 2 else -1.0 for member in range(group_size)]
        made.prompts.extend([shared] * group_size)
        made.replies.extend(ids(dice, TOKENS_OF_REPLY) for _ in range(group_size))
        made.groups.extend([str(group)] * group_size)
        made.advantages.extend(advantages)
    return made


def session_of(system: int, news: int, turns: int, seed: int = 0) -> Rows:
    """One session: each turn's prompt is all that was said before."""
    dice = random.Random(seed)
    made = Rows([], [], [], [])
    said = ids(dice, system)
    for turn in range(turns):
        said = said + ids(dice, news)
        reply = ids(dice, TOKENS_OF_REPLY)
        made.prompts.append(said)
        made.replies.append(reply)
        made.groups.append("0")
        made.advantages.append(1.0 if turn % 2 else -1.0)
        said = said + reply
    return made


def ids(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(1000, 40_000) for _ in range(count)]


WORKLOADS = {
    "prompt 512, G 8": (groups_of(512, 8, 4), 4.2),
    "prompt 2,048, G 8": (groups_of(2048, 8, 1), 5.8),
    "prompt 2,048, G 16": (groups_of(2048, 16, 1), 10.0),
    "ten turns": (session_of(300, 60, 10), None),
}


class Ours:
    """The local backend. `step` is what a training step does before the optimizer."""

    def __init__(self, folder: Path, adapter: Path) -> None:
        import torch

        from nightschool.models.base import load_base
        from nightschool.models.lora import LoraConfig
        from nightschool.training.local import LocalBackend

        self.backend = LocalBackend(load_base(folder, torch.bfloat16, "cpu"), LoraConfig(), BUDGET)
        self.backend.open(adapter)
        self.tokens = 0

    def prepare(self, rows: Rows) -> Any:
        from dataclasses import replace

        from nightschool.objectives.advantages import Scale
        from nightschool.objectives.clipping import Penalty
        from nightschool.objectives.grpo import GrpoRule, annotate, loss
        from nightschool.types import Sample

        rule = GrpoRule(scale=Scale.NONE, penalty=Penalty(0.0))
        samples = []
        for row, (prompt, reply) in enumerate(zip(rows.prompts, rows.replies, strict=True)):
            sampled = (False,) * len(prompt) + (True,) * len(reply)
            reward = rows.advantages[row]
            samples.append(
                Sample(str(row), (*prompt, *reply), sampled, sampled, reward=reward, group_id=rows.groups[row])
            )
        scores = self.backend.forward(samples)
        ready = [replace(s, reference_logprobs=r) for s, r in zip(annotate(samples, rule), scores, strict=True)]
        return ready, {"": loss(rule)}

    def step(self, work: Any) -> tuple[float, float]:
        samples, terms = work
        found = self.backend.forward_backward(samples, terms)
        self.tokens = found.num_tokens
        norm = self.backend.adam.norm() if self.backend.adam else None
        self.backend._drop_gradient()
        return found.loss, norm or 0.0


class Theirs:
    """TRL's trainer with PEFT's adapter. `defaults`: its own micro-batch of 8 rows and activation checkpointing."""

    def __init__(self, folder: Path, adapter: Path, defaults: bool = False) -> None:
        import torch
        from datasets import Dataset
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from trl import GRPOConfig, GRPOTrainer

        self.defaults = defaults
        network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        config = GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, gradient_checkpointing=defaults, beta=0.0,
            loss_type="grpo", report_to=[], max_completion_length=TOKENS_OF_REPLY, num_generations=8,
        )  # fmt: skip
        data = Dataset.from_list([{"prompt": "x"}] * 8)
        self.trainer = GRPOTrainer(
            model=PeftModel.from_pretrained(network, adapter, is_trainable=True),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=data,
            processing_class=tokenizer,
        )
        self.model = self.trainer.model
        self.model.train()
        self.pad = tokenizer.pad_token_id
        self.tokens = 0

    def prepare(self, rows: Rows) -> Any:
        size = 8
        batches = [list(range(at, min(at + size, len(rows.prompts)))) for at in range(0, len(rows.prompts), size)]
        return rows, batches if self.defaults else rows.batches

    def step(self, work: Any) -> tuple[float, float]:
        import torch

        rows, batches = work
        total, self.tokens = 0.0, 0
        self.trainer.current_gradient_accumulation_steps = 1
        for batch in batches:
            width = max(len(rows.prompts[i]) for i in batch)
            prompts = torch.full((len(batch), width), self.pad)
            seen = torch.zeros(len(batch), width, dtype=torch.long)
            for line, i in enumerate(batch):
                prompts[line, width - len(rows.prompts[i]) :] = torch.tensor(rows.prompts[i])
                seen[line, width - len(rows.prompts[i]) :] = 1
            replies = torch.tensor([rows.replies[i] for i in batch])
            inputs = {
                "prompt_ids": prompts, "prompt_mask": seen, "completion_ids": replies,
                "completion_mask": torch.ones_like(replies), "num_items_in_batch": replies.numel(),
                "advantages": torch.tensor([rows.advantages[i] for i in batch]),
            }  # fmt: skip
            loss = self.trainer._compute_loss(self.model, inputs) * len(batch) / len(rows.prompts)
            loss.backward()
            total += loss.item()
            self.tokens += prompts.numel() + replies.numel()
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([g.float().norm() for g in grads])).item()
        self.model.zero_grad()
        return total, norm


def live(kind: str, folder: Path, adapter: Path, wire: Connection) -> None:
    """A side in its process: gets work, does it when asked."""
    side: Any = Ours(folder, adapter) if kind == "ours" else Theirs(folder, adapter, kind == "TRL, defaults")
    loaded = resident("VmRSS")
    work = None
    while (asked := wire.recv()) is not None:
        if isinstance(asked, Rows):
            work = side.prepare(asked)
            wire.send(None)
            continue
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        started = time.perf_counter()
        loss, norm = side.step(work)
        wire.send((time.perf_counter() - started, loss, norm, side.tokens, (resident("VmHWM") - loaded) / 1e6))


def resident(what: str) -> int:
    """Bytes, now (`VmRSS`) or at most since the peak was reset (`VmHWM`)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(lines[what].split()[0]) * 1024


@dataclass(slots=True)
class Side:
    """A process and what it measured at each step, as `Medians` has it."""

    wire: Connection
    found: list[tuple[float, ...]]

    def ask(self, what: object) -> Any:
        self.wire.send(what)
        return self.wire.recv()


@dataclass(frozen=True, slots=True)
class Medians:
    seconds: float
    loss: float
    norm: float
    tokens: float
    peak_mb: float

    @staticmethod
    def of(found: Sequence[tuple[float, ...]]) -> Medians:
        return Medians(*(statistics.median(values) for values in zip(*found, strict=True)))


def measure(name: str, sides: dict[str, Side], rounds: int, reference: float | None) -> list[Row]:
    rows = WORKLOADS[name][0]
    for side in sides.values():
        side.found.clear()
        side.ask(rows)
    for turn in range(rounds):
        for side in sides.values():
            side.found.append(side.ask("step"))
        tell(f"{name}, round {turn + 1}: " + ", ".join(f"{k} {s.found[-1][0]:.1f} s" for k, s in sides.items()))
    ours, theirs = Medians.of(sides["ours"].found), Medians.of(sides["TRL"].found)
    ratio, low, high = ratio_of([one[0] for one in sides["TRL"].found], [one[0] for one in sides["ours"].found])
    tokens = theirs.tokens / ours.tokens
    note = f"[{low:.2f}, {high:.2f}], tokens {theirs.tokens:,.0f} / {ours.tokens:,.0f} = {tokens:.2f}"
    bound = round(reference if reference is not None else 0.85 * tokens, 2)
    peaks = f"{ours.peak_mb:,.0f} / {theirs.peak_mb:,.0f} MB"
    losses = f"loss {ours.loss:+.5f} / {theirs.loss:+.5f}"
    made = [
        at_least(f"{name}: TRL's time / ours", ratio, bound, note),
        at_most(f"{name}: our peak / TRL's", ours.peak_mb / theirs.peak_mb, 0.5, peaks),
        at_most(f"{name}: tokens through the model / unique", ours.tokens / unique(rows), 1.02),
        Row(f"{name}: seconds, ours / TRL", f"{ours.seconds:.2f} / {theirs.seconds:.2f}"),
        Row(f"{name}: norm of the gradient, ours / TRL", f"{ours.norm:.4f} / {theirs.norm:.4f}", note=losses),
    ]
    if "TRL, defaults" in sides:
        default = Medians.of(sides["TRL, defaults"].found)
        made.append(Row(f"{name}: TRL, its defaults", f"{default.seconds:.1f} s", note=f"{default.peak_mb:,.0f} MB"))
    return made


def unique(rows: Rows) -> int:
    """Nodes of the prefix forest: what a sequence adds to the one before it in sorted order."""
    ordered = sorted(prompt + reply for prompt, reply in zip(rows.prompts, rows.replies, strict=True))
    shared = (
        itertools.takewhile(lambda ab: ab[0] == ab[1], zip(*ab, strict=False)) for ab in itertools.pairwise(ordered)
    )
    return sum(map(len, ordered)) - sum(1 for pairs in shared for _ in pairs)


def main() -> None:
    parser = options_of(__doc__, rounds=3)
    parser.add_argument("--only", nargs="*", default=list(WORKLOADS), help="names of workloads")
    parser.add_argument("--defaults", action="store_true", help="also TRL with its own defaults")
    asked = parser.parse_args()
    machine = machine_facts()
    from nightschool.models.fetch import find_model

    with tempfile.TemporaryDirectory() as made:
        rows = compare(find_model(MODEL), Path(made), asked)
    report("speed_training", asked, rows, machine)


def compare(folder: Path, adapter: Path, asked: Any) -> list[Row]:
    import torch
    from transformers import AutoModelForCausalLM

    from nightschool.models.lora import LoraModel

    random_adapter(adapter, LoraModel(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)), seed=0)
    context = multiprocessing.get_context("spawn")
    sides: dict[str, Side] = {}
    for kind in ("ours", "TRL", *(["TRL, defaults"] if asked.defaults else [])):
        here, there = context.Pipe()
        context.Process(target=live, args=(kind, folder, adapter, there), daemon=True).start()
        sides[kind] = Side(here, [])
        sides[kind].ask(groups_of(64, 2, 1))  # a small step warms up
        sides[kind].ask("step")
    rows = []
    for name in asked.only:
        rows += measure(name, sides, asked.rounds, WORKLOADS[name][1])
    for side in sides.values():
        side.wire.send(None)
    return rows


if __name__ == "__main__":
    main()
