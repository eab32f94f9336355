"""Marks on an exchange that looks damaged although its reply is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nightschool.gateway.dialects.sse import load_json
from nightschool.types import Choice, Json

SUSPECT_EMPTY_ARGS = "suspect_empty_args"


def suspicions(tools: Sequence[Json], choices: Sequence[Choice]) -> tuple[str, ...]:
    """`suspect_empty_args` where a call has no arguments and its tool requires some."""
    needing = {function["name"] for tool in tools if (function := _function(tool)) and _required(function)}
    if not needing:
        return ()
    calls = [call for choice in choices for call in _listed(choice.message.get("tool_calls"))]
    empty = any(_function(call).get("name") in needing and _is_empty(_function(call)) for call in calls)
    return (SUSPECT_EMPTY_ARGS,) if empty else ()


def _function(holder: Any) -> Json:
    function = holder.get("function") if isinstance(holder, dict) else None
    return function if isinstance(function, dict) and isinstance(function.get("name"), str) else {}


def _required(function: Json) -> bool:
    parameters = function.get("parameters")
    return isinstance(parameters, dict) and bool(parameters.get("required"))


def _is_empty(function: Json) -> bool:
    arguments = function.get("arguments")
    if not isinstance(arguments, str) or not arguments.strip():
        return True
    try:
        return load_json(arguments) in ({}, None)
    except ValueError:
        return False


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
