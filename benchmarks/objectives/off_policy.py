"""TOPR against naive REINFORCE and PPO's clip, on one old log of successes and failures that is learned from for long.

64 tasks of 16 features, half of them in the log with 32 replies each; replies of 4 tokens out of 8. Two tokens are good
in each place of a task; two are invalid everywhere, and the log's policy gives them 5 % together. A reply succeeds
with three good tokens and no invalid one. Advantages are +1 and -1, as `objectives.topr` annotates them, the
log-probabilities those of the log's policy, which is also where training starts. All arms take the same full-batch
Adam steps at one rate, set before any was run. Success is exact. The published claim: naive REINFORCE collapses into
invalid replies, PPO stalls, TOPR improves.

    python benchmarks/objectives/off_policy.py --seeds 5
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from harness import COLORS, Experiment, Policy, Row, Seed, behavior, claim, measured, reply, scored, studied, styled
from torch import Tensor

from nightschool.objectives.clipping import CLIP
from nightschool.objectives.loss import Aggregation, Loss
from nightschool.objectives.sft import RFT, SftRule
from nightschool.objectives.topr import TOPR, ToprRule
from nightschool.types import Sample

SETTINGS = {
    "tasks": 64,
    "logged_tasks": 32,
    "replies": 32,
    "features": 16,
    "places": 4,
    "tokens": 8,
    "good_tokens": 2,
    "needed": 3,
    "good_logit": 0.7,  # of the log's policy
    "invalid_logit": -1.4,
    "noise": 0.5,
    "rate": 0.03,
    "steps": 600,
}
EVERY = 10
INVALID = (0, 1)
MEAN = Aggregation.SEQUENCE_MEAN
ARMS = {
    "TOPR": TOPR.loss(ToprRule()),
    "REINFORCE": Loss("reinforce", {"aggregation": MEAN}),
    "PPO's clip": Loss("clipped", {"clip": CLIP, "aggregation": MEAN}),
    "successes alone": RFT.loss(SftRule(aggregation=MEAN)),
}


@dataclass(frozen=True, slots=True)
class World:
    """Shapes: features (R, F); good (R, L, K), 1 where a token is; base (R, L, K), logits of the log's policy."""

    features: Tensor
    good: Tensor
    base: Tensor

    @classmethod
    def make(cls, generator: torch.Generator) -> World:
        shape = (SETTINGS["tasks"], SETTINGS["places"], SETTINGS["tokens"])
        features = torch.randn(shape[0], SETTINGS["features"], generator=generator) / SETTINGS["features"] ** 0.5
        taste = torch.randn(shape[1], SETTINGS["features"], shape[2], generator=generator)
        scores = torch.einsum("rf,lfk->rlk", features, taste)
        scores[..., INVALID] = float("-inf")
        good = torch.zeros(shape).scatter(2, scores.topk(SETTINGS["good_tokens"]).indices, 1.0)
        base = SETTINGS["good_logit"] * good + SETTINGS["noise"] * torch.randn(shape, generator=generator)
        base[..., INVALID] = SETTINGS["invalid_logit"]
        return cls(features, good, base)


def play(seed: int) -> Seed:
    generator = torch.Generator().manual_seed(seed)
    world = World.make(generator)
    log = logged(world, generator)
    rows = scored(TOPR.annotate(log, ToprRule()), world.base.log_softmax(-1))
    found: Seed = {"successes_logged": sum(row.reward == 1.0 for row in rows) / len(rows)}
    for name, loss in ARMS.items():
        kept = RFT.annotate(log, SftRule(aggregation=MEAN)) if loss.name == "sft" else rows
        found[name] = learn(world, kept, loss)
    return found


def logged(world: World, generator: torch.Generator) -> list[Sample]:
    logprobs = world.base.log_softmax(-1)
    rows = []
    for task in range(SETTINGS["logged_tasks"]):
        drawn = torch.multinomial(logprobs[task].exp(), SETTINGS["replies"], replacement=True, generator=generator).T
        hits = world.good[task].gather(1, drawn.T).sum(0)
        failed = (drawn[..., None] == torch.tensor(INVALID)).any(-1).any(-1)
        rewards = ((hits >= SETTINGS["needed"]) & ~failed).double().tolist()
        rows += [
            reply(f"{task} {n}", task, ids, reward=r, token_annotations=behavior(logprobs, task, ids))
            for n, (ids, r) in enumerate(zip(drawn.tolist(), rewards, strict=True))
        ]
    return rows


def learn(world: World, rows: list[Sample], loss: Loss) -> list[list[float]]:
    """Steps, success on logged tasks, on others, share of invalid replies to both; every `EVERY` steps."""
    policy = Policy(world.features, SETTINGS["places"], SETTINGS["tokens"], world.base)
    optimizer, task = torch.optim.Adam([policy.weights], SETTINGS["rate"]), studied(rows, loss)
    found = [[0, *measure(world, policy)]]
    for step in range(1, SETTINGS["steps"] + 1):
        optimizer.zero_grad()
        task.value(policy.logprobs()).backward()
        optimizer.step()
        if step % EVERY == 0:
            found.append([step, *measure(world, policy)])
    return found


def measure(world: World, policy: Policy) -> list[float]:
    """Exact: the places of a reply are independent."""
    chances = policy.frozen().exp()
    counts = torch.zeros(len(chances), SETTINGS["places"] + 1)
    counts[:, 0] = 1
    valid = 1 - chances[..., INVALID].sum(-1)
    for good, fine in zip((chances * world.good).sum(2).unbind(1), valid.unbind(1), strict=True):
        counts = counts * (fine - good)[:, None] + torch.nn.functional.pad(counts, (1, -1)) * good[:, None]
    success, seen = counts[:, SETTINGS["needed"] :].sum(1), SETTINGS["logged_tasks"]
    return [float(success[:seen].mean()), float(success[seen:].mean()), float(1 - valid.prod(1).mean())]


def rows_of(seeds: list[Seed]) -> list[Row]:
    rows = [
        measured("successes among the logged replies", [seed["successes_logged"] for seed in seeds]),
        measured("success before, logged tasks", [seed["TOPR"][0][1] for seed in seeds]),
        measured("success before, other tasks", [seed["TOPR"][0][2] for seed in seeds]),
        measured("invalid before", [seed["TOPR"][0][3] for seed in seeds]),
    ]
    for name in ARMS:
        rows += [
            measured(f"{name}: success at the end, logged tasks", [seed[name][-1][1] for seed in seeds]),
            measured(f"{name}: the best on the way", [max(look[1] for look in seed[name]) for seed in seeds]),
            measured(f"{name}: success at the end, other tasks", [seed[name][-1][2] for seed in seeds]),
            measured(f"{name}: invalid at the end", [seed[name][-1][3] for seed in seeds]),
        ]
    for other in ("REINFORCE", "PPO's clip", "successes alone"):
        for column, where in ((1, "logged"), (2, "other")):
            differences = [seed["TOPR"][-1][column] - seed[other][-1][column] for seed in seeds]
            rows.append(claim(f"TOPR succeeds more than {other}, {where} tasks", differences))
    collapsed = [seed["REINFORCE"][0][1] - seed["REINFORCE"][-1][1] for seed in seeds]
    rows.append(claim("REINFORCE ends below its start, logged tasks", collapsed))
    return [*rows, claim("TOPR ends above its start, other tasks", [s["TOPR"][-1][2] - s["TOPR"][0][2] for s in seeds])]


def draw(figure: Any, seeds: list[Seed]) -> None:
    """Success over steps on logged and other tasks, and invalid replies."""
    panels = figure.subplots(1, 3)
    for axes, column, title in zip(panels, (1, 2, 3), ("logged tasks", "other tasks", "both"), strict=True):
        for color, name in zip(COLORS, ARMS, strict=False):
            curves = torch.tensor([seed[name] for seed in seeds])
            for curve in curves:
                axes.plot(curve[:, 0], curve[:, column], color=color, lw=0.5, alpha=0.35)
            axes.plot(curves[0, :, 0], curves[:, :, column].mean(0), color=color, lw=1.6, label=name)
        styled(axes, "steps on one log", "invalid replies" if column == 3 else "success").set_ylim(0, 1)
        axes.set_title(title, fontsize=9)
    panels[1].legend(frameon=False, fontsize=8, loc="upper right")


if __name__ == "__main__":
    Experiment("off_policy", SETTINGS, play, rows_of, draw).main(__doc__)
