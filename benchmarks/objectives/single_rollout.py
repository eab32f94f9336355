"""One noisy label per request, requests of mixed difficulty: which value should a reply be held against?

A linear softmax policy (8 features, 20 replies), one logged reply per request, 10 % of the labels flipped. The squared
log-ratio of `objectives.oapl` is fitted to convergence over a grid of temperatures for each V, and the fits are
compared at equal KL(policy || log): gain in true success, and the mass that went to replies which the log gives less
than 1 % (out of its support). Values are the true chances p of a good label; two more blocks have p wrong by 0.15.

The family and columns are those of a simulation whose code is not at hand: its constants are chosen here.

    python benchmarks/objectives/single_rollout.py --seeds 5
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from harness import COLORS, Experiment, Policy, Row, Seed, claim, fit, measured, reply, scored, studied, styled
from torch import Tensor

from nightschool.objectives import dro, oapl
from nightschool.objectives.loss import Loss
from nightschool.objectives.regression import regressed
from nightschool.types import Sample
from nightschool.valuation.soft_value import closed_form

SETTINGS = {
    "features": 8,
    "replies": 20,
    "rows": [300, 2000],
    "fresh_requests": 2000,
    "flipped": 0.1,
    "log_deviation": 2.0,  # of the log's logits
    "difficulty_deviation": 1.5,  # of the logit of success, by request
    "quality_deviation": 1.5,  # of the logit of success, by request and reply
    "betas": [4, 2, 1.4, 1, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03],
    "kl": [0.3, 1.0],
    "rare": 0.01,
    "error": 0.15,
}
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class World:
    """Weights of the log's policy and of success: logits are features @ these."""

    log: Tensor
    difficulty: Tensor
    quality: Tensor

    @classmethod
    def make(cls, generator: torch.Generator) -> World:
        num, replies = SETTINGS["features"], SETTINGS["replies"]

        def normal(*shape: int, deviation: float) -> Tensor:
            return torch.randn(*shape, generator=generator) * deviation / num**0.5

        return cls(
            normal(num, replies, deviation=SETTINGS["log_deviation"]),
            normal(num, deviation=SETTINGS["difficulty_deviation"]),
            normal(num, replies, deviation=SETTINGS["quality_deviation"]),
        )

    def behavior(self, features: Tensor) -> Tensor:
        """(R, K) log-probabilities."""
        return (features @ self.log).log_softmax(-1)

    def success(self, features: Tensor) -> Tensor:
        """(R, K)."""
        return (features @ self.difficulty[:, None] + features @ self.quality).sigmoid()


def requests(count: int, generator: torch.Generator) -> Tensor:
    """Features (count, F), the last of them constant."""
    return torch.cat([torch.randn(count, SETTINGS["features"] - 1, generator=generator), torch.ones(count, 1)], 1)


# Each value, as rows annotated for the squared loss. `p` is the chance of a good label, as it is believed.
Annotate = Callable[[list[Sample], float], list[Sample]]


def pessimistic(margin: float, floor: float = NEVER) -> Annotate:
    """The library's single-rollout objective: V = max(0, p - margin * beta)."""
    return lambda rows, beta: oapl.annotate(rows, oapl.OaplRule(beta=beta, margin=margin, floor=floor))


def shifted(rows: list[Sample], beta: float) -> list[Sample]:
    """p - beta without a lower end."""
    return [regressed(row, row.annotations["p_hat"] - beta, beta) for row in rows]


def closed(rows: list[Sample], beta: float) -> list[Sample]:
    """beta * log E exp(r / beta): the value that the optimum has."""
    return dro.annotate(rows, dro.DroRule(tau=beta))


def two_temperatures(rows: list[Sample], beta: float) -> list[Sample]:
    """The same at temperature 1, whatever beta."""
    return [regressed(row, closed_form(row.annotations["p_hat"], 1.0), beta) for row in rows]


def batch_mean(rows: list[Sample], beta: float) -> list[Sample]:
    mean = sum(row.reward or 0.0 for row in rows) / len(rows)
    return [regressed(row, mean, beta) for row in rows]


def constant(value: float) -> Annotate:
    return lambda rows, beta: [regressed(row, value, beta) for row in rows]


EXACT: dict[str, Annotate] = {
    "V*": closed,
    "p": pessimistic(0.0),
    "p - beta": shifted,
    "p - beta, at least 0": pessimistic(1.0),
    "batch mean": batch_mean,
    "log-mean-exp, beta1 = 1": two_temperatures,
    "0": constant(0.0),
    "1": constant(1.0),
}
WRONG = {name: EXACT[name] for name in ("V*", "p", "p - beta", "p - beta, at least 0")}


def play(seed: int) -> Seed:
    generator = torch.Generator().manual_seed(seed)
    world = World.make(generator)
    fresh = requests(SETTINGS["fresh_requests"], generator)
    found: Seed = {"rows": {}}
    for count in SETTINGS["rows"]:
        features = requests(count, generator)
        behavior, success = world.behavior(features), world.success(features)
        drawn = torch.multinomial(behavior.exp(), 1, generator=generator)[:, 0]
        good = torch.rand(count, generator=generator) < success[torch.arange(count), drawn]
        label = good ^ (torch.rand(count, generator=generator) < SETTINGS["flipped"])
        chance = SETTINGS["flipped"] + (1 - 2 * SETTINGS["flipped"]) * (behavior.exp() * success).sum(1)
        log = (features, behavior, drawn, label)
        arms = {("p exact", name): (value, chance) for name, value in EXACT.items()}
        for block, error in (("p too high", SETTINGS["error"]), ("p too low", -SETTINGS["error"])):
            believed = (chance + error).clamp(0, 1)
            arms |= {(block, name): (value, believed) for name, value in WRONG.items()}
        found["rows"][str(count)] = {
            f"{block}: {name}": curve(world, fresh, log, value, believed)
            for (block, name), (value, believed) in arms.items()
        }
    return found


def curve(world: World, fresh: Tensor, log: tuple[Tensor, ...], value: Annotate, believed: Tensor) -> list[list[float]]:
    """KL to the log, gain and leaked mass of the fit at each temperature, from the weakest to the strongest pull."""
    features, behavior, drawn, label = log
    rows = [
        reply(str(n), n, [a], reward=float(r), annotations={"p_hat": p, "p_lo": p})
        for n, (a, r, p) in enumerate(zip(drawn.tolist(), label.tolist(), believed.tolist(), strict=True))
    ]
    policy, found = Policy(features, 1, SETTINGS["replies"], behavior[:, None]), []
    for beta in SETTINGS["betas"]:
        task = studied(scored(value(rows, beta), behavior[:, None]), Loss("squared_log_ratio"))
        fit(policy, task.value)
        found.append(measure(world, fresh, policy))
    return found


def measure(world: World, fresh: Tensor, policy: Policy) -> list[float]:
    behavior = world.behavior(fresh)
    return moved(policy.elsewhere(fresh, behavior[:, None]).frozen()[:, 0], behavior, world.success(fresh))


def moved(logprobs: Tensor, before: Tensor, success: Tensor) -> list[float]:
    """KL to the policy before, gain over it, and mass that went to what it gives less than `rare`: all (R, K)."""
    pi, b = logprobs.exp(), before.exp()
    kl = (pi * (logprobs - before)).sum(1).mean()
    gain = ((pi - b) * success).sum(1).mean()
    leaked = ((pi - b) * (b < SETTINGS["rare"])).sum(1).mean()
    return [float(kl), float(gain), float(leaked)]


def at(seed: Seed, count: int, arm: str, kl: float, column: int) -> float:
    """Gain (1) or leaked mass (2) of an arm at that KL."""
    return at_kl(seed["rows"][str(count)][arm], kl, column)


def at_kl(curve: list[list[float]], kl: float, column: int) -> float:
    """A column where the first one reaches `kl` first, between two looks, from zero on. NaN: it never does."""
    before = [0.0] * len(curve[0])
    for point in curve:
        if point[0] >= kl:
            share = (kl - before[0]) / (point[0] - before[0])
            return before[column] + share * (point[column] - before[column])
        before = point
    return float("nan")


def rows_of(seeds: list[Seed]) -> list[Row]:
    low, high = SETTINGS["kl"]
    counts = SETTINGS["rows"]
    rows = []
    for arm in seeds[0]["rows"][str(counts[0])]:
        for count in counts:
            for kl, column, what in ((low, 1, "gain"), (high, 1, "gain"), (high, 2, "leaked")):
                values = [at(seed, count, arm, kl, column) for seed in seeds]
                rows.append(measured(f"{arm}, n = {count}, {what} at KL {kl:g}", values, 4))
    for better, worse, column in CLAIMS:
        for count in counts:
            for kl in SETTINGS["kl"]:
                differences = [
                    at(seed, count, better, kl, column) - at(seed, count, worse, kl, column) for seed in seeds
                ]
                what = f"{better} gains more than {worse}" if column == 1 else f"{better} leaks more than {worse}"
                rows.append(claim(f"{what}, n = {count}, KL {kl:g}", differences, 4))
    return rows


CLAIMS = (
    ("p exact: p", "p exact: V*", 1),
    ("p exact: p", "p exact: batch mean", 1),
    ("p exact: p - beta", "p exact: p", 1),
    ("p exact: p - beta, at least 0", "p exact: p", 1),
    ("p exact: p", "p exact: 0", 1),
    ("p too high: p - beta", "p too high: p", 1),
    ("p too high: p - beta, at least 0", "p too high: p", 1),
    ("p too low: p", "p too low: p - beta", 1),
    ("p exact: V*", "p exact: p", 2),
    ("p exact: batch mean", "p exact: p", 2),
)


def draw(figure: Any, seeds: list[Seed]) -> None:
    """Mean gain and leaked mass over KL, at the larger log."""
    count = SETTINGS["rows"][-1]
    axes = figure.subplots(1, 2)
    grid = [0.05 * step for step in range(1, 31)]
    shown = ("p", "p - beta", "V*", "batch mean", "0", "1")
    for color, name in zip(COLORS, shown, strict=False):
        for place, column in enumerate((1, 2)):
            means = []
            for kl in grid:
                values = [at(seed, count, f"p exact: {name}", kl, column) for seed in seeds]
                means.append(sum(values) / len(values))  # NaN, and no line, where some seed does not get that far
            axes[place].plot(grid, means, color=color, lw=1.4, label=f"V = {name}")
    styled(axes[0], "KL(policy || log), nats", f"gain in success, {count} labels").legend(frameon=False, fontsize=8)
    styled(axes[1], "KL(policy || log), nats", "mass that left the log's support")


if __name__ == "__main__":
    Experiment("single_rollout", SETTINGS, play, rows_of, draw).main(__doc__)
