"""GRPO, Dr. GRPO, RLOO: where a task can be played again, several replies to it are compared with each other.

Run: python recipes/grpo.py --variant dr_grpo
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import clerk

from nightschool.objectives import family, grpo
from nightschool.training.backend import AdamConfig

GROUPS, GROUP_SIZE, EPOCHS = 8, 8, 2
OPTIMIZER = AdamConfig(learning_rate=2e-3)
VARIANTS = {  # as published, but for the constant that Dr. GRPO divides by: the longest reply there can be
    "rloo": family.VARIANTS["rloo"],
    "grpo": family.VARIANTS["grpo"],
    "dr_grpo": replace(family.VARIANTS["dr_grpo"], max_length=float(clerk.MAX_TOKENS)),
}


def run(folder: Path, steps: int = 30, seed: int = 0, variant: str = "rloo") -> clerk.Rows:
    """The share of right replies before and after `steps` rounds of play and study."""
    backend = clerk.hire(folder, seed)
    chance = random.Random(seed)
    rule = VARIANTS[variant]
    terms = {"": grpo.loss(rule)}

    before = clerk.success(backend)
    for step in range(steps):
        # Play: some tasks, each of them several times, by the policy as it is now.
        tasks = chance.sample(clerk.LIVE, GROUPS)
        turns = [(f"task {number}", task) for number, task in enumerate(tasks) for _ in range(GROUP_SIZE)]
        drawn = clerk.draw(backend, [task for _, task in turns], seed=seed * 10_000 + step)
        rollouts = [replace(row, group_id=name) for row, (name, _) in zip(drawn, turns, strict=True)]

        # Compare: a reply's advantage is its reward less that of its group (RLOO: of the others in it), divided by
        # the group's deviation in GRPO, which lets easy and hard tasks count more than the others.
        rows = grpo.annotate(rollouts, rule)

        # The policy as it is now is what the importance ratio is taken to, and where the clip starts to count. Here it
        # has also drawn the replies; `rule.correction` would weigh rows that somebody older has drawn.
        rows = [replace(row, reference_logprobs=x) for row, x in zip(rows, backend.forward(rows), strict=True)]
        rows = grpo.after_anchor(rows, rule).samples

        # Study: the rows are seen more than once, as they were not free. In the first pass every ratio is 1.
        for epoch in range(EPOCHS):
            backend.forward_backward(rows, terms)
            backend.optim_step(OPTIMIZER, step * EPOCHS + epoch)
        if step % 5 == 0:
            print(f"round {step:3}  reward {fmean(row.reward or 0.0 for row in rollouts):.2f}")
    return [(f"right replies, {variant}", before, clerk.success(backend))]


if __name__ == "__main__":
    clerk.play(run, variant=tuple(VARIANTS))
