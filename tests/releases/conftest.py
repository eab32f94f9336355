import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nightschool.releases.manifest import Manifest


@pytest.fixture
def manifest() -> Manifest:
    return Manifest(
        agent="shop",
        base_digest="b" * 64,
        tokenizer_digest="c" * 64,
        template_digest="d" * 64,
        targets=("q_proj", "v_proj"),
        parent_digest=None,
        dataset_digest="e" * 64,
        code_version="0.1.0",
        run_id="r-1",
    )


@pytest.fixture
def make_folder(tmp_path) -> Callable[..., Path]:
    """A PEFT folder with one float32 tensor, written without torch."""

    def make(name: str = "made", values: tuple[float, ...] = (1.0, 2.0), base: str = "/home/a/model") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        config = {"base_model_name_or_path": base, "peft_type": "LORA", "r": 1, "target_modules": ["q_proj", "v_proj"]}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        (folder / "adapter_model.safetensors").write_bytes(safetensors({"w": np.array(values, dtype="<f4")}))
        return folder

    return make


def safetensors(tensors: dict[str, np.ndarray], dtype: str = "F32") -> bytes:
    header, body = {}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body
