from pathlib import Path

import pytest

from nightschool.cli.progress import Progress
from nightschool.demo.story import Demo, Script, check_folder
from nightschool.errors import InputError


def test_a_folder_holds_one_seed(tmp_path: Path):
    check_folder(tmp_path, 1)  # nothing there yet
    Demo(tmp_path, Script(seed=1), Progress())
    check_folder(tmp_path, 1)  # it goes on
    with pytest.raises(InputError, match="seed 1"):
        check_folder(tmp_path, 2)


def test_a_store_of_somebody_else_is_left_alone(tmp_path: Path):
    (tmp_path / "store.sqlite").write_bytes(b"")
    with pytest.raises(InputError, match="not a demo's"):
        check_folder(tmp_path, 0)
