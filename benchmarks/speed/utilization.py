"""How much of the processor a training step uses, and how its cost grows with unique tokens.

    python benchmarks/speed/utilization.py [--rounds 3] [--json]

Steps of 1 to 36 groups (a prompt of 512 tokens and 8 completions of 48), on SmolLM2-135M in bfloat16 with an adapter of
rank 16: 896 to 32,256 unique tokens. Operations are those that the step executes, counted by hand: per token two
products with each weight of the layers (forward, and the gradient of the input; the frozen weights need none) and three
with each of the adapter's; per pair of a token and one that it sees, two products forward and five backward; per scored
token two with the output layer. The peak is a product of two 2,048 x 2,048 matrices in bfloat16 by the library, taken
before each step of the same run.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
import torch
from common import Row, at_least, at_most, machine_facts, options_of, report, tell
from training import BUDGET, MODEL, Rows, groups_of

from nightschool.models.base import load_base
from nightschool.models.fetch import find_model
from nightschool.models.lora import LoraConfig, LoraLinear
from nightschool.objectives.loss import Aggregation, Loss
from nightschool.training.local import LocalBackend
from nightschool.types import Sample

SIDE = 2048
GROUPS = (1, 2, 4, 9, 18, 36)


def samples_of(rows: Rows) -> list[Sample]:
    made = []
    for row, (prompt, reply) in enumerate(zip(rows.prompts, rows.replies, strict=True)):
        sampled = (False,) * len(prompt) + (True,) * len(reply)
        made.append(Sample(str(row), (*prompt, *reply), sampled, sampled))
    return made


def operations(backend: LocalBackend, samples: list[Sample]) -> float:
    """What forward and backward of these samples execute."""
    network: Any = backend.base.network
    config = network.config
    linear = adapter = 0
    for module in network.modules():
        if isinstance(module, LoraLinear):
            linear += module.base.in_features * module.base.out_features
            adapter += backend.config.rank * (module.base.in_features + module.base.out_features)
    packs = backend._packs(samples)
    tokens = sum(one.num_tokens for one in packs)
    pairs = sum(int((one.position_ids + 1).sum()) for one in packs)
    scored = sum(sum(sample.loss_mask) for sample in samples)
    width = config.num_attention_heads * config.head_dim * config.num_hidden_layers
    head = config.vocab_size * config.hidden_size
    return 2.0 * (tokens * (2 * linear + 3 * adapter) + pairs * width * 7 + scored * 2 * head)


def peak() -> float:
    """Operations per second of a plain product."""
    a, b = (torch.randn(SIDE, SIDE).bfloat16() for _ in range(2))
    times = []
    for _ in range(12):
        started = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - started)
    return 2 * SIDE**3 / float(np.median(times))


def main() -> None:
    parser = options_of(__doc__, rounds=3)
    asked = parser.parse_args()
    machine = machine_facts()
    backend = LocalBackend(load_base(find_model(MODEL), torch.bfloat16), LoraConfig(), BUDGET)
    backend.open(None)
    terms = {"": Loss("sft", {"aggregation": Aggregation.TOKEN_MEAN})}
    rows, points = [], []
    for count in GROUPS:
        samples = samples_of(groups_of(512, 8, count))
        work, shares = operations(backend, samples), []
        for turn in range(asked.rounds + (count == GROUPS[0])):
            top, started = peak(), time.perf_counter()
            found = backend.forward_backward(samples, terms)
            spent = time.perf_counter() - started
            backend._drop_gradient()
            if turn or count != GROUPS[0]:
                points.append((found.num_tokens, spent))
                shares.append(work / spent / top)
                tell(f"{found.num_tokens:,} tokens: {spent:.2f} s, {100 * shares[-1]:.0f} % of {top / 1e9:.0f} GFLOP/s")
        spread = f"{100 * min(shares):.0f} to {100 * max(shares):.0f}"
        note = (
            f"{spread}; {work / found.num_tokens / 1e9:.2f} GFLOP per token, {found.num_tokens / spent:,.0f} tokens/s"
        )
        share = 100 * float(np.median(shares))
        rows.append(at_least(f"{found.num_tokens:,} tokens: share of the peak, %", share, 45, note))
    rows += growth(np.array(points))
    report("speed_utilization", asked, rows, machine, points=points)


def growth(points: np.ndarray) -> list[Row]:
    """The exponent by which time grows with tokens; 1 is linear."""
    from scipy import stats

    fit = stats.linregress(np.log(points[:, 0]), np.log(points[:, 1]))
    half = float(stats.t.ppf(0.975, len(points) - 2) * fit.stderr)
    per_token = points[:, 1] / points[:, 0] * 1e3
    return [
        at_most(
            "exponent of time over tokens, lower end", float(fit.slope) - half, 1.0, f"{fit.slope:.3f} ± {half:.3f}"
        ),
        Row("ms per unique token, fewest / most tokens", f"{per_token[0]:.2f} / {per_token[-1]:.2f}"),
    ]


if __name__ == "__main__":
    main()
