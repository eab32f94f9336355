"""The doctor's checks. Each looks at one thing, changes nothing, and knows the command that mends it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from nightschool.access.keys import KeyRing
from nightschool.access.tokens import API_KEY_VARIABLE, refuse_public_bind
from nightschool.cli.answer import STORE_FILE, Call, have_store, store_place
from nightschool.cli.loopback import health
from nightschool.cli.running import Running, read_running
from nightschool.config import Config
from nightschool.dashboard.formatting import size
from nightschool.errors import NightschoolError
from nightschool.models.fetch import KNOWN, find_model
from nightschool.releases.adapters import check_adapter
from nightschool.releases.aliases import BASE
from nightschool.store.database import Store
from nightschool.store.schema import aliases

GOOD, NOTE, BAD = "ok", "note", "broken"
LEAST_PYTHON = (3, 11)
LEAST_FREE_BYTES = 2 << 30
MODEL_PACKAGES = ("torch", "transformers", "safetensors", "gguf")


@dataclass(frozen=True, slots=True)
class Check:
    """What was found. `mend` is the command that helps, empty where nothing needs mending."""

    name: str
    state: str
    fact: str
    mend: str = ""


def all_checks(call: Call) -> list[Check]:
    """Every check, in the order in which one thing needs the next."""
    config = call.config
    running = read_running(config.state)
    looks: list[Callable[[], Check]] = [
        _python,
        _packages,
        lambda: _model_packages(config, running),
        lambda: _disk(config.state),
        lambda: _token(config.state),
        lambda: _server(config) if config.store else _store(config.state / STORE_FILE),
        lambda: _adapters(call),
        lambda: _model(config, running),
        lambda: _bind(config),
        lambda: _gateway(running),
        lambda: _engine(config, running),
    ]
    return [_looked(look) for look in looks]


def _looked(look: Callable[[], Check]) -> Check:
    try:
        return look()
    except NightschoolError as error:
        return Check("store", BAD, f"{error.what} {error.why}".strip(), error.next_step)
    except OSError as error:
        return Check("files", BAD, f"{error.filename}: {error.strerror}", "Let this user read and write it.")


def _python() -> Check:
    here = sys.version_info
    state = GOOD if here >= LEAST_PYTHON else BAD
    mend = "" if state == GOOD else "Install Python 3.11 or newer, then: make demo PYTHON=python3.11"
    return Check("python", state, f"{here.major}.{here.minor}.{here.micro}", mend)


def _packages() -> Check:
    try:
        needed = [line for line in requires("nightschool") or [] if "extra ==" not in line]
    except PackageNotFoundError:
        return Check("packages", BAD, "Nightschool itself is not installed.", "pip install -e .")
    names = [_name(line) for line in needed]
    absent = [name for name in names if _version(name) is None]
    if absent:
        return Check("packages", BAD, f"{', '.join(absent)} absent", "pip install nightschool")
    return Check("packages", GOOD, f"{len(names)} installed")


def _model_packages(config: Config, running: Running | None) -> Check:
    absent = [name for name in MODEL_PACKAGES if _version(name) is None]
    if not absent:
        return Check("model packages", GOOD, ", ".join(f"{name} {_version(name)}" for name in MODEL_PACKAGES))
    unneeded = config.engine_url or config.section("upstream").get("url") or (running is not None and not running.model)
    state = NOTE if unneeded else BAD
    return Check("model packages", state, f"{', '.join(absent)} absent", "pip install 'nightschool[train]'")


def _disk(state: Path) -> Check:
    place = next(folder for folder in (state.absolute(), *state.absolute().parents) if folder.is_dir())
    if not os.access(place, os.W_OK):
        return Check("disk", BAD, f"{place} cannot be written", "Choose another folder with --state.")
    free = shutil.disk_usage(place).free
    mend = "" if free >= LEAST_FREE_BYTES else f"Free some space; {size(LEAST_FREE_BYTES)} are wanted."
    return Check("disk", BAD if mend else GOOD, f"{size(free)} free", mend)


def _token(state: Path) -> Check:
    path = state / "token"
    if not path.exists():
        return Check("token", GOOD, "made at the first start")
    if path.stat().st_mode & 0o077:
        return Check("token", BAD, f"other users may read {path}", f"rm {path} (a new one is made at the next start)")
    return Check("token", GOOD, "readable by its owner alone")


def _store(path: Path) -> Check:
    if not path.exists():
        return Check("store", NOTE, f"nothing was recorded in {path.parent} yet", "nightschool up")
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        found = str(error)
    finally:
        connection.close()
    if found != "ok":
        return Check("store", BAD, f"{path} is damaged: {found}", "Stop `nightschool up` and restore a copy of it.")
    return Check("store", GOOD, size(path.stat().st_size))


def _server(config: Config) -> Check:
    """A database elsewhere: whether it answers, and how large it is."""
    with Store.open(store_place(config), config.tenant) as store, store.read() as conn:
        taken = conn.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one()
    return Check("store", GOOD, f"{size(taken)} in Postgres")


def _adapters(call: Call) -> Check:
    """The adapters that serve: their files are what their names say."""
    if not have_store(call.config):
        return Check("adapters", GOOD, "none serves yet")
    with Store.open(store_place(call.config), call.config.tenant) as store, store.read() as conn:
        query = aliases.select().where(aliases.c.tenant == store.tenant)
        serving = {row.agent: row.digest for row in conn.execute(query) if row.digest != BASE}
    for agent, digest in serving.items():
        try:
            check_adapter(call.config.state / "adapters" / digest, digest)
        except NightschoolError as error:
            return Check("adapters", BAD, f"{error.what} {error.why}", f"nightschool rollback --agent {agent}")
    return Check("adapters", GOOD, f"{len(serving)} serving, files unchanged")


def _model(config: Config, running: Running | None) -> Check:
    if (running is not None and not running.model) or config.section("upstream").get("url"):
        return Check("model", GOOD, "the provider has its own")
    if config.engine_url is not None:
        return Check("model", GOOD, "the engine elsewhere has its own")
    is_hub_name = not Path(config.model).expanduser().exists() and config.model.count("/") == 1
    if is_hub_name and config.model not in KNOWN:
        return Check("model", NOTE, f"{config.model} is looked up on the hub at the start")
    try:
        folder = find_model(config.model)
    except NightschoolError as error:
        state = NOTE if config.model in KNOWN else BAD  # a known one is fetched by `up`
        return Check("model", state, f"{error.what} {error.why}", error.next_step)
    return Check("model", GOOD, str(folder))


def _bind(config: Config) -> Check:
    try:
        refuse_public_bind(config.host, bool(os.environ.get(API_KEY_VARIABLE)) or _have_keys(config))
    except NightschoolError as error:
        return Check("bind", BAD, f"{error.what} {error.why}", error.next_step)
    return Check("bind", GOOD, f"{config.host}:{config.port}")


def _have_keys(config: Config) -> bool:
    if not have_store(config):
        return False
    with Store.open(store_place(config)) as store:
        return KeyRing(store, b"").had_data_key


def _gateway(running: Running | None) -> Check:
    if running is None:
        return Check("gateway", NOTE, "not running", "nightschool up")
    told = health(running.gateway_url)
    if told is None:
        return Check(
            "gateway", BAD, f"{running.gateway_url} does not answer", f"kill {running.pid}, then nightschool up"
        )
    lost = told["recording"]["lost"]
    if lost:
        return Check("gateway", BAD, f"{lost} exchanges could not be recorded", "Free disk space; see its log.")
    return Check("gateway", GOOD, f"{running.gateway_url}, {told['recording']['stored']} exchanges stored, none lost")


def _engine(config: Config, running: Running | None) -> Check:
    url, key = (running.engine_url, running.engine_key) if running else (config.engine_url, None)
    if url is None:
        return Check("engine", NOTE, "not running", "nightschool up")
    if running is not None and not running.model:  # a provider: only the gateway knows its address and its key
        found = (health(running.gateway_url) or {}).get("engine")
        mend = "" if found == "reachable" else "Callers get an error until it answers; recording goes on."
        return Check("engine", BAD if mend else GOOD, f"the provider at {url} is {found or 'not known'}", mend)
    told = health(url, key)
    if told is None:
        log = f"See {config.state / 'engine.log'}; `nightschool up` starts it again."
        return Check("engine", BAD, f"{url} does not answer", log)
    return Check("engine", GOOD, f"{url}, {told.get('model', 'a model')} on {told.get('device', 'its device')}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _name(requirement: str) -> str:
    """`uvicorn[standard]>=0.40` → `uvicorn`."""
    end = next((place for place, sign in enumerate(requirement) if sign in "<>=!~[;( "), len(requirement))
    return requirement[:end]
