"""What this process has taken so far."""

from __future__ import annotations

import resource
import sys

UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def peak_bytes() -> int:
    """The most memory this process held at once: of the graphics card where it used one, else resident."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT_BYTES
