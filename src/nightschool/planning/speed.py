"""How far real passes are from what a device could do: every measured number of the planner stands here.

`benchmarks/speed/plan.py` measures them again. A pass takes its operations at the peak of large products, and the
traffic of everything between the products at the speed of memory, and a start for each block of the model; what is left
over is a factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Of SmolLM2-135M and a model of an eighth of its size, in bfloat16, on one core of a busy machine.
TRAINED_TOUCHES = 50.0  # bytes read or written with gradient, for each byte that is kept for it
READ_TOUCHES = 5.0  # and without gradient
START_TOKENS = 256
CPU_START_S = 1.3e-3  # of a block, for each `START_TOKENS` tokens, with gradient
CARD_START_S = 1.5e-3  # of a block and a pass; assumed
READ_START = 0.5  # of these, without gradient


@dataclass(frozen=True, slots=True)
class Range:
    """A forecast: nothing is promised below or beyond."""

    low: float
    middle: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(self.low * factor, self.middle * factor, self.high * factor)

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.middle + other.middle, self.high + other.high)


PROCESSOR = Range(1.4, 1.9, 2.7)  # measured: eight runs on two cores that did other work as well
CARD = Range(0.8, 1.3, 2.5)  # assumed: no card was measured
ENGINE = Range(1.3, 2.0, 3.5)  # assumed: decoding by what memory and products allow

PROCESS_BYTES = {
    True: 0.45e9,
    False: 1.0e9,
}  # by is_cpu: interpreter and libraries, measured; a card's context, assumed
HEAP = {True: 1.36, False: 1.1}  # by is_cpu: what an allocator holds by what is in use; measured, assumed
FITS = 0.95  # of the free memory


def spread_of(ratios: Sequence[float]) -> Range | None:
    """Where the next ratio will lie, 80 % of the time, after these; `None` of fewer than three.

    Ratios are taken to be log-normal: the t interval of one more observation.
    """
    from scipy import stats

    if len(ratios) < 3:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / len(logs)
    deviation = math.sqrt(sum((one - mean) ** 2 for one in logs) / (len(logs) - 1))
    reach = float(stats.t.ppf(0.9, len(logs) - 1)) * deviation * math.sqrt(1 + 1 / len(logs))
    return Range(math.exp(mean - reach), math.exp(mean), math.exp(mean + reach))
