from pathlib import Path

import pytest

from nightschool.errors import ConfigError, InputError, MissingError, TooLittleDataError
from nightschool.training.stages import Stage, hold_out, read_stages, run_arms

A, B, C = Stage("sft", Path("a")), Stage("dpo", Path("b")), Stage("oapl")


def train(stage, start):
    made.append((stage, start))
    return f"{start or ''}{stage.objective[0]}"


made: list = []


@pytest.fixture(autouse=True)
def empty():
    made.clear()


def test_each_stage_starts_from_the_last_and_common_beginnings_are_run_once():
    arms = run_arms([A, B, C], train, leave_out=True)
    assert [(arm.adapter, arm.without) for arm in arms] == [("sdo", None), ("do", A), ("so", B), ("sd", C)]
    # whole: s, sd, sdo; without A: d, do; without B: so; without C: nothing new
    assert [start for _, start in made] == [None, "s", "sd", None, "d", "s"]


def test_without_leaving_one_out_and_alone():
    assert [arm.adapter for arm in run_arms([A, B], train, leave_out=False)] == ["sd"]
    assert [arm.without for arm in run_arms([A], train, leave_out=True)] == [None], (
        "nothing is left without its only one"
    )


def test_what_is_held_out_stays_so_and_is_in_no_run(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [f'{{"n": {i}}}' for i in range(300)]
    path.write_text("\n".join(lines) + "\n\n")
    stage, held = hold_out(Stage("sft", path), tmp_path / "1")
    assert stage.data
    assert held
    kept, out = (part.read_text().splitlines() for part in (stage.data, held))
    assert sorted(kept + out) == sorted(lines)
    assert 15 <= len(out) <= 45, "about a tenth"
    path.write_text("\n".join(reversed(lines)))
    _, again = hold_out(Stage("sft", path), tmp_path / "2")
    assert again
    assert sorted(again.read_text().splitlines()) == sorted(out), "a line's own hash decides"


def test_a_short_or_absent_file_is_refused(tmp_path):
    with pytest.raises(MissingError):
        hold_out(Stage("sft", tmp_path / "absent"), tmp_path)
    (tmp_path / "short").write_text("1\n2\n")
    with pytest.raises(TooLittleDataError, match="of its 2 lines"):
        hold_out(Stage("sft", tmp_path / "short"), tmp_path / "x")
    assert hold_out(C, tmp_path) == (C, None)


def test_what_is_declared(tmp_path):
    rows = [{"objective": "sft", "data": "h.jsonl"}, {"objective": "oapl"}]
    assert read_stages(rows, tmp_path) == (Stage("sft", tmp_path / "h.jsonl"), Stage("oapl"))
    for wrong in (None, [], {}, [{"data": "x"}], [{"objective": "sft", "dat": "x"}], [{"objective": 1}], ["sft"]):
        with pytest.raises(ConfigError):
            read_stages(wrong, tmp_path)
    with pytest.raises(InputError):
        read_stages([{"objective": "magic"}], tmp_path)
