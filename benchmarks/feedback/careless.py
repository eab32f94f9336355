"""Careless raters: what is left of the gain when four raters in ten tick at random, weighed and unweighed.

Twelve kinds of requests in words, sixteen replies of one token, and a log of 1,500 by the policy to be improved. A
hundred raters gave fifteen thumbs each. Careful ones are wrong 5 % of the time, 40 ticked at random. Nobody judged a
reply twice, so who is careless shows only against the outcome model, which learns from the same thumbs. The squared
log-ratio of `objectives.oapl` is fitted for each arm with its own success model, and fits are compared at equal
KL(policy || log). Settings were fixed before any run.

    python benchmarks/feedback/careless.py --seeds 5
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "objectives"))
from harness import COLORS, Experiment, Policy, Row, Seed, claim, fit, measured, reply, scored, studied, styled
from single_rollout import at_kl, moved

from nightschool.errors import TooLittleDataError
from nightschool.objectives import oapl
from nightschool.objectives.loss import Loss
from nightschool.valuation.outcome import Said, fit_outcome_model
from nightschool.valuation.raters import Vote, fit_raters
from nightschool.valuation.success import fit_success_model

SETTINGS = {
    "kinds": 12,
    "replies": 16,
    "raters": 100,
    "thumbs_each": 15,
    "careless": 0.4,
    "wrong": 0.05,
    "log_deviation": 1.2,  # of the log's logits
    "preference": 1.5,  # of the log for the right reply, added to its logit
    "success": {"right": 0.95, "half": 0.5, "other": 0.05},
    "betas": [4, 2, 1.4, 1, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05],
    "kl": [0.1, 0.3],
    "keeps": 0.7,
}
WORDS = (
    "cancel",
    "refund",
    "parcel",
    "address",
    "invoice",
    "password",
    "voucher",
    "color",
    "size",
    "plan",
    "seat",
    "fee",
)
FORMS = ("please help with my {word}", "the {word} is what i ask about", "hello , {word} ?")
ARMS = ("all thumbs right", "all raters careful", "four in ten careless", "weighed", "weighed by who they are")


def play(seed: int) -> Seed:
    generator, chance = torch.Generator().manual_seed(seed), Random(seed)
    kinds, replies = SETTINGS["kinds"], SETTINGS["replies"]
    success = torch.full((kinds, replies), SETTINGS["success"]["other"])
    logits = torch.randn(kinds, replies, generator=generator) * SETTINGS["log_deviation"]
    for kind in range(kinds):
        right, *half = chance.sample(range(replies), 3)
        success[kind, right], success[kind, half] = SETTINGS["success"]["right"], SETTINGS["success"]["half"]
        logits[kind, right] += SETTINGS["preference"]
    behavior = logits.log_softmax(-1)
    raters = [n for n in range(SETTINGS["raters"]) for _ in range(SETTINGS["thumbs_each"])]
    asked = [chance.randrange(kinds) for _ in raters]
    drawn = torch.multinomial(behavior.exp()[asked], 1, generator=generator)[:, 0].tolist()
    good = [chance.random() < float(success[k, a]) for k, a in zip(asked, drawn, strict=True)]
    careful = [g != (chance.random() < SETTINGS["wrong"]) for g in good]
    careless = round(SETTINGS["careless"] * SETTINGS["raters"])
    mixed = [chance.random() < 0.5 if r < careless else c for r, c in zip(raters, careful, strict=True)]
    texts = [FORMS[chance.randrange(len(FORMS))].format(word=WORDS[kind]) for kind in asked]
    names = [f"rater {number}" for number in raters]
    ones = [1.0] * len(raters)
    weights, told = weighed(texts, drawn, mixed, names)
    known = [0.0 if r < careless else 1 - 2 * SETTINGS["wrong"] for r in raters]
    arms = zip(ARMS, (good, careful, mixed, mixed, mixed), (ones, ones, ones, weights, known), strict=True)
    log = (behavior, success, asked, drawn, texts, names)
    return {"raters": told, "curves": {name: curve(log, votes, own) for name, votes, own in arms}}


def weighed(texts: Sequence[str], drawn: Sequence[int], votes: Sequence[bool], names: list[str]) -> Any:
    """The weight of each thumb as `curation.votes` and `feedback.reward` find it, and what is said of the raters."""
    said = [Said(text, (token,)) for text, token in zip(texts, drawn, strict=True)]
    model = fit_outcome_model(said, [float(vote) for vote in votes], [1.0] * len(votes), names)
    rows = zip(names, votes, model.probabilities.tolist(), strict=True)
    try:
        found = fit_raters([Vote(str(n), *row) for n, row in enumerate(rows)])
    except TooLittleDataError as error:
        return [1.0] * len(votes), {"used": False, "why": error.why}
    return [abs(2 * found.of(name) - 1) for name in names], {"used": True, **found.report}


def curve(log: Any, votes: Sequence[bool], weights: Sequence[float]) -> list[list[float]]:
    """KL to the log and gain in true success over all kinds, at each temperature."""
    behavior, success, asked, drawn, texts, names = log
    kept = [n for n, weight in enumerate(weights) if weight > 0]
    rewards, own = [float(votes[n]) for n in kept], [weights[n] for n in kept]
    principals = [names[n] for n in kept]
    model = fit_success_model([texts[n] for n in kept], rewards, own, [0.0] * len(kept), principals)
    rows = [
        reply(str(n), asked[n], [drawn[n]], reward=r, weight=w, annotations={"p_hat": p, "p_lo": low})
        for n, r, w, p, low in zip(kept, rewards, own, model.p_hat.tolist(), model.p_lo.tolist(), strict=True)
    ]
    policy, found = Policy(torch.eye(len(behavior)), 1, behavior.shape[1], behavior[:, None]), []
    for beta in SETTINGS["betas"]:
        task = studied(
            scored(oapl.annotate(rows, oapl.OaplRule(beta=beta)), behavior[:, None]), Loss("squared_log_ratio")
        )
        fit(policy, task.value)
        found.append(measure(policy, behavior, success))
    return found


def measure(policy: Policy, behavior: Tensor, success: Tensor) -> list[float]:
    return moved(policy.frozen()[:, 0], behavior, success)


def rows_of(seeds: list[Seed]) -> list[Row]:
    rows = []
    for kl in SETTINGS["kl"]:
        gains = {name: [at_kl(seed["curves"][name], kl, 1) for seed in seeds] for name in ARMS}
        rows += [measured(f"{name}, gain at KL {kl:g}", values, 4) for name, values in gains.items()]
        for name in ARMS[1:]:
            shares = [one / clean for one, clean in zip(gains[name], gains[ARMS[0]], strict=True)]
            rows.append(measured(f"{name}, share of the clean gain at KL {kl:g}", shares, 2))
            if name == "weighed":
                over = [share - SETTINGS["keeps"] for share in shares]
                rows.append(claim(f"weighed keeps more than {SETTINGS['keeps']:g} of it at KL {kl:g}", over, 2))
        differences = [a - b for a, b in zip(gains["weighed"], gains["four in ten careless"], strict=True)]
        rows.append(claim(f"weighed gains more than unweighed at KL {kl:g}", differences, 4))
    used = [seed["raters"] for seed in seeds if seed["raters"]["used"]]
    rows.append(measured("raters said to be careless (0.4 are)", [told["careless"] for told in used], 2))
    rows.append(measured("careful votes said to be right (0.95 are)", [told["right"] for told in used], 2))
    return rows


def draw(figure: Any, seeds: list[Seed]) -> None:
    """Gain over KL, mean and seeds."""
    axes = figure.subplots()
    grid = [0.02 * step for step in range(1, 26)]
    for color, name in zip(COLORS, ARMS, strict=False):
        curves = [[at_kl(seed["curves"][name], kl, 1) for kl in grid] for seed in seeds]
        for one in curves:
            axes.plot(grid, one, color=color, lw=0.5, alpha=0.35)
        axes.plot(grid, torch.tensor(curves).mean(0), color=color, lw=1.6, label=name)
    styled(axes, "KL(policy || log), nats", "gain in success").legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    Experiment("careless", SETTINGS, play, rows_of, draw, group="feedback").main(__doc__)
