"""Look into a safetensors file without torch: its header holds together and its numbers are finite."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from nightschool.errors import AdapterError
from nightschool.types import Json

HEADER_LIMIT_BYTES = 16 * 2**20
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def check_weights(path: Path) -> int:
    """Verify a safetensors file of floats; returns the number of tensors.

    Raises:
        AdapterError: the header is broken, a tensor lies outside the file, or a value is NaN or infinite.
    """
    data = path.read_bytes()
    header, start = _read_header(path, data)
    if not header:
        raise _broken(path, "It holds no tensors.")
    for name, entry in header.items():
        raw = _tensor_bytes(path, data, start, name, entry)
        if not _finite(raw, entry["dtype"]):
            raise _broken(path, f"{name} holds a value that is not finite.")
    return len(header)


def _read_header(path: Path, data: bytes) -> tuple[Json, int]:
    size = int.from_bytes(data[:8], "little") if len(data) >= 8 else -1
    if not 2 <= size <= min(HEADER_LIMIT_BYTES, len(data) - 8):
        raise _broken(path, "Its header's length does not fit the file.")
    try:
        header = json.loads(data[8 : 8 + size])
    except ValueError as error:
        raise _broken(path, f"Its header is not JSON: {error}.") from error
    if not isinstance(header, dict):
        raise _broken(path, "Its header is not an object.")
    header.pop("__metadata__", None)
    return header, 8 + size


def _tensor_bytes(path: Path, data: bytes, start: int, name: str, entry: Json) -> bytes:
    try:
        first, end = entry["data_offsets"]
        expected = math.prod(entry["shape"]) * SIZES[entry["dtype"]]
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(path, f"{name} has no offsets, no shape or no float type.") from error
    if not 0 <= first <= end <= len(data) - start or end - first != expected:
        raise _broken(path, f"{name} lies outside the file.")
    return data[start + first : start + end]


def _finite(raw: bytes, dtype: str) -> bool:
    if dtype == "BF16":  # numpy has no bfloat16; all eight exponent bits set means infinite or NaN
        return not np.any((np.frombuffer(raw, "<u2") & 0x7F80) == 0x7F80)
    return bool(np.isfinite(np.frombuffer(raw, f"<f{SIZES[dtype]}")).all())


def _broken(path: Path, why: str) -> AdapterError:
    return AdapterError(f"{path.parent.name[:12]}/{path.name} cannot serve.", why, "nightschool doctor")
