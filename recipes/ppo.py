"""PPO: a critic says what every state is worth, so one reply per task is enough.

Run: python recipes/ppo.py
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import clerk

from nightschool.objectives import ppo
from nightschool.objectives.ppo import PpoRule
from nightschool.training.backend import AdamConfig

TASKS, EPOCHS = 64, 4
OPTIMIZER = AdamConfig(learning_rate=1e-3)  # the critic, which starts from nothing, learns ten times as fast


def run(folder: Path, steps: int = 30, seed: int = 0) -> clerk.Rows:
    """The share of right replies before and after `steps` rounds, and how far the critic's expectation of it is off."""
    backend = clerk.hire(folder, seed)
    chance = random.Random(seed)
    rule = PpoRule()
    terms = {"": ppo.loss(rule)}  # the clipped loss of the policy, and the critic's regression on the returns

    before, errors = clerk.success(backend), []
    for step in range(steps):
        tasks = [chance.choice(clerk.LIVE) for _ in range(TASKS)]
        rows = ppo.annotate(clerk.draw(backend, tasks, seed=seed * 10_000 + step), rule)

        # Both models speak once before they learn: the policy's log-probabilities, which ratios are taken to, and the
        # critic's value of the state before each token. A fresh critic says 0 of everything.
        logprobs, values = backend.forward(rows), backend.values(rows)
        rows = [
            replace(row, reference_logprobs=lp, token_annotations={**row.token_annotations, "reference_values": v})
            for row, lp, v in zip(rows, logprobs, values, strict=True)
        ]

        # The reward comes with the last token. A token's advantage is what the reply was worth in the end beyond what
        # the critic expected before that token (lambda 1), of mean 0 and deviation 1 in the batch.
        estimated = ppo.after_anchor(rows, rule)
        for epoch in range(EPOCHS):
            backend.forward_backward(estimated.samples, terms)
            backend.optim_step(OPTIMIZER, step * EPOCHS + epoch)
        reward = fmean(row.reward or 0.0 for row in rows)
        expected = fmean(next(value for value in row if value is not None) for row in values)
        errors.append(abs(reward - expected))
        if step % 5 == 0:
            known = estimated.figures["explained_variance"]
            print(f"round {step:3}  reward {reward:.2f}, expected {expected:.2f}, variance explained {known:+.0%}")
    return [("right replies", before, clerk.success(backend)), ("the critic is off by", errors[0], errors[-1])]


if __name__ == "__main__":
    clerk.play(run)
