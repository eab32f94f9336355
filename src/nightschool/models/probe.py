"""What this machine can do, measured in about a second: matrix products, memory traffic, free memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from nightschool.models.base import fast_dtype

PRODUCT = 2048
COPY_BYTES = 256_000_000
EACH_S = 0.3
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class Probe:
    """`operations_per_s` of a large product in `dtype`, `bytes_per_s` read and written by a copy."""

    name: str
    dtype: str
    operations_per_s: float
    bytes_per_s: float
    free_bytes: float
    is_cpu: bool


def probe(dtype: str = "auto") -> Probe:
    """The graphics card if there is one, else the processor, with the format that training would choose.

    On a processor the time of its cores counts, so that what else runs there hides little of what it could do alone.
    """
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = fast_dtype(place) if dtype == "auto" else getattr(torch, dtype)
    cpu = place.type == "cpu"
    a, b = (torch.ones(PRODUCT, PRODUCT, dtype=chosen, device=place) for _ in range(2))
    source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=place)
    target = torch.empty_like(source)
    clock = _core_time if cpu else _card_time
    return Probe(
        name="this machine" if cpu else torch.cuda.get_device_name(place),
        dtype=str(chosen).removeprefix("torch."),
        operations_per_s=2 * PRODUCT**3 / _shortest(lambda: torch.matmul(a, b), clock),
        bytes_per_s=2 * COPY_BYTES / _shortest(lambda: target.copy_(source), clock),
        free_bytes=_free_bytes() if cpu else float(torch.cuda.mem_get_info(place)[0]),
        is_cpu=cpu,
    )


def _shortest(act: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of the quickest of the acts that fit into `EACH_S`, the first one left out."""
    act()
    best, until = float("inf"), time.perf_counter() + EACH_S
    while best == float("inf") or time.perf_counter() < until:
        started = clock()
        act()
        best = min(best, clock() - started)
    return best


def _core_time() -> float:
    return time.process_time() / torch.get_num_threads()


def _card_time() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def _free_bytes() -> float:
    """Memory that a new process may take: what the system calls available, within the limit of a container."""
    free = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    told = Path("/proc/meminfo")
    if told.exists():
        rows = dict(line.split(":", 1) for line in told.read_text().splitlines())
        free = float(rows["MemAvailable"].split()[0]) * 1024
    for place in map(Path, LIMITS):
        if place.exists() and (limit := place.read_text().strip()).isdecimal():
            free = min(free, float(limit))
    return free
