"""BCO against KTO when thumbs up and thumbs down are heard on different requests.

The family of `single_rollout.py`, without flipped labels. Of 2,000 replies, a success is told with chance s(x) and a
failure with 1 - s(x). Alike: s is one half everywhere. Split: s = sigmoid(3 x_1), so one side of the requests says
hardly anything but yes, the other hardly anything but no. BCO weighs bad replies by the odds of a thumb up on their
request (exact here, where a night has an estimate). Steps hold the rows that each objective asks for, one rate and
the libraries' beta of 0.1; the arms are compared at equal KL(policy || log) on the way. The published claim: matching
the two distributions of requests pays when they differ. Settings were fixed before any run.

    python benchmarks/objectives/split_thumbs.py --seeds 5
"""

from __future__ import annotations

from typing import Any

import torch
from harness import COLORS, Experiment, Policy, Row, Seed, claim, measured, reply, scored, studied, styled
from single_rollout import World, at_kl, moved, requests
from torch import Tensor

from nightschool.objectives.bco import BCO, BcoRule
from nightschool.objectives.kto import KTO, KtoRule
from nightschool.objectives.loss import Objective
from nightschool.types import Sample

SETTINGS = {
    "rows": 2000,
    "fresh_requests": 2000,
    "steepness": {"alike": 0.0, "split": 3.0},
    "beta": 0.1,
    "rate": 0.01,
    "epochs": 30,
    "kl": [0.1, 0.3],
}
EVERY = 5
ARMS: dict[str, tuple[Objective, Any]] = {
    "BCO": (BCO, BcoRule(beta=SETTINGS["beta"])),
    "BCO, not matched": (BCO, BcoRule(beta=SETTINGS["beta"], matched=False)),
    "KTO": (KTO, KtoRule(beta=SETTINGS["beta"])),
    "APO-zero": (KTO, KtoRule(beta=SETTINGS["beta"], measured=False)),
}


def play(seed: int) -> Seed:
    found: Seed = {}
    for where, steepness in SETTINGS["steepness"].items():
        generator = torch.Generator().manual_seed(seed)
        world = World.make(generator)
        fresh, features = requests(SETTINGS["fresh_requests"], generator), requests(SETTINGS["rows"], generator)
        rows = heard(world, features, steepness, generator)
        found[f"{where}: thumbs up"] = sum(row.reward == 1.0 for row in rows) / len(rows)
        for name, (objective, rule) in ARMS.items():
            found[f"{where}: {name}"] = learn(world, fresh, features, rows, objective, rule)
    return found


def heard(world: World, features: Tensor, steepness: float, generator: torch.Generator) -> list[Sample]:
    """The replies that were judged, with the chance that a judgement heard on their request is a thumb up."""
    behavior, success = world.behavior(features), world.success(features)
    drawn = torch.multinomial(behavior.exp(), 1, generator=generator)[:, 0]
    good = torch.rand(len(features), generator=generator) < success[torch.arange(len(features)), drawn]
    says = (steepness * features[:, 0]).sigmoid()
    told = torch.rand(len(features), generator=generator) < torch.where(good, says, 1 - says)
    up, down = (behavior.exp() * success).sum(1) * says, (behavior.exp() * (1 - success)).sum(1) * (1 - says)
    p_up = (up / (up + down)).tolist()
    return [
        reply(str(n), n, [int(drawn[n])], reward=float(good[n]), annotations={"p_hat": p_up[n]})
        for n in told.nonzero()[:, 0].tolist()
    ]


def learn(
    world: World, fresh: Tensor, features: Tensor, rows: list[Sample], objective: Objective, rule: Any
) -> list[list[float]]:
    """KL to the log, gain, leaked mass; every `EVERY` steps. Steps go through the log in its order, again and again."""
    before, later = world.behavior(features)[:, None], world.behavior(fresh)
    annotated = scored(objective.annotate(rows, rule), before)
    size, loss = objective.batch_size, objective.loss(rule)
    steps = [studied(annotated[at : at + size], loss) for at in range(0, len(annotated) - size + 1, size)]
    policy = Policy(features, 1, before.shape[2], before)
    optimizer, found = torch.optim.Adam([policy.weights], SETTINGS["rate"]), []
    for number in range(SETTINGS["epochs"] * len(steps)):
        optimizer.zero_grad()
        steps[number % len(steps)].value(policy.logprobs()).backward()
        optimizer.step()
        if number % EVERY == 0:
            now = policy.elsewhere(fresh, later[:, None]).frozen()[:, 0]
            found.append([*moved(now, later, world.success(fresh)), number + 1])
            if found[-1][0] > 2 * max(SETTINGS["kl"]):
                break
    return found


def rows_of(seeds: list[Seed]) -> list[Row]:
    rows = []
    for where in SETTINGS["steepness"]:
        rows.append(measured(f"{where}: share of thumbs up", [seed[f"{where}: thumbs up"] for seed in seeds]))
        for name in ARMS:
            arm = f"{where}: {name}"
            for kl in SETTINGS["kl"]:
                rows.append(measured(f"{arm}, gain at KL {kl:g}", [at_kl(seed[arm], kl, 1) for seed in seeds], 4))
            last = max(SETTINGS["kl"])
            rows.append(measured(f"{arm}, leaked at KL {last:g}", [at_kl(seed[arm], last, 2) for seed in seeds], 4))
    for where in SETTINGS["steepness"]:
        for worse in ("KTO", "APO-zero", "BCO, not matched"):
            for kl in SETTINGS["kl"]:
                differences = [
                    at_kl(seed[f"{where}: BCO"], kl, 1) - at_kl(seed[f"{where}: {worse}"], kl, 1) for seed in seeds
                ]
                rows.append(claim(f"{where}: BCO gains more than {worse}, KL {kl:g}", differences, 4))
    return rows


def draw(figure: Any, seeds: list[Seed]) -> None:
    """Gain over KL, where thumbs are heard alike and split."""
    grid = [0.02 * step for step in range(1, 21)]
    for axes, where in zip(figure.subplots(1, 2, sharey=True), SETTINGS["steepness"], strict=True):
        for color, name in zip(COLORS, ARMS, strict=False):
            curves = [[at_kl(seed[f"{where}: {name}"], kl, 1) for kl in grid] for seed in seeds]
            for curve in curves:
                axes.plot(grid, curve, color=color, lw=0.5, alpha=0.35)
            axes.plot(grid, torch.tensor(curves).mean(0), color=color, lw=1.6, label=name)
        styled(axes, "KL(policy || log), nats", "gain in success" if where == "alike" else "")
        axes.set_title(f"thumbs up and down on requests that are {where}", fontsize=9)
        axes.legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    Experiment("split_thumbs", SETTINGS, play, rows_of, draw).main(__doc__)
