"""From a run's passes to its memory, its time and its cost on a device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nightschool.models.shapes import Shape
from nightschool.planning.devices import Device
from nightschool.planning.memory import (
    BLOCK,
    ITEM_BYTES,
    Largest,
    Memory,
    adapter_bytes,
    cache_bytes,
    head_bytes,
    kept_checkpointed,
    kept_per_token,
    weight_bytes,
)
from nightschool.planning.operations import Tokens, decoding_operations, forward_operations, training_operations
from nightschool.planning.speed import (
    CARD,
    ENGINE,
    FITS,
    HEAP,
    PROCESS_BYTES,
    PROCESSOR,
    READ_START,
    READ_TOUCHES,
    START_S,
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
    """`ideal_s`: before the factor that real passes need. `checkpointed_bytes`: the activations if only the blocks'
    inputs were kept. `cost` in the currency of the price; `None` without one."""

    setting: Setting
    work: Work
    memory: Memory
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
    operations = training_operations(shape, rank, work.trained) + forward_operations(shape, rank, read)
    return Forecast(
        setting=setting,
        work=work,
        memory=memory_of(setting, kept, work.running),
        checkpointed_bytes=_heap(setting)
        * kept.num_models
        * kept.num_tokens
        * kept_checkpointed(shape, rank, setting.item, kept.keys, kept.num_tokens),
        operations=operations + decoding_operations(shape, rank, work.drawn),
        ideal_s=passes_s + drawing_s,
        seconds=seconds,
        cost=None if price is None else seconds.times(price / HOUR_S),
    )


def ideal_s(setting: Setting, trained: Tokens, read: Tokens) -> float:
    """Seconds of passes: products at their peak, the traffic between them at the speed of memory, and the starts."""
    shape, rank, device = setting.shape, setting.rank, setting.device
    operations = training_operations(shape, rank, trained) + forward_operations(shape, rank, read)
    traffic = TRAINED_TOUCHES * _kept(setting, trained) + READ_TOUCHES * _kept(setting, read)
    starts = START_S[device.is_cpu] * shape.num_layers * (trained.passes + READ_START * read.passes)
    return operations / device.operations_per_s(setting.dtype) + traffic / device.bytes_per_s + starts


def memory_of(setting: Setting, largest: Largest, running: float = 0.0) -> Memory:
    """At the largest step. `running`: tokens of sequences that are being drawn meanwhile."""
    shape, item, cpu = setting.shape, setting.item, setting.device.is_cpu
    kept = kept_per_token(shape, setting.rank, item, largest.keys, largest.num_tokens)
    cache = cache_bytes(shape, item, running) + weight_bytes(shape, item) if running else 0.0
    return Memory(
        weights=weight_bytes(shape, item),
        adapter=adapter_bytes(shape, setting.rank, largest.num_models),
        activations=_heap(setting) * largest.num_models * largest.num_tokens * kept,
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
        block_keys=round(largest.block_keys * share),
        num_scored=round(largest.num_scored * share),
    )


def _kept(setting: Setting, tokens: Tokens) -> float:
    if not tokens.num:
        return 0.0
    keys = tokens.context / tokens.num + BLOCK / 2
    per_token = kept_per_token(setting.shape, setting.rank, setting.item, keys, setting.token_budget)
    return tokens.num * per_token


def _drawing_s(setting: Setting, work: Work) -> float:
    """Seconds of drawing tokens: each forward reads all weights, and every token the keys and values before it."""
    shape, device = setting.shape, setting.device
    traffic = work.decode_steps * weight_bytes(shape, setting.item)
    traffic += cache_bytes(shape, setting.item, work.drawn.context)
    operations = decoding_operations(shape, setting.rank, work.drawn)
    return traffic / device.bytes_per_s + operations / device.operations_per_s(setting.dtype)


def _heap(setting: Setting) -> float:
    return HEAP[setting.device.is_cpu]
