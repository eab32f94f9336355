"""The table [upstream]: which engine or provider answers, and what it can do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from nightschool.config import check_engine_url
from nightschool.errors import ConfigError

WORDS = ("chat", "completions", "responses", "messages")


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """`url` is a provider's or an engine's address, `None` for the engine that `up` runs or was given.

    `speaks` names the dialects it understands. `gives_tokens` is False for one that knows no
    `return_token_ids`; requests then reach it as they came. `key_env` names the environment variable with the
    key for it; without one, the caller's own key is passed on to a `url`, and to nobody else. `tokenizer` is a
    model folder or the name of a fetched model by which the text of an engine without ids is encoded.
    `any_model` passes every `model` on as it came, where aliases of ours do not know it.
    """

    url: str | None = None
    speaks: tuple[str, ...] = ("chat", "completions")
    gives_tokens: bool = True
    key_env: str | None = None
    tokenizer: str | None = None
    any_model: bool = False

    @property
    def key(self) -> str | None:
        """The key for the upstream, from the environment. Raises: ConfigError when the variable is empty."""
        if self.key_env is None:
            return None
        key = os.environ.get(self.key_env)
        if not key:
            raise _refuse(f"[upstream] key_env = {self.key_env!r} names a variable that is not set.")
        return key

    @property
    def passes_headers(self) -> bool:
        """Whether the client's own headers go along: to a configured address alone."""
        return self.url is not None

    @property
    def passes_key(self) -> bool:
        return self.url is not None and self.key_env is None


def read_upstream(table: Mapping[str, Any]) -> UpstreamSettings:
    """The settings of a table [upstream]. Raises: ConfigError."""
    settings = UpstreamSettings()
    known = {field.name: getattr(settings, field.name) for field in fields(settings)}
    unknown = set(table) - set(known)
    if unknown:
        raise _refuse(f"[upstream] has no setting {min(unknown)!r}.", f"It knows {', '.join(known)}.")
    for name, value in table.items():
        if name == "speaks":
            if not isinstance(value, list | tuple) or not value or not set(value) <= set(WORDS):
                raise _refuse(f"[upstream] speaks = {value!r} is not understood.", f"It lists {', '.join(WORDS)}.")
        elif isinstance(known[name], bool) != isinstance(value, bool) or not isinstance(value, bool | str):
            raise _refuse(f"[upstream] {name} = {value!r} is not understood.")
    if "url" in table:
        check_engine_url(table["url"])
    return replace(settings, **{name: tuple(v) if name == "speaks" else v for name, v in table.items()})


def _refuse(what: str, why: str = "") -> ConfigError:
    return ConfigError(what, why, "Correct it; docs/gateway.md lists the settings.")
