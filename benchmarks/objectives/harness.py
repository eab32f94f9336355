"""What the experiments share: tiny softmax policies, the library's objectives on them, seeds that are kept, intervals.

A request is a row of features, a reply a few tokens; the logits of each place are linear in the features, on top of
given ones. Annotations and losses are those of `nightschool.objectives` and `nightschool.training.losses`; sampling and
the optimizer are the experiment's. Everything is float64 and of one thread.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))
from common import OUT, Row, machine_facts, options_of, report, tell

from nightschool.objectives.loss import Loss, Objective
from nightschool.training.losses import LOSSES
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.mixing import count, token_batch
from nightschool.types import Sample

DOCS = Path(__file__).parents[2] / "docs"
FEWEST = 5  # seeds of a published figure
Seed = dict[str, Any]  # what one seed found
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


class Policy:
    """log pi(token at a place of the reply | request) = log softmax(base + features @ weights).

    Shapes: features (R, F), weights (L, F, K) for L places and K tokens, base (R, L, K) or nothing.
    """

    def __init__(self, features: Tensor, num_places: int, num_tokens: int, base: Tensor | None = None) -> None:
        self.features, self.base = features, base
        self.weights = torch.zeros(num_places, features.shape[1], num_tokens, requires_grad=True)

    def logprobs(self) -> Tensor:
        """(R, L, K)."""
        logits = torch.einsum("rf,lfk->rlk", self.features, self.weights)
        return (logits if self.base is None else logits + self.base).log_softmax(-1)

    def frozen(self) -> Tensor:
        """The same without a gradient."""
        with torch.no_grad():
            return self.logprobs()

    def elsewhere(self, features: Tensor, base: Tensor | None = None) -> Policy:
        """The same weights at other requests."""
        num_places, _, num_tokens = self.weights.shape
        other = Policy(features, num_places, num_tokens, base)
        other.weights = self.weights
        return other


@dataclass(frozen=True, slots=True)
class Studied:
    """Annotated rows as tensors: what is computed once and what changes with the policy."""

    batch: TokenBatch
    loss: Loss
    places: tuple[Tensor, Tensor, Tensor]

    def value(self, logprobs: Tensor) -> Tensor:
        """The loss at (R, L, K) log-probabilities."""
        return LOSSES[self.loss.name](replace(self.batch, logprobs=logprobs[self.places]), **self.loss.settings)


def reply(name: str, request: int, tokens: Sequence[int], **fields: Any) -> Sample:
    """A sample whose prompt is the number of its request."""
    mask = (False, *(True for _ in tokens))
    return Sample(name, (request, *tokens), mask, mask, **fields)


def behavior(logprobs: Tensor, request: int, tokens: Sequence[int]) -> dict[str, Any]:
    """What the engine that drew a reply says of its tokens."""
    return {"behavior_logprobs": (None, *(float(logprobs[request, t, token]) for t, token in enumerate(tokens)))}


def study(objective: Objective, samples: Sequence[Sample], rule: Any, anchor: Tensor) -> Studied:
    """Annotate rows as a night does: the rule's requirements, then the anchor's scores (R, L, K), then the rest."""
    rows = scored(objective.annotate(samples, rule), anchor)
    if objective.after_anchor:
        rows = objective.after_anchor(rows, rule).samples
    return studied(rows, objective.loss(rule))


def scored(samples: Sequence[Sample], anchor: Tensor) -> list[Sample]:
    """Each row with the anchor's log-probabilities of its tokens."""
    requests, places, tokens = places_of(samples)
    values = iter(anchor[requests, places, tokens].tolist())
    return [
        replace(row, reference_logprobs=tuple(next(values) if used else None for used in row.loss_mask))
        for row in samples
    ]


def studied(rows: Sequence[Sample], loss: Loss) -> Studied:
    """Rows that carry all that their loss reads, as tensors."""
    places = places_of(rows)
    return Studied(token_batch(rows, torch.zeros(len(places[0])), count(rows)[rows[0].term]), loss, places)


def places_of(samples: Sequence[Sample]) -> tuple[Tensor, Tensor, Tensor]:
    """Request, place in the reply, and token, of each loss token."""
    found = [
        (row.token_ids[0], place - 1, token)
        for row in samples
        for place, (token, used) in enumerate(zip(row.token_ids, row.loss_mask, strict=True))
        if used
    ]
    requests, places, tokens = torch.tensor(found).unbind(1)
    return requests, places, tokens


def fit(policy: Policy, value: Callable[[Tensor], Tensor], steps: int = 300) -> int:
    """Minimize `value(logprobs)` from where the policy is, by L-BFGS. Returns the evaluations it took."""
    optimizer = torch.optim.LBFGS(
        [policy.weights],
        max_iter=steps,
        history_size=20,
        tolerance_grad=1e-7,
        tolerance_change=1e-11,
        line_search_fn="strong_wolfe",
    )
    evaluations = 0

    def closure() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss = value(policy.logprobs())
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    return evaluations


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, int]:
    """Mean over the seeds that have the value, half width of its t interval, and how many they are.

    Edge: NaN is no value; the half width of fewer than two is NaN.
    """
    found = [value for value in values if not math.isnan(value)]
    if len(found) < 2:
        return (found[0] if found else math.nan), math.nan, len(found)
    mean = sum(found) / len(found)
    spread = math.sqrt(sum((value - mean) ** 2 for value in found) / (len(found) - 1) / len(found))
    return mean, float(stats.t.ppf((1 + level) / 2, len(found) - 1)) * spread, len(found)


def measured(name: str, values: Sequence[float], digits: int = 3) -> Row:
    """A row that claims nothing."""
    mean, half, num = interval(values)
    note = "" if num == len(values) else f"{num} of {len(values)} seeds have it"
    return Row(name, f"{mean:.{digits}f} ± {half:.{digits}f}" if num else "none", note=note)


def claim(name: str, differences: Sequence[float], digits: int = 3) -> Row:
    """A claim that a difference, paired by seed, is above zero: its 95 % t interval is. Edge: one seed settles
    nothing."""
    mean, half, num = interval(differences)
    note = "" if num == len(differences) else f"{num} of {len(differences)} seeds have it"
    passed = None if math.isnan(half) else mean - half > 0
    return Row(name, f"{mean:+.{digits}f} ± {half:.{digits}f}", "> 0", passed, note)


@dataclass(frozen=True, slots=True)
class Experiment:
    """`settings` are fixed before seeds are compared; a seed that was played under others is played again. `group`: the
    folder of benchmarks that it stands in."""

    name: str
    settings: Mapping[str, Any]
    play: Callable[[int], Seed]
    rows: Callable[[list[Seed]], list[Row]]
    draw: Callable[[Any, list[Seed]], None]
    size: tuple[float, float] = (7.2, 3.2)
    group: str = "objectives"

    def main(self, doc: str | None, seeds: int = FEWEST) -> None:
        """Play what is not there yet, then tell the table and draw the figure. A figure of fewer than `FEWEST` seeds
        stays in benchmarks/out."""
        asked = options_of(doc, seeds=seeds).parse_args()
        machine = machine_facts()
        found = [self._seed(seed) for seed in range(asked.seeds)]
        self._figure(found)
        seconds = sum(seed["seconds"] for seed in found)
        report(f"{self.group}/{self.name}", asked, self.rows(found), machine, settings=self.settings, seconds=seconds)

    def _seed(self, seed: int) -> Seed:
        path = OUT / self.group / self.name / f"seed-{seed}.json"
        if path.exists():
            kept = json.loads(path.read_text())
            if kept["settings"] == json.loads(json.dumps(self.settings)):
                return kept["found"]
        tell(f"{self.name}: seed {seed}")
        started = spent()
        found = {**self.play(seed), "seconds": round(spent() - started, 1)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"settings": self.settings, "found": found}) + "\n")
        return json.loads(json.dumps(found))

    def _figure(self, seeds: list[Seed]) -> None:
        import matplotlib
        from matplotlib.figure import Figure

        matplotlib.rcParams["svg.hashsalt"] = self.name  # the same seeds give the same file
        figure = Figure(figsize=self.size, layout="constrained")
        self.draw(figure, seeds)
        folder = DOCS if len(seeds) >= FEWEST else OUT / self.group
        figure.savefig(folder / f"evidence_{self.name}.svg", metadata={"Date": None})


def spent() -> float:
    """Processor time in seconds, of processes that were started and have ended as well."""
    return sum(os.times()[:4])


def styled(axes: Any, x: str, y: str) -> Any:
    """Axes as all figures have them."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#D9D5CB", lw=0.6)
    return axes


COLORS = ("#1A5FB4", "#C64600", "#26A269", "#813D9C", "#5E5C64", "#A51D2D", "#E5A50A")
