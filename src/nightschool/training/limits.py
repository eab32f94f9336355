"""How much of a step is held at once; the trainer keeps to it, and a plan counts with it."""

from __future__ import annotations

TOKEN_BUDGET = 4096  # of a pack
KEEP_BYTES = 2 << 30  # of activations; layers beyond keep their input alone, and are computed once more
ROWS = 2048  # between two products, on a processor: fewer cost more calls than they save memory
CHUNK_ROWS = 256  # of the output layer
TILE = 4096  # of its vocabulary: with these rows, 2 MB of logits in bfloat16
