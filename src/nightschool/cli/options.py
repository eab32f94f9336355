"""Options that several commands share, and what they mean when they are left out."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

AgentOption = Annotated[str | None, typer.Option("--agent", help="The agent's name; by default the only one known.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is recorded.")]


def new_app() -> typer.Typer:
    """One command or group of `nightschool`. Plain help: rich would take half a second."""
    return typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=False)


def who() -> str:
    """Who is recorded as the maker of a move."""
    try:
        return f"{getpass.getuser()} (command line)"
    except (KeyError, OSError):  # a container without a user database
        return "command line"
