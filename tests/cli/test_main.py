"""What every command line has in common: help, exit codes, one JSON document, no traceback."""

import errno
import json
import resource
import subprocess
import sys

import pytest

from nightschool.cli import main as entry
from nightschool.cli.commands import COMMANDS
from nightschool.cli.main import main
from nightschool.errors import (
    AdapterError,
    BusyError,
    ConfigError,
    InterruptedRun,
    MissingError,
    NightschoolError,
    RefusedError,
    TooLittleDataError,
)

HEAVY = ("torch", "transformers", "scipy", "numpy", "sqlalchemy", "starlette", "uvicorn", "rich", "typer")
HELP = "import sys; from nightschool.cli.main import main; main(['--help'])"


def test_help_imports_nothing_heavy():
    code = f"{HELP}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_help_takes_less_than_150_ms_of_the_processor():
    """Processor time, not the clock: the machine may be busy with other things."""

    def spent() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", HELP], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(spent() for _ in range(5)) < 0.150


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_shows_one_example_and_needs_no_torch(command):
    code = (
        f"import sys; from nightschool.cli.main import main; main([{command!r}, '--help'])\n"
        "assert not {'torch', 'transformers', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Example: nightschool " in done.stdout
    assert f"Usage: nightschool {command}" in done.stdout


def test_the_list_has_every_command_by_stage_and_the_exit_codes(capsys):
    assert main([]) == 0
    told = capsys.readouterr().out
    stages = [line.split()[0] for line in told.splitlines() if line[:1].isalpha() and "nightschool " in line]
    assert [stage for stage in stages if stage in ("run", "look", "teach", "decide", "care")] == [
        "run",
        "look",
        "teach",
        "decide",
        "care",
    ]
    assert all(command.example in told for command in COMMANDS)
    assert "130 interrupted, resumable" in told


def test_unknown_words_suggest_the_nearest(capsys):
    assert main(["promte"]) == 2
    assert capsys.readouterr().err == (
        "There is no command 'promte'.\nPerhaps 'promote' was meant.\nnightschool promote --help\n"
    )
    assert main(["promote"]) == 2
    assert "Missing argument" in capsys.readouterr().err
    assert main(["status", "--agnet", "x"]) == 2
    assert main(["status", "--state"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (ConfigError("a", "b", "c"), 2, "error"),
        (RefusedError("a", "b", "c"), 3, "refusal"),
        (AdapterError("a", "b", "c"), 3, "refusal"),
        (TooLittleDataError("a", "b", "c"), 4, "refusal"),
        (MissingError("a", "b", "c"), 5, "error"),
        (BusyError("a", "b", "c"), 6, "error"),
        (InterruptedRun("a", "b", "c"), 130, "error"),
        (NightschoolError("a", "b", "c"), 1, "error"),
    ],
)
def test_expected_errors(monkeypatch, capsys, error, code, kind):
    def fail(_given):
        raise error

    monkeypatch.setattr(entry, "_run", fail)
    assert main(["status"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "a\nb\nc\n")
    assert main(["status", "--json"]) == code
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    other = {"error": "refusal", "refusal": "error"}[kind]
    assert captured.err == ""
    assert document[kind] == {"what": "a", "why": "b", "next": "c"}
    assert (document["schema"], document["kind"], document["answer"], document["data"]) == (1, kind, "a", None)
    assert document[other] is None
    assert document["as_of"].endswith("Z")


@pytest.mark.parametrize(
    ("error", "code", "what"),
    [
        (KeyboardInterrupt(), 130, "Interrupted."),
        (OSError(errno.ENOSPC, "No space left on device", "/full/store"), 5, "There is no room on the disk."),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 1, "The operating system refused."),
        (
            ZeroDivisionError("division by zero"),
            1,
            "Something unexpected happened: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_unexpected_errors_show_no_traceback(monkeypatch, capsys, error, code, what):
    def fail(_given):
        raise error

    monkeypatch.delenv("NIGHTSCHOOL_DEBUG", raising=False)
    monkeypatch.setattr(entry, "_run", fail)
    assert main(["status"]) == code
    told = capsys.readouterr().err
    assert told.splitlines()[0] == what
    assert "Traceback" not in told


def test_a_mistake_of_ours_names_the_variable_that_shows_where(monkeypatch, capsys):
    def fail(_given):
        raise ZeroDivisionError

    monkeypatch.setattr(entry, "_run", fail)
    monkeypatch.delenv("NIGHTSCHOOL_DEBUG", raising=False)
    main(["status"])
    assert "NIGHTSCHOOL_DEBUG=1" in capsys.readouterr().err
    monkeypatch.setenv("NIGHTSCHOOL_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["status"])


def test_a_reader_that_leaves_is_not_an_error():
    """`nightschool models list | true`: no traceback, whatever the pipe does."""
    code = (
        "import os, sys; from nightschool.cli.main import main\n"
        "read, write = os.pipe(); os.close(read); os.dup2(write, 1)\n"
        "sys.exit(main(['models', 'list']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_common_options_stand_anywhere(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["--state", "s", "--json", "status"], ["status", "--json", "--state=s"]):
        assert main(words) == 5
        assert json.loads(capsys.readouterr().out)["error"]["what"] == "There is no store in s."


def test_a_broken_settings_file_stops_every_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nightschool.toml").write_text("colour = 1")
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err.startswith("'colour' is not a setting.")
    assert main(["doctor", "--help"]) == 0
