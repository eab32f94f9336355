"""Five items handled by keyboard alone in real Chromium, with undo; screenshots as in `test_browser.py`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard.test_browser import GEOMETRY, VIEWS, Site, browser, pictures, pytestmark, watch
from dashboard.test_inbox import Desk

__all__ = ["browser", "pictures", "pytestmark"]
LIMIT_MS = 100.0  # from a key to the next item on the page
PAUSE_MS = 500  # between two acts: meanwhile the next item is fetched


class Served(Site):
    """The desk behind a real server."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk, desk.app)  # type: ignore[arg-type]

    def open(self, browser, **more):
        known = {"username": "me", "password": "the-admin", "origin": self.url}
        return browser.new_context(http_credentials=known, **more)


@pytest.fixture
def site(file_store) -> Iterator[Served]:
    opened = Served(Desk(file_store))
    yield opened
    opened.close()


def enter(page, site) -> None:
    """From the list, signed in, into its first item, by keyboard."""
    page.goto(f"{site.url}/sign-in?to=/feedback")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("#inbox")
    page.wait_for_load_state("networkidle")


def item(page) -> str:
    return page.locator("#inbox").get_attribute("data-item")


def press(page, key: str) -> float:
    """Press a key; the milliseconds until another item is on the page, as the page itself measures them."""
    watcher = """(key) => new Promise((done) => {
      const before = document.getElementById("inbox").dataset.item;
      const start = performance.now();
      const look = () => {
        const now = document.getElementById("inbox");
        if (now.dataset.item !== before) requestAnimationFrame(() => done(performance.now() - start));
        else if (performance.now() - start > 8000) done(1e9);
        else setTimeout(look, 1);
      };
      document.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      look();
    })"""
    took = page.evaluate(watcher, key)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(PAUSE_MS)
    return took


def test_five_items_by_keyboard_alone_with_undo(browser, site) -> None:
    context = site.open(browser)
    page = context.new_page()
    complaints = watch(page, site)
    enter(page, site)
    items = site.state.unread()
    assert len(items) == 6
    assert item(page) == items[0]
    times = [press(page, "2")]  # one: down
    assert item(page) == items[1]
    assert page.locator("#flash").inner_text().startswith("Judged down.")
    assert page.evaluate("document.activeElement.id") == "inbox"
    times.append(press(page, "a"))  # two: the reading is right
    assert item(page) == items[2]
    page.keyboard.press("c")  # three: a correction
    assert page.evaluate("document.activeElement.name") == "text"
    page.keyboard.type("It is still on its way.")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(f'#inbox[data-item="{items[3]}"]')
    page.wait_for_timeout(PAUSE_MS)
    times.append(press(page, "x"))  # four: excluded, and taken back
    assert item(page) == items[4]
    assert len(site.state.unread()) == 2
    page.keyboard.press("z")
    page.wait_for_selector(f'#inbox:not([data-item="{items[4]}"])')
    page.wait_for_timeout(PAUSE_MS)
    assert len(site.state.unread()) == 3
    assert "taken back" not in page.locator("h1").inner_text()
    page.keyboard.press("x")
    page.wait_for_timeout(400)
    page.goto(f"{site.url}/feedback/{items[4]}")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("m")  # five: about another reply
    assert page.evaluate("document.activeElement.name") == "to"
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_selector(f'#inbox:not([data-item="{items[4]}"])')
    told = site.state.client.get(f"/feedback/{item(page)}.json").json()["data"]
    assert told["item"]["exchange_id"] in [pair[0] for pair in site.state.exchanges]  # the reply above
    assert page.evaluate("document.activeElement.id") == "inbox"
    assert complaints == []
    assert max(times) < LIMIT_MS, times
    context.close()


def test_keys_are_told_by_one_sheet_silent_in_fields_and_can_be_turned_off(browser, site) -> None:
    context = site.open(browser)
    page = context.new_page()
    enter(page, site)
    first = item(page)
    bound = page.evaluate("[...new Set([...document.querySelectorAll('[data-key]')].map((part) => part.dataset.key))]")
    page.keyboard.press("?")
    told = page.locator("dialog.keys dt").all_inner_texts()
    assert told == bound
    assert {"a", "1", "2", "3", "m", "c", "x", "j", "u", "?"} <= set(told)
    page.keyboard.press("Escape")
    assert page.locator("dialog.keys").count() == 0
    page.keyboard.press("c")
    page.keyboard.type("a1x?")
    assert page.locator("textarea").input_value() == "a1x?"
    page.keyboard.press("Escape")
    assert page.locator("#correction").get_attribute("open") is None
    assert item(page) == first
    page.keyboard.press("?")
    page.locator("dialog.keys button").click()
    page.keyboard.press("x")
    page.wait_for_timeout(300)
    assert item(page) == first
    assert len(site.state.unread()) == 6
    context.close()


def test_a_refused_act_is_said_where_one_is_and_nothing_is_lost(browser, site) -> None:
    context = site.open(browser)
    page = context.new_page()
    enter(page, site)
    page.evaluate("document.querySelectorAll('[name=form_token]').forEach((field) => (field.value = 'stale'))")
    page.keyboard.press("x")
    page.locator("#flash", has_text="Nothing was changed.").wait_for()
    assert page.locator("#flash a").inner_text() == "Back to it"
    assert len(site.state.unread()) == 6
    context.close()


def test_everything_is_done_without_scripts_too(browser, site) -> None:
    context = site.open(browser, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site.url}/sign-in?to=/feedback")
    items = site.state.unread()
    page.click("a[data-row] >> nth=0")
    page.click("text=Accept")
    assert f"/feedback/{items[1]}" in page.url
    page.click("text=Undo")
    assert len(site.state.unread()) == 6
    page.locator("#correction summary").click()
    page.fill("textarea", "Better.")
    page.click("text=Save correction")
    assert "Correction saved." in page.locator("#flash").inner_text()
    context.close()


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{view[0]}-{view[1]}")
def test_the_inbox_draws_without_a_complaint(browser, site, view, pictures) -> None:
    scheme, width, height = view
    folder = Path(pictures) / "inbox"
    folder.mkdir(parents=True, exist_ok=True)
    context = site.open(browser, color_scheme=scheme, viewport={"width": width, "height": height})
    page = context.new_page()
    complaints = watch(page, site)
    page.goto(f"{site.url}/sign-in?to=/feedback")
    text = site.state.texts()[-1]["id"]
    looked = {"list": "/feedback", "thumb": f"/feedback/{site.state.unread()[0]}", "text": f"/feedback/{text}"}
    for name, path in looked.items():
        page.goto(site.url + path)
        page.wait_for_load_state("networkidle")
        found = page.evaluate(GEOMETRY)
        page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
        assert (name, found) == (name, [])
    page.evaluate("for (const part of document.querySelectorAll('.acts details')) part.open = true")
    found = page.evaluate(GEOMETRY)
    page.screenshot(path=folder / f"open-{width}-{scheme}.png", full_page=True)
    assert found == []
    page.goto(f"{site.url}/feedback/{text}")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("x")
    page.locator("#flash", has_text="Excluded.").wait_for()
    page.goto(f"{site.url}/feedback/{text}")
    page.screenshot(path=folder / f"done-{width}-{scheme}.png", full_page=True)
    assert complaints == []
    context.close()
