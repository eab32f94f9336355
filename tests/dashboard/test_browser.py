"""Real Chromium over a real server: every page in both themes and three widths, with and without scripts.

Screenshots go to the folder NIGHTSCHOOL_SCREENSHOTS names, else to the test's temporary folder.
"""

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from dashboard import states
from dashboard.conftest import State
from starlette.applications import Starlette

from nightschool.dashboard.app import build_dashboard
from nightschool.store import schema

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
VIEWS = [("light", 1280, 800), ("dark", 1280, 800), ("light", 390, 844), ("dark", 320, 640)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium: apt-get install chromium"),
]

# Elements whose text is cut or that reach beyond the window; what is clipped on purpose says so with an ellipsis.
GEOMETRY = """() => {
  const found = [];
  const wide = document.documentElement.clientWidth;
  const page = document.documentElement.scrollWidth;
  if (page > wide) found.push(`sideways scroll ${page}`);
  for (const box of document.querySelectorAll("body *")) {
    if (box.closest("svg, canvas, .visually-hidden, .skip, details:not([open]) > :not(summary)")) continue;
    if (!box.getClientRects().length) continue;
    const name = `${box.tagName}.${box.className}: ${box.textContent.trim().slice(0, 40)}`;
    const rect = box.getBoundingClientRect();
    if (rect.right > wide + 1 && !box.closest("pre, .clip, thead")) found.push(`beyond the edge ${name}`);
    const style = getComputedStyle(box);
    const hides = style.overflowX === "hidden" && style.textOverflow !== "ellipsis";
    if (hides && box.scrollWidth > box.clientWidth + 1 && !box.closest("thead, .u-wrap")) found.push(`cut ${name}`);
  }
  const texts = [...document.querySelectorAll("td, th, dt, dd, h1, h2, h3, p, li > a, .chip, .reading")]
    .filter((box) => !box.closest(".visually-hidden, thead, svg, details:not([open])") && box.getClientRects().length);
  const words = texts.filter((box) => !texts.some((other) => other !== box && box.contains(other)));
  const rects = words.map((box) => [box, box.getBoundingClientRect()]);
  for (const [one, a] of rects) for (const [two, b] of rects) {
    if (one === two || one.contains(two) || two.contains(one)) continue;
    if (one.closest(".sticky") !== two.closest(".sticky")) continue;
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    const names = [one, two].map((box) => box.textContent.trim().slice(0, 30));
    if (across > 1 && down > 1) found.push(`overlap ${names.join(" | ")}`);
  }
  for (const plot of document.querySelectorAll("svg.iv")) {
    const cell = plot.getBoundingClientRect();
    for (const mark of plot.querySelectorAll("circle, .cap, .span")) {
      const rect = mark.getBoundingClientRect();
      if (rect.left < cell.left - 1 || rect.right > cell.right + 1) found.push("an interval leaves its cell");
    }
  }
  return found;
}"""


class Site:
    """A state of the store behind a real server on loopback."""

    def __init__(self, state: State, app: Starlette | None = None) -> None:
        facts = {"engine": "engine ready, 3 adapters", "lost": 0}
        app = app or Starlette(routes=build_dashboard(state.store, lambda: dict(facts)))
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        self.state = state
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]})
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()

    def paths(self) -> dict[str, str]:
        """Pages by the name of their screenshot."""
        client, ids = self.state.client, self.state.ids
        found = {name: f"/{name}" for name in ("sessions", "feedback", "ledger", "imports", "keys", "runs", "releases")}
        found |= {"overview": "/", "parked": "/feedback?state=parked", "missing": "/runs/nope"}
        rows = client.get("/sessions.json").json()["data"]["rows"]
        if rows:
            session = f"/sessions/{rows[0]['id']}"
            found |= {"session": session, "tokens": f"{session}?view=tokens", "raw": f"{session}?view=raw"}
        if "refused" in ids:
            found |= {f"run-{name}": f"/runs/{ids[key]}" for name, key in (("v2", states.V2), ("now", "running"))}
            found |= {"refused": f"/verdicts/{ids['refused']}", "promoted": f"/verdicts/{ids[f'verdict {states.V3}']}"}
            found["judged"] = f"/exchanges/{ids[f'exchanges {states.V1}'][0][1]}"
        if "picture" in ids:
            found |= {name: f"/exchanges/{ids[name]}" for name in ("first", "second", "lost", "picture")}
            found["examples"] = "/ledger?state=excluded&reason=text+only"
        if "exchanges" in ids:
            found |= {"run": f"/runs/{ids['run']}", "verdict": f"/verdicts/{ids['verdict']}"}
            found |= {f"session-{n}": f"/exchanges/{exchange}" for n, exchange in enumerate(ids["exchanges"])}
        return found


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    opened = Site(request.getfixturevalue(request.param))
    yield opened
    opened.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return Path(os.environ.get("NIGHTSCHOOL_SCREENSHOTS") or tmp_path)


def watch(page, site: Site) -> list[str]:
    """What the page complains about: console, errors, policy violations, requests to elsewhere."""
    seen: list[str] = []
    page.on("console", lambda message: seen.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.append(f"error: {error}"))
    page.on("request", lambda request: request.url.startswith(site.url) or seen.append(f"elsewhere: {request.url}"))
    page.on("dialog", lambda dialog: seen.append(f"dialog: {dialog.message}"))
    page.add_init_script(
        "document.addEventListener('securitypolicyviolation', (e) => console.error('csp ' + e.violatedDirective));"
    )
    return seen


@pytest.mark.parametrize("site", ["empty", "twelve", "waiting", "nights", "recorded", "hostile"], indirect=True)
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{view[0]}-{view[1]}")
def test_pages_draw_without_a_complaint(browser, site, view, pictures, request) -> None:
    scheme, width, height = view
    folder = pictures / request.node.callspec.params["site"]
    folder.mkdir(parents=True, exist_ok=True)
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
    page = context.new_page()
    complaints = watch(page, site)
    for name, path in site.paths().items():
        page.goto(site.url + path)
        page.wait_for_timeout(60)
        page.evaluate("for (const part of document.querySelectorAll('.plots details')) part.open = true")
        found = page.evaluate(GEOMETRY)
        page.evaluate("for (const part of document.querySelectorAll('.plots details')) part.open = false")
        page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
        expected = 1 if name == "missing" else 0  # the console names the 404 of the page itself
        assert (name, found) == (name, [])
        assert len(complaints) == expected, (name, complaints)
        assert page.title() != "owned"
        complaints.clear()
    context.close()


@pytest.mark.parametrize("site", ["nights"], indirect=True)
def test_everything_is_readable_without_scripts(browser, site) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    for path in site.paths().values():
        page.goto(site.url + path)
        assert page.locator("h1").inner_text()
    page.goto(f"{site.url}/runs/{site.state.ids[states.V2]}")
    assert page.locator("svg.standin polyline").first.bounding_box()["height"] > 50
    page.goto(f"{site.url}/sessions")
    page.select_option("select[name=outcome]", "down")
    page.click("text=Filter sessions")
    assert "outcome=down" in page.url
    assert page.locator("tbody tr").count() > 0
    context.close()


@pytest.mark.parametrize("site", ["nights"], indirect=True)
def test_views_change_in_place_and_keep_the_focus(browser, site) -> None:
    page = browser.new_page()
    complaints = watch(page, site)
    page.goto(site.url + site.paths()["session"])
    page.focus("#view-tokens")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tokens")
    assert page.url.endswith("view=tokens")
    assert page.evaluate("document.activeElement.id") == "view-tokens"
    assert page.locator(".tokens span").first.get_attribute("title")
    page.go_back()
    page.wait_for_selector("#view-read[aria-current]")
    assert page.locator(".tokens").count() == 0
    # htmx keeps the path it is at; nothing of what was read
    kept = page.evaluate("[...Object.values(sessionStorage), ...Object.values(localStorage)]")
    assert all(value.startswith("/sessions/") and len(value) < 80 for value in kept)
    assert complaints == []


@pytest.mark.parametrize("site", ["nights"], indirect=True)
def test_curves_are_read_by_keyboard_and_follow_the_theme(browser, site) -> None:
    page = browser.new_page(color_scheme="light")
    page.goto(f"{site.url}/runs/{site.state.ids[states.V2]}", wait_until="networkidle")
    assert page.locator(".canvas canvas").count() == page.locator("figure[data-plot]").count() >= 4
    page.focus(".canvas >> nth=0")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.locator("#said").inner_text().startswith("Step 2: loss ")
    assert page.locator(".step").first.inner_text() == "step 2"
    before = page.locator("figure").first.screenshot()
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(300)
    assert page.locator("figure").first.screenshot() != before
    page.locator("details summary").first.click()
    assert page.locator("details table tbody tr").count() > 10


@pytest.mark.parametrize("site", ["nights"], indirect=True)
def test_a_running_run_moves_by_itself_and_an_open_table_stays_open(browser, site) -> None:
    page = browser.new_page()
    complaints = watch(page, site)
    run = site.state.ids["running"]
    page.goto(f"{site.url}/runs/{run}", wait_until="networkidle")
    page.locator("#table-1 summary").click()
    row = {"tenant": "default", "run_id": run, "name": "loss", "step": 12, "value": 0.0123}
    site.state.store.write(lambda conn: conn.execute(schema.run_metrics.insert().values(**row)))
    page.get_by_role("heading", level=1).filter(has_text="step 12").wait_for(timeout=30_000)
    assert page.locator("#table-1").get_attribute("open") is not None
    assert page.locator(".canvas canvas").count() == page.locator("figure[data-plot]").count()
    assert page.locator(".key b").first.inner_text() == "0.0123"
    assert complaints == []


@pytest.mark.parametrize("site", ["twelve"], indirect=True)
def test_a_hidden_page_asks_nothing_and_a_selection_is_left_alone(browser, site) -> None:
    page = browser.new_page()
    page.clock.install()
    asked: list[str] = []
    page.goto(site.url)
    page.wait_for_load_state("networkidle")
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("getSelection().selectAllChildren(document.querySelector('h1'))")
    page.clock.run_for(40_000)
    assert asked == []
    page.evaluate("getSelection().removeAllRanges()")
    page.clock.run_for(31_000)
    page.wait_for_timeout(200)
    assert len(asked) == 1
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(120_000)
    assert len(asked) == 1


@pytest.mark.parametrize("site", ["nights"], indirect=True)
def test_from_the_answer_to_the_verdict_by_keyboard_alone(browser, site) -> None:
    page = browser.new_page()
    page.goto(site.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the answer"
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        if page.evaluate("document.activeElement.textContent").startswith("verdict on"):
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/verdicts/*")
    assert page.locator("h1").inner_text().startswith("REFUSE ")
