"""Untrusted text stays text, and what hides or reorders text is shown."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from nightschool.dashboard.marks import HIDDEN, one_line, plain, visible


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.found.append(tag)


def tags(html: str) -> set[str]:
    parser = Tags()
    parser.feed(html)
    return set(parser.found)


def test_an_override_becomes_a_named_mark() -> None:
    html = visible("pay \u202egnp.exe")
    assert "\u202e" not in html
    assert ">RLO</span>gnp.exe" in html
    assert 'title="U+202E right-to-left override"' in html


def test_escape_nul_and_lone_surrogates_are_shown() -> None:
    assert plain("a\x1b[31m\x00\ud800") == "a[ESC][31m[NUL][U+D800]"
    assert visible("\ud800").encode()  # can be sent


def test_joiners_and_right_to_left_letters_are_left_alone() -> None:
    # ZWNJ and ZWJ spell Persian words and emoji families
    for text in ("می\u200cخواهم", "👩\u200d👧", "لم تصل", "tab\tand\nline"):
        assert plain(text) == text


def test_a_preview_is_one_line_and_cut() -> None:
    assert one_line(" a\n\n b\tc ") == "a b c"
    assert one_line("x" * 200, 10) == "x" * 10 + "…"
    assert one_line("  " * 400 + "x", 10).endswith("…")


@given(st.text(st.characters(), max_size=200))
def test_nothing_but_marks_becomes_markup(text: str) -> None:
    html = str(visible(text))
    assert tags(html) <= {"span"}
    assert html.count("<span") == len(HIDDEN.findall(text))
    assert not HIDDEN.search(html)
