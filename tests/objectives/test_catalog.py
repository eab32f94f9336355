"""What is told of the objectives is told of all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nightschool.objectives.catalog import OBJECTIVES, find_objective

PAGE = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text()


def column(heading: str, place: int) -> list[str]:
    """The code words in one column of the table below a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [word for row in rows[1:] for word in re.findall(r"`([a-z_]+)`", row[place])]


@pytest.mark.parametrize(("heading", "place"), [("Which one", 1), ("What each of them does", 0)])
def test_each_objective_stands_once_in_each_table_of_the_page(heading: str, place: int) -> None:
    """The first says when to take one, with its defaults, its needs and how it fails; the second what it does."""
    assert sorted(column(heading, place)) == sorted(OBJECTIVES)


def test_every_row_says_what_is_needed_and_how_it_fails() -> None:
    for line in PAGE.split("## Which one\n")[1].split("\n## ")[0].splitlines():
        if line.startswith("| "):
            assert len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 5
            assert all(cells), line


def test_a_name_finds_its_objective() -> None:
    assert all(find_objective(name).name == name for name in OBJECTIVES)
