"""Immutable adapters: a PEFT folder under its own digest, and the checks before it may serve."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from nightschool.errors import AdapterError, MissingError
from nightschool.releases.manifest import DIGEST, Manifest, read_manifest
from nightschool.releases.weights import check_weights
from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.store.failpoints import fail_point
from nightschool.types import Json

CONFIG, WEIGHTS, MANIFEST = "adapter_config.json", "adapter_model.safetensors", "manifest.json"
SUFFIXES = (".json", ".safetensors")
LEFTOVER_AGE_S = 3600.0


def adapter_digest(folder: Path) -> str:
    """The adapter's name: SHA-256 over its configuration, weights and manifest.

    JSON files count by content (keys sorted, spacing ignored) and lose every key that names a local path
    (`*_name_or_path`, `*_path`, `*_dir`), so that the same adapter has one name on every machine. Other
    files count byte by byte.

    Raises:
        AdapterError: a file is missing, unreadable, a link or a folder, or neither .json nor .safetensors.
    """
    total = hashlib.sha256()
    for path in _files(folder):
        content = _canonical(path) if path.suffix == ".json" else path.read_bytes()
        total.update(f"{path.name} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()


def install_adapter(store: Store, state: Path, folder: Path, manifest: Manifest) -> str:
    """Copy a PEFT folder to `state/adapters/<digest>` and enter it in the store; returns the digest.

    The copy is complete and on disk before it gets its name; installing the same adapter again changes
    nothing. The source folder is left as it is; a `manifest.json` in it is replaced by `manifest`.

    Raises:
        AdapterError: the folder is not a servable adapter, its configuration disagrees with the manifest, or the name
            is taken by other bytes.
    """
    adapters = state / "adapters"
    adapters.mkdir(parents=True, exist_ok=True)
    _sweep(adapters)
    copy = Path(tempfile.mkdtemp(prefix=".tmp-", dir=adapters))
    try:
        digest = _fill(copy, folder, manifest)
        target = adapters / digest
        if not target.exists():
            _take_name(copy, target)
        check_adapter(target, digest)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    fail_point("adapter.named")
    store.write(lambda conn: _enter(conn, store.tenant, digest, manifest))
    return digest


def check_adapter(
    folder: Path,
    digest: str,
    base_digest: str | None = None,
    tokenizer_digest: str | None = None,
    template_digest: str | None = None,
) -> Manifest:
    """Verify that an installed folder still is what its name says and fits what runs; returns its manifest.

    Only the digests that are given are compared.

    Raises:
        AdapterError: bytes changed, or made for another base, tokenizer or template.
        MissingError: the folder is gone.
    """
    if not folder.is_dir():
        raise MissingError(
            f"Adapter {digest[:12]} is not on this machine.",
            f"{folder.name[:12]} is absent from the adapters folder.",
            "nightschool doctor",
        )
    found = adapter_digest(folder)
    if found != digest:
        raise AdapterError(
            f"Adapter {digest[:12]} refuses to serve.",
            f"Its files were changed: they now have the digest {found[:12]}.",
            "nightschool rollback",
        )
    manifest = read_manifest(folder / MANIFEST)
    running = {"base": base_digest, "tokenizer": tokenizer_digest, "template": template_digest}
    for name, expected in running.items():
        trained_on = getattr(manifest, f"{name}_digest")
        if expected is not None and trained_on != expected:
            raise AdapterError(
                f"Adapter {digest[:12]} refuses to serve.",
                f"It was trained on {name} {trained_on[:12]}, and {expected[:12]} is running.",
                "nightschool models list",
            )
    return manifest


def find_manifest(conn: sa.Connection, tenant: str, digest: str) -> Manifest | None:
    """The stored manifest of an installed adapter."""
    t = schema.adapters
    raw = conn.execute(sa.select(t.c.manifest).where(t.c.tenant == tenant, t.c.digest == digest)).scalar()
    return None if raw is None else Manifest(**{**raw, "targets": tuple(raw["targets"])})


def _fill(copy: Path, folder: Path, manifest: Manifest) -> str:
    """Copy the source's files and the manifest, verify what was copied, force it to disk."""
    for path in _files(folder, needs=(CONFIG, WEIGHTS)):
        if path.name != MANIFEST:
            shutil.copyfile(path, copy / path.name)
    text = json.dumps(manifest.as_json(), indent=1, sort_keys=True)
    (copy / MANIFEST).write_text(text + "\n", encoding="utf-8")
    for path in _files(copy):
        if path.suffix == ".safetensors":
            check_weights(path)
    _check_config(copy, manifest)
    for path in _files(copy):
        _sync(path)
    _sync(copy)
    return adapter_digest(copy)


def _take_name(copy: Path, target: Path) -> None:
    try:
        copy.rename(target)
    except OSError:
        if not target.is_dir():  # otherwise somebody installed the same adapter meanwhile; its bytes are checked next
            raise
    _sync(target.parent)


def _check_config(folder: Path, manifest: Manifest) -> None:
    config = _read_json(folder / CONFIG)
    targets = config.get("target_modules") if isinstance(config, dict) else None
    if not isinstance(targets, list) or sorted(targets) != sorted(manifest.targets):
        raise AdapterError(
            "The adapter was not installed.",
            f"Its configuration trains {targets}, its manifest says {sorted(manifest.targets)}.",
            "nightschool train",
        )
    for name in ("base_digest", "tokenizer_digest", "template_digest"):
        if not DIGEST.fullmatch(getattr(manifest, name)):
            raise AdapterError(
                "The adapter was not installed.", f"Its {name} is not a SHA-256 digest.", "nightschool train"
            )


def _files(folder: Path, needs: tuple[str, ...] = (CONFIG, WEIGHTS, MANIFEST)) -> list[Path]:
    """The files of an adapter folder in name order, after checking that nothing else lies there."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in paths:
        if path.is_symlink() or not path.is_file() or path.suffix not in SUFFIXES:
            raise AdapterError(
                f"The adapter in {folder.name[:12]} is refused.",
                f"{path.name} is not a plain .json or .safetensors file.",
                "Remove it and try again.",
            )
    absent = set(needs) - {path.name for path in paths}
    if absent:
        raise AdapterError(
            f"The adapter in {folder.name[:12]} is incomplete.", f"{min(absent)} is absent.", "nightschool train"
        )
    return paths


def _canonical(path: Path) -> bytes:
    content = _without_paths(_read_json(path))
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(
            f"{path.parent.name[:12]}/{path.name} cannot be read.", str(error), "nightschool doctor"
        ) from error


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not k.endswith(("_name_or_path", "_path", "_dir"))}
        return {key: _without_paths(item) for key, item in kept.items()}
    return [_without_paths(item) for item in value] if isinstance(value, list) else value


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(adapters: Path) -> None:
    """Remove what an installation that was killed left behind."""
    for path in adapters.glob(".tmp-*"):
        if time.time() - path.stat().st_mtime > LEFTOVER_AGE_S:
            shutil.rmtree(path, ignore_errors=True)


def _enter(conn: sa.Connection, tenant: str, digest: str, manifest: Manifest) -> None:
    t = schema.adapters
    known = conn.execute(sa.select(t.c.digest).where(t.c.tenant == tenant, t.c.digest == digest)).scalar()
    if known is not None:
        return
    row: Json = {
        "tenant": tenant,
        "digest": digest,
        "agent": manifest.agent,
        "parent_digest": manifest.parent_digest,
        "run_id": manifest.run_id,
        "manifest": manifest.as_json(),
        "created_at": time.time(),
    }
    conn.execute(t.insert().values(**row))
