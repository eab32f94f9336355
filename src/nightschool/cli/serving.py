"""Serving everything from one process: the gateway and the dashboard here, the engine as a child."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import uvicorn

from nightschool.access.identity import Access
from nightschool.access.keys import KeyRing, key_secret
from nightschool.access.privacy import read_privacy
from nightschool.access.tokens import API_KEY_VARIABLE, admin_token, refuse_public_bind
from nightschool.cli.answer import store_place
from nightschool.cli.engine_process import EngineProcess
from nightschool.cli.loopback import health
from nightschool.cli.progress import Progress
from nightschool.cli.running import Running, remove_running, write_running
from nightschool.config import Config, check_engine_url
from nightschool.dashboard.app import build_dashboard
from nightschool.engine.__main__ import KEY_VARIABLE
from nightschool.errors import BusyError, ConfigError, MissingError, NightschoolError, UpstreamError
from nightschool.feedback.settings import feedback_settings
from nightschool.gateway.app import build_app
from nightschool.gateway.server import make_server
from nightschool.gateway.settings import GatewaySettings
from nightschool.models.fetch import KNOWN, find_model
from nightschool.rendering.template import ChatTemplate
from nightschool.store.database import Store
from nightschool.store.lock import lock_state
from nightschool.upstream.client import EngineClient
from nightschool.upstream.settings import UpstreamSettings, read_upstream

TICK_S = 0.2
PORTS_TRIED = 100
SERVER_STOP_S = 15.0
GATEWAY_KEYS = (
    "allowed_hosts",
    "durability",
    "max_adapters",
    "max_body_bytes",
    "max_queue_bytes",
    "training_allowed",
)


@dataclass(frozen=True, slots=True)
class External:
    """An engine that somebody else runs. It is asked now and then, never started."""

    url: str
    key: str | None

    pid: None = None


def serve(config: Config, find_port: bool, progress: Progress, ready: Callable[[Running], None]) -> None:
    """Run until Ctrl-C or SIGTERM. `ready` is called once everything answers.

    Everything stops in the order in which it needs the rest: new requests, running ones, records, the engine.

    Raises:
        BusyError: another `up` has the state folder, or the port is taken.
        MissingError: no model, or the engine does not start.
    """
    for asked in (signal.SIGINT, signal.SIGTERM):  # a shell may have started us with Ctrl-C switched off
        signal.signal(asked, _interrupt)
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock_state(config.state))
        token = admin_token(config.state)
        store = stack.enter_context(Store.open(store_place(config), config.tenant))
        ring = KeyRing(store, key_secret(config.state))
        access = Access(token, os.environ.get(API_KEY_VARIABLE) or None, ring, store.tenant)
        refuse_public_bind(config.host, access.needs_key)
        listening = stack.enter_context(contextlib.closing(bind(config.host, config.port, find_port)))
        settings = gateway_settings(config, access)
        engine = stack.enter_context(_engine(config, settings.upstream, progress))
        server = _server(config, settings, store, engine, listening)
        thread = stack.enter_context(_started(server, listening))
        running = Running(
            pid=os.getpid(),
            gateway_url=_url(config.host, listening),
            engine_url=engine.url,
            agent=config.agent,
            model="" if settings.upstream.url else config.model,
            engine_pid=engine.pid,
            engine_key=engine.key,
        )
        write_running(config.state, running)
        stack.callback(remove_running, config.state)
        ready(running)
        _watch(config.state, engine, running, thread)


def bind(host: str, port: int, find_port: bool) -> socket.socket:
    """The gateway's socket. With `find_port` the next free port is taken, otherwise a taken one is an error."""
    ports = range(port, min(port + PORTS_TRIED, 65536)) if find_port and port else (port,)
    refusal = "It is out of range."
    for tried in ports:
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, tried))
            listening.listen(2048)
        except OSError as error:
            listening.close()
            refusal = f"{error.strerror or error}."
        else:
            return listening
    raise BusyError(
        f"Port {port} of {host} cannot be used.",
        refusal,
        f"Choose another with --port, or let one be found: nightschool up --port {port} --find-port",
    )


def gateway_settings(config: Config, access: Access) -> GatewaySettings:
    """The gateway's settings from the table [gateway]. Raises: ConfigError."""
    table = config.section("gateway")
    unknown = set(table) - set(GATEWAY_KEYS)
    if unknown:
        raise ConfigError(
            f"[gateway] has no setting {min(unknown)!r}.", f"It knows {', '.join(GATEWAY_KEYS)}.", "docs/cli.md"
        )
    settings = GatewaySettings(state=config.state, agent=config.agent, access=access)
    for known in fields(GatewaySettings):
        value = table.get(known.name)
        example = getattr(settings, known.name)
        if value is not None and known.name != "allowed_hosts" and type(value) is not type(example):
            raise ConfigError(
                f"[gateway] {known.name} = {value!r} is not a {type(example).__name__}.", "", "Correct it."
            )
    upstream = table["upstream"] = read_upstream(config.section("upstream"))
    if upstream.tokenizer is not None:
        table["tokenizer"] = _tokenizer_folder(upstream)
    table["privacy"] = read_privacy(config.section("privacy"), key_secret(config.state))
    table["feedback"] = feedback_settings(config.section("feedback"), os.environ)
    table["allowed_hosts"] = (*table.get("allowed_hosts", ()), config.host)
    return replace(settings, **table)


def _tokenizer_folder(upstream: UpstreamSettings) -> Path:
    """The declared folder, or that of a fetched model; read once, so that a fault shows before the traffic."""
    named = Path(str(upstream.tokenizer)).expanduser()
    folder = named if (named / "tokenizer.json").is_file() else find_model(str(upstream.tokenizer))
    if not upstream.gives_tokens:
        ChatTemplate.from_folder(folder)
    return folder


@contextlib.contextmanager
def _engine(config: Config, upstream: UpstreamSettings, progress: Progress) -> Iterator[EngineProcess | External]:
    """The engine, answering; a provider is taken at its word."""
    if upstream.url is not None:
        yield External(upstream.url.rstrip("/").removesuffix("/v1"), upstream.key)
        return
    if config.engine_url is not None:
        check_engine_url(config.engine_url)
        engine = External(config.engine_url.rstrip("/").removesuffix("/v1"), os.environ.get(KEY_VARIABLE) or None)
        if health(engine.url, engine.key) is None:
            raise UpstreamError(
                "The engine does not answer.",
                f"Nothing healthy is at {engine.url}.",
                "Start it, or leave --engine out.",
            )
        yield engine
        return
    process = EngineProcess(model_folder(config.model, progress), config.state, progress.tell)
    try:
        with progress.phase(f"Loading {config.model}", f"Loaded {config.model}"):
            process.start()
            process.wait_ready(lambda waited: progress.say(f"Loading {config.model}, {waited:.0f} s"))
        yield process
    finally:
        process.stop()


def model_folder(name: str, progress: Progress) -> Path:
    """The model's folder, fetched now if its name is known and it is not here yet."""
    try:
        return find_model(name)
    except MissingError:
        if name not in KNOWN:
            raise
    progress.tell(f"The model {name} is not on this machine yet.")
    _fetch_apart(name)
    return find_model(name)


def _fetch_apart(name: str) -> None:
    """Fetch in a process of its own: converting takes a gigabyte that this one would hold while it serves."""
    words = [sys.executable, "-m", "nightschool", "models", "fetch", name, "--json"]
    ended = subprocess.run(words, stdout=subprocess.PIPE, check=False)  # what it tells meanwhile goes to the terminal
    if ended.returncode:
        failure = json.loads(ended.stdout).get("error", {}) if ended.stdout.strip() else {}
        raise MissingError(
            failure.get("what", f"The model {name} was not fetched."),
            failure.get("why", f"Fetching it ended with code {ended.returncode}."),
            failure.get("next", f"nightschool models fetch {name}"),
        )


def _server(
    config: Config, settings: GatewaySettings, store: Store, engine: EngineProcess | External, listening: socket.socket
) -> uvicorn.Server:
    app: Any = None

    def facts() -> dict[str, Any]:
        """What the dashboard shows and the store does not know."""
        ours = engine if isinstance(engine, EngineProcess) else None
        return {
            "base_url": f"{_url(config.host, listening)}/v1",
            "agent": config.agent,
            "engine": f"engine {ours.state}" if ours else f"in front of {engine.url}",
            "lost": app.state.recorder.counts()["lost"],
            "model_folder": str(ours.model) if ours else None,
        }

    if isinstance(engine, EngineProcess):
        settings = replace(settings, tokenizer=engine.model)
    app = build_app(
        store, EngineClient(engine.url, engine.key), settings, build_dashboard(store, facts, settings.privacy)
    )
    return make_server(app, config.host, config.port, settings.access.needs_key)


@contextlib.contextmanager
def _started(server: uvicorn.Server, listening: socket.socket) -> Iterator[threading.Thread]:
    """Run the server in a thread: signals stay with the main thread, which stops things in order."""
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="gateway")
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise NightschoolError("The gateway did not start.", "Its server ended at once.", "nightschool doctor")
            time.sleep(0.01)
        yield thread
    finally:
        server.should_exit = True
        thread.join(SERVER_STOP_S)
        server.force_exit = True
        thread.join()


def _watch(state: Path, engine: EngineProcess | External, running: Running, thread: threading.Thread) -> None:
    """Look after the engine until somebody asks to stop. Raises: NightschoolError when the server ends by itself."""
    try:
        while thread.is_alive():
            if isinstance(engine, EngineProcess) and engine.supervise():
                write_running(state, replace(running, engine_pid=engine.pid))
            time.sleep(TICK_S)
    except KeyboardInterrupt:
        return
    raise NightschoolError("The gateway ended by itself.", "Its server stopped.", "Start it again: nightschool up")


def _url(host: str, listening: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt
