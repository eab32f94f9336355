"""The pages keep what they promise: links lead somewhere, every command and every setting is told."""

import re
from pathlib import Path

import pytest

from nightschool.cli.commands import COMMANDS
from nightschool.cli.serving import GATEWAY_KEYS
from nightschool.config import PLAIN_KEYS, SECTIONS

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_no_machine(page):
    text = page.read_text()
    assert re.findall(r"(?:/root|/home/\w+|/tmp/\w+|/work)\b", text) == []
    assert re.findall(r"\bTODO\b|\bFIXME\b", text) == []


def test_the_command_line_page_is_whole():
    page = (ROOT / "docs" / "cli.md").read_text()
    for command in COMMANDS:
        words = [f"{command.name} {name}" for name in command.subcommands] or [command.name]
        assert all(f"`{word}" in page for word in words if word != "gate show"), command
    for name in (*PLAIN_KEYS, *GATEWAY_KEYS):
        assert re.search(rf"\b{name}\b", page), name
    assert all(f"[{section}" in page for section in SECTIONS)
