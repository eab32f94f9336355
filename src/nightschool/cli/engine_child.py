"""The embedded engine as a child of `up`: it ends when its parent does, however that ended.

The parent holds the other end of stdin and never writes; end of file means that it is gone.
"""

from __future__ import annotations

import os
import sys
import threading

from nightschool.engine.__main__ import main


def _until_orphaned() -> None:
    os.read(0, 1)  # not through sys.stdin: its lock would be held when the interpreter ends
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_until_orphaned, daemon=True).start()
    sys.exit(main())
