"""What PPO's critic costs beside GRPO: memory and processor time of a window on the local backend.

A random Llama of 4 layers and 2.4 million parameters, adapters of rank 8; 16 replies of 48 tokens to prompts of 96.
GRPO learns from 4 groups of 4; PPO from the very same replies, which isolates its critic; and PPO from 16 prompts with
one reply each, which is what it is for: no prompt is shared, so more tokens go through the model. A window is its start
(the anchor's scores, and the critic's values) and two steps. Processor time, so other work on the machine counts
little; memory is the peak of a fresh process above the loaded model.

    python benchmarks/objectives/critic_cost.py --seeds 5
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness import COLORS, Experiment, Row, Seed, measured, styled

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from tiny import write_tiny_tokenizer

from nightschool.models.base import load_base
from nightschool.models.lora import LoraConfig
from nightschool.objectives.family import FAMILY, VARIANTS
from nightschool.objectives.loss import VALUES
from nightschool.objectives.ppo import PPO, PpoRule
from nightschool.training.backend import AdamConfig
from nightschool.training.local import LocalBackend
from nightschool.types import Sample

SETTINGS = {"hidden": 256, "layers": 4, "prompt": 96, "reply": 48, "groups": 4, "group_size": 4, "steps": 2, "rank": 8}
GRPO = next(objective for objective in FAMILY if objective.name == "grpo")
ARMS = {
    "GRPO": (GRPO, VARIANTS["grpo"], True),
    "PPO, the same replies": (PPO, PpoRule(), True),
    "PPO, one reply a prompt": (PPO, PpoRule(), False),
}
PARTS = ("start, s", "step, s", "peak, MB", "state, MB", "tokens")


def play(seed: int) -> Seed:
    """Each arm in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), seed)
        found = {}
        for name in ARMS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found[name] = pool.apply(window, (name, Path(folder), seed))
    return found


def make_model(folder: Path, seed: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden = SETTINGS["hidden"]
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=write_tiny_tokenizer(folder),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=SETTINGS["layers"],
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)


def rollouts(seed: int, grouped: bool) -> list[Sample]:
    rng = random.Random(seed)
    made = []
    for group in range(SETTINGS["groups"]):
        prompt: list[int] = []
        for number in range(SETTINGS["group_size"]):
            if not (grouped and prompt):
                prompt = [rng.randrange(3, 250) for _ in range(SETTINGS["prompt"])]
            ids = (*prompt, *(rng.randrange(3, 250) for _ in range(SETTINGS["reply"])))
            mask = tuple(place >= SETTINGS["prompt"] for place in range(len(ids)))
            reward = float(number % 2)
            name = f"{group} {number}"
            made.append(Sample(name, ids, mask, mask, reward=reward, policy_version="v1", group_id=str(group)))
    return made


def window(name: str, folder: Path, seed: int) -> dict[str, float]:
    torch.set_default_dtype(torch.float32)
    objective, rule, grouped = ARMS[name]
    backend = LocalBackend(load_base(folder, torch.float32, "cpu"), LoraConfig(rank=SETTINGS["rank"]))
    backend.open(None)
    loss = objective.loss(rule)
    backend.forward(rollouts(seed, grouped)[:1])  # what the first call alone costs
    before = reset_peak()
    started = time.process_time()
    rows = objective.annotate(rollouts(seed, grouped), rule)
    rows = [replace(s, reference_logprobs=row) for s, row in zip(rows, backend.forward(rows), strict=True)]
    if VALUES in loss.outputs:
        rows = [
            replace(s, token_annotations={**s.token_annotations, "reference_values": row})
            for s, row in zip(rows, backend.values(rows), strict=True)
        ]
    if objective.after_anchor:
        rows = objective.after_anchor(rows, rule).samples
    ready = time.process_time()
    tokens = 0
    for step in range(SETTINGS["steps"]):
        tokens = backend.forward_backward(rows, {"": loss}).num_tokens
        backend.optim_step(AdamConfig(), step)
    ended, peak = time.process_time(), memory("VmHWM")
    backend.save_state(folder / "state")
    state = sum(file.stat().st_size for file in (folder / "state").rglob("*") if file.is_file())
    step_s = (ended - ready) / SETTINGS["steps"]
    numbers = (ready - started, step_s, (peak - before) / 1e6, state / 1e6, float(tokens))
    return dict(zip(PARTS, numbers, strict=True))


def reset_peak() -> int:
    """Let the peak be what is resident now, and tell it: bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(name: str) -> int:
    """Bytes, from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def rows_of(seeds: list[Seed]) -> list[Row]:
    rows = [
        measured(f"{name}: {part}", [seed[name][part] for seed in seeds], 2 if part != "tokens" else 0)
        for name in ARMS
        for part in PARTS
    ]
    for name in list(ARMS)[1:]:
        for part in PARTS:
            ratios = [seed[name][part] / seed["GRPO"][part] for seed in seeds]
            rows.append(measured(f"{name} / GRPO: {part.partition(',')[0]}", ratios, 2))
    return rows


def draw(figure: Any, seeds: list[Seed]) -> None:
    """Each arm's part over GRPO's, mean and seeds."""
    axes = figure.subplots()
    names = list(ARMS)[1:]
    for shift, (color, name) in enumerate(zip(COLORS, names, strict=False)):
        for place, part in enumerate(PARTS):
            ratios = [seed[name][part] / seed["GRPO"][part] for seed in seeds]
            left = place + 0.3 * shift
            axes.bar(left, sum(ratios) / len(ratios), 0.28, color=color, label=name if not place else None)
            axes.plot([left] * len(ratios), ratios, "k.", ms=3)
    axes.axhline(1, color="#5E5C64", lw=0.8)
    axes.set_xticks([place + 0.15 for place in range(len(PARTS))], [part.partition(",")[0] for part in PARTS])
    styled(axes, "", "times GRPO's").legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    Experiment("critic_cost", SETTINGS, play, rows_of, draw).main(__doc__)
