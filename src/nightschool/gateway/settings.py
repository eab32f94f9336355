"""What the gateway is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from nightschool.access.identity import Access
from nightschool.access.privacy import Privacy
from nightschool.errors import ConfigError
from nightschool.feedback.settings import FeedbackSettings
from nightschool.upstream.settings import UpstreamSettings

# Whether the final byte of a reply waits until its exchange is stored: no, yes, no and the store is in no hurry.
DURABILITY_MODES = ("reply_first", "before_reply", "none")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`agent` is the name the base model serves until that agent has a release.

    `base_model` is the engine's name of the base, `None` to ask the engine. `training_allowed` is the
    installation's consent; a request can only narrow it. `tokenizer` is the model folder that the engine's ids
    are checked against, or that stands in for an engine without ids. `allowed_hosts` adds names (without port)
    under which the gateway may be addressed. `durability` is one of `DURABILITY_MODES`. `privacy` says what is
    taken out of exchanges before they are stored.
    """

    state: Path
    agent: str
    access: Access = field(repr=False)
    base_model: str | None = None
    upstream: UpstreamSettings = field(default_factory=UpstreamSettings)
    tokenizer: Path | None = None
    training_allowed: bool = True
    max_body_bytes: int = 32 * 2**20
    max_adapters: int = 4
    durability: str = "reply_first"
    max_queue_bytes: int = 256 * 2**20
    allowed_hosts: tuple[str, ...] = ()
    privacy: Privacy = field(default_factory=Privacy)
    feedback: FeedbackSettings = field(default_factory=FeedbackSettings)

    def __post_init__(self) -> None:
        if self.durability not in DURABILITY_MODES:
            raise ConfigError(
                f"[gateway] durability = {self.durability!r} is no mode.",
                f"The modes are {', '.join(DURABILITY_MODES)}.",
                "docs/gateway.md says what each can lose.",
            )
