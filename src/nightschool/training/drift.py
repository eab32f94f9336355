"""How far the policy has moved from its anchor on replies it is not trained on, and when to stop."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from nightschool.types import Json, Sample

WATCHED_ROWS = 48


@dataclass(frozen=True, slots=True)
class Drift:
    """Measured on held-out replies. `None` where no row says it.

    `kl`: nats per sequence, KL(anchor || policy). `kappa`: pessimism in units of beta. `good`, `bad`: mean
    log-ratio of replies rated so, in nats; `good_error` its standard error. `num_labelled`: rated rows.
    """

    kl: float | None
    kappa: float | None
    good: float | None
    bad: float | None
    good_error: float | None
    num_labelled: int

    def metrics(self) -> dict[str, float]:
        named = {"kl": self.kl, "kappa": self.kappa, "held_out_good": self.good, "held_out_bad": self.bad}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class DriftRule:
    """When a window ends early.

    `kl_stop`: nats per sequence; exceeding it restores the last state below `kl_restore`. From a third of
    the window's steps on, also: pessimism used up, and good replies losing probability. Those two need
    `min_labelled` rated rows to be read at all.
    """

    kl_stop: float = 0.5
    kl_restore: float = 0.25
    min_labelled: int = 8

    def reason_to_stop(self, drift: Drift, done: int, total: int) -> str | None:
        """Why the state after `done` of `total` steps is one too far, or `None`."""
        if drift.kl is not None and not drift.kl <= self.kl_stop:
            return f"drift of {drift.kl:.2f} nats per sequence exceeds {self.kl_stop:g}"
        if 3 * done < total or drift.num_labelled < self.min_labelled:
            return None
        if drift.kappa is not None and drift.kappa <= 0:
            return f"pessimism is used up (kappa / beta {drift.kappa:.2f}): lower the value with a larger margin"
        if drift.good is not None and drift.good_error is not None and drift.good + drift.good_error < 0:
            return f"good replies lose probability as well ({drift.good:.2f} nats): mass leaks to unseen text"
        return None

    def is_safe(self, drift: Drift) -> bool:
        """Whether a later stop may come back to this state."""
        return drift.kl is None or drift.kl < self.kl_restore


def measure(samples: Sequence[Sample], logprobs: Sequence[Sequence[float | None]]) -> Drift:
    """Compare log-probabilities under the policy with the samples' reference.

    The KL estimate is k3 = e^d - 1 - d with d = policy - reference, summed over a reply's tokens: by the
    chain rule its mean over the anchor's replies is the sequence's KL, with far less variance than the same
    form on the sequence's ratio. kappa is the mean of (A - beta * LR) / beta over rated rows (identity 5.6.2
    of the specification; Sakhi et al., arXiv:2605.28150, and Xu et al., arXiv:2602.05933, for its meaning).
    """
    terms = [_differences(sample, scores) for sample, scores in zip(samples, logprobs, strict=True)]
    kls = [sum(math.expm1(min(d, 50.0)) - d for d in found) for found in terms]
    rated = [(sample, sum(found)) for sample, found in zip(samples, terms, strict=True) if sample.reward is not None]
    kappas = [
        s.annotations["advantage"] / s.annotations["beta"] - ratio for s, ratio in rated if "beta" in s.annotations
    ]
    good = [ratio for sample, ratio in rated if (sample.reward or 0.0) > 0.5]
    bad = [ratio for sample, ratio in rated if (sample.reward or 0.0) <= 0.5]
    return Drift(
        kl=_mean(kls),
        kappa=_mean(kappas),
        good=_mean(good),
        bad=_mean(bad),
        good_error=stdev(good) / math.sqrt(len(good)) if len(good) > 1 else None,
        num_labelled=len(rated),
    )


def rated_rows(samples: Sequence[Sample], logprobs: Sequence[Sequence[float | None]]) -> list[Json]:
    """What the gate reads of the rated ones: how each one's probability changed, in nats, beside its reward and the
    success that was expected of it."""
    return [
        {
            "exchange": sample.id,
            "version": sample.policy_version,
            "log_ratio": sum(_differences(sample, scores)),
            "reward": sample.reward,
            "expected": sample.annotations.get("p_hat"),
        }
        for sample, scores in zip(samples, logprobs, strict=True)
        if sample.reward is not None
    ]


def choose_watched(held_out: Sequence[Sample]) -> list[Sample]:
    """The held-out rows that are scored after every step: `WATCHED_ROWS` of them, drawn whatever their rating.

    The drift is a mean over what the anchor says. Rows chosen by rating, or a handful, put it off by a factor
    of four: a few decisions carry nearly all of it.
    """
    return sorted(held_out, key=lambda sample: hashlib.sha256(sample.id.encode()).digest())[:WATCHED_ROWS]


def _differences(sample: Sample, scores: Sequence[float | None]) -> list[float]:
    reference = sample.reference_logprobs or ()
    return [
        policy - anchor
        for policy, anchor in zip(scores, reference, strict=True)
        if policy is not None and anchor is not None
    ]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
