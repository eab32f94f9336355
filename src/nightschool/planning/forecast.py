"""From a run's passes to its memory, its time and its cost on a device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nightschool.models.shapes import Shape
from nightschool.planning.devices import Device
from nightschool.planning.memory import (
    ITEM_BYTES,
    Largest,
    Memory,
    activation_bytes,
    adapter_bytes,
    cache_bytes,
    head_bytes,
    kept_per_token,
    packed_bytes,
    weight_bytes,
    whole_layers,
    working_bytes,
)
from nightschool.planning.operations import (
    Tokens,
    body_operations,
    decoding_operations,
    forward_operations,
    training_operations,
)
from nightschool.planning.speed import (
    CARD,
    CARD_START_S,
    CPU_START_S,
    ENGINE,
    FITS,
    HEAP,
    PROCESS_BYTES,
    PROCESSOR,
    READ_START,
    READ_TOUCHES,
    START_TOKENS,
    TRAINED_TOUCHES,
    Range,
)
from nightschool.planning.work import Work

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run's memory and time depend on, besides its data. `dtype` of the base."""

    shape: Shape
    device: Device
    dtype: str
    rank: int
    token_budget: int

    @property
    def item(self) -> int:
        return ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Forecast:
    """`ideal_s`: before the factor that real passes need. `recomputed`: the share of blocks that are computed once more
    because what they keep would not fit; `checkpointed_bytes`: the activations if all but one were. `cost` in the
    currency of the price; `None` without one."""

    setting: Setting
    work: Work
    memory: Memory
    recomputed: float
    checkpointed_bytes: float
    operations: float
    ideal_s: float
    seconds: Range
    cost: Range | None

    @property
    def fits(self) -> bool:
        return self.memory.total <= FITS * self.setting.device.memory_bytes

    @property
    def utilization(self) -> Range:
        """Operations per second by the device's peak."""
        peak = self.operations / self.setting.device.operations_per_s(self.setting.dtype)
        return Range(*(peak / one for one in (self.seconds.high, self.seconds.middle, self.seconds.low)))


def forecast(setting: Setting, work: Work, price: float | None = None, factor: Range | None = None) -> Forecast:
    """`price` per hour. `factor` of measured time by ideal time, where past runs tell it."""
    shape, rank, kept = setting.shape, setting.rank, work.largest
    factor = factor or (PROCESSOR if setting.device.is_cpu else CARD)
    read = work.read + work.between
    passes_s, drawing_s = ideal_s(setting, work.trained, read), _drawing_s(setting, work)
    seconds = factor.times(passes_s) + ENGINE.times(drawing_s)
    operations = _operations(setting, work.trained, read) + decoding_operations(shape, rank, work.drawn)
    checkpointed = kept.num_models * activation_bytes(shape, setting.item, kept.num_tokens, checkpointed=True)
    return Forecast(
        setting=setting,
        work=work,
        memory=memory_of(setting, kept, work.running),
        recomputed=_recomputed(setting, kept.num_tokens),
        checkpointed_bytes=HEAP[setting.device.is_cpu] * checkpointed,
        operations=operations,
        ideal_s=passes_s + drawing_s,
        seconds=seconds,
        cost=None if price is None else seconds.times(price / HOUR_S),
    )


def ideal_s(setting: Setting, trained: Tokens, read: Tokens) -> float:
    """Seconds of passes: products at their peak, the traffic between them at the speed of memory, and the starts."""
    shape, device = setting.shape, setting.device
    per_token = shape.num_layers * kept_per_token(shape, setting.item)
    traffic = per_token * (TRAINED_TOUCHES * trained.num + READ_TOUCHES * read.num)
    starts = shape.num_layers * (_start_s(device, trained) + READ_START * _start_s(device, read))
    operations = _operations(setting, trained, read)
    return operations / device.operations_per_s(setting.dtype) + traffic / device.bytes_per_s + starts


def memory_of(setting: Setting, largest: Largest, running: float = 0.0) -> Memory:
    """At the largest step. `running`: tokens of sequences that are being drawn meanwhile."""
    shape, item, cpu = setting.shape, setting.item, setting.device.is_cpu
    cache = cache_bytes(shape, item, running) + weight_bytes(shape, item) if running else 0.0
    activations = largest.num_models * activation_bytes(shape, item, largest.num_tokens)
    return Memory(
        weights=weight_bytes(shape, item),
        packed=packed_bytes(shape, item) if cpu and setting.dtype == "bfloat16" else 0.0,
        adapter=adapter_bytes(shape, setting.rank, item, largest.num_models),
        activations=HEAP[cpu] * (activations + working_bytes(shape, item, largest.num_tokens, cpu)),
        head=head_bytes(shape, item, largest.num_scored),
        process=PROCESS_BYTES[cpu],
        cache=cache,
    )


def with_budget(largest: Largest, token_budget: int, longest: int) -> Largest:
    """The largest pack under another token budget: never shorter than the longest sequence."""
    num = max(longest, min(largest.num_tokens, token_budget))
    share = num / largest.num_tokens
    return replace(
        largest,
        num_tokens=num,
        num_scored=round(largest.num_scored * share),
    )


def _operations(setting: Setting, trained: Tokens, read: Tokens) -> float:
    """Of passes with and without gradient, with what is computed once more."""
    shape, rank = setting.shape, setting.rank
    again = _recomputed(setting, trained.num / trained.passes) if trained.passes else 0.0
    once = training_operations(shape, rank, trained) + forward_operations(shape, rank, read)
    return once + again * body_operations(shape, rank, trained)


def _start_s(device: Device, tokens: Tokens) -> float:
    """Of one block. A processor takes the tokens of a pass a few at a time, a card at once."""
    return CPU_START_S * tokens.num / START_TOKENS if device.is_cpu else CARD_START_S * tokens.passes


def _recomputed(setting: Setting, num_tokens: float) -> float:
    """The share of blocks that keep their input alone in a pass of so many tokens."""
    shape = setting.shape
    return 1 - whole_layers(shape, setting.item, num_tokens) / shape.num_layers if num_tokens else 0.0


def _drawing_s(setting: Setting, work: Work) -> float:
    """Seconds of drawing tokens: each forward reads all weights, and every token the keys and values before it."""
    shape, device = setting.shape, setting.device
    traffic = work.decode_steps * weight_bytes(shape, setting.item)
    traffic += cache_bytes(shape, setting.item, work.drawn.context)
    operations = decoding_operations(shape, setting.rank, work.drawn)
    return traffic / device.bytes_per_s + operations / device.operations_per_s(setting.dtype)
