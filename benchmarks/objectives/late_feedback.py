"""Feedback that comes late: exchanges of versions 1 to 5 in the night after version 5, against which anchor?

The family of `single_rollout.py`. Version 1 is the log's policy; each next one is a night's fit of the version before,
on 300 fresh rows. Then the feedback on 300 other exchanges of each of the five arrives at once. They train version 5
by `objectives.oapl` (V = p - beta, not below 0, p exact) in four ways: all of them with the incumbent, version 5, as
anchor and its p as value; each with its own version as anchor, and that one's p; with the incumbent as anchor but each
version's p; and those of version 5 alone, the others discarded. What could be had at best: all 1,500 by version 5.

Two comparisons of the gain over version 5: where a night ends, after its steps at beta 0.25 or before the one that
goes beyond a night's KL to version 5; and fits to convergence at the temperature that happens to be best. Settings
were fixed before any run, the way of comparing was not: at equal KL it said nothing, as fits against own versions start
2.5 nats away and the others' steps settle below 0.1.

    python benchmarks/objectives/late_feedback.py --seeds 5
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from harness import COLORS, Experiment, Policy, Row, Seed, Studied, claim, fit, measured, reply, scored, studied, styled
from single_rollout import NEVER, World, moved, requests
from single_rollout import SETTINGS as FAMILY
from torch import Tensor

from nightschool.objectives.oapl import OAPL, OaplRule
from nightschool.types import Sample

SETTINGS = {
    "versions": 5,
    "rows": 300,
    "fresh_requests": 2000,
    "betas": [4, 2, 1.4, 1, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05],
    "night_kl": 0.25,
    "night_beta": 0.25,
    "rate": 0.01,
    "steps": 1000,
    "world": FAMILY,
}
EVERY = 2
ARMS = ("incumbent", "own version", "incumbent, own version's value", "discarded", "all by version 5")


def play(seed: int) -> Seed:
    generator = torch.Generator().manual_seed(seed)
    world = World.make(generator)
    fresh = requests(SETTINGS["fresh_requests"], generator)
    weights = [torch.zeros(1, FAMILY["features"], FAMILY["replies"])]
    while len(weights) < SETTINGS["versions"]:
        features = requests(SETTINGS["rows"], generator)
        rows = logged(world, features, weights[-1], generator)
        anchor = version(world, features, weights[-1])
        weights.append(night(world, fresh, features, weights[-1], (rows, anchor, chance(world, features, anchor))))
    features = requests(SETTINGS["rows"] * len(weights), generator)
    parts = features.split(SETTINGS["rows"])
    late = [logged(world, part, old, generator, at) for at, (part, old) in enumerate(zip(parts, weights, strict=True))]
    ideal = logged(world, features, weights[-1], generator)
    incumbent = version(world, features, weights[-1])
    own = torch.cat([version(world, part, old) for part, old in zip(parts, weights, strict=True)])
    all_late = [row for rows in late for row in rows]
    p_incumbent, p_own = chance(world, features, incumbent), chance(world, features, own)
    material = {
        "incumbent": (all_late, incumbent, p_incumbent),
        "own version": (all_late, own, p_own),
        "incumbent, own version's value": (all_late, incumbent, p_own),
        "discarded": (late[-1], incumbent, p_incumbent),
        "all by version 5": (ideal, incumbent, p_incumbent),
    }
    found = {
        name: {
            "fits": curve(world, fresh, features, weights[-1], given),
            "steps": path(world, fresh, features, weights[-1], given),
        }
        for name, given in material.items()
    }
    values = [float(chance(world, fresh, version(world, fresh, old)).mean()) for old in weights]
    return {"arms": found, "versions": values}


def version(world: World, features: Tensor, weights: Tensor) -> Tensor:
    """(R, 1, K) log-probabilities of a version."""
    return (world.behavior(features)[:, None] + torch.einsum("rf,lfk->rlk", features, weights)).log_softmax(-1)


def chance(world: World, features: Tensor, logprobs: Tensor) -> Tensor:
    """Of a good label from a version: (R,)."""
    value = (logprobs[:, 0].exp() * world.success(features)).sum(1)
    return FAMILY["flipped"] + (1 - 2 * FAMILY["flipped"]) * value


def logged(world: World, features: Tensor, weights: Tensor, generator: torch.Generator, part: int = 0) -> list[Sample]:
    """One labelled reply of a version to each request; `part` numbers the rows on."""
    count = len(features)
    drawn = torch.multinomial(version(world, features, weights)[:, 0].exp(), 1, generator=generator)[:, 0]
    good = torch.rand(count, generator=generator) < world.success(features)[torch.arange(count), drawn]
    label = good ^ (torch.rand(count, generator=generator) < FAMILY["flipped"])
    rows = zip(drawn.tolist(), label.tolist(), strict=True)
    return [reply(str(n), part * count + n, [a], reward=float(r)) for n, (a, r) in enumerate(rows)]


Material = tuple[list[Sample], Tensor, Tensor]  # rows, the anchor's log-probabilities (R, 1, K), values p (R,)


def task(material: Material, beta: float) -> Studied:
    rows, anchor, chances = material
    believed, rule = chances.tolist(), OaplRule(beta=beta, floor=NEVER)
    noted = []
    for row in rows:
        p = believed[row.token_ids[0]]
        noted.append(replace(row, annotations={"p_hat": p, "p_lo": p}))
    return studied(scored(OAPL.annotate(noted, rule), anchor), OAPL.loss(rule))


def starting(world: World, features: Tensor, weights: Tensor) -> Policy:
    policy = Policy(features, 1, FAMILY["replies"], world.behavior(features)[:, None])
    policy.weights.data.copy_(weights)
    return policy


def fits(world: World, features: Tensor, weights: Tensor, material: Material) -> Iterator[Policy]:
    """Policies fitted from `weights` on, from the weakest to the strongest pull."""
    policy = starting(world, features, weights)
    for beta in SETTINGS["betas"]:
        fit(policy, task(material, beta).value)
        yield policy


def path(world: World, fresh: Tensor, features: Tensor, weights: Tensor, material: Material) -> list[list[float]]:
    """KL to the incumbent, gain over it, leaked mass, step by step at a night's temperature, to twice its KL."""
    policy, studied_rows = starting(world, features, weights), task(material, SETTINGS["night_beta"])
    optimizer, found = torch.optim.Adam([policy.weights], SETTINGS["rate"]), []
    for number in range(SETTINGS["steps"]):
        optimizer.zero_grad()
        studied_rows.value(policy.logprobs()).backward()
        optimizer.step()
        if number % EVERY == 0:
            found.append(moved_from(world, fresh, weights, policy))
            if found[-1][0] > 2 * SETTINGS["night_kl"]:
                break
    return found


def moved_from(world: World, fresh: Tensor, weights: Tensor, policy: Policy) -> list[float]:
    now = version(world, fresh, policy.weights.detach())
    return moved(now[:, 0], version(world, fresh, weights)[:, 0], world.success(fresh))


def night(world: World, fresh: Tensor, features: Tensor, weights: Tensor, material: Material) -> Tensor:
    """The strongest fit within the night's KL."""
    best = weights
    for policy in fits(world, features, weights, material):
        if moved_from(world, fresh, weights, policy)[0] > SETTINGS["night_kl"]:
            break
        best = policy.weights.detach().clone()
    return best


def curve(world: World, fresh: Tensor, features: Tensor, weights: Tensor, material: Material) -> list[list[float]]:
    """KL to the incumbent, gain over it, leaked mass, at each temperature."""
    return [moved_from(world, fresh, weights, policy) for policy in fits(world, features, weights, material)]


def rows_of(seeds: list[Seed]) -> list[Row]:
    rows = [
        measured(f"version {at + 1}: chance of a good label", [seed["versions"][at] for seed in seeds])
        for at in range(SETTINGS["versions"])
    ]
    for name in ARMS:
        rows.append(measured(f"{name}: gain at the night's end", [ended(seed, name)[1] for seed in seeds], 4))
        rows.append(measured(f"{name}: KL there", [ended(seed, name)[0] for seed in seeds], 4))
        rows.append(measured(f"{name}: fit at its best temperature, gain", [best(seed, name) for seed in seeds], 4))
        weakest = [seed["arms"][name]["fits"][0][0] for seed in seeds]
        rows.append(measured(f"{name}: fit at the weakest temperature, KL", weakest, 4))
    for worse in ARMS[1:4]:
        nights = [ended(seed, ARMS[0])[1] - ended(seed, worse)[1] for seed in seeds]
        rows.append(claim(f"incumbent gains more than {worse}, night's end", nights, 4))
        differences = [best(seed, ARMS[0]) - best(seed, worse) for seed in seeds]
        rows.append(claim(f"incumbent gains more than {worse}, best temperature", differences, 4))
    return rows


def ended(seed: Seed, name: str) -> list[float]:
    """The last look within a night's KL; no move at all where the first one is beyond it."""
    inside = [look for look in seed["arms"][name]["steps"] if look[0] <= SETTINGS["night_kl"]]
    return inside[-1] if inside else [0.0, 0.0, 0.0]


def best(seed: Seed, name: str) -> float:
    return max(point[1] for point in seed["arms"][name]["fits"])


def draw(figure: Any, seeds: list[Seed]) -> None:
    """Gain over version 5, by arm: at a night's end, and at the best temperature; means, and a point a seed."""
    axes = figure.subplots()
    for shift, (color, of) in enumerate(zip(COLORS, ((lambda s, n: ended(s, n)[1]), best), strict=False)):
        for place, name in enumerate(ARMS):
            values, left = [of(seed, name) for seed in seeds], place + 0.36 * shift
            label = ("a night's end", "fit at the best temperature")[shift] if not place else None
            axes.bar(left, sum(values) / len(values), 0.34, color=color, label=label)
            axes.plot([left] * len(values), values, "k.", ms=3)
    axes.axhline(0, color="#5E5C64", lw=0.8)
    names = [name.replace(", ", ",\n").replace("all by", "all by\n") for name in ARMS]
    axes.set_xticks([place + 0.18 for place in range(len(ARMS))], names, fontsize=8)
    styled(axes, "anchor of late rows", "gain over version 5").legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    Experiment("late_feedback", SETTINGS, play, rows_of, draw).main(__doc__)
