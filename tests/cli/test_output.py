"""Terminal, pipe, ASCII, JSON: the same answer in four clothes."""

import io
import json

import pytest

from nightschool.cli import output
from nightschool.cli.answer import Answer, Table
from nightschool.cli.drawing import axis, bar
from nightschool.cli.progress import Progress, encodable, seconds
from nightschool.dashboard.intervals import SHARE, Scale

TABLE = Table((("v1", "42 [36, 48]", "├●┤"),), ("release", "success", "0 100"), ("better",), drawn=(2,))
ANSWER = Answer(
    "status", "Getting better.", {"share": float("nan"), "seen_at": 0.0}, (TABLE,), "nightschool promote v2"
)


class Terminal(io.StringIO):
    """A stream that people look at."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    """`terminal(columns)` puts a terminal in the place of stdout."""

    def make(columns: int) -> Terminal:
        stream = Terminal()
        monkeypatch.setattr(output.sys, "stdout", stream)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        return stream

    return make


def test_a_pipe_gets_tab_separated_cells_without_bars(capsys):
    output.show(ANSWER, as_json=False)
    captured = capsys.readouterr()
    assert captured.out == "Getting better.\nrelease\tsuccess\nv1\t42 [36, 48]\n"
    assert captured.err == "nightschool promote v2\n", "a hint is not data"


def test_a_terminal_gets_columns_bars_and_color(terminal):
    stream = terminal(100)
    output.show(ANSWER, as_json=False)
    told = stream.getvalue()
    assert "\x1b[1mGetting better.\x1b[0m" in told
    assert "\x1b[36m├●┤" in told, "better is cyan"


def test_no_color_keeps_the_bars(terminal, monkeypatch):
    stream = terminal(100)
    monkeypatch.setenv("NO_COLOR", "1")
    output.show(ANSWER, as_json=False)
    assert "├●┤" in stream.getvalue()
    assert "[36m" not in stream.getvalue()


def test_a_narrow_terminal_stacks(terminal):
    stream = terminal(40)
    output.show(ANSWER, as_json=False)
    lines = [line for line in stream.getvalue().splitlines() if "42 [36" in line]
    assert lines == ["\x1b[36m  42 [36, 48]\x1b[0m"]


def test_what_a_trace_says_cannot_steer_the_terminal(terminal):
    evil = Answer("x", "say \x1b[31mred\x07", {}, (Table((("a\x1b]0;title\x07", "b\tc"),)),))
    stream = terminal(100)
    output.show(evil, as_json=False)
    assert "\x1b[31m" not in stream.getvalue()
    assert "\x1b]0;" not in stream.getvalue()
    assert stream.getvalue() == "\x1b[1msay [ESC][31mred[BEL]\x1b[0m\na[ESC]]0;title[BEL]  b c\n"


def test_json_is_one_document_with_null_for_missing(capsys):
    output.show(ANSWER, as_json=True)
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert captured.out.count("\n") == 1
    assert document["data"] == {"share": None, "seen_at": "1970-01-01T00:00:00.000Z"}
    assert (document["refusal"], document["error"], captured.err) == (None, None, "")


def test_a_refusing_answer_says_so_in_json(capsys):
    output.show(Answer("verdict", "REFUSE v5.", {}, exit_code=3, why="w", next_command="n"), as_json=True)
    assert json.loads(capsys.readouterr().out)["refusal"] == {"what": "REFUSE v5.", "why": "w", "next": "n"}


def test_ascii_terminals_get_ascii():
    class Ascii(io.StringIO):
        encoding = "ascii"

    assert encodable("✓ −3 ├─●─┤ … é", Ascii()) == "ok -3 |-o-| ... ?"
    assert encodable("lone \ud800", io.StringIO()) == "lone ?"


def test_bars():
    # 24 cells over 0..100: 42 falls on cell round(23 * .42) = 10, 36 on 8, 48 on 11
    assert bar(SHARE, (42, 36, 48)) == " " * 8 + "├─●┤" + " " * 12
    assert bar(SHARE, (42, 36, 48), solid=False) == " " * 8 + "├┄○┤" + " " * 12
    assert bar(SHARE, (None, None, None)) == " " * 24
    # -10..10: zero on cell round(11.5) = 12, the margin -5 on 6; 15 lies outside
    scale = Scale(-10, 10, (-10, 0, 10))
    assert bar(scale, (5, 1, 15), [(-5, "left")]) == "▒▒▒▒▒▒┊     │├───●─────›"
    assert axis(scale, ["−10", "0", "+10"]) == "−10         0        +10"


def test_progress_on_a_pipe_is_a_line_a_phase(monkeypatch):
    monkeypatch.delenv("NO_PROGRESS", raising=False)
    stream = io.StringIO()
    progress = Progress(stream)
    with progress.phase("Loading", "Loaded"):
        for share in range(100):
            progress.say(f"Loading {share} %")  # at most every 30 s: none of these
    with pytest.raises(ZeroDivisionError), progress.phase("Breaking", "Broken"):
        raise ZeroDivisionError
    assert stream.getvalue() == "Loading\n✓ Loaded  0 s\nBreaking\n"


def test_progress_on_a_terminal_rewrites_its_line(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_PROGRESS", raising=False)
    stream = Terminal()
    with Progress(stream).phase("Loading", "Loaded") as progress:
        progress.say("Loading 50 %")
    assert stream.getvalue() == "  Loading\r\x1b[K  Loading 50 %\r\x1b[K✓ Loaded  0 s\n"


def test_no_progress_says_nothing(monkeypatch):
    monkeypatch.setenv("NO_PROGRESS", "1")
    stream = io.StringIO()
    with Progress(stream).phase("Loading", "Loaded"):
        pass
    assert stream.getvalue() == ""


def test_durations():
    assert [seconds(value) for value in (0.4, 59.6, 91)] == ["0 s", "1 min 0 s", "1 min 31 s"]
