"""OAPL on groups against GRPO with truncated importance sampling, when the sampler lags behind.

32 tasks of 16 features, replies of 4 tokens out of 8; two tokens are good in each place of a task, and a reply succeeds
with at least three good ones (5 % at the start). A step draws 8 replies to each of 8 tasks from the sampler, which gets
the trainer's weights every 1, 10 or 50 steps. GRPO's anchor is the trainer before the step, its weights correct for the
sampler's lag, cut at 2 per token; OAPL's anchor is the sampler. Success and entropy are exact, not sampled.

The learning rate of each arm is the best of `tried` on seed 0: fewest generations to the target, summed over the three
lags, of those that still hold it at the end. It stays for all lags and seeds. The published claim: OAPL needs a third
of the generations.

    python benchmarks/objectives/staleness.py --seeds 5
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import torch
from harness import COLORS, Experiment, Policy, Row, Seed, behavior, claim, interval, measured, reply, study, styled
from torch import Tensor

from nightschool.objectives.clipping import NO_PENALTY
from nightschool.objectives.family import FAMILY, VARIANTS
from nightschool.objectives.loss import Objective
from nightschool.objectives.oapl_group import OAPL_GROUP, OaplGroupRule
from nightschool.objectives.off_policy import CORRECTIONS

SETTINGS = {
    "tasks": 32,
    "features": 16,
    "places": 4,
    "tokens": 8,
    "good_tokens": 2,
    "needed": 3,
    "tasks_per_step": 8,
    "group_size": 8,
    "steps": 400,
    "lags": [1, 10, 50],
    "target": 0.8,
    "pass_at": 16,
    "tried": [0.01, 0.03, 0.1, 0.3, 1.0],
    "rates": {"GRPO + TIS": 0.3, "OAPL (1, 1e-3)": 0.3, "OAPL (0.25, 0.25)": 0.1},
}
EVERY = 5  # steps between two looks


@dataclass(frozen=True, slots=True)
class Arm:
    """`on_sampler`: log-ratios are to the sampler, not to the trainer before the step."""

    objective: Objective
    rule: Any
    on_sampler: bool


GRPO = next(objective for objective in FAMILY if objective.name == "grpo")
UNPENALIZED = replace(VARIANTS["grpo"], penalty=NO_PENALTY, correction=CORRECTIONS["tis-token"])
ARMS = {
    "GRPO + TIS": Arm(GRPO, UNPENALIZED, on_sampler=False),
    "OAPL (1, 1e-3)": Arm(OAPL_GROUP, OaplGroupRule(1.0, 1e-3), on_sampler=True),
    "OAPL (0.25, 0.25)": Arm(OAPL_GROUP, OaplGroupRule(0.25, 0.25), on_sampler=True),
}


def play(seed: int) -> Seed:
    return {
        f"{name}, lag {lag}": learn(seed, arm, lag, SETTINGS["rates"][name])
        for name, arm in ARMS.items()
        for lag in SETTINGS["lags"]
    }


def learn(seed: int, arm: Arm, lag: int, rate: float) -> list[list[float]]:
    """Generations so far, success, entropy, success of 16 tries; every `EVERY` steps."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(SETTINGS["tasks"], SETTINGS["features"], generator=generator) / SETTINGS["features"] ** 0.5
    taste = torch.randn(SETTINGS["places"], SETTINGS["features"], SETTINGS["tokens"], generator=generator)
    scores = torch.einsum("rf,lfk->rlk", features, taste)
    good = torch.zeros_like(scores).scatter(2, scores.topk(SETTINGS["good_tokens"]).indices, 1.0)
    policy = Policy(features, SETTINGS["places"], SETTINGS["tokens"])
    optimizer = torch.optim.Adam([policy.weights], rate)
    found, sampler = [measure(policy, good, 0)], policy.frozen()
    for step in range(SETTINGS["steps"]):
        if step % lag == 0:
            sampler = policy.frozen()
        samples = draw_groups(sampler, good, step // lag, generator)
        if len({sample.reward for sample in samples}) > 1:  # else no reply is told from another
            task = study(arm.objective, samples, arm.rule, sampler if arm.on_sampler else policy.frozen())
            optimizer.zero_grad()
            task.value(policy.logprobs()).backward()
            optimizer.step()
        if (step + 1) % EVERY == 0:
            found.append(measure(policy, good, (step + 1) * SETTINGS["tasks_per_step"] * SETTINGS["group_size"]))
    return found


def draw_groups(sampler: Tensor, good: Tensor, version: int, generator: torch.Generator) -> list[Any]:
    size = SETTINGS["group_size"]
    chosen = torch.randperm(SETTINGS["tasks"], generator=generator)[: SETTINGS["tasks_per_step"]].repeat_interleave(
        size
    )
    drawn = torch.multinomial(sampler[chosen].exp().flatten(0, 1), 1, generator=generator).view(len(chosen), -1)
    hits = good[chosen].gather(2, drawn[..., None])[..., 0].sum(1)
    rewards = (hits >= SETTINGS["needed"]).tolist()
    return [
        reply(
            str(n),
            task,
            tokens,
            reward=float(reward),
            policy_version=f"v{version}",
            group_id=str(task),
            token_annotations=behavior(sampler, task, tokens),
        )
        for n, (task, tokens, reward) in enumerate(zip(chosen.tolist(), drawn.tolist(), rewards, strict=True))
    ]


def measure(policy: Policy, good: Tensor, generations: int) -> list[float]:
    """Exact: the places of a reply are independent, so its number of good tokens is a sum of four coins."""
    logprobs = policy.frozen()
    counts = torch.zeros(len(good), SETTINGS["places"] + 1)
    counts[:, 0] = 1
    for hit in (logprobs.exp() * good).sum(2).unbind(1):
        counts = counts * (1 - hit)[:, None] + torch.nn.functional.pad(counts, (1, -1)) * hit[:, None]
    success = counts[:, SETTINGS["needed"] :].sum(1)
    entropy = -(logprobs.exp() * logprobs).sum((1, 2)).mean()
    several = 1 - (1 - success).clamp(min=0) ** SETTINGS["pass_at"]
    return [generations, float(success.mean()), float(entropy), float(several.mean())]


def generations(curve: list[list[float]]) -> float:
    """To the target success, between two looks. NaN: it is not reached."""
    for before, after in itertools.pairwise(curve):
        if after[1] >= SETTINGS["target"]:
            return before[0] + (SETTINGS["target"] - before[1]) / (after[1] - before[1]) * (after[0] - before[0])
    return float("nan")


def rows_of(seeds: list[Seed]) -> list[Row]:
    last: list[tuple[str, int]] = [("success at the end", 1), ("entropy at the end, nats", 2), ("success of 16", 3)]
    rows = []
    for lag in SETTINGS["lags"]:
        for name in ARMS:
            curves = [seed[f"{name}, lag {lag}"] for seed in seeds]
            rows += [measured(f"{name}, lag {lag}: {what}", [c[-1][column] for c in curves]) for what, column in last]
            rows.append(measured(f"{name}, lag {lag}: generations to 0.8", [generations(c) for c in curves], 0))
    base = "GRPO + TIS"
    for lag in SETTINGS["lags"]:
        for name in ARMS:
            if name != base:
                rows += compared(f"{name}, lag {lag}", f"{base}, lag {lag}", seeds)
    return rows


def compared(first: str, second: str, seeds: list[Seed]) -> list[Row]:
    share = [generations(seed[first]) / generations(seed[second]) for seed in seeds]
    mean, half, num = interval(share)
    passed = mean + half <= 1 / 3 if num > 1 else None
    note = "" if num == len(seeds) else f"{num} of {len(seeds)} seeds reach it with both"
    return [
        Row(f"generations, {first} / {second}", f"{mean:.3f} ± {half:.3f}", "<= 1/3", passed, note),
        claim(f"success, {first} - {second}", [s[first][-1][1] - s[second][-1][1] for s in seeds]),
        claim(f"entropy, {first} - {second}", [s[first][-1][2] - s[second][-1][2] for s in seeds]),
    ]


def draw(figure: Any, seeds: list[Seed]) -> None:
    """Success over generations, one panel a lag; every seed a thin line, their mean a thick one."""
    panels = figure.subplots(1, len(SETTINGS["lags"]), sharey=True)
    for axes, lag in zip(panels, SETTINGS["lags"], strict=True):
        for color, name in zip(COLORS, ARMS, strict=False):
            curves = torch.tensor([seed[f"{name}, lag {lag}"] for seed in seeds])
            for curve in curves:
                axes.plot(curve[:, 0], curve[:, 1], color=color, lw=0.5, alpha=0.35)
            axes.plot(curves[0, :, 0], curves[:, :, 1].mean(0), color=color, lw=1.6, label=name)
        styled(axes, "generations", "success" if lag == SETTINGS["lags"][0] else "")
        axes.set_title(f"sampler lags {lag} step{'s' * (lag > 1)}", fontsize=9)
    panels[-1].legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    Experiment("staleness", SETTINGS, play, rows_of, draw).main(__doc__)
