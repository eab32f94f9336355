"""Read by OpenMP when torch is first loaded: threads that wait for each other do not spin for milliseconds."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
