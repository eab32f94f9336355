"""vLLM itself, on this machine's CPU, as a process that ends with the block."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

READY_S = 600.0  # 30 s on a machine that does nothing else
MAX_RANK = 16


@contextlib.contextmanager
def running_vllm(python: str, model: Path, folder: Path) -> Iterator[str]:
    """Serve `model` under its folder's name; yields the URL. What the server says is in `folder`/vllm.log."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    log = folder / "vllm.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            _command(python, model, port), stdout=said, stderr=said, env=_environment(folder), start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_ready(process, url, log)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):  # its engine is a child of its own
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _command(python: str, model: Path, port: int) -> list[str]:
    template = files("nightschool.rendering") / "chatml.jinja"
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", str(model), "--served-model-name", model.name, "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", "2048", "--max-num-seqs", "4"]
    command += ["--enable-lora", "--max-lora-rank", str(MAX_RANK), "--max-loras", "2", "--max-cpu-loras", "4"]
    command += ["--logprobs-mode", "processed_logprobs"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    return [*command, "--chat-template", str(template), "--chat-template-content-format", "openai"]


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of our own environment's packages; nothing is fetched and nothing is told to anybody."""
    passed = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return passed | {
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "TORCHDYNAMO_DISABLE": "1",  # or it compiles a sum over log-probabilities, eager or not, and wants a g++
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{url}/health", timeout=2):
            return
        time.sleep(0.5)
    raise AssertionError(f"vLLM did not come up:\n{log.read_text(errors='replace')[-4000:]}")
