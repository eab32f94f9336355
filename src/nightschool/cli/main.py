"""The entry point: finds the command, runs it, and turns its answer or its error into text or JSON."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from nightschool.cli.commands import COMMANDS, Command, find_command, help_text, nearest
from nightschool.cli.progress import Progress, encodable
from nightschool.errors import InputError, InterruptedRun, NightschoolError, StoreError

if TYPE_CHECKING:
    from nightschool.cli.answer import Answer

DEBUG_VARIABLE = "NIGHTSCHOOL_DEBUG"
USAGE = "nightschool --help"


@dataclass(frozen=True, slots=True)
class Common:
    """The options that every command takes, wherever they stand on the line."""

    as_json: bool
    state: Path | None
    config: Path | None
    tenant: str | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code. No expected error shows a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    try:
        try:
            return _run(given)
        except KeyboardInterrupt:
            return _fail(InterruptedRun("Interrupted.", "It was stopped before its end.", "Run it again."), as_json)
        except NightschoolError as error:
            return _fail(error, as_json)
        except BrokenPipeError:
            raise
        except OSError as error:
            return _fail(_from_system(error), as_json)
        except Exception as error:  # boundary: what nobody foresaw
            if os.environ.get(DEBUG_VARIABLE):
                raise
            return _fail(_unexpected(error), as_json)
    except BrokenPipeError:  # the reader of our output left: there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(given: list[str]) -> int:
    common, rest = _common(given)
    if not rest or rest[0] in ("--help", "-h", "help", "--version"):
        sys.stdout.write(encodable(f"{help_text()}\n", sys.stdout))
        return 0
    command = find_command(rest[0])
    if command is None:
        meant = nearest(rest[0], tuple(known.name for known in COMMANDS))
        raise InputError(
            f"There is no command {rest[0]!r}.",
            f"Perhaps {meant!r} was meant." if meant else "",
            f"nightschool {meant} --help" if meant else USAGE,
        )
    answer = _invoke(command, rest[1:], common)
    if answer is None:  # help was asked for, or the command has answered itself
        return 0
    from nightschool.cli.output import show

    show(answer, common.as_json)
    return answer.exit_code


def _invoke(command: Command, arguments: list[str], common: Common) -> Answer | None:
    from typer.exceptions import Abort, TyperException

    from nightschool.cli.answer import Answer, Call
    from nightschool.config import load_config

    asks_help = "--help" in arguments
    if command.default and not asks_help and (not arguments or arguments[0] not in command.subcommands):
        arguments = [command.default, *arguments]
    app = import_module(f"nightschool.cli.{command.module or command.name}").app
    call = None
    if not asks_help:
        config = load_config(common.config)
        config = replace(config, state=common.state.expanduser()) if common.state else config
        config = replace(config, tenant=common.tenant) if common.tenant else config
        call = Call(config, common.as_json, Progress())
    try:
        result = app(args=arguments, prog_name=f"nightschool {command.name}", obj=call, standalone_mode=False)
    except TyperException as error:
        next_step = f"nightschool {command.name} --help"
        raise InputError("The command line was not understood.", error.format_message(), next_step) from error
    except Abort as error:
        raise KeyboardInterrupt from error
    if result == InterruptedRun.exit_code:  # typer turns Ctrl-C into this number
        raise KeyboardInterrupt
    return result if isinstance(result, Answer) else None


def _common(given: list[str]) -> tuple[Common, list[str]]:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--state", type=Path)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--tenant")
    found, rest = parser.parse_known_args(given)
    return Common(found.json, found.state, found.config, found.tenant), rest


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError("The command line was not understood.", f"{message.capitalize()}.", USAGE)


def _fail(error: NightschoolError, as_json: bool) -> int:
    from nightschool.cli.output import show_error

    show_error(error, as_json)
    return error.exit_code


def _from_system(error: OSError) -> NightschoolError:
    where = f"{error.filename}: " if error.filename else ""
    why = f"{where}{error.strerror or error}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError("There is no room on the disk.", why, "Free some space; nothing that was stored is lost.")
    return NightschoolError("The operating system refused.", why, "nightschool doctor")


def _unexpected(error: Exception) -> NightschoolError:
    return NightschoolError(
        f"Something unexpected happened: {type(error).__name__}: {error}",
        "This is a mistake in Nightschool or in a library below it, not in how it was called.",
        f"Run it again with {DEBUG_VARIABLE}=1 to see where, and report it (CONTRIBUTING.md).",
    )
