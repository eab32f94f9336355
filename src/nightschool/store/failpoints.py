"""Named steps at which a test kills the process, as a power cut would."""

from __future__ import annotations

import os


def fail_point(name: str) -> None:
    """End the process here, without any cleanup, when NIGHTSCHOOL_FAILPOINT is `name`."""
    if os.environ.get("NIGHTSCHOOL_FAILPOINT") == name:
        os._exit(137)
