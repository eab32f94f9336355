from pathlib import Path

import pytest

from nightschool.demo.journal import Journal


def test_a_finished_phase_is_not_done_again(tmp_path: Path):
    done: list[int] = []
    act = lambda: done.append(1) or {"n": 7}  # noqa: E731
    assert Journal(tmp_path / "j.json").once("day", act) == {"n": 7}
    assert Journal(tmp_path / "j.json").once("day", act) == {"n": 7}
    assert done == [1]


def test_a_phase_that_failed_is_done_again(tmp_path: Path):
    def fail() -> None:
        raise ValueError

    journal = Journal(tmp_path / "j.json")
    journal.note("tries", 1)
    with pytest.raises(ValueError):  # noqa: PT011
        journal.once("day", fail)
    again = Journal(tmp_path / "j.json")
    assert again.noted("tries") == 1
    assert again.once("day", lambda: 2) == 2
