"""The colors: each pair that carries meaning has the contrast the design states."""

import re
from importlib import resources

import pytest

CSS = resources.files("nightschool.dashboard").joinpath("static", "style.css").read_text()
LIGHT, DARK = (dict(re.findall(r"--([a-z0-9-]+): (#[0-9A-F]{6})", part)) for part in CSS.split("@media", 2)[:2])
TEXT = [
    *[(ink, ground) for ink in ("ink", "muted") for ground in ("paper", "surface", "sunken")],
    *[(hue, ground) for hue in ("better", "worse") for ground in ("paper", "surface")],
    *[("ink", f"s{step}") for step in range(5)],
    ("attention-ink", "attention"),
    ("worse", "worse-tint"),
]


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("pair", TEXT, ids="-on-".join)
def test_text_is_readable(theme: dict[str, str], pair: tuple[str, str]) -> None:
    assert contrast(theme[pair[0]], theme[pair[1]]) >= 4.5


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_borders_of_controls_and_the_zero_line_are_visible(theme: dict[str, str]) -> None:
    assert contrast(theme["edge"], theme["surface"]) >= 3
    assert contrast(theme["edge"], theme["paper"]) >= 3


def test_both_themes_name_the_same_colors() -> None:
    assert set(LIGHT) == set(DARK)
    assert len(LIGHT) == 18


def test_nothing_is_loaded_from_elsewhere() -> None:
    assert "url(" not in CSS
    assert "@import" not in CSS
