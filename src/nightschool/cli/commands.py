"""The table of commands: what `nightschool --help` lists, and where each one lives. Imports nothing heavy."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from nightschool import __version__

STAGES = ("run", "look", "teach", "decide", "care")


@dataclass(frozen=True, slots=True)
class Command:
    """One command. Its file is `nightschool.cli.<name>`, which holds a typer `app`.

    `subcommands` are those of a group; what else follows the group's name is an argument of `default`.
    `module` names the file where the command's name cannot.
    """

    name: str
    stage: str
    summary: str
    example: str
    subcommands: tuple[str, ...] = ()
    default: str = ""
    module: str = ""


COMMANDS = (
    Command("up", "run", "Serve: gateway, dashboard and engine.", "nightschool up --agent support-shop"),
    Command("record", "run", "Record in front of a provider.", "nightschool record --upstream https://api.example.com"),
    Command("demo", "run", "Watch an agent get better in two nights.", "nightschool demo --seed 1"),
    Command(
        "models",
        "run",
        "Fetch and list base models.",
        "nightschool models fetch smollm2-135m",
        ("fetch", "list"),
        "list",
    ),
    Command("status", "look", "Is it working, is it getting better.", "nightschool status --agent support-shop"),
    Command("explain", "look", "What became of one exchange, and why.", "nightschool explain chatcmpl-7f3a"),
    Command(
        "feedback",
        "look",
        "What was heard, what waits; files of it.",
        "nightschool feedback import tickets.csv --dry-run",
        ("list", "show", "import", "export", "parked", "read", "rates", "signals"),
        "list",
    ),
    Command("import", "teach", "Take in logs of other tools.", "nightschool import traces.jsonl", module="imports"),
    Command(
        "export",
        "teach",
        "Write what was recorded as a file for others.",
        "nightschool export sft --agent support-shop --out sft.jsonl",
        module="exports",
    ),
    Command("objectives", "teach", "What may be learned from what there is.", "nightschool objectives"),
    Command("audit", "teach", "What rewards are worth, before a run.", "nightschool audit --agent support-shop"),
    Command(
        "plan", "teach", "What a run would take, and whether it fits.", "nightschool plan --model 7b --device h100"
    ),
    Command("train", "teach", "Train a candidate.", "nightschool train --objective sft --data handbook.jsonl"),
    Command("stages", "teach", "Run a sequence of stages.", "nightschool stages --leave-one-out"),
    Command(
        "gate",
        "decide",
        "Examine a candidate, show its verdict.",
        'nightschool gate run 80c2ab --harness "python shop.py"',
        ("open", "close", "run", "show"),
        "show",
    ),
    Command("start", "decide", "Give an agent its first release.", "nightschool start 80c2ab --agent support-shop"),
    Command("promote", "decide", "Let a candidate serve that passed.", "nightschool promote 80c2ab"),
    Command("rollback", "decide", "Go back to the release before.", "nightschool rollback --reason complaints"),
    Command(
        "keys",
        "care",
        "Make, list and revoke keys.",
        "nightschool keys add support-bot --rate 600",
        ("add", "list", "revoke"),
        "list",
    ),
    Command("retain", "care", "Delete what is too old to keep.", "nightschool retain --dry-run"),
    Command("doctor", "care", "What is broken, and what mends it.", "nightschool doctor"),
)

CODES = (
    "0 done or promote · 1 unexpected · 2 usage · 3 refused · 4 not enough data · 5 something is missing ·\n"
    "  6 busy · 130 interrupted, resumable"
)


def find_command(name: str) -> Command | None:
    return next((command for command in COMMANDS if command.name == name), None)


def nearest(word: str, names: tuple[str, ...]) -> str | None:
    """The name that was probably meant."""
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return close[0] if close else None


def help_text() -> str:
    """What `nightschool --help` prints: the commands by stage, each with one example."""
    lines = ["Nightschool: the model behind an agent learns from its own live work.", ""]
    lines += ["Usage: nightschool COMMAND [OPTIONS]     nightschool COMMAND --help", ""]
    width = max(len(command.summary) for command in COMMANDS)
    for stage in STAGES:
        for number, command in enumerate(command for command in COMMANDS if command.stage == stage):
            head = stage if number == 0 else ""
            lines.append(f"{head:<7}{command.name:<10} {command.summary:<{width}}  {command.example}")
    lines += [
        "",
        "Every command takes",
        "  --json           one JSON document on stdout, also for refusals and errors",
        "  --state FOLDER   where everything is kept (default ./.nightschool, or NIGHTSCHOOL_STATE)",
        "  --config FILE    settings (default ./nightschool.toml where it lies)",
        "  --tenant NAME    whose rows are meant (default `default`, or NIGHTSCHOOL_TENANT)",
        "",
        f"Exit codes: {CODES}",
        f"Version {__version__}",
    ]
    return "\n".join(lines)
