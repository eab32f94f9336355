"""`python -m nightschool.engine --model FOLDER --port N`: serve one base model and its adapters."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from nightschool.access.tokens import is_loopback
from nightschool.errors import ConfigError, NightschoolError, RefusedError

if TYPE_CHECKING:
    from nightschool.engine.service import Engine

KEY_VARIABLE = "NIGHTSCHOOL_ENGINE_KEY"
KEEP_ALIVE_S = 120  # longer than clients keep theirs: a request must not meet a connection that is being closed


def main(arguments: list[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    try:
        key = os.environ.get(KEY_VARIABLE) or None
        if not is_loopback(asked.host) and key is None:
            raise RefusedError(
                f"The engine does not listen on {asked.host}.",
                "Others could reach it, and no key is set.",
                f"Set {KEY_VARIABLE}, or listen on 127.0.0.1.",
            )
        _serve(asked, key)
    except NightschoolError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nightschool.engine", description=__doc__)
    parser.add_argument("--model", required=True, help="a model folder, a fetched name or a hub id")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="a further Host to answer to")
    parser.add_argument("--port", type=int, default=8701, help="0 takes a free one; the ready line names it")
    parser.add_argument("--adapters", type=Path, help="the only folder adapters are loaded from")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--device", help="cpu, cuda, cuda:1; by default the GPU if there is one")
    parser.add_argument("--max-batch", type=int, default=32, help="sequences decoded together")
    parser.add_argument("--capacity", type=int, default=4096, help="longest sequence, prompt and reply together")
    parser.add_argument("--kept-mb", type=int, default=512, help="memory for prefixes of finished sequences")
    return parser


def _serve(asked: argparse.Namespace, key: str | None) -> None:
    # A thread that waits for its peer spins, by default for milliseconds: with other work on the same cores
    # a decode step then takes seconds. Read by OpenMP when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    with _bind(asked.host, asked.port) as listening:
        # OpenMP hardly spins at all once it has more threads than cores, and each thread that computes brings its own:
        # the one that loads ends before the network's begins.
        with ThreadPoolExecutor(1) as loading:
            engine = loading.submit(_load, asked, key).result()
        _listen(engine, listening, asked.host, asked.allow_host)


def _load(asked: argparse.Namespace, key: str | None) -> Engine:
    import torch

    from nightschool.engine.service import Engine, Settings
    from nightschool.models.base import load_base
    from nightschool.models.fetch import find_model

    folder = find_model(asked.model)
    torch.set_num_threads(_threads())
    base = load_base(folder, None if asked.dtype == "auto" else getattr(torch, asked.dtype), asked.device)
    return Engine(base, Settings(asked.adapters, key, asked.max_batch, asked.capacity, asked.kept_mb << 20))


def _listen(engine: Engine, listening: socket.socket, host: str, names: list[str]) -> None:
    import uvicorn

    from nightschool.engine.server import build_app

    facts = engine.health()
    url = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
    named = " ".join(f"{name}={facts[name]}" for name in ("model", "device", "dtype", "capacity"))

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(f"engine ready url={url} {named}", flush=True)

    app = build_app(engine, (host, *names))
    config = uvicorn.Config(
        app, log_level="warning", ws="none", timeout_graceful_shutdown=3, timeout_keep_alive=KEEP_ALIVE_S
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again after its shutdown
    Server(config).run(sockets=[listening])


def _threads() -> int:
    """As many as cores this process may use, or as OMP_NUM_THREADS says."""
    if (asked := os.environ.get("OMP_NUM_THREADS", "")).isdigit():
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bind(host: str, port: int) -> socket.socket:
    """Take the port before the model is loaded, so that a taken one is told at once."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"The engine cannot listen on {host}:{port}.", str(error), "Choose another --port; 0 takes a free one."
        ) from error
    return listening


if __name__ == "__main__":
    sys.exit(main())
