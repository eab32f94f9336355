"""`python -m nightschool` is `nightschool`."""

import sys

from nightschool.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
