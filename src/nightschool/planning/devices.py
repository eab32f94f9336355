"""What a run may run on: published figures of cards that were never measured here, or this machine, probed."""

from __future__ import annotations

from dataclasses import dataclass

from nightschool.errors import InputError

MIB = 2**20
HERE = "this"


@dataclass(frozen=True, slots=True)
class Device:
    """`bfloat16`, `float32`: dense products with float32 sums, operations per second. `bytes_per_s` of its memory.
    `measured`: by a probe, and its runs by the clock; otherwise every figure is the maker's."""

    name: str
    title: str
    memory_bytes: float
    bfloat16: float
    float32: float
    bytes_per_s: float
    measured: bool = False
    is_cpu: bool = False

    def operations_per_s(self, dtype: str) -> float:
        return self.float32 if dtype == "float32" else self.bfloat16


CARDS = (
    Device("l4", "an L4 (24 GB)", 23_034 * MIB, 121e12, 30.3e12, 300e9),
    Device("rtx4090", "an RTX 4090 (24 GB)", 24_564 * MIB, 165e12, 82.6e12, 1008e9),
    Device("a100-40", "an A100 (40 GB)", 40_960 * MIB, 312e12, 19.5e12, 1555e9),
    Device("a100", "an A100 (80 GB)", 81_920 * MIB, 312e12, 19.5e12, 2039e9),
    Device("h100", "an H100 (80 GB)", 81_559 * MIB, 989e12, 67e12, 3350e9),
    Device("h200", "an H200 (141 GB)", 143_771 * MIB, 989e12, 67e12, 4800e9),
)


def find_device(name: str, dtype: str) -> tuple[Device, str]:
    """A card of the table, or this machine, and the number format that `dtype` means on it.

    Only `this` imports torch: it is measured. Raises: InputError for another name.
    """
    if name == HERE:
        return _this(dtype)
    for card in CARDS:
        if card.name == name.lower():
            return card, "bfloat16" if dtype == "auto" else dtype
    known = ", ".join(card.name for card in CARDS)
    raise InputError(f"No device is called {name!r}.", f"Known are {HERE} (this machine), {known}.", "Name one.")


def _this(dtype: str) -> tuple[Device, str]:
    from nightschool.models.probe import probe

    found = probe(dtype)
    speed = found.operations_per_s
    device = Device(HERE, found.name, found.free_bytes, speed, speed, found.bytes_per_s, True, found.is_cpu)
    return device, found.dtype
