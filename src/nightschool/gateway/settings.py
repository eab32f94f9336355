"""What the gateway is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from nightschool.access.identity import Access
from nightschool.upstream.settings import UpstreamSettings


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`agent` is the name the base model serves until that agent has a release.

    `base_model` is the engine's name of the base, `None` to ask the engine. `training_allowed` is the
    installation's consent; a request can only narrow it. `allowed_hosts` adds names (without port) under
    which the gateway may be addressed.
    """

    state: Path
    agent: str
    access: Access = field(repr=False)
    base_model: str | None = None
    upstream: UpstreamSettings = field(default_factory=UpstreamSettings)
    training_allowed: bool = True
    max_body_bytes: int = 32 * 2**20
    max_adapters: int = 4
    max_queue_bytes: int = 256 * 2**20
    allowed_hosts: tuple[str, ...] = ()
