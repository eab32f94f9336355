"""What `nightschool doctor --security` looks at: who may reach this installation, and what it keeps."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from nightschool.access.audit import check_chain
from nightschool.access.identity import Access
from nightschool.access.keys import KeyRing, list_keys
from nightschool.access.personal import KINDS
from nightschool.access.privacy import read_privacy
from nightschool.access.tokens import API_KEY_VARIABLE, is_loopback
from nightschool.cli.answer import STORE_FILE, Call, have_store, store_place
from nightschool.cli.checks import BAD, GOOD, NOTE, Check
from nightschool.config import Config
from nightschool.store.database import Store

PRIVATE_FILES = ("token", "keys.secret", "up.json", STORE_FILE)


def posture(call: Call) -> list[Check]:
    """Every look, in the order in which a request meets what it is about."""
    config = call.config
    looks: list[Callable[[], Check]] = [lambda: _hosts(config), lambda: _upstream(config), lambda: _files(config.state)]
    if not have_store(config):
        return [*(look() for look in looks), Check("store", NOTE, "nothing is recorded yet", "nightschool up")]
    with Store.open(store_place(config), config.tenant) as store:
        access = Access("", os.environ.get(API_KEY_VARIABLE) or None, KeyRing(store, b""), store.tenant)
        looks = [
            lambda: _reach(config, access),
            *looks,
            lambda: _keys(store),
            lambda: _consent(config, access),
            lambda: _redaction(config),
            lambda: _retention(config, store),
            lambda: _audit(store),
        ]
        return [look() for look in looks]


def _reach(config: Config, access: Access) -> Check:
    where = f"listens on {config.host}:{config.port}"
    if access.needs_key:
        return Check("reach", GOOD, f"{where}; agents need a key")
    if is_loopback(config.host):
        return Check("reach", NOTE, f"{where}; programs of this machine need no key", "nightschool keys add NAME")
    return Check("reach", BAD, f"{where}, and no key is set", "nightschool keys add NAME")


def _hosts(config: Config) -> Check:
    names = config.section("gateway").get("allowed_hosts", [])
    return Check("hosts", GOOD, f"this machine's names{', '.join(['', *names])}; pages of other origins are refused")


def _upstream(config: Config) -> Check:
    url = config.section("upstream").get("url") or config.engine_url
    if url is None:
        return Check("engine", GOOD, "a child process, on loopback, with a key of its own")
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        return Check("engine", BAD, f"{parts.hostname} is asked without encryption", "Give its address as https.")
    return Check("engine", GOOD, f"{parts.scheme}://{parts.hostname}")


def _files(state: Path) -> Check:
    if not state.exists():
        return Check("files", GOOD, "none yet")
    if not stat.S_IMODE(state.stat().st_mode) & 0o077:
        return Check("files", GOOD, f"{state} is for its owner alone")
    there = [state / name for name in PRIVATE_FILES if (state / name).exists()]
    open_ones = [path.name for path in there if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if open_ones:
        return Check("files", BAD, f"other users may read {', '.join(open_ones)}", f"chmod 700 {state}")
    return Check("files", GOOD, "readable by their owner alone")


def _keys(store: Store) -> Check:
    with store.read() as conn:
        active = [key for key in list_keys(conn, store.tenant) if key.revoked_at is None]
    roles = Counter(key.role.value for key in active)
    told = ", ".join(f"{count} {role}" for role, count in sorted(roles.items())) or "none"
    unlimited = sum(key.rate_per_minute is None for key in active)
    if unlimited:
        return Check("keys", NOTE, f"{told}; {unlimited} without a rate", "nightschool keys add NAME --rate 600")
    return Check("keys", GOOD, told)


def _consent(config: Config, access: Access) -> Check:
    if config.section("gateway").get("training_allowed", True) is False:
        return Check("consent", GOOD, "nothing recorded may train")
    rule = (
        "several tenants: training only for keys that allow it" if access.is_shared else "one tenant: training allowed"
    )
    return Check("consent", GOOD, f"{rule}, unless a key or a request denies it")


def _redaction(config: Config) -> Check:
    kinds = read_privacy(config.section("privacy")).redact
    if kinds:
        return Check("redaction", GOOD, f"secrets, {', '.join(kinds)}")
    return Check("redaction", NOTE, "secrets, no personal data", f"redact = [{', '.join(KINDS)}] below [privacy]")


def _retention(config: Config, store: Store) -> Check:
    days = read_privacy(config.section("privacy")).days_of(store.tenant)
    if days is None:
        return Check("retention", NOTE, "everything is kept for ever", "keep_days below [privacy]")
    return Check("retention", GOOD, f"{days:g} days, whenever `nightschool retain` runs")


def _audit(store: Store) -> Check:
    with store.read() as conn:
        chain = check_chain(conn, store.tenant)
    if chain.broken_at:
        return Check("audit", BAD, f"the chain is broken at {chain.broken_at}", "Compare with a copy of the store.")
    return Check("audit", GOOD, f"{chain.length} entries, whole; head {chain.head or 'none'}")
