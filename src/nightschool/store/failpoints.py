"""Named steps at which a test kills the process, as a power cut would."""

from __future__ import annotations

import os
from collections import Counter

_passed: Counter[str] = Counter()


def fail_point(name: str) -> None:
    """End the process here, without any cleanup, when NIGHTSCHOOL_FAILPOINT is `name`.

    `name@3` lets two passes go by and ends the third.
    """
    wanted = os.environ.get("NIGHTSCHOOL_FAILPOINT")
    if not wanted or wanted.partition("@")[0] != name:
        return
    _passed[name] += 1
    if _passed[name] >= int(wanted.partition("@")[2] or 1):
        os._exit(137)
